#include "lab/data/case_data_layout.h"

#include <array>
#include <initializer_list>
#include <limits>

namespace flashlab::lab {
namespace {

using cases::Case;
using Extents = std::array<std::int64_t, TensorSpec::kMaxRank>;

constexpr std::int64_t kRowPadding = 3;   // elements; odd, so that rows lose every alignment
constexpr std::int64_t kLsePadding = 5;   // of [B, H, S] where rows are padded
constexpr std::int64_t kMaskPadding = 7;  // of mask form 5

class Builder {
 public:
  Builder(const Case& problem) : c_(problem) {}

  // [batch, seqlen, heads, width] as the case's layout says.
  void tensor4(Role role, DType dtype, std::int64_t seqlen, std::int64_t heads,
               std::int64_t width) {
    TensorSpec spec = make_spec(dtype, {c_.batch, seqlen, heads, width});
    const bool padded = c_.layout == cases::Layout::kPaddedRows;
    const std::int64_t row = saturating_add(width, padded ? kRowPadding : 0);
    if (c_.layout == cases::Layout::kHeadsFirst) {
      const std::int64_t head = saturating_multiply(seqlen, row);
      spec.strides = {saturating_multiply(heads, head), row, head, 1};
    } else {
      const std::int64_t token = saturating_multiply(heads, row);
      spec.strides = {saturating_multiply(seqlen, token), token, row, 1};
    }
    const std::int64_t rows = saturating_multiply(saturating_multiply(c_.batch, seqlen), heads);
    place(role, spec, rows, width, row, padded ? 1 : 0);
  }

  // q, k, v (or their gradients) beside each other in every token's row.
  void packed(const std::array<Role, 3>& roles, DType dtype) {
    const std::array<std::int64_t, 3> heads = {c_.heads_q, c_.heads_k, c_.heads_k};
    const std::array<std::int64_t, 3> widths = {c_.head_dim, c_.head_dim, c_.head_dim_v};
    std::int64_t token = 0;
    for (std::size_t n = 0; n < 3; ++n) {
      token = saturating_add(token, saturating_multiply(heads[n], widths[n]));
    }
    std::int64_t offset = 0;
    for (std::size_t n = 0; n < 3; ++n) {
      TensorSpec spec = make_spec(dtype, {c_.batch, c_.seqlen_q, heads[n], widths[n]});
      spec.strides = {saturating_multiply(c_.seqlen_q, token), token, widths[n], 1};
      out_.tensors.push_back({roles[n], spec, buffers(), offset, true});
      offset = saturating_add(offset, saturating_multiply(heads[n], widths[n]));
    }
    const std::int64_t tokens = saturating_multiply(c_.batch, c_.seqlen_q);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    add_buffer(saturating_multiply(saturating_multiply(tokens, token), size), {});
  }

  // [batch, heads, seqlen].
  void statistic(Role role, DType dtype) {
    TensorSpec spec = make_spec(dtype, {c_.batch, c_.heads_q, c_.seqlen_q});
    const bool padded = c_.layout == cases::Layout::kPaddedRows;
    const std::int64_t row = saturating_add(c_.seqlen_q, padded ? kLsePadding : 0);
    spec.strides = {saturating_multiply(c_.heads_q, row), row, 1, 0};
    place(role, spec, saturating_multiply(c_.batch, c_.heads_q), c_.seqlen_q, row, 0);
  }

  void mask() {
    const std::uint64_t form = c_.seed % 6;
    const bool additive = c_.mask == cases::MaskKind::kAdditive;
    const DType dtype = !additive ? DType::kBool : (c_.seed / 6 % 2 == 0 ? DType::kFp32 : c_.dtype);
    Extents stored = {c_.batch, c_.heads_q, c_.seqlen_q, c_.seqlen_k};
    if (form == 1 || form == 4) stored[0] = 1;
    if (form == 1 || form == 2 || form == 3 || form == 5) stored[1] = 1;
    if (form == 2) stored[2] = 1;
    if (form == 4) stored[3] = 1;
    const std::int64_t row = saturating_add(stored[3], form == 5 ? kMaskPadding : 0);
    TensorSpec spec;
    spec.dtype = dtype;
    spec.rank = 4;
    spec.shape = stored;
    const std::int64_t head = saturating_multiply(stored[2], row);
    spec.strides = {saturating_multiply(stored[1], head), head, row, 1};
    if (form == 3) {  // the same memory seen by every head
      spec.shape[1] = c_.heads_q;
      spec.strides[1] = 0;
    }
    const std::int64_t rows =
        saturating_multiply(saturating_multiply(stored[0], stored[1]), stored[2]);
    place(Role::kMask, spec, rows, stored[3], row, 0);
  }

  CaseLayout take() { return std::move(out_); }

 private:
  static TensorSpec make_spec(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorSpec spec;
    spec.dtype = dtype;
    for (std::int64_t extent : shape) spec.shape[static_cast<std::size_t>(spec.rank++)] = extent;
    return spec;
  }

  int buffers() const { return static_cast<int>(out_.buffer_bytes.size()); }

  void add_buffer(std::int64_t bytes, CaseLayout::Gaps gaps) {
    out_.buffer_bytes.push_back(bytes);
    out_.gaps.push_back(gaps);
  }

  void place(Role role, const TensorSpec& spec, std::int64_t rows, std::int64_t row_elements,
             std::int64_t row_stride, std::int64_t first) {
    const auto size = static_cast<std::int64_t>(size_of(spec.dtype));
    out_.tensors.push_back({role, spec, buffers(), first, false});
    const std::int64_t elements = saturating_add(saturating_multiply(rows, row_stride), first);
    CaseLayout::Gaps gaps;
    if (row_stride > row_elements) {
      gaps = {first * size, saturating_multiply(row_elements, size),
              (row_stride - row_elements) * size};
    }
    add_buffer(saturating_multiply(elements, size), gaps);
  }

  const Case& c_;
  CaseLayout out_;
};

}  // namespace

const char* to_string(Role role) noexcept {
  switch (role) {
    case Role::kQ:
      return "q";
    case Role::kK:
      return "k";
    case Role::kV:
      return "v";
    case Role::kMask:
      return "mask";
    case Role::kO:
      return "o";
    case Role::kLse:
      return "lse";
    case Role::kDO:
      return "d_o";
    case Role::kDLse:
      return "d_lse";
    case Role::kDQ:
      return "dq";
    case Role::kDK:
      return "dk";
    case Role::kDV:
      return "dv";
  }
  return "?";
}

const Placement* CaseLayout::find(Role role) const {
  for (const Placement& tensor : tensors) {
    if (tensor.role == role) return &tensor;
  }
  return nullptr;
}

CaseLayout lay_out(const Case& c, bool backward) {
  const DType output = c.fp32_outputs ? DType::kFp32 : c.dtype;
  const DType statistic = c.dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32;
  const bool packed = c.layout == cases::Layout::kPackedQkv && c.seqlen_q == c.seqlen_k;
  Builder build(c);
  if (packed) {
    build.packed({Role::kQ, Role::kK, Role::kV}, c.dtype);
  } else {
    build.tensor4(Role::kQ, c.dtype, c.seqlen_q, c.heads_q, c.head_dim);
    build.tensor4(Role::kK, c.dtype, c.seqlen_k, c.heads_k, c.head_dim);
    build.tensor4(Role::kV, c.dtype, c.seqlen_k, c.heads_k, c.head_dim_v);
  }
  if (c.mask != cases::MaskKind::kNone) build.mask();
  build.tensor4(Role::kO, output, c.seqlen_q, c.heads_q, c.head_dim_v);
  build.statistic(Role::kLse, statistic);
  if (!backward) return build.take();
  build.tensor4(Role::kDO, c.dtype, c.seqlen_q, c.heads_q, c.head_dim_v);
  if (c.lse_gradient) build.statistic(Role::kDLse, statistic);
  if (packed) {
    build.packed({Role::kDQ, Role::kDK, Role::kDV}, output);
  } else {
    build.tensor4(Role::kDQ, output, c.seqlen_q, c.heads_q, c.head_dim);
    build.tensor4(Role::kDK, output, c.seqlen_k, c.heads_k, c.head_dim);
    build.tensor4(Role::kDV, output, c.seqlen_k, c.heads_k, c.head_dim_v);
  }
  return build.take();
}

std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

}  // namespace flashlab::lab
