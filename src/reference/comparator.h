#pragma once

// The acceptance rule. Special values first and exactly: NaN, +inf and -inf stand where the oracle
// has them, and nowhere else. Then every finite element x satisfies
//   |x - ref| <= 2 max|naive - ref| + atol,   atol = 2 max|((ref + 0.3) - 0.3) - ref| evaluated in
//   T
// so that a kernel may err twice as much as the naive formula in its own type, and atol covers what
// T cannot hold of the reference itself. LSE: |x - ref| <= 1e-5 (1 + |ref|), or the rounding of the
// products that make up a score where these are much larger than the LSE (they cancelled):
// 2^-21 |scale| |q| max |k|.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "flashlab/tensor.h"
#include "reference/view.h"

namespace flashlab::reference {

/// What a comparison found; says everything a person needs to look at the worst element.
struct Verdict {
  bool passed = false;
  std::string tensor;                   ///< "o", "lse", "dq", "dk", "dv"
  std::array<std::int64_t, 4> index{};  ///< worst element [b, s, h, d]; d = 0 for the LSE
  double got = 0, expected = 0;         ///< there
  double bound = 0;                     ///< allowed |got - expected| there
  double max_error = 0;                 ///< max |x - ref| over finite elements
  double naive_error = 0;               ///< max |naive - ref|, where naive is finite
  double atol = 0;
  std::int64_t compared = 0;      ///< elements
  std::int64_t dont_care = 0;     ///< elements left out by the don't-care set
  bool special_mismatch = false;  ///< a NaN or infinity is missing, misplaced or invented

  /// "dk[0, 12, 3, 63]: got 1.25, expected 1.5 within 0.01 (naive errs 0.004, atol 0.002)".
  std::string message() const;
};

/// What is compared: rows of `got`, a tensor [batch, seqlen, heads, width].
struct Comparison {
  std::string tensor;
  ConstTensor got;
  const std::vector<Row>& rows;
  const std::vector<double>& expected;                   ///< [rows, width]
  const std::vector<double>& naive;                      ///< [rows, width]
  const std::vector<std::uint8_t>* dont_care = nullptr;  ///< [rows]
  DType type = DType::kFp32;                             ///< T: the inputs' dtype, for atol
};

/// Applies the rule. With no element to compare the verdict is passed.
Verdict compare(const Comparison& comparison);

/// The rule of the LSE: `got` is [batch, heads, seqlen], `expected` and `magnitude` (see
/// ForwardRows) [rows].
Verdict compare_lse(const ConstTensor& got, const std::vector<Row>& rows,
                    const std::vector<double>& expected, const std::vector<double>& magnitude);

/// 2 |((ref + 0.3) - 0.3) - ref| evaluated in `type`.
double element_atol(DType type, double reference);

}  // namespace flashlab::reference
