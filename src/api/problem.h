#pragma once

// A validated call: the one description every implementation plans from and runs by.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "flashlab/attention.h"

namespace flashlab::internal {

/// Whether a value of an additive mask of `dtype` hides its key: at or below half of the type's
/// lowest finite number. Frameworks write "hidden" as -inf or as the lowest number; added to a
/// score, the latter would leave no bit of the score, and times log2(e) it would overflow.
constexpr bool hides_key(DType dtype, double value) {
  switch (dtype) {
    case DType::kFp16:
      return value <= -65504.0 / 2;
    case DType::kBf16:
      return value <= -0x1.fep127 / 2;
    case DType::kFp64:
      return value <= std::numeric_limits<double>::lowest() / 2;
    default:
      return value <= std::numeric_limits<float>::lowest() / 2;
  }
}

/// Visible keys as signed bounds around the diagonal, as they are asked for: no length enters them,
/// so that they serve sequences of any. With a = i + shift, query i sees key j iff
///   max(a - left, floor(a / chunk) chunk) <= j <= min(a + right, floor(a / chunk) chunk + chunk -
///   1).
/// Causal is right = 0.
struct MaskBounds {
  static constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max() / 4;
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  std::int64_t chunk = 0;     ///< keys; 0: no chunks
  bool bottom_right = false;  ///< the diagonal ends in the last key; else it begins in the first

  bool bounded() const noexcept { return left < kUnbounded || right < kUnbounded || chunk > 0; }

  /// Query i is aligned with key i + shift.
  std::int64_t shift(std::int64_t seqlen_q, std::int64_t seqlen_k) const noexcept {
    return bottom_right ? seqlen_k - seqlen_q : 0;
  }

  /// The first key of the chunk that key `at` lies in, below 0 too.
  std::int64_t chunk_begin(std::int64_t at) const noexcept {
    const std::int64_t rest = at % chunk;
    return at - rest - (rest < 0 ? chunk : 0);
  }
};

/// Backward's LSE with an additive mask. P = exp(S - LSE) needs LSE to an absolute accuracy that
/// one fp32 number has only while |LSE| is small: where every key of a row carries -1e9, LSE = -1e9
/// + log(keys) keeps nothing of the logarithm. From kLargeLse on (1.5e-5 of P) backward makes the
/// row's LSE again, in full, and uses it where it rounds to the one that was given; where it does
/// not, the given one is over more keys than these (attention split along its keys).
inline constexpr double kLargeLse = 256;
inline bool is_large_lse(double lse) {
  return std::isfinite(lse) && std::fabs(lse) >= kLargeLse;
}
/// Four units in the last place: forward may have summed in another order, or in base 2.
inline bool rounds_to_lse(double in_full, double given) {
  return std::fabs(in_full - given) <= std::fabs(given) * 0x1p-21;
}

/// Sizes and scalars of a validated Problem, normalised: the bare causal resolved, scale filled in.
struct Geometry {
  std::int64_t batch = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_k = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  DType dtype = DType::kFp32;  ///< of q, k, v
  double scale = 1;            ///< a float's value unless dtype is fp64
  MaskBounds bounds{};
  float softcap = 0;  ///< scores become softcap tanh(score / softcap); 0: they do not
  float dropout = 0;  ///< probability of dropping a probability
  /// Sequences have lengths that only the call knows; seqlen_* are then the most that one can have,
  /// of ragged rows their number.
  bool has_lengths = false;
  bool ragged_q = false;
  std::int64_t page_size = 0;  ///< of keys and values in pages; 0: they are in none
  bool is_sequence = false;    ///< one of such a call: nothing but its own lengths may cut it

  std::int64_t group() const noexcept { return heads_k == 0 ? 0 : heads_q / heads_k; }
  std::int64_t shift() const noexcept { return bounds.shift(seqlen_q, seqlen_k); }

  /// Visible keys of query i by the bounds: [first_key, end_key), clamped to [0, seqlen_k]. Both
  /// grow with i; where they cross, it sees none.
  std::int64_t first_key(std::int64_t i) const noexcept {
    const std::int64_t at = i + shift();
    const std::int64_t first = at - bounds.left;
    return clamp_key(bounds.chunk > 0 ? std::max(first, bounds.chunk_begin(at)) : first);
  }
  std::int64_t end_key(std::int64_t i) const noexcept {
    const std::int64_t at = i + shift();
    const std::int64_t end = at + bounds.right + 1;
    return clamp_key(bounds.chunk > 0 ? std::min(end, bounds.chunk_begin(at) + bounds.chunk) : end);
  }
  bool nothing_to_write() const noexcept {
    return (batch == 0 && !ragged_q) || heads_q == 0 || seqlen_q == 0;
  }

  /// Visible (query, key) pairs per head by the bounds alone (a mask tensor is not counted).
  double visible_pairs() const noexcept;

 private:
  std::int64_t clamp_key(std::int64_t key) const noexcept {
    return key < 0 ? 0 : (key > seqlen_k ? seqlen_k : key);
  }
};

/// Checks everything about a Problem that does not depend on an implementation.
/// `normalised` gets the Problem with the bare causal resolved and strides of extents <= 1 fixed.
Result<Geometry> validate(const Problem& problem, Problem* normalised);

/// Largest power of two <= 16 that divides every row's address, and `data`'s own.
int alignment_of(const void* data, const TensorSpec& spec);

/// Checks that the tensors of a call are what the plan was made for, that no data pointer is null
/// where elements exist, that element alignment holds, that outputs overlap nothing, and that no
/// tensor overlaps `workspace`, the part of it that the plan uses. Allocates nothing.
Status check_tensors(const Problem& planned, const ForwardTensors& tensors, Workspace workspace);
Status check_tensors(const Problem& planned, const BackwardTensors& tensors, Workspace workspace);

/// The call's tensors with the plan's normalised layouts: strides that are never used read 0.
/// Precondition: check_tensors.
ForwardTensors normalised(const Problem& planned, const ForwardTensors& tensors);
BackwardTensors normalised(const Problem& planned, const BackwardTensors& tensors);

}  // namespace flashlab::internal
