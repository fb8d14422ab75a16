// What a GPU call costs besides its kernels: compiling, loading, the host's share of a call.
//
//   gpu_costs compile     with an empty FLASHLAB_CACHE: seconds to compile and load each plan
//   gpu_costs load        with the cache that `compile` filled: milliseconds to load each plan
//   gpu_costs call        microseconds of host time per call, and per bare launch
//   gpu_costs repeat N    runs each plan N times on the same inputs and compares every bit
//
// One JSON object per line on standard output; exit code 1 when something failed or differed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "cuda/driver/device.h"
#include "cuda/launch/gpu_plan.h"
#include "flashlab/flashlab.h"

namespace {

using namespace flashlab;
using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

void require(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_costs: %s: %s\n", what, status.message().c_str());
  std::exit(1);
}

struct Call {
  const char* name;
  DType dtype;
  Pass pass;
  std::int64_t seqlen, head_dim;
  bool deterministic = false;
};

// Short problems: the GPU is never what the host waits for.
const Call kCalls[] = {
    {"forward bf16 d128", DType::kBf16, Pass::kForward, 1024, 128},
    {"backward bf16 d128", DType::kBf16, Pass::kBackward, 1024, 128},
    {"backward bf16 d128 deterministic", DType::kBf16, Pass::kBackward, 1024, 128, true},
    {"forward fp16 d64", DType::kFp16, Pass::kForward, 1024, 64},
    {"backward fp16 d64", DType::kFp16, Pass::kBackward, 1024, 64},
    {"forward fp32 ieee d128", DType::kFp32, Pass::kForward, 1024, 128},
    {"backward fp32 ieee d128", DType::kFp32, Pass::kBackward, 1024, 128},
    {"backward fp32 ieee d64 deterministic", DType::kFp32, Pass::kBackward, 1024, 64, true},
};

// The tensors of a call in device memory: one batch, eight heads, causal.
class Tensors {
 public:
  Tensors(const Context& context, const Call& call)
      : gpu_(*context.state().gpu()), allocator_(context.allocator()), call_(call) {
    const Device device = context.device();
    const std::int64_t s = call.seqlen, d = call.head_dim;
    const auto make = [&](bool random) {
      const TensorSpec spec = contiguous_spec(call.dtype, {1, s, kHeads, d}, device);
      return Tensor{memory(static_cast<std::size_t>(spec.bytes()), random), spec};
    };
    q_ = make(true), k_ = make(true), v_ = make(true), d_o_ = make(true);
    o_ = make(false), dq_ = make(false), dk_ = make(false), dv_ = make(false);
    const TensorSpec lse = contiguous_spec(DType::kFp32, {1, kHeads, s}, device);
    lse_ = {memory(static_cast<std::size_t>(lse.bytes()), false), lse};
    options_.causal = Causal::kCausal;
    options_.deterministic = call.deterministic;
  }

  ForwardTensors forward() const { return {.q = q_, .k = k_, .v = v_, .o = o_, .lse = lse_}; }
  BackwardTensors backward() const {
    BackwardTensors t;
    t.q = q_, t.k = k_, t.v = v_, t.o = o_, t.lse = lse_, t.d_o = d_o_;
    t.dq = dq_, t.dk = dk_, t.dv = dv_;
    return t;
  }
  const Options& options() const { return options_; }
  Problem problem() const {
    return call_.pass == Pass::kForward ? describe(forward(), options_)
                                        : describe(backward(), options_);
  }
  Status run(const Context& context, const Plan& plan, Workspace workspace) const {
    return call_.pass == Pass::kForward
               ? flashlab::forward(context, {}, plan, forward(), workspace)
               : flashlab::backward(context, {}, plan, backward(), workspace);
  }

  // Bytes of every output.
  std::vector<char> outputs() const {
    std::vector<char> all;
    const auto add = [&](const Tensor& t) {
      const std::size_t at = all.size(), bytes = static_cast<std::size_t>(t.spec.bytes());
      all.resize(at + bytes);
      const auto current = gpu_.current();
      gpu_.api().cuMemcpyDtoHAsync(all.data() + at, reinterpret_cast<cuda::CUdeviceptr>(t.data),
                                   bytes, nullptr);
      gpu_.api().cuStreamSynchronize(nullptr);
    };
    if (call_.pass == Pass::kForward) {
      add(o_), add(lse_);
    } else {
      add(dq_), add(dk_), add(dv_);
    }
    return all;
  }

  void* memory(std::size_t bytes, bool random) {
    auto made = allocator_.allocate(bytes, 256, {}, Tag{"tensor", "gpu_costs"});
    require(made.status(), "memory");
    std::vector<char> host(bytes, 0);
    if (random) fill(host);
    const auto current = gpu_.current();
    gpu_.api().cuMemcpyHtoDAsync(reinterpret_cast<cuda::CUdeviceptr>(*made), host.data(), bytes,
                                 nullptr);
    gpu_.api().cuStreamSynchronize(nullptr);
    return *made;
  }

 private:
  static constexpr std::int64_t kHeads = 8;

  void fill(std::vector<char>& host) {
    std::normal_distribution<float> normal;
    const std::size_t size = size_of(call_.dtype);
    for (std::size_t i = 0; i + size <= host.size(); i += size) {
      const float x = normal(random_);
      const std::uint16_t bits =
          call_.dtype == DType::kBf16 ? bf16_from_float(x) : fp16_from_float(x);
      if (size == 4) {
        std::memcpy(&host[i], &x, 4);
      } else {
        std::memcpy(&host[i], &bits, 2);
      }
    }
  }

  cuda::GpuDevice& gpu_;
  Allocator& allocator_;
  Call call_;
  Options options_;
  std::mt19937 random_{1};
  Tensor q_, k_, v_, o_, d_o_, dq_, dk_, dv_, lse_;
};

struct Prepared {
  Plan plan;
  Workspace workspace;
};

Prepared prepared(const Context& context, Tensors& tensors) {
  auto made = plan(context, tensors.problem());
  require(made.status(), "plan");
  require(prepare(context, *made), "prepare");
  Workspace workspace;
  workspace.bytes = made->workspace_bytes();
  if (workspace.bytes > 0) workspace.data = tensors.memory(workspace.bytes, false);
  return {*made, workspace};
}

void synchronize(const Context& context) {
  const auto current = context.state().gpu()->current();
  context.state().gpu()->api().cuCtxSynchronize();
}

int time_prepare(const Context& context, const char* what) {
  for (const Call& call : kCalls) {
    Tensors tensors(context, call);
    auto made = plan(context, tensors.problem());
    require(made.status(), call.name);
    const auto start = Clock::now();
    require(prepare(context, *made), call.name);
    std::printf("{\"measure\": \"%s\", \"call\": \"%s\", \"kernels\": %zu, \"ms\": %.2f}\n", what,
                call.name, made->steps().size(), microseconds(start) / 1e3);
  }
  return 0;
}

// Median over rounds of the time per call of a burst that the launch queue holds.
template <class Body>
double per_call(const Context& context, const Body& body) {
  constexpr int kRounds = 31, kBurst = 100;
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    synchronize(context);
    const auto start = Clock::now();
    for (int i = 0; i < kBurst; ++i) body();
    rounds.push_back(microseconds(start) / kBurst);
  }
  synchronize(context);
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

int time_calls(const Context& context) {
  for (const Call& call : kCalls) {
    Tensors tensors(context, call);
    if (call.pass == Pass::kBackward) {
      require(forward(context, {}, tensors.forward(), tensors.options()), "forward");
    }
    const Prepared ready = prepared(context, tensors);
    const double planned = per_call(
        context, [&] { require(tensors.run(context, ready.plan, ready.workspace), "run"); });
    const double one_call = per_call(context, [&] {
      require(call.pass == Pass::kForward
                  ? forward(context, {}, tensors.forward(), tensors.options())
                  : backward(context, {}, tensors.backward(), tensors.options()),
              "one call");
    });
    // As many launches of a kernel that returns at once: what the driver takes.
    const auto& state = dynamic_cast<const cuda::GpuPlan&>(ready.plan.state());
    cuda::GpuDevice& gpu = *context.state().gpu();
    auto idle = gpu.kernel({"lab/spin.cu", "lab_spin", "struct Config {};\n", {}});
    require(idle.status(), "lab_spin");
    const double bare = per_call(context, [&] {
      const auto current = gpu.current();
      unsigned long long nanoseconds = 0;
      void* parameters[] = {&nanoseconds};
      for (std::size_t i = 0; i < state.gpu_steps().size(); ++i) {
        require(gpu.launch(**idle, {.threads = 32}, nullptr, parameters), "launch");
      }
    });
    std::printf(
        "{\"measure\": \"host\", \"call\": \"%s\", \"launches\": %zu, \"planned_us\": %.2f, "
        "\"one_call_us\": %.2f, \"bare_launches_us\": %.2f}\n",
        call.name, state.gpu_steps().size(), planned, one_call, bare);
  }
  return 0;
}

int compare_runs(const Context& context, int runs) {
  int different_calls = 0;
  for (const Call& call : kCalls) {
    if (call.pass == Pass::kBackward && !call.deterministic) continue;  // atomic additions
    Tensors tensors(context, call);
    require(forward(context, {}, tensors.forward(), tensors.options()), "forward");
    const Prepared ready = prepared(context, tensors);
    std::vector<char> first;
    int different = 0;
    for (int i = 0; i < runs; ++i) {
      require(tensors.run(context, ready.plan, ready.workspace), "run");
      std::vector<char> bytes = tensors.outputs();
      if (i == 0)
        first = std::move(bytes);
      else
        different += bytes == first ? 0 : 1;
    }
    std::printf("{\"measure\": \"repeat\", \"call\": \"%s\", \"runs\": %d, \"different\": %d}\n",
                call.name, runs, different);
    different_calls += different > 0 ? 1 : 0;
  }
  return different_calls > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  auto context = flashlab::Context::create({.device = {flashlab::DeviceKind::kCuda, 0}});
  require(context.status(), "context");
  if (what == "compile" || what == "load") return time_prepare(*context, what.c_str());
  if (what == "call") return time_calls(*context);
  if (what == "repeat") return compare_runs(*context, argc > 2 ? std::atoi(argv[2]) : 1000);
  std::fprintf(stderr, "usage: gpu_costs compile|load|call|repeat [N]\n");
  return 2;
}
