#include "cuda/kernels/sm80/plan.h"

#include <fmt/format.h>

#include "api/context_state.h"
#include "cuda/kernels/sm80/backward/plan.h"
#include "cuda/kernels/sm80/backward_fp32/plan.h"
#include "cuda/kernels/sm80/forward/plan.h"
#include "cuda/kernels/sm80/forward_fp32/plan.h"
#include "cuda/launch/planning.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {
namespace {

using internal::Feature;

// Heads are the second extent of a ragged launch (CUDA's limit).
constexpr std::int64_t kMaxRaggedHeads = 65535;

// cp.async, bf16 products and m16n8k16 begin with this compute capability.
bool runs_on(const DeviceInfo& gpu) {
  return gpu.major >= 8;
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem,
                                                       const internal::Geometry& geometry) {
  const DeviceInfo& device = context.gpu()->info();
  if (!runs_on(device)) {
    return Status::unsupported({"implementation 'sm80'",
                                fmt::format("compute capability {}.{}", device.major, device.minor),
                                "8.0 or later",
                                "name none, or one of the ladder's rungs, e.g. 'fa2'"});
  }
  const bool fp32 = geometry.dtype == DType::kFp32;
  if (geometry.has_lengths && geometry.heads_q > kMaxRaggedHeads) {
    return too_large("heads_q with cu_seqlens or seqused", geometry.heads_q, kMaxRaggedHeads,
                     "split the heads into several calls");
  }
  if (problem.pass == Pass::kForward) {
    return fp32 ? plan_sm80_forward_fp32(context, problem, geometry)
                : plan_sm80_forward(context, problem, geometry);
  }
  return fp32 ? plan_sm80_backward_fp32(context, problem, geometry)
              : plan_sm80_backward(context, problem, geometry);
}

}  // namespace

const internal::Implementation& sm80_implementation() {
  static const internal::Implementation implementation{
      "sm80",
      DeviceKind::kCuda,
      "portable tensor-core kernels (mma.sync, cp.async) for sm_80 to sm_120",
      internal::dense_features() | internal::ragged_features() |
          internal::FeatureSet{Feature::kFp32, Feature::kFp16, Feature::kBf16, Feature::kTf32,
                               Feature::kChunk, Feature::kBesideDiagonal, TensorRole::kSinks,
                               TensorRole::kDSinks, TensorRole::kBlockTable,
                               TensorRole::kCacheBatchIdx, TensorRole::kLeftPadK},
      make_plan,
      runs_on};
  return implementation;
}

}  // namespace flashlab::cuda
