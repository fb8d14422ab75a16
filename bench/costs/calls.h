#pragma once

// The calls whose costs are measured, and their tensors.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "flashlab/flashlab.h"
#include "runtime/cuda/device.h"

namespace flashlab::costs {

/// Ends the program with the status's message unless it is ok. The exit code is 1.
void require(const Status& status, const std::string& what);

/// Ragged: kSequences of equal lengths, seqlen rows in all. Paged: one query of each over a cache
/// of seqlen rows in pages of kPageSize, without LSE.
enum class Layout { kDense, kRagged, kPaged };
inline constexpr std::int64_t kSequences = 4, kPageSize = 64;

struct Call {
  const char* name;
  DType dtype;
  Pass pass;
  std::int64_t seqlen, head_dim;
  bool deterministic = false;
  Precision precision = Precision::kIeee;
  Layout layout = Layout::kDense;
};

inline constexpr std::int64_t kHeads = 8;

// Short problems: the GPU is never what the host waits for.
inline constexpr Call kHostCalls[] = {
    {"forward bf16 d64, one launch", DType::kBf16, Pass::kForward, 64, 64},
    {"forward bf16 d128", DType::kBf16, Pass::kForward, 1024, 128},
    {"backward bf16 d128", DType::kBf16, Pass::kBackward, 1024, 128},
    {"backward bf16 d128 deterministic", DType::kBf16, Pass::kBackward, 1024, 128, true},
    {"forward fp16 d64", DType::kFp16, Pass::kForward, 1024, 64},
    {"backward fp16 d64", DType::kFp16, Pass::kBackward, 1024, 64},
    {"forward fp32 ieee d128", DType::kFp32, Pass::kForward, 1024, 128},
    {"backward fp32 ieee d128", DType::kFp32, Pass::kBackward, 1024, 128},
    {"backward fp32 ieee d64 deterministic", DType::kFp32, Pass::kBackward, 1024, 64, true},
    {.name = "ragged forward bf16 d128",
     .dtype = DType::kBf16,
     .pass = Pass::kForward,
     .seqlen = 1024,
     .head_dim = 128,
     .layout = Layout::kRagged},
    {.name = "ragged backward bf16 d128",
     .dtype = DType::kBf16,
     .pass = Pass::kBackward,
     .seqlen = 1024,
     .head_dim = 128,
     .layout = Layout::kRagged},
    {.name = "ragged backward bf16 d128 deterministic",
     .dtype = DType::kBf16,
     .pass = Pass::kBackward,
     .seqlen = 1024,
     .head_dim = 128,
     .deterministic = true,
     .layout = Layout::kRagged},
    {.name = "decode over pages, bf16 d128",
     .dtype = DType::kBf16,
     .pass = Pass::kForward,
     .seqlen = 1024,
     .head_dim = 128,
     .layout = Layout::kPaged},
};

// Every production pass, at a length whose keys are split: the most kernels a plan has.
inline constexpr Call kLoadedCalls[] = {
    {"forward bf16 d64", DType::kBf16, Pass::kForward, 1024, 64},
    {"forward bf16 d128", DType::kBf16, Pass::kForward, 1024, 128},
    {"forward bf16 d256", DType::kBf16, Pass::kForward, 1024, 256},
    {"backward bf16 d64", DType::kBf16, Pass::kBackward, 1024, 64},
    {"backward bf16 d128", DType::kBf16, Pass::kBackward, 1024, 128},
    {"backward bf16 d256", DType::kBf16, Pass::kBackward, 1024, 256},
    {"forward fp32 ieee d128", DType::kFp32, Pass::kForward, 1024, 128},
    {"backward fp32 ieee d128", DType::kFp32, Pass::kBackward, 1024, 128},
    {"forward fp32 tf32 d128", DType::kFp32, Pass::kForward, 1024, 128, false, Precision::kTf32},
    {"backward fp32 tf32 d128", DType::kFp32, Pass::kBackward, 1024, 128, false, Precision::kTf32},
};

/// The problem of a call: kHeads heads, causal, dense ones of one batch. Needs no memory.
Problem problem_of(const Call& call, Device device);

/// The tensors of a call in device memory; they live as long as the process.
class Tensors {
 public:
  Tensors(const Context& context, const Call& call);

  ForwardTensors forward() const;
  BackwardTensors backward() const;
  const Options& options() const { return options_; }
  Problem problem() const;
  /// Enqueues the call.
  Status run(const Context& context, const Plan& plan, Workspace workspace) const;
  /// Bytes of every output.
  std::vector<char> outputs() const;
  void* memory(std::size_t bytes, bool random);

 private:
  void fill(std::vector<char>& host);
  void upload(void* to, const void* from, std::size_t bytes);

  cuda::GpuDevice& gpu_;
  Allocator& allocator_;
  Call call_;
  Options options_;
  std::mt19937 random_{1};
  Tensor q_, k_, v_, o_, d_o_, dq_, dk_, dv_, lse_;
  std::optional<ConstTensor> offsets_, used_, table_;
};

}  // namespace flashlab::costs
