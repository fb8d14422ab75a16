#include "reference/comparator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashlab::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Kind { kFinite, kNaN, kPositiveInfinity, kNegativeInfinity };

Kind kind_of(double value) {
  if (std::isnan(value)) return Kind::kNaN;
  if (std::isinf(value)) return value > 0 ? Kind::kPositiveInfinity : Kind::kNegativeInfinity;
  return Kind::kFinite;
}

// Collects elements; the first special mismatch outranks every finite error, and the worst finite
// one is the element furthest beyond (or nearest to) its bound.
class Judge {
 public:
  explicit Judge(std::string tensor) {
    verdict_.tensor = std::move(tensor);
    verdict_.passed = true;
  }

  void element(const std::array<std::int64_t, 4>& index, double got, double expected,
               double bound) {
    ++verdict_.compared;
    const bool first = verdict_.compared == 1;
    if (kind_of(got) != kind_of(expected)) {
      // The reference has more range than T: an infinity is right where T ends, within the bound.
      const bool overflow = std::isinf(got) && std::isfinite(expected) &&
                            std::signbit(got) == std::signbit(expected) &&
                            std::fabs(expected) + bound >= largest_;
      if (overflow || verdict_.special_mismatch) return;
      verdict_.special_mismatch = true;
      verdict_.passed = false;
      note(index, got, expected, bound);
      return;
    }
    if (kind_of(got) != Kind::kFinite) {
      if (first) note(index, got, expected, bound);
      return;
    }
    const double error = std::fabs(got - expected);
    verdict_.max_error = std::max(verdict_.max_error, error);
    if (!(error <= bound)) verdict_.passed = false;
    const double excess = error - bound;
    if (verdict_.special_mismatch || !(first || excess > worst_excess_)) return;
    worst_excess_ = excess;
    note(index, got, expected, bound);
  }

  void set_largest(double value) { largest_ = value; }
  Verdict& verdict() { return verdict_; }

 private:
  void note(const std::array<std::int64_t, 4>& index, double got, double expected, double bound) {
    verdict_.index = index;
    verdict_.got = got;
    verdict_.expected = expected;
    verdict_.bound = bound;
  }

  Verdict verdict_;
  double worst_excess_ = -kInfinity;
  double largest_ = kInfinity;
};

std::int64_t offset(const TensorSpec& spec, const std::array<std::int64_t, 4>& index) {
  std::int64_t sum = 0;
  for (int d = 0; d < spec.rank; ++d) {
    const auto n = static_cast<std::size_t>(d);
    if (spec.shape[n] > 1) sum += index[n] * spec.strides[n];
  }
  return sum;
}

}  // namespace

std::string Verdict::message() const {
  if (compared == 0) return fmt::format("{}: nothing to compare", tensor);
  const std::string where =
      fmt::format("{}[{}, {}, {}, {}]", tensor, index[0], index[1], index[2], index[3]);
  if (special_mismatch) {
    return fmt::format("{}: got {:.9g}, expected {:.9g}: NaN and infinities must agree exactly",
                       where, got, expected);
  }
  return fmt::format(
      "{}: got {:.9g}, expected {:.9g} within {:.3g} (worst error {:.3g}, naive errs "
      "{:.3g}, atol {:.3g})",
      where, got, expected, bound, max_error, naive_error, atol);
}

double element_atol(DType type, double reference) {
  if (!std::isfinite(reference)) return 0;
  const double in_type = round_to(type, reference);
  const double up = round_to(type, in_type + round_to(type, 0.3));
  const double back = round_to(type, up - round_to(type, 0.3));
  // Beyond T's range the sum is infinite; such an element has no finite neighbour to be near to.
  return std::isfinite(back) ? 2 * std::fabs(back - reference) : 0;
}

Verdict compare(const Comparison& c) {
  const TensorSpec& spec = c.got.spec;
  const auto width = static_cast<std::size_t>(spec.shape[3]);
  double naive_error = 0, atol = 0;
  for (std::size_t r = 0; r < c.rows.size(); ++r) {
    if (c.dont_care != nullptr && (*c.dont_care)[r] != 0) continue;
    for (std::size_t n = r * width; n < (r + 1) * width; ++n) {
      const double expected = c.expected[n];
      if (!std::isfinite(expected)) continue;
      atol = std::max(atol, element_atol(c.type, expected));
      const double error = std::fabs(c.naive[n] - expected);
      // Where the naive formula itself overflows it says nothing about what may be asked.
      if (std::isfinite(error)) naive_error = std::max(naive_error, error);
    }
  }
  const double bound = 2 * naive_error + atol;

  Judge judge(c.tensor);
  judge.set_largest(largest(spec.dtype));
  for (std::size_t r = 0; r < c.rows.size(); ++r) {
    const Row& row = c.rows[r];
    if (c.dont_care != nullptr && (*c.dont_care)[r] != 0) {
      judge.verdict().dont_care += static_cast<std::int64_t>(width);
      continue;
    }
    const std::int64_t base = offset(spec, {row.batch, row.position, row.head, 0});
    for (std::size_t d = 0; d < width; ++d) {
      const auto column = static_cast<std::int64_t>(d);
      const double got = load(c.got.data, spec.dtype, base + column);
      judge.element({row.batch, row.position, row.head, column}, got, c.expected[r * width + d],
                    bound);
    }
  }
  judge.verdict().naive_error = naive_error;
  judge.verdict().atol = atol;
  return judge.verdict();
}

Verdict compare_lse(const ConstTensor& got, const std::vector<Row>& rows,
                    const std::vector<double>& expected, const std::vector<double>& magnitude) {
  Judge judge("lse");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const Row& row = rows[r];
    const double value =
        load(got.data, got.spec.dtype, offset(got.spec, {row.batch, row.head, row.position, 0}));
    double bound = std::isfinite(expected[r]) ? 1e-5 * (1 + std::fabs(expected[r])) : 0;
    if (std::isfinite(magnitude[r])) bound = std::max(bound, 0x1p-21 * magnitude[r]);
    judge.element({row.batch, row.position, row.head, 0}, value, expected[r], bound);
  }
  return judge.verdict();
}

}  // namespace flashlab::reference
