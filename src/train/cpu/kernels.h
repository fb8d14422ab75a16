#pragma once

// Rows of a training step, written once with Highway and compiled once per instruction set. Each
// function works on a range that its caller has chosen; sums inside it run in the element's type.
//
// Included by the translation units of each instruction set: what is inline here they do not call,
// so their objects hold none of it.

#include <stdint.h>

#include "flashlab/context.h"
#include "runtime/cpu/isa_tables.h"

namespace flashlab::train::cpu {

/// What AdamW does to a range; `rate` and `denominator_scale` carry the convention.
struct AdamWRange {
  double beta1, beta2, epsilon;
  double keep;               ///< 1 - learning rate * weight decay
  double rate;               ///< of m / (sqrt(v) * denominator_scale + epsilon)
  double denominator_scale;  ///< 1 (cs336) or 1 / sqrt(1 - beta2^t) (torch)
  double gradient_scale;     ///< of clipping
};

template <class T>
struct KernelTable {
  const char* name;

  /// y = w x rstd, rstd = 1 / sqrt(mean(x^2) + epsilon).   x, y [rows, width]  w [width]
  void (*rms_norm)(const T* x, const T* w, T* y, T* rstd, int64_t rows, int64_t width,
                   double epsilon);
  /// dx = rstd (w dy - x rstd^2 mean(w dy x)), added where `accumulate`; dw += dy x rstd.
  void (*rms_norm_backward)(const T* dy, const T* x, const T* w, const T* rstd, T* dx, T* dw,
                            int64_t rows, int64_t width, bool accumulate);
  /// y = w (x - mean) rstd + b.
  void (*layer_norm)(const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, int64_t rows,
                     int64_t width, double epsilon);
  void (*layer_norm_backward)(const T* dy, const T* x, const T* w, const T* mean, const T* rstd,
                              T* dx, T* dw, T* db, int64_t rows, int64_t width, bool accumulate);

  /// y = silu(gate) up.   gate_up [rows, 2 hidden]  y [rows, hidden]
  void (*swiglu)(const T* gate_up, T* y, int64_t rows, int64_t hidden);
  void (*swiglu_backward)(const T* dy, const T* gate_up, T* dgate_up, int64_t rows, int64_t hidden);
  /// The tanh form of GELU.
  void (*gelu)(const T* x, T* y, int64_t count);
  void (*gelu_backward)(const T* dy, const T* x, T* dx, int64_t count);

  /// p = exp(s - max) / sum for the first `visible` of a row, 0 after; gives the sum.
  T (*softmax_row)(const T* s, T max, T* p, int64_t visible, int64_t width);

  /// losses = log sum exp(row) - row[target]; where scale != 0 the row becomes scale (p - onehot).
  void (*cross_entropy)(T* logits, const int32_t* targets, T* losses, int64_t rows,
                        int64_t vocabulary, double scale);

  /// y += x.
  void (*add)(const T* x, T* y, int64_t count);
  double (*sum_of_squares)(const T* x, int64_t count);
  void (*adamw)(const AdamWRange& range, const T* gradient, T* value, T* first, T* second,
                int64_t count);
};

FLASHLAB_ISA_TABLES(KernelTable<float>, kFloat)
FLASHLAB_ISA_TABLES(KernelTable<double>, kDouble)

/// The table of the strongest instruction set not above `isa`.
template <class T>
const KernelTable<T>& kernels(CpuIsa isa);
template <>
inline const KernelTable<float>& kernels(CpuIsa isa) {
  return FLASHLAB_ISA_TABLE(isa, kFloat);
}
template <>
inline const KernelTable<double>& kernels(CpuIsa isa) {
  return FLASHLAB_ISA_TABLE(isa, kDouble);
}

}  // namespace flashlab::train::cpu
