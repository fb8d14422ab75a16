#include "loading.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "calls.h"
#include "cuda/launch/gpu_plan.h"
#include "lab/measure/gpu_ruler.h"

namespace flashlab::costs {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

const char* origin_name(cuda::ImageOrigin origin) {
  if (origin == cuda::ImageOrigin::kCompiler) return "compiler";
  return origin == cuda::ImageOrigin::kCache ? "cache" : "precompiled";
}

// A folder for a cache, removed with everything in it at the end.
class CacheFolder {
 public:
  CacheFolder()
      : path_((std::filesystem::temp_directory_path() / "flashlab-costs-XXXXXX").string()) {
    ok_ = mkdtemp(path_.data()) != nullptr;
    if (!ok_) std::fprintf(stderr, "gpu_costs: no folder can be made as %s\n", path_.c_str());
  }
  ~CacheFolder() {
    std::error_code ignored;
    if (ok_) std::filesystem::remove_all(path_, ignored);
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;
  bool ok() const { return ok_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool ok_ = false;
};

// What `body` gives in a process of its own, where no kernel is loaded yet; null if it failed: then
// the child has said on standard error why.
Json in_a_child(const std::function<Json()>& body) {
  int ends[2];
  std::fflush(nullptr);
  const pid_t child = pipe(ends) == 0 ? fork() : -1;
  if (child < 0) {
    std::fprintf(stderr, "gpu_costs: no child process can be made\n");
    return nullptr;
  }
  if (child == 0) {
    close(ends[0]);
    const std::string text = body().dump();
    const bool written = write(ends[1], text.data(), text.size()) == ssize_t(text.size());
    std::fflush(nullptr);
    std::_Exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Json out = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (WIFSIGNALED(status)) std::fprintf(stderr, "gpu_costs: signal %d\n", WTERMSIG(status));
  const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !out.is_discarded();
  return fine ? out : Json(nullptr);
}

// In a child: the kernels of a plan, each of which must come from the given place.
Json kernels_of(cuda::GpuDevice& gpu, const runtime::Program& program, const char* expected) {
  Json out = Json::array();
  for (const auto& [step, work] : program.kernels()) {
    const auto start = Clock::now();
    const auto kernel = cuda::load_kernel(gpu, work->spec, work->shape.shared_bytes);
    const double ms = milliseconds_since(start);
    require(kernel.status(), step->name);
    const char* origin = origin_name((*kernel)->origin);
    if (std::string(origin) != expected) {
      std::fprintf(stderr, "gpu_costs: %s came from the %s, not from the %s\n", step->name.c_str(),
                   origin, expected);
      std::fflush(nullptr);
      std::_Exit(1);
    }
    out.push_back({{"kernel", step->name}, {"ms", ms}});
  }
  return out;
}

struct Preparation {
  std::string folder;  ///< the cache
  const char* origin;  ///< where every kernel must come from
  bool one_by_one;     ///< else by `prepare`, in parallel
};

// In a child: a context and NVRTC first, then the kernels of the call under the clock.
Json prepare_call(const Call& call, const Preparation& how) {
  setenv("FLASHLAB_CACHE", how.folder.c_str(), 1);
  unsetenv("FLASHLAB_PRECOMPILED");
  // Else the driver loads a module when its kernel is first launched, and not here.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  auto context = Context::create({.device = {DeviceKind::kCuda, 0}});
  require(context.status(), "context");
  cuda::GpuDevice& gpu = *context->state().gpu();
  // Of no plan. With an empty cache it is compiled, which loads the compiler.
  require(cuda::load_kernel(gpu, lab::spin_kernel()).status(), "lab_spin");
  auto made = plan(*context, problem_of(call, context->device()));
  require(made.status(), call.name);
  const runtime::Program& program = *made->state().program();
  if (how.one_by_one) return kernels_of(gpu, program, how.origin);
  const auto start = Clock::now();
  require(prepare(*context, *made), call.name);
  const double ms = milliseconds_since(start);
  kernels_of(gpu, program, how.origin);
  return ms;
}

// Of the same thing in every round: on a host with other work one compilation differs from the next
// by half.
Json median(std::vector<Json> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// Rounds of kernels_of as one: of every kernel the median, beside it all that was measured.
Json merged(const std::vector<Json>& rounds) {
  Json out = rounds[0];
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::vector<Json> samples;
    for (const Json& round : rounds) samples.push_back(round[i]["ms"]);
    out[i]["ms"] = median(samples);
    out[i]["samples_ms"] = samples;
  }
  return out;
}

double slowest(const Json& kernels) {
  double out = 0;
  for (const Json& each : kernels) out = std::max(out, each["ms"].get<double>());
  return out;
}

double compile_bar_ms(const Call& call) {
  const bool longer = call.dtype == DType::kFp32 && call.pass == Pass::kBackward &&
                      call.precision == Precision::kIeee;
  return longer ? kFp32BackwardCompileBarMs : kCompileBarMs;
}

// The bar is each kernel's; the plan's time says what they take side by side.
Json row(const Call& call, const Json& kernels, const Json& plan_ms, double bar_ms) {
  const double worst = slowest(kernels);
  std::printf("%-26s %zu kernels, slowest %8.2f ms (bar %g), plan %8.2f ms%s\n", call.name,
              kernels.size(), worst, bar_ms, plan_ms.get<double>(),
              worst < bar_ms ? "" : "  OVER THE BAR");
  std::fflush(stdout);
  return {{"call", call.name},  {"kernels", kernels}, {"slowest_kernel_ms", worst},
          {"plan_ms", plan_ms}, {"bar_ms", bar_ms},   {"within_bar", worst < bar_ms}};
}

}  // namespace

std::optional<LoadingCosts> measure_loading() {
  LoadingCosts out{Json::array(), Json::array()};
  for (const Call& call : kLoadedCalls) {
    std::vector<Json> compiled, compiled_plan, loaded, loaded_plan;
    for (int round = 0; round < kLoadingRounds; ++round) {
      const CacheFolder alone, together;
      if (!alone.ok() || !together.ok()) return std::nullopt;
      const auto measure = [&](std::vector<Json>& into, const CacheFolder& folder,
                               const char* origin, bool one_by_one) {
        into.push_back(in_a_child([&] {
          return prepare_call(call, {folder.path(), origin, one_by_one});
        }));
        return !into.back().is_null();
      };
      if (!measure(compiled, alone, "compiler", true) ||
          !measure(compiled_plan, together, "compiler", false) ||
          !measure(loaded, alone, "cache", true) ||
          !measure(loaded_plan, together, "cache", false)) {
        return std::nullopt;
      }
    }
    std::printf("compile  ");
    out.compile.push_back(row(call, merged(compiled), median(compiled_plan), compile_bar_ms(call)));
    std::printf("load     ");
    out.load.push_back(row(call, merged(loaded), median(loaded_plan), kLoadBarMs));
  }
  return out;
}

}  // namespace flashlab::costs
