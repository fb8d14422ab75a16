#include <fmt/format.h>

#include <array>
#include <utility>

#include "api/implementation.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {
namespace {

constexpr std::array<std::pair<Feature, const char*>, 29> kNames{{
    {Feature::kForward, "forward"},
    {Feature::kBackward, "backward"},
    {Feature::kFp64, "fp64"},
    {Feature::kFp32, "fp32"},
    {Feature::kFp16, "fp16"},
    {Feature::kBf16, "bf16"},
    {Feature::kFp8, "fp8"},
    {Feature::kTf32, "tf32"},
    {Feature::kCausal, "causal"},
    {Feature::kBoolMask, "boolean mask"},
    {Feature::kAdditiveMask, "additive mask"},
    {Feature::kGroupedQuery, "grouped query heads"},
    {Feature::kUnequalHeadDims, "unequal head dims"},
    {Feature::kLse, "lse"},
    {Feature::kLseGradient, "lse gradient"},
    {Feature::kAccumulate, "gradient accumulation"},
    {Feature::kDeterministic, "deterministic"},
    {Feature::kTileSizes, "tile sizes"},
    {Feature::kWindow, "sliding window"},
    {Feature::kSoftcap, "softcap"},
    {Feature::kDropout, "dropout"},
    {Feature::kAlibi, "alibi"},
    {Feature::kSinks, "attention sinks"},
    {Feature::kRagged, "variable lengths"},
    {Feature::kPaged, "paged keys"},
    {Feature::kRowStatistics, "row statistics"},
    {Feature::kDropoutState, "dropout state on the device"},
    {Feature::kBesideDiagonal, "window beside the diagonal"},
    {Feature::kChunk, "attention chunks"},
}};

Feature dtype_feature(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
      return Feature::kFp64;
    case DType::kFp32:
      return Feature::kFp32;
    case DType::kFp16:
      return Feature::kFp16;
    case DType::kBf16:
      return Feature::kBf16;
    default:
      return Feature::kFp8;
  }
}

// What a tensor requires of an implementation that is given it. The others are every call's.
void add_tensor(FeatureSet& set, TensorRole role, const TensorSpec& spec) {
  switch (role) {
    case TensorRole::kMask:
      return set.add(spec.dtype == DType::kBool ? Feature::kBoolMask : Feature::kAdditiveMask);
    case TensorRole::kLse:
      return set.add(Feature::kLse);
    case TensorRole::kDLse:
      return set.add(Feature::kLseGradient);
    case TensorRole::kAlibiSlopes:
      return set.add(Feature::kAlibi);
    case TensorRole::kSinks:
    case TensorRole::kDSinks:
      return set.add(Feature::kSinks);
    case TensorRole::kCuSeqlensQ:
    case TensorRole::kCuSeqlensK:
      return set.add(Feature::kRagged);
    case TensorRole::kBlockTable:
      return set.add(Feature::kPaged);
    case TensorRole::kRowStatistics:
      return set.add(Feature::kRowStatistics);
    case TensorRole::kDropoutState:
      return set.add(Feature::kDropoutState);
    default:
      return;
  }
}

}  // namespace

std::string to_string(FeatureSet set) {
  std::string text;
  for (const auto& [feature, name] : kNames) {
    if (set.has(feature)) text += std::string(text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "nothing" : text;
}

FeatureSet required_features(const Problem& p, const Geometry& g) {
  FeatureSet set;
  set.add(p.pass == Pass::kForward ? Feature::kForward : Feature::kBackward);
  set.add(dtype_feature(g.dtype));
  if (p.options.precision == Precision::kTf32) set.add(Feature::kTf32);
  if (p.options.causal != Causal::kNone) set.add(Feature::kCausal);
  if (g.heads_q != g.heads_k) set.add(Feature::kGroupedQuery);
  if (g.head_dim != g.head_dim_v) set.add(Feature::kUnequalHeadDims);
  if (p.options.gradient_mode == GradientMode::kAccumulate) set.add(Feature::kAccumulate);
  if (p.options.deterministic) set.add(Feature::kDeterministic);
  if (p.options.tiles.tile_q != 0 || p.options.tiles.tile_k != 0) set.add(Feature::kTileSizes);
  if (p.options.window) set.add(Feature::kWindow);
  if (g.bounds.left < 0 || g.bounds.right < 0) set.add(Feature::kBesideDiagonal);
  if (p.options.attention_chunk) set.add(Feature::kChunk);
  if (p.options.softcap) set.add(Feature::kSoftcap);
  if (p.options.dropout) set.add(Feature::kDropout);
  for (const TensorRow& row : kTensors) {
    const TensorSpec* spec = row.problem.get(p);
    if (spec != nullptr && row.access(p.pass) != Access::kNone) add_tensor(set, row.role, *spec);
  }
  return set;
}

Status refuse(FeatureSet required, FeatureSet supported, std::string_view implementation,
              Device device, const std::string& others) {
  return Status::unsupported(
      {fmt::format("implementation '{}' on {} lacks {}", implementation, to_string(device),
                   to_string(required.minus(supported))),
       fmt::format("a call that requires {}", to_string(required)),
       fmt::format("at most {}", to_string(supported)),
       others.empty() ? fmt::format("no implementation on {} has all of it", to_string(device))
                      : "use " + others});
}

}  // namespace flashlab::internal
