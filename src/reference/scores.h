#pragma once

// From products q.k to scores and from probabilities to what multiplies V: the reference's own idea
// of softcap, ALiBi and dropout.

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "flashlab/attention.h"
#include "reference/view.h"

namespace flashlab::reference {

/// score = cap tanh(x / cap) - slope |i + Sk - Sq - j|,  x = scale q.k;  without softcap score = x.
class ScoreRule {
 public:
  ScoreRule(const Sizes& sizes, const Options& options, const std::optional<ConstTensor>& slopes);

  /// What softcap makes of x.
  template <class Real>
  Real capped(Real x) const {
    return cap_ ? static_cast<Real>(*cap_) * std::tanh(x / static_cast<Real>(*cap_)) : x;
  }
  /// d capped(x) / dx = 1 - tanh(x / cap)^2.
  template <class Real>
  Real derivative(Real x) const {
    if (!cap_) return Real(1);
    const Real t = std::tanh(x / static_cast<Real>(*cap_));
    return 1 - t * t;
  }
  bool is_capped() const { return cap_.has_value(); }

  /// What ALiBi adds to the scores of query i of (b, h).
  class Row {
   public:
    double operator()(std::int64_t j) const {
      return slope == 0 ? 0 : -slope * std::fabs(static_cast<double>(aligned_key - j));
    }
    double slope = 0;
    std::int64_t aligned_key = 0;
  };
  Row row(std::int64_t b, std::int64_t h, std::int64_t i) const;

 private:
  Sizes sizes_;
  std::optional<float> cap_;
  std::optional<ConstTensor> slopes_;
};

/// Which probabilities dropout keeps: a function of seed, offset, batch, head, query and key alone.
///
/// A head's words (a, x, y, unused) are Philox-4x32-10 of the counter (head index, offset) under
/// the key seed, head index = batch * heads_q + head. Queries and keys come in groups of 4 x 2: i,
/// i + 8, i + 16 and i + 24, j and j + 8, i modulo 32 and j modulo 16 below 8. A group's 64 bits
/// are Philox-2x32-7 of the counter (x ^ query, y ^ key), bits 3 and 4 of the query and bit 3 of
/// the key taken out, under the key a. Of its eight bytes, the lowest first, those of (i, j),
/// (i, j + 8), (i + 8, j), (i + 8, j + 8) and of the same with i + 16, a pair is kept where the
/// lower seven bits are a number below floor((L + n) / 512), L = 65536 (1 - p), rounded, and n the
/// upper nine bits of 0xD256D193 (x ^ query) + y + 0x9E3779B9 (j / 32) modulo 2^32.
class DropoutRule {
 public:
  DropoutRule(const Sizes& sizes, const Options& options, const DropoutSeed& seed);
  /// Of a call: seed and offset as values, or as dropout_state has them. A third word there is the
  /// head index of the first head, where the tensors are one sequence of several.
  template <class Tensors>
  DropoutRule(const Sizes& sizes, const Options& options, const Tensors& tensors)
      : DropoutRule(sizes, options, seed_of(tensors.dropout_seed, tensors.dropout_state)) {
    first_head_ = first_head_of(tensors.dropout_state);
  }

  bool active() const { return limit_ < 65536; }
  /// 1 / (1 - p)
  double scale() const { return scale_; }
  bool keeps(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;

  /// 1 or 0 for every key of `keys`.
  void row(std::int64_t b, std::int64_t h, std::int64_t i, const std::vector<std::int64_t>& keys,
           std::vector<std::uint8_t>& kept) const;

 private:
  static DropoutSeed seed_of(const DropoutSeed& values, const std::optional<ConstTensor>& state);
  static std::int64_t first_head_of(const std::optional<ConstTensor>& state);
  std::array<std::uint32_t, 4> head_words(std::int64_t b, std::int64_t h) const;
  bool keeps(const std::array<std::uint32_t, 4>& words, std::int64_t i, std::int64_t j) const;

  std::int64_t heads_q_;
  std::int64_t first_head_ = 0;
  DropoutSeed seed_;
  std::uint32_t limit_ = 65536;
  double scale_ = 1;
};

}  // namespace flashlab::reference
