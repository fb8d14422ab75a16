#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "api/implementation.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {
namespace {

// In the order of Feature.
constexpr std::array<const char*, kFeatures> kNames{"forward",
                                                    "backward",
                                                    "fp64",
                                                    "fp32",
                                                    "fp16",
                                                    "bf16",
                                                    "fp8",
                                                    "tf32",
                                                    "causal",
                                                    "boolean mask",
                                                    "additive mask",
                                                    "grouped query heads",
                                                    "unequal head dims",
                                                    "gradient accumulation",
                                                    "deterministic",
                                                    "tile sizes",
                                                    "sliding window",
                                                    "softcap",
                                                    "dropout",
                                                    "window beside the diagonal",
                                                    "attention chunks"};
static_assert(kNames.back() != nullptr);

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

}  // namespace

std::string to_string(FeatureSet set) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < kFeatures; ++i) {
    if (set.has(static_cast<Feature>(i))) names.emplace_back(kNames[i]);
  }
  for (const TensorRow& row : kTensors) {  // two tensors may be one feature
    if (!set.has(row.role)) continue;
    const std::string_view name = row.feature;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
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
  if (p.mask) {
    set.add(p.mask->dtype == DType::kBool ? Feature::kBoolMask : Feature::kAdditiveMask);
  }
  if (p.options.window) set.add(Feature::kWindow);
  if (g.bounds.left < 0 || g.bounds.right < 0) set.add(Feature::kBesideDiagonal);
  if (p.options.attention_chunk) set.add(Feature::kChunk);
  if (p.options.softcap) set.add(Feature::kSoftcap);
  if (p.options.dropout) set.add(Feature::kDropout);
  for (const TensorRow& row : kTensors) {
    if (row.feature == nullptr || row.access(p.pass) == Access::kNone) continue;
    if (row.problem.get(p) != nullptr) set.add(row.role);
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
