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

double Case::ideal_bytes(Pass pass) const {
  const auto element = static_cast<double>(size_of(dtype));
  const double output = fp32_outputs ? 4.0 : element;
  const double statistic = dtype == DType::kFp64 ? 8.0 : 4.0;
  const auto b = static_cast<double>(batch);
  const double rows_q = b * static_cast<double>(seqlen_q) * static_cast<double>(heads_q);
  const double rows_k = b * static_cast<double>(seqlen_k) * static_cast<double>(heads_k);
  const auto d = static_cast<double>(head_dim), dv = static_cast<double>(head_dim_v);
  const double qkv = rows_q * d + rows_k * (d + dv);
  double bytes = qkv * element + rows_q * dv * output + rows_q * statistic;  // q k v, o, lse
  if (mask != MaskKind::kNone) {
    const double entries = static_cast<double>(seqlen_q) * static_cast<double>(seqlen_k);
    bytes += entries * (mask == MaskKind::kBool ? 1.0 : 4.0);
  }
  if (pass == Pass::kBackward) {
    bytes += rows_q * dv * element;  // d_o
    bytes += qkv * output;           // dq dk dv
    if (lse_gradient) bytes += rows_q * statistic;
    if (gradient_mode == GradientMode::kAccumulate) bytes += qkv * output;
  }
  return bytes;
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
