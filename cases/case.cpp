// What a case counts and is called.

#include "case.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlab::cases {
namespace {

const char* causal_name(Causal causal) {
  switch (causal) {
    case Causal::kNone:
      return "none";
    case Causal::kCausal:
    case Causal::kTopLeft:
      return "causal-top-left";
    case Causal::kBottomRight:
      return "causal-bottom-right";
  }
  return "none";
}

// Sum over rows i of clamp(first + i + 1, 0, keys): the row's visible keys grow by one from
// `first + 1` at row 0, are 0 before that and `keys` once they reach it.
double causal_pairs(double rows, double keys, double first) {
  const double empty = std::clamp(-first, 0.0, rows);              // rows that see nothing
  const double full_from = std::clamp(keys - first, empty, rows);  // rows from here see every key
  const double growing = full_from - empty;
  const double smallest = first + empty + 1;
  return growing * smallest + growing * (growing - 1) / 2 + (rows - full_from) * keys;
}

}  // namespace

double Case::visible_pairs() const {
  const auto rows = static_cast<double>(seqlen_q), keys = static_cast<double>(seqlen_k);
  switch (causal) {
    case Causal::kNone:
      return rows * keys;
    case Causal::kCausal:
    case Causal::kTopLeft:
      return causal_pairs(rows, keys, 0);
    case Causal::kBottomRight:
      return causal_pairs(rows, keys, keys - rows);
  }
  return 0;
}

double Case::flops(Pass pass) const {
  const double heads = static_cast<double>(batch) * static_cast<double>(heads_q);
  const auto d = static_cast<double>(head_dim), dv = static_cast<double>(head_dim_v);
  const double per_pair = pass == Pass::kForward ? d + dv : 3 * d + 2 * dv;
  return 2 * heads * visible_pairs() * per_pair;
}

Extents Case::extents() const {
  Extents sizes;
  sizes[Extent::kBatch] = batch;
  sizes[Extent::kSeqlenQ] = seqlen_q;
  sizes[Extent::kSeqlenK] = seqlen_k;
  sizes[Extent::kHeadsQ] = heads_q;
  sizes[Extent::kHeadsK] = heads_k;
  sizes[Extent::kHeadDim] = head_dim;
  sizes[Extent::kHeadDimV] = head_dim_v;
  sizes[Extent::kBatchPlusOne] = batch + 1;
  sizes[Extent::kTwo] = 2;
  return sizes;
}

bool Case::gives(TensorRole role) const {
  switch (role) {
    case TensorRole::kMask:
      return mask != MaskKind::kNone;
    case TensorRole::kDLse:
      return lse_gradient;
    default:
      return row_of(role).to_come == nullptr;
  }
}

DType Case::dtype_of(TensorRole role) const {
  const TensorRow& row = row_of(role);
  const DType statistic = dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32;
  if (role == TensorRole::kMask) return mask == MaskKind::kBool ? DType::kBool : DType::kFp32;
  const bool result =
      row.forward.access() == Access::kWrite || row.backward.access() == Access::kWrite;
  if (row.dtype == DTypeRule::kAsQOrFp32 && result && fp32_outputs) return DType::kFp32;
  return *allowed_dtypes(row.dtype == DTypeRule::kInput ? DTypeRule::kAsQ : row.dtype, dtype,
                         statistic)
              .begin();
}

double Case::ideal_bytes(Pass pass) const {
  double sum = 0;
  for (const TensorRow& row : kTensors) {
    if (row.access(pass) == Access::kNone || !gives(row.role)) continue;
    auto bytes = static_cast<double>(size_of(dtype_of(row.role)));
    for (int i = 0; i < row.shape.rank; ++i) {
      const Extent extent = row.shape.extents[static_cast<std::size_t>(i)];
      // One mask for all batches and heads.
      const bool shared = extent == Extent::kBatch || extent == Extent::kHeadsQ;
      if (row.shape.broadcasts && shared) continue;
      bytes *= static_cast<double>(extents()[extent]);
    }
    const bool added = row.access(pass) == Access::kWrite && pass == Pass::kBackward &&
                       gradient_mode == GradientMode::kAccumulate;
    sum += added ? 2 * bytes : bytes;
  }
  return sum;
}

std::string Case::mask_name() const {
  std::string name = causal_name(causal);
  if (mask == MaskKind::kBool) name += "+bool";
  if (mask == MaskKind::kAdditive) name += "+additive";
  return name;
}

std::string Case::describe() const {
  std::string text = fmt::format("{} b{} h{}/{} s{}x{} d{}/{} {}", to_string(dtype), batch, heads_q,
                                 heads_k, seqlen_q, seqlen_k, head_dim, head_dim_v, mask_name());
  if (scale) text += fmt::format(" scale {}", *scale);
  if (precision == Precision::kTf32) text += " tf32";
  if (lse_gradient) text += " dlse";
  if (fp32_outputs) text += " fp32-outputs";
  if (gradient_mode == GradientMode::kAccumulate) text += " accumulate";
  if (deterministic) text += " deterministic";
  if (layout == Layout::kHeadsFirst) text += " heads-first";
  if (layout == Layout::kPackedQkv) text += " packed-qkv";
  if (layout == Layout::kPaddedRows) text += " padded-rows";
  if (fill == Fill::kLargeScores) text += " large-scores";
  if (fill == Fill::kMixedScales) text += " mixed-scales";
  if (fill == Fill::kSubnormal) text += " subnormal";
  if (fill == Fill::kSpecial) text += " special";
  if (fill == Fill::kEqual) text += " equal";
  return text;
}

Options Case::options() const {
  Options out;
  out.scale = scale;
  out.causal = causal;
  out.precision = precision;
  out.gradient_mode = gradient_mode;
  out.deterministic = deterministic;
  return out;
}

}  // namespace flashlab::cases
