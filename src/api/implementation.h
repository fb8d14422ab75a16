#pragma once

// What an implementation of attention is to the library: a name, the features it declares, and a
// function from a validated problem to a plan that can run.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/problem.h"
#include "flashlab/attention.h"
#include "flashlab/tensor_table.h"

namespace flashlab::cuda {
struct DeviceInfo;
}
namespace flashlab::runtime {
class Program;
}

namespace flashlab::internal {

class ContextState;

/// What a problem can require of an implementation besides its tensors.
enum class Feature : std::uint8_t {
  kForward,
  kBackward,
  kFp64,
  kFp32,
  kFp16,
  kBf16,
  kFp8,
  kTf32,
  kCausal,
  kBoolMask,
  kAdditiveMask,
  kGroupedQuery,
  kUnequalHeadDims,
  kAccumulate,
  kDeterministic,
  kTileSizes,
  kWindow,
  kSoftcap,
  kDropout,
  kBesideDiagonal,  ///< a window with a bound below zero
  kChunk,
};
inline constexpr std::size_t kFeatures = 21;

/// A feature, or a tensor that not every call has (TensorRow::feature says it in words).
struct Requirement {
  bool is_tensor;
  unsigned index;
  constexpr Requirement(Feature feature)
      : is_tensor(false), index(static_cast<unsigned>(feature)) {}
  constexpr Requirement(TensorRole role) : is_tensor(true), index(static_cast<unsigned>(role)) {}
};

class FeatureSet {
 public:
  FeatureSet() = default;
  FeatureSet(std::initializer_list<Requirement> requirements) {
    for (Requirement requirement : requirements) add(requirement);
  }
  bool has(Requirement r) const noexcept { return (bits_[r.is_tensor] >> r.index & 1) != 0; }
  void add(Requirement r) noexcept { bits_[r.is_tensor] |= std::uint64_t{1} << r.index; }
  FeatureSet operator|(FeatureSet other) const noexcept {
    for (std::size_t i = 0; i < bits_.size(); ++i) other.bits_[i] |= bits_[i];
    return other;
  }
  /// What this set has and `other` lacks.
  FeatureSet minus(FeatureSet other) const noexcept {
    for (std::size_t i = 0; i < bits_.size(); ++i) other.bits_[i] = bits_[i] & ~other.bits_[i];
    return other;
  }
  bool empty() const noexcept { return bits_[0] == 0 && bits_[1] == 0; }

 private:
  std::array<std::uint64_t, 2> bits_{};  ///< of features, of tensors
};

/// All that can be asked of dense tensors, but types and tile sizes: what a whole implementation
/// declares besides those.
inline FeatureSet dense_features() {
  return {Feature::kForward,         Feature::kBackward,     Feature::kCausal,
          Feature::kWindow,          Feature::kSoftcap,      Feature::kDropout,
          Feature::kBoolMask,        Feature::kAdditiveMask, Feature::kGroupedQuery,
          Feature::kUnequalHeadDims, Feature::kAccumulate,   Feature::kDeterministic,
          TensorRole::kLse,          TensorRole::kDLse,      TensorRole::kAlibiSlopes,
          TensorRole::kDropoutState};
}

/// Sequences of lengths that only the call knows.
inline FeatureSet ragged_features() {
  return {TensorRole::kCuSeqlensQ, TensorRole::kCuSeqlensK, TensorRole::kSeqUsedQ,
          TensorRole::kSeqUsedK};
}

/// What calls can be asked for beside dense_features(). Only CPUs have all of it.
inline FeatureSet sequence_features() {
  return ragged_features() | FeatureSet{Feature::kBesideDiagonal, Feature::kChunk,
                                        TensorRole::kSinks, TensorRole::kDSinks};
}

/// "forward, fp32, causal".
std::string to_string(FeatureSet set);

/// What a validated problem requires.
FeatureSet required_features(const Problem& problem, const Geometry& geometry);

/// A plan that can run. Immutable; run by several threads at once with different workspaces.
class PlanState {
 public:
  virtual ~PlanState() = default;

  /// Runs the pass the plan was made for. Tensors are already checked against `problem`; the
  /// workspace is large enough and 256-byte aligned; geometry.nothing_to_write() is false.
  virtual Status forward(ContextState& context, Stream stream, const ForwardTensors& tensors,
                         Workspace workspace) const;
  virtual Status backward(ContextState& context, Stream stream, const BackwardTensors& tensors,
                          Workspace workspace) const;
  virtual Status prepare(ContextState& context) const;
  /// What runs, for those who look into it (lists of kernels, explain); null where a plan is not
  /// a program.
  virtual const runtime::Program* program() const noexcept { return nullptr; }

  Problem problem;
  Geometry geometry;
  std::uint64_t context_id = 0;  ///< of the context it was made for; 0 outside of the API
  std::string implementation;
  std::vector<PlanStep> steps;
  std::vector<WorkspaceRegion> regions;
  std::vector<std::string> reasons;
  std::size_t workspace_bytes = 0;
  std::int64_t tile_q = 0, tile_k = 0;  ///< see Plan::tile_q

  /// Appends a 256-byte aligned region and returns its offset.
  std::size_t add_region(std::string name, std::size_t bytes);
};

/// One implementation of attention on one kind of device.
struct Implementation {
  std::string_view name;
  DeviceKind device;
  std::string_view summary;  ///< one line for `info`
  FeatureSet supported;
  /// Called with required features already checked against `supported`. May still refuse
  /// (kUnsupported), e.g. for a tile size that does not fit.
  Result<std::shared_ptr<PlanState>> (*make_plan)(const ContextState& context,
                                                  const Problem& problem, const Geometry& geometry);
  /// Whether it runs on a GPU: sm80 from 8.0 on, sm90 on 9.0 alone. Null: on every one.
  bool (*runs_on)(const cuda::DeviceInfo& gpu) = nullptr;

  /// On a CPU, and where the GPU is not known, it does.
  bool runs_on_device(const cuda::DeviceInfo* gpu) const {
    return gpu == nullptr || runs_on == nullptr || runs_on(*gpu);
  }
};

/// A plan runs in the context it was made for. Errors: kInvalidArgument.
Status check_context(const ContextState& context, const PlanState& plan);

/// A plan by the first of `candidates` that declares what a validated problem requires and does not
/// refuse it. Errors: kUnsupported (nobody serves it: the refusal of the first that declares all
/// that is required, else what is missing of all of them together), and those of make_plan.
Result<std::shared_ptr<PlanState>> plan_with_first(
    const ContextState& context, const std::vector<const Implementation*>& candidates,
    const Problem& problem, const Geometry& geometry);

/// The refusal everyone gives: what is missing and on which device, what is required and supported,
/// and `others`, the implementations there that have it ("fa2 or sm80").
Status refuse(FeatureSet required, FeatureSet supported, std::string_view implementation,
              Device device, const std::string& others);

}  // namespace flashlab::internal
