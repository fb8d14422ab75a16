#pragma once

// What a sink makes of a row. Kernels of every instruction set include it: static functions and
// builtins define no symbol that two of their objects could share (tests/cpu_simd_symbols.sh).

namespace flashlab::internal {

/// O' = factor O, and LSE' = log(e^LSE + e^sink).
struct SinkRow {
  double factor, lse;
};

/// NaN and +inf make the row NaN, as in any score.
static inline SinkRow with_sink(double lse, double sink) {
  const double infinity = __builtin_inf(), nan = __builtin_nan("");
  if (sink == -infinity) return {1, lse};
  if (!(sink < infinity)) return {nan, nan};
  if (lse == -infinity) return {0, sink};
  const double less = __builtin_exp(-__builtin_fabs(sink - lse));  // the smaller one's share
  return sink <= lse ? SinkRow{1 / (1 + less), lse + __builtin_log1p(less)}
                     : SinkRow{less / (1 + less), sink + __builtin_log1p(less)};
}

}  // namespace flashlab::internal
