#include "runtime/kernel_store/compile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/kernel_store/nvrtc.h"
#include "runtime/kernel_store/sources.h"

namespace flashlab::cuda {
namespace {

// "sm80/forward/kernel.cu" -> "sm80-forward-kernel": readable, it starts a file's name.
std::string readable_name(std::string source) {
  source.erase(std::min(source.rfind('.'), source.size()));
  std::replace(source.begin(), source.end(), '/', '-');
  return source;
}

// Source lines in an image are what profilers show and four fifths of its bytes: on request.
std::vector<std::string> options_of(const KernelSpec& spec) {
  std::vector<std::string> options = spec.options;
  const char* wanted = std::getenv("FLASHLAB_LINE_INFO");
  if (wanted != nullptr && *wanted != '\0') options.emplace_back("--generate-line-info");
  return options;
}

// The translation unit of a spec: its Config first, because the kernel's file reads it.
std::string main_text(const KernelSpec& spec) {
  return "#include \"config_types.h\"\n" + spec.config + "\n#include \"" + spec.source + "\"\n";
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + "\n";
  return text;
}

// The reasons for which folders were not used, each once: a look-up and a store may give the same.
class Warnings {
 public:
  void add(const Status& status) {
    const std::string text = status.message();
    if (text_.find(text) == std::string::npos) text_ += (text_.empty() ? "" : "; ") + text;
  }
  const std::string& text() const { return text_; }

  Status added_to(const Status& failure) const {
    if (text_.empty()) return failure;
    ErrorDetail detail = failure.detail();
    detail.remedy += (detail.remedy.empty() ? "not used: " : "; not used: ") + text_;
    return Status(failure.code(), std::move(detail));
  }

 private:
  std::string text_;
};

std::function<void()>& listener() {
  static auto& tell = *new std::function<void()>;
  return tell;
}

// Looks at a compilation while it lasts.
class Watch {
 public:
  Watch() {
    static std::atomic<bool>& told = *new std::atomic<bool>(false);
    if (!listener() || told) return;
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      const auto over = [this] { return over_; };
      if (!ended_.wait_for(lock, std::chrono::milliseconds(500), over) && !told.exchange(true)) {
        listener()();
      }
    });
  }
  ~Watch() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace

void when_compiling_takes_long(std::function<void()> tell) {
  listener() = std::move(tell);
}

std::string compile_target(const std::string& architecture, const std::vector<int>& known) {
  constexpr std::string_view kPrefix = "sm_";
  if (architecture.rfind(kPrefix, 0) != 0) return architecture;
  const int wanted = std::atoi(architecture.c_str() + kPrefix.size());
  int below = 0;
  for (const int number : known) {
    if (number <= wanted) below = std::max(below, number);
  }
  return below == 0 || below == wanted ? architecture : "compute_" + std::to_string(below);
}

bool is_ptx(const CachedKernel& kernel) {
  return kernel.image.rfind(
             "\x7f"
             "ELF",
             0) != 0;
}

Result<KernelKey> key_of(const KernelSpec& spec, const std::string& architecture) {
  auto sources = DeviceSources::get();
  if (!sources.ok()) return sources.status();
  const std::string text = main_text(spec);
  return KernelKey{(*sources)->digest(text), readable_name(spec.source), text,
                   joined(options_of(spec)), architecture};
}

Result<KernelImage> compile_image(const KernelSpec& spec, const std::string& architecture) {
  auto sources = DeviceSources::get();
  if (!sources.ok()) return sources.status();
  auto nvrtc = Nvrtc::get();
  if (!nvrtc.ok()) return nvrtc.status();
  CompileRequest request;
  request.main = {readable_name(spec.source) + ".main.cu", main_text(spec)};
  request.headers = (*sources)->closure(request.main.text);
  request.architecture = compile_target(architecture, (*nvrtc)->architectures());
  request.options = options_of(spec);
  auto compiled = (*nvrtc)->compile(request);
  if (!compiled.ok()) return compiled.status();
  KernelImage image;
  image.kernel = {std::move(compiled->image), std::move(compiled->log), compiled->compiler};
  image.compile_seconds = compiled->seconds;
  return image;
}

Result<KernelImage> image_of(const KernelSpec& spec, const std::string& architecture) {
  auto key = key_of(spec, architecture);
  if (!key.ok()) return key.status();
  KernelImage image;
  Warnings warnings;
  const auto look_in = [&](const KernelCache& cache, ImageOrigin origin) {
    auto found = cache.find(*key);
    if (!found.ok()) warnings.add(found.status());
    if (!found.ok() || !found->has_value()) return false;
    image.kernel = std::move(**found);
    image.origin = origin;
    image.cache_warning = warnings.text();
    return true;
  };
  if (const char* folder = std::getenv("FLASHLAB_PRECOMPILED");
      folder != nullptr && *folder != '\0') {
    const KernelCache precompiled(folder, KernelCache::Access::kReadOnly);
    if (look_in(precompiled, ImageOrigin::kPrecompiled)) return image;
  }
  const KernelCache* shipped = KernelCache::shipped();
  if (shipped != nullptr && look_in(*shipped, ImageOrigin::kPrecompiled)) return image;
  const KernelCache cache = KernelCache::of_user();
  if (look_in(cache, ImageOrigin::kCache)) return image;
  auto compiled = [&] {
    const Watch watch;
    return compile_image(spec, architecture);
  }();
  if (!compiled.ok()) return warnings.added_to(compiled.status());
  if (Status s = cache.store(*key, compiled->kernel); !s.ok()) warnings.add(s);
  compiled->cache_warning = warnings.text();
  return compiled;
}

Result<ResourceUse> resource_use(const std::string& log, const std::string& entry) {
  const std::size_t start = log.find("Compiling entry function '" + entry + "'");
  if (start == std::string::npos) {
    return Status(StatusCode::kInternal,
                  {"compiler log", "no report of '" + entry + "'", "ptxas -v's report", ""});
  }
  ResourceUse use;
  const std::size_t next = log.find("Compiling entry function", start + 1);
  const std::string text = log.substr(start, next - start);
  const auto scan = [&](const char* after, const char* format, auto*... values) {
    const std::size_t at = text.find(after);
    if (at == std::string::npos) return false;
    const std::size_t line = text.rfind('\n', at) + 1;
    return std::sscanf(text.c_str() + line, format, values...) == sizeof...(values);
  };
  scan("bytes stack frame", "%*[^0-9]%d bytes stack frame, %d bytes spill stores, %d bytes spill",
       &use.stack_bytes, &use.spill_store_bytes, &use.spill_load_bytes);
  if (!scan("Used ", "%*[^U]Used %d registers", &use.registers)) {
    return Status(StatusCode::kInternal, {"compiler log", text, "a line 'Used N registers'", ""});
  }
  if (const std::size_t smem = text.find(" bytes smem"); smem != std::string::npos) {
    const std::size_t number = text.rfind(' ', smem - 1) + 1;
    use.static_shared_bytes = std::atoi(text.c_str() + number);
  }
  return use;
}

}  // namespace flashlab::cuda
