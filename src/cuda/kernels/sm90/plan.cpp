#include "cuda/kernels/sm90/plan.h"

#include <fmt/format.h>

#include "api/context_state.h"
#include "cuda/kernels/sm90/backward/plan.h"
#include "cuda/kernels/sm90/backward_wide/plan.h"
#include "cuda/kernels/sm90/forward/plan.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {
namespace {

using internal::Feature;

// wgmma is sm_90a's alone: later architectures do not have it.
bool runs_on(const DeviceInfo& gpu) {
  return gpu.major == 9 && gpu.minor == 0;
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem,
                                                       const internal::Geometry& geometry) {
  const DeviceInfo& device = context.gpu()->info();
  if (!runs_on(device)) {
    return Status::unsupported({"implementation 'sm90'",
                                fmt::format("compute capability {}.{}", device.major, device.minor),
                                "9.0", "name none, or 'sm80'"});
  }
  const bool wide = problem.pass == Pass::kBackward && is_wide_sm90_backward(geometry);
  if (geometry.has_lengths && wide) {
    return Status::unsupported({"implementation 'sm90'",
                                "a backward of cu_seqlens or seqused with head dims above 128",
                                "head dims up to 128", "name none, or 'sm80'"});
  }
  if (problem.pass == Pass::kForward) return plan_sm90_forward(context, problem, geometry);
  return wide ? plan_sm90_backward_wide(context, problem, geometry)
              : plan_sm90_backward(context, problem, geometry);
}

}  // namespace

const internal::Implementation& sm90_implementation() {
  static const internal::Implementation implementation{
      "sm90",
      DeviceKind::kCuda,
      "Hopper's tensor cores and copy engine (wgmma, TMA), sm_90 only: fp16 and bf16",
      internal::dense_features() | internal::ragged_features() |
          internal::FeatureSet{Feature::kFp16, Feature::kBf16, Feature::kBesideDiagonal,
                               TensorRole::kSinks, TensorRole::kDSinks, TensorRole::kBlockTable,
                               TensorRole::kCacheBatchIdx, TensorRole::kLeftPadK},
      make_plan,
      runs_on};
  return implementation;
}

}  // namespace flashlab::cuda
