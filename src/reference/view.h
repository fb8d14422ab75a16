#pragma once

// How the reference reads a problem: its own conversions, its own rounding, its own idea of which
// key a query sees. It shares nothing with the library's kernels but the public header.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashlab/attention.h"

namespace flashlab::reference {

/// The value of element `index` of an array of `dtype`.
double load(const void* data, DType dtype, std::int64_t index);

/// Rounds to nearest even in `dtype` and stores.
void store(void* data, DType dtype, std::int64_t index, double value);

/// Nearest value of `dtype`, ties to even, beyond the largest to infinity.
double round_to(DType dtype, double value);
float round_to(DType dtype, float value);

/// The nearest value of 11 significant bits, ties to even: what tf32 keeps of an operand. fp32's
/// exponents; NaN and infinities stay.
float round_to_tf32(float value);

/// Largest finite value.
double largest(DType dtype);

/// One row of one head: a query of a query head or a key of a key head.
struct Row {
  std::int64_t batch = 0, head = 0, position = 0;
  friend bool operator==(const Row&, const Row&) = default;
};

/// Sizes of a problem, read from its tensors.
struct Sizes {
  std::int64_t batch = 0, heads_q = 0, heads_k = 0, seqlen_q = 0, seqlen_k = 0;
  std::int64_t head_dim = 0, head_dim_v = 0;

  std::int64_t group() const { return heads_k == 0 ? 0 : heads_q / heads_k; }
};
Sizes sizes_of(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v);

/// Which rows are computed: all of them, or a seeded choice where all would take too long.
/// Rows are ordered by (batch, head, position) and distinct.
struct Sample {
  bool all = true;
  std::vector<Row> queries;  ///< rows of o, lse and dq; head is a query head
  std::vector<Row> keys;     ///< rows of dk and dv; head is a key head
  std::string description = "all";

  static Sample everything(const Sizes& sizes);

  /// About `rows` queries and `rows` keys out of at most `heads` heads, e.g. "64 rows of 8 heads,
  /// seed 1". The first and the last row of every chosen head are among them.
  static Sample seeded(const Sizes& sizes, std::int64_t rows, std::int64_t heads,
                       std::uint64_t seed);
};

/// Which keys a query sees, and what is added to its scores.
class Visibility {
 public:
  Visibility(const Sizes& sizes, const Options& options, const std::optional<ConstTensor>& mask);

  /// The first key and one past the last key that causal and window let query i see; equal, or
  /// crossed, where it sees none.
  std::int64_t first_key(std::int64_t i) const;
  std::int64_t end_key(std::int64_t i) const;

  /// For the keys in `keys` (positions, ascending), one entry each: whether query (b, h, i) sees
  /// it, and the additive mask (0 without one). A key whose additive mask is at or below half of
  /// its type's lowest finite number is not seen: masked scores are replaced, never added.
  void row(std::int64_t b, std::int64_t h, std::int64_t i, const std::vector<std::int64_t>& keys,
           std::vector<std::uint8_t>& visible, std::vector<double>& bias) const;

 private:
  /// The key that is aligned with query i.
  std::int64_t aligned_key(std::int64_t i) const;
  /// A window's bound, which may be wider than any key is far.
  std::int64_t within_reach(std::int64_t bound) const;
  /// Which chunk of keys a key lies in.
  std::int64_t chunk_of(std::int64_t key) const;

  Sizes sizes_;
  Causal causal_;
  std::optional<Window> window_;
  std::optional<std::int64_t> chunk_;
  std::optional<ConstTensor> mask_;
};

/// The scale of the scores: the option, or 1/sqrt(head_dim); in fp32 unless the inputs are fp64.
double scale_of(const Options& options, std::int64_t head_dim, DType inputs);

/// Rows `positions` of tensor [batch, seqlen, heads, width] of one head: out [positions, width].
template <class Real>
void read_rows(const ConstTensor& tensor, std::int64_t b, std::int64_t h,
               const std::vector<std::int64_t>& positions, std::vector<Real>& out);

/// The same transposed: out [width, positions].
template <class Real>
void read_columns(const ConstTensor& tensor, std::int64_t b, std::int64_t h,
                  const std::vector<std::int64_t>& positions, std::vector<Real>& out);

/// Element (b, h, i) of a tensor [batch, heads, seqlen].
double read_statistic(const ConstTensor& tensor, std::int64_t b, std::int64_t h, std::int64_t i);

/// 0, 1, ..., count - 1.
std::vector<std::int64_t> range(std::int64_t count);

}  // namespace flashlab::reference
