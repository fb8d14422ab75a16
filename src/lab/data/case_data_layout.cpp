#include "lab/data/case_data_layout.h"

#include <array>
#include <initializer_list>
#include <limits>

namespace flashlab::lab {
namespace {

using cases::Case;
using Extents4 = std::array<std::int64_t, TensorSpec::kMaxRank>;

constexpr std::int64_t kRowPadding = 3;   // elements; odd, so that rows lose every alignment
constexpr std::int64_t kLsePadding = 5;   // of [B, H, S] where rows are padded
constexpr std::int64_t kMaskPadding = 7;  // of mask form 5

class Builder {
 public:
  Builder(const Case& problem) : c_(problem) {
    if (!c_.ragged()) return;
    batch_ = batch_k_ = 1;
    const Extents sizes = c_.extents();
    seqlen_q_ = sizes[Extent::kTotalQ];
    seqlen_k_ = sizes[Extent::kTotalK];
    if (!c_.cache) return;
    const ShapeRule keys = rule_for(row_of(TensorRole::kK).shape, c_.source());
    batch_k_ = sizes[keys.extents[0]];
    seqlen_k_ = sizes[keys.extents[1]];
  }

  // One tensor in a buffer of its own: rows and row scalars as the case's layout says, the rest
  // row-major.
  void tensor(const TensorRow& row) {
    const DType dtype = c_.dtype_of(row.role);
    const Extents sizes = c_.extents();
    const auto& e = row.shape.extents;
    const bool tokens = e[1] == Extent::kSeqlenQ || e[1] == Extent::kSeqlenK;
    if (row.role == TensorRole::kMask) {
      mask();
    } else if (row.shape.rank == 4 && tokens) {
      const bool queries = e[1] == Extent::kSeqlenQ;
      rows(row.role, dtype, queries ? batch_ : batch_k_, queries ? seqlen_q_ : seqlen_k_,
           sizes[e[2]], sizes[e[3]]);
    } else if (row.shape.rank == 3 && e[2] == Extent::kSeqlenQ) {
      statistic(row.role, dtype);
    } else if (row.role == TensorRole::kAlibiSlopes) {
      dense(row.role, dtype, 2, {c_.seed % 2 == 0 ? 1 : c_.batch, c_.heads_q, 0, 0});
    } else {
      dense(row.role, dtype, row.shape.rank, row.shape.of(sizes));
    }
  }

  // q, k, v (or their gradients) beside each other in every token's row.
  void packed(const std::array<TensorRole, 3>& roles, DType dtype) {
    const std::array<std::int64_t, 3> heads = {c_.heads_q, c_.heads_k, c_.heads_k};
    const std::array<std::int64_t, 3> widths = {c_.head_dim, c_.head_dim, c_.head_dim_v};
    std::int64_t token = 0;
    for (std::size_t n = 0; n < 3; ++n) {
      token = saturating_add(token, saturating_multiply(heads[n], widths[n]));
    }
    std::int64_t offset = 0;
    for (std::size_t n = 0; n < 3; ++n) {
      TensorSpec spec = make_spec(dtype, {batch_, seqlen_q_, heads[n], widths[n]});
      spec.strides = {saturating_multiply(seqlen_q_, token), token, widths[n], 1};
      out_.tensors.push_back({roles[n], spec, buffers(), offset, true});
      offset = saturating_add(offset, saturating_multiply(heads[n], widths[n]));
    }
    const std::int64_t tokens = saturating_multiply(batch_, seqlen_q_);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    add_buffer(saturating_multiply(saturating_multiply(tokens, token), size), {});
  }

  // k and v in one pool: [pages or entries, 2, rows, heads, dim].
  void pool(DType dtype) {
    const std::int64_t rows = saturating_multiply(seqlen_k_, c_.heads_k);
    const std::int64_t half = saturating_multiply(rows, c_.head_dim);
    for (const TensorRole role : {TensorRole::kK, TensorRole::kV}) {
      TensorSpec spec = make_spec(dtype, {batch_k_, seqlen_k_, c_.heads_k, c_.head_dim});
      spec.strides = {saturating_multiply(2, half), c_.heads_k * c_.head_dim, c_.head_dim, 1};
      const std::int64_t offset = role == TensorRole::kK ? 0 : half;
      out_.tensors.push_back({role, spec, buffers(), offset, true});
    }
    const std::int64_t elements = saturating_multiply(batch_k_, saturating_multiply(2, half));
    add_buffer(saturating_multiply(elements, static_cast<std::int64_t>(size_of(dtype))), {});
  }

  CaseLayout take() { return std::move(out_); }

 private:
  // [batch, seqlen, heads, width] as the case's layout says.
  void rows(TensorRole role, DType dtype, std::int64_t batch, std::int64_t seqlen,
            std::int64_t heads, std::int64_t width) {
    TensorSpec spec = make_spec(dtype, {batch, seqlen, heads, width});
    const bool padded = c_.layout == cases::Layout::kPaddedRows;
    const std::int64_t row = saturating_add(width, padded ? kRowPadding : 0);
    if (c_.layout == cases::Layout::kHeadsFirst) {
      const std::int64_t head = saturating_multiply(seqlen, row);
      spec.strides = {saturating_multiply(heads, head), row, head, 1};
    } else {
      const std::int64_t token = saturating_multiply(heads, row);
      spec.strides = {saturating_multiply(seqlen, token), token, row, 1};
    }
    const std::int64_t count = saturating_multiply(saturating_multiply(batch, seqlen), heads);
    place(role, spec, count, width, row, padded ? 1 : 0);
  }

  // [batch, heads, seqlen].
  void statistic(TensorRole role, DType dtype) {
    TensorSpec spec = make_spec(dtype, {batch_, c_.heads_q, seqlen_q_});
    const bool padded = c_.layout == cases::Layout::kPaddedRows;
    const std::int64_t row = saturating_add(seqlen_q_, padded ? kLsePadding : 0);
    spec.strides = {saturating_multiply(c_.heads_q, row), row, 1, 0};
    place(role, spec, saturating_multiply(batch_, c_.heads_q), seqlen_q_, row, 0);
  }

  void mask() {
    const std::uint64_t form = c_.seed % 6;
    const bool additive = c_.mask == cases::MaskKind::kAdditive;
    const DType dtype = !additive ? DType::kBool : (c_.seed / 6 % 2 == 0 ? DType::kFp32 : c_.dtype);
    Extents4 stored = {c_.batch, c_.heads_q, c_.seqlen_q, c_.extents()[Extent::kSeqlenK]};
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
    place(TensorRole::kMask, spec, rows, stored[3], row, 0);
  }

  void dense(TensorRole role, DType dtype, int rank, const Extents4& shape) {
    TensorSpec spec;
    spec.dtype = dtype;
    spec.rank = rank;
    spec.shape = shape;
    std::int64_t elements = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const auto n = static_cast<std::size_t>(i);
      spec.strides[n] = elements;
      elements = saturating_multiply(elements, shape[n]);
    }
    place(role, spec, 1, elements, elements, 0);
  }

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

  void place(TensorRole role, const TensorSpec& spec, std::int64_t rows, std::int64_t row_elements,
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
  // Of rows of tokens and their scalars: ragged ones lie as those of one batch entry.
  std::int64_t batch_ = c_.batch, seqlen_q_ = c_.seqlen_q, seqlen_k_ = c_.seqlen_k;
  std::int64_t batch_k_ = c_.batch;  // pages or entries, where keys are in a cache
  CaseLayout out_;
};

}  // namespace

const Placement* CaseLayout::find(TensorRole role) const {
  for (const Placement& tensor : tensors) {
    if (tensor.role == role) return &tensor;
  }
  return nullptr;
}

CaseLayout lay_out(const Case& c, bool backward) {
  using R = TensorRole;
  const Extents sizes = c.extents();
  const bool one_buffer = c.layout == cases::Layout::kPackedQkv;
  const bool packed = one_buffer && !c.cache && c.seqlen_q == c.seqlen_k &&
                      sizes[Extent::kTotalQ] == sizes[Extent::kTotalK];
  const bool pool = one_buffer && c.cache && c.head_dim == c.head_dim_v;
  Builder build(c);
  for (const TensorRow& row : kTensors) {
    const bool gradients = backward && c.has_backward();
    if (!c.gives(row.role) || (!gradients && row.forward.access() == Access::kNone)) continue;
    const R role = row.role;
    if (packed && (role == R::kQ || role == R::kDQ)) {
      build.packed(
          role == R::kQ ? std::array{R::kQ, R::kK, R::kV} : std::array{R::kDQ, R::kDK, R::kDV},
          c.dtype_of(role));
    } else if (pool && role == R::kK) {
      build.pool(c.dtype_of(role));
    } else if (pool && role == R::kV) {
      continue;  // beside k
    } else if (packed && (role == R::kK || role == R::kV || role == R::kDK || role == R::kDV)) {
      continue;  // beside q, or beside dq
    } else {
      build.tensor(row);
    }
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
