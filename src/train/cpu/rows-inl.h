#pragma once

// Rows of a training step, written once with Highway: the table of an instruction set's kernels,
// and the kernels for the instruction set and both element types of FLASHLAB_ISA. Without it this
// is the table alone, for callers. Each function works on a range that its caller has chosen; sums
// inside it run in the element's type.
//
// INVARIANT: as in cpu/simd/vector-inl.h, these translation units emit no symbol that another one
// could also emit: C headers and Highway only, everything in an anonymous namespace. What is inline
// in the table's half they do not call, so their objects hold none of it.

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
  /// y = gelu(gate) up likewise.
  void (*geglu)(const T* gate_up, T* y, int64_t rows, int64_t hidden);
  void (*geglu_backward)(const T* dy, const T* gate_up, T* dgate_up, int64_t rows, int64_t hidden);
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

#ifdef FLASHLAB_ISA
#include <math.h>
#include <string.h>

#ifndef HWY_COMPILE_ONLY_SCALAR
#define HWY_COMPILE_ONLY_STATIC
#endif
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

namespace flashlab::train::cpu {
namespace FLASHLAB_ISA {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;

template <class T>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<T>()));

template <class T>
HWY_INLINE Vector<T> set(double x) {
  return hn::Set(Tag<T>(), static_cast<T>(x));
}

/// The first `count` lanes from memory, zeros after. Whole vectors are the usual case.
template <class T>
HWY_INLINE Vector<T> load(const T* p, int64_t count) {
  if (count >= kLanes<T>) return hn::LoadU(Tag<T>(), p);
  T padded[kLanes<T>] = {};
  memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
  return hn::LoadU(Tag<T>(), padded);
}

template <class T>
HWY_INLINE void store(Vector<T> v, T* p, int64_t count) {
  if (count >= kLanes<T>) {
    hn::StoreU(v, Tag<T>(), p);
    return;
  }
  T padded[kLanes<T>];
  hn::StoreU(v, Tag<T>(), padded);
  memcpy(p, padded, static_cast<size_t>(count) * sizeof(T));
}

template <class T>
HWY_INLINE T sum_lanes(Vector<T> v) {
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), v));
}

/// body(i, lanes in use) for every vector of [0, count).
template <class T, class Body>
HWY_INLINE void each_vector(int64_t count, const Body& body) {
  for (int64_t i = 0; i < count; i += kLanes<T>) {
    body(i, count - i < kLanes<T> ? count - i : kLanes<T>);
  }
}

// ---------------------------------------------------------------------------------------------
// Norms
// ---------------------------------------------------------------------------------------------

template <class T>
void rms_norm(const T* x, const T* w, T* y, T* rstd, int64_t rows, int64_t width, double epsilon) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    Vector<T> squares = set<T>(0);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> v = load(x + i, n);
      squares = hn::MulAdd(v, v, squares);
    });
    const double mean = static_cast<double>(sum_lanes<T>(squares)) / static_cast<double>(width);
    rstd[row] = static_cast<T>(1.0 / sqrt(mean + epsilon));
    const Vector<T> scale = hn::Set(Tag<T>(), rstd[row]);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      store(hn::Mul(load(w + i, n), hn::Mul(load(x + i, n), scale)), y + i, n);
    });
  }
}

template <class T>
void rms_norm_backward(const T* dy, const T* x, const T* w, const T* rstd, T* dx, T* dw,
                       int64_t rows, int64_t width, bool accumulate) {
  for (int64_t row = 0; row < rows; ++row, dy += width, x += width, dx += width) {
    const Vector<T> scale = hn::Set(Tag<T>(), rstd[row]);
    Vector<T> dot = set<T>(0);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> g = load(dy + i, n), v = load(x + i, n);
      dot = hn::MulAdd(hn::Mul(g, load(w + i, n)), v, dot);
      store(hn::MulAdd(g, hn::Mul(v, scale), load(dw + i, n)), dw + i, n);
    });
    const T mean = sum_lanes<T>(dot) / static_cast<T>(width);
    const Vector<T> pull = hn::Set(Tag<T>(), mean * rstd[row] * rstd[row]);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> g = hn::Mul(load(dy + i, n), load(w + i, n));
      Vector<T> d = hn::Mul(scale, hn::NegMulAdd(load(x + i, n), pull, g));
      if (accumulate) d = hn::Add(d, load(dx + i, n));
      store(d, dx + i, n);
    });
  }
}

template <class T>
void layer_norm(const T* x, const T* w, const T* b, T* y, T* mean, T* rstd, int64_t rows,
                int64_t width, double epsilon) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    Vector<T> total = set<T>(0);
    each_vector<T>(width, [&](int64_t i, int64_t n) { total = hn::Add(total, load(x + i, n)); });
    mean[row] = sum_lanes<T>(total) / static_cast<T>(width);
    const Vector<T> centre = hn::Set(Tag<T>(), mean[row]);
    Vector<T> squares = set<T>(0);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> v = hn::Sub(load(x + i, n), centre);
      // Lanes past the end would count the centre itself.
      const Vector<T> kept =
          n >= kLanes<T> ? v : hn::IfThenElseZero(hn::FirstN(Tag<T>(), size_t(n)), v);
      squares = hn::MulAdd(kept, kept, squares);
    });
    const double variance = static_cast<double>(sum_lanes<T>(squares)) / static_cast<double>(width);
    rstd[row] = static_cast<T>(1.0 / sqrt(variance + epsilon));
    const Vector<T> scale = hn::Set(Tag<T>(), rstd[row]);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> v = hn::Mul(hn::Sub(load(x + i, n), centre), scale);
      store(hn::MulAdd(v, load(w + i, n), load(b + i, n)), y + i, n);
    });
  }
}

template <class T>
void layer_norm_backward(const T* dy, const T* x, const T* w, const T* mean, const T* rstd, T* dx,
                         T* dw, T* db, int64_t rows, int64_t width, bool accumulate) {
  for (int64_t row = 0; row < rows; ++row, dy += width, x += width, dx += width) {
    const Vector<T> centre = hn::Set(Tag<T>(), mean[row]), scale = hn::Set(Tag<T>(), rstd[row]);
    Vector<T> total = set<T>(0), dot = set<T>(0);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> g = load(dy + i, n);
      const Vector<T> v = hn::Mul(hn::Sub(load(x + i, n), centre), scale);
      const Vector<T> weighted = hn::Mul(g, load(w + i, n));
      total = hn::Add(total, weighted);
      dot = hn::MulAdd(weighted, v, dot);
      store(hn::MulAdd(g, v, load(dw + i, n)), dw + i, n);
      store(hn::Add(g, load(db + i, n)), db + i, n);
    });
    const T count = static_cast<T>(width);
    const Vector<T> mean_g = hn::Set(Tag<T>(), sum_lanes<T>(total) / count);
    const Vector<T> mean_dot = hn::Set(Tag<T>(), sum_lanes<T>(dot) / count);
    each_vector<T>(width, [&](int64_t i, int64_t n) {
      const Vector<T> v = hn::Mul(hn::Sub(load(x + i, n), centre), scale);
      const Vector<T> g = hn::Sub(hn::Mul(load(dy + i, n), load(w + i, n)), mean_g);
      Vector<T> d = hn::Mul(scale, hn::NegMulAdd(v, mean_dot, g));
      if (accumulate) d = hn::Add(d, load(dx + i, n));
      store(d, dx + i, n);
    });
  }
}

// ---------------------------------------------------------------------------------------------
// Activations
// ---------------------------------------------------------------------------------------------

/// e^x: infinity where it overflows, NaN for NaN. hn::Exp alone wraps round from 256 ln 2 on (fp64:
/// 2048 ln 2) and makes a NaN 0. Every exponential of this file is this one.
template <class T>
HWY_INLINE Vector<T> exponential(Vector<T> x) {
  constexpr double kOverflows = sizeof(T) == 4 ? 104 : 1000;
  const Vector<T> e = hn::Exp(Tag<T>(), hn::Min(x, set<T>(kOverflows)));
  return hn::IfThenElse(hn::IsNaN(x), x, e);
}

template <class T>
HWY_INLINE Vector<T> sigmoid(Vector<T> x) {
  const Vector<T> one = set<T>(1);
  return hn::Div(one, hn::Add(one, exponential<T>(hn::Neg(x))));
}

template <class T>
void swiglu(const T* gate_up, T* y, int64_t rows, int64_t hidden) {
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * hidden, y += hidden) {
    each_vector<T>(hidden, [&](int64_t i, int64_t n) {
      const Vector<T> g = load(gate_up + i, n), u = load(gate_up + hidden + i, n);
      store(hn::Mul(hn::Mul(g, sigmoid<T>(g)), u), y + i, n);
    });
  }
}

/// d silu(g) = s + g s (1 - s) with s = sigmoid(g).
template <class T>
void swiglu_backward(const T* dy, const T* gate_up, T* dgate_up, int64_t rows, int64_t hidden) {
  const Vector<T> one = set<T>(1);
  for (int64_t row = 0; row < rows; ++row) {
    each_vector<T>(hidden, [&](int64_t i, int64_t n) {
      const Vector<T> g = load(gate_up + i, n), u = load(gate_up + hidden + i, n);
      const Vector<T> d = load(dy + i, n), s = sigmoid<T>(g);
      const Vector<T> silu = hn::Mul(g, s);
      const Vector<T> slope = hn::MulAdd(silu, hn::Sub(one, s), s);
      store(hn::Mul(hn::Mul(d, u), slope), dgate_up + i, n);
      store(hn::Mul(d, silu), dgate_up + hidden + i, n);
    });
    dy += hidden;
    gate_up += 2 * hidden;
    dgate_up += 2 * hidden;
  }
}

constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

/// tanh through the logistic function: hn::Tanh costs an Expm1 and more.
template <class T>
HWY_INLINE Vector<T> gelu_tanh(Vector<T> x) {
  const Vector<T> cube = hn::Mul(hn::Mul(x, x), x);
  const Vector<T> inner = hn::Mul(set<T>(2 * kGeluScale), hn::MulAdd(set<T>(kGeluCube), cube, x));
  return hn::MulSub(set<T>(2), sigmoid<T>(inner), set<T>(1));
}

template <class T>
void gelu(const T* x, T* y, int64_t count) {
  const Vector<T> half = set<T>(0.5), one = set<T>(1);
  each_vector<T>(count, [&](int64_t i, int64_t n) {
    const Vector<T> v = load(x + i, n);
    store(hn::Mul(hn::Mul(half, v), hn::Add(one, gelu_tanh<T>(v))), y + i, n);
  });
}

/// d gelu = (1 + t)/2 + x/2 (1 - t^2) sqrt(2/pi) (1 + 3 c x^2).
template <class T>
HWY_INLINE Vector<T> gelu_slope(Vector<T> v, Vector<T> t) {
  const Vector<T> half = set<T>(0.5), one = set<T>(1);
  // 1 - t^2 is 0 long before x^2 overflows: their product must not be 0 times infinity.
  const Vector<T> inner =
      hn::Min(hn::Mul(set<T>(kGeluScale), hn::MulAdd(set<T>(3 * kGeluCube), hn::Mul(v, v), one)),
              hn::Set(Tag<T>(), hwy::HighestValue<T>()));
  const Vector<T> curve = hn::Mul(hn::Mul(v, hn::NegMulAdd(t, t, one)), inner);
  return hn::Mul(half, hn::Add(hn::Add(one, t), curve));
}

template <class T>
void gelu_backward(const T* dy, const T* x, T* dx, int64_t count) {
  each_vector<T>(count, [&](int64_t i, int64_t n) {
    const Vector<T> v = load(x + i, n), t = gelu_tanh<T>(v);
    store(hn::Mul(load(dy + i, n), gelu_slope<T>(v, t)), dx + i, n);
  });
}

template <class T>
void geglu(const T* gate_up, T* y, int64_t rows, int64_t hidden) {
  const Vector<T> half = set<T>(0.5), one = set<T>(1);
  for (int64_t row = 0; row < rows; ++row, gate_up += 2 * hidden, y += hidden) {
    each_vector<T>(hidden, [&](int64_t i, int64_t n) {
      const Vector<T> g = load(gate_up + i, n), u = load(gate_up + hidden + i, n);
      const Vector<T> gelu = hn::Mul(hn::Mul(half, g), hn::Add(one, gelu_tanh<T>(g)));
      store(hn::Mul(gelu, u), y + i, n);
    });
  }
}

template <class T>
void geglu_backward(const T* dy, const T* gate_up, T* dgate_up, int64_t rows, int64_t hidden) {
  const Vector<T> half = set<T>(0.5), one = set<T>(1);
  for (int64_t row = 0; row < rows; ++row) {
    each_vector<T>(hidden, [&](int64_t i, int64_t n) {
      const Vector<T> g = load(gate_up + i, n), u = load(gate_up + hidden + i, n);
      const Vector<T> d = load(dy + i, n), t = gelu_tanh<T>(g);
      const Vector<T> gelu = hn::Mul(hn::Mul(half, g), hn::Add(one, t));
      store(hn::Mul(hn::Mul(d, u), gelu_slope<T>(g, t)), dgate_up + i, n);
      store(hn::Mul(d, gelu), dgate_up + hidden + i, n);
    });
    dy += hidden;
    gate_up += 2 * hidden;
    dgate_up += 2 * hidden;
  }
}

// ---------------------------------------------------------------------------------------------
// Softmax and loss
// ---------------------------------------------------------------------------------------------

/// exp(s - max) of `count` elements to p; gives their sum.
template <class T>
HWY_INLINE T exponentials(const T* s, T max, T* p, int64_t count) {
  const Vector<T> top = hn::Set(Tag<T>(), max);
  Vector<T> total = set<T>(0);
  each_vector<T>(count, [&](int64_t i, int64_t n) {
    Vector<T> e = exponential<T>(hn::Sub(load(s + i, n), top));
    if (n < kLanes<T>) e = hn::IfThenElseZero(hn::FirstN(Tag<T>(), size_t(n)), e);
    store(e, p + i, n);
    total = hn::Add(total, e);
  });
  return sum_lanes<T>(total);
}

template <class T>
HWY_INLINE void scale_row(T* p, T factor, int64_t count) {
  const Vector<T> f = hn::Set(Tag<T>(), factor);
  each_vector<T>(count, [&](int64_t i, int64_t n) { store(hn::Mul(load(p + i, n), f), p + i, n); });
}

template <class T>
T softmax_row(const T* s, T max, T* p, int64_t visible, int64_t width) {
  const T sum = exponentials(s, max, p, visible);
  scale_row(p, T(1) / sum, visible);
  memset(p + visible, 0, static_cast<size_t>(width - visible) * sizeof(T));
  return sum;
}

template <class T>
HWY_INLINE T row_max(const T* x, int64_t count) {
  T best = x[0];
  for (int64_t i = 1; i < count; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

template <class T>
void cross_entropy(T* logits, const int32_t* targets, T* losses, int64_t rows, int64_t vocabulary,
                   double scale) {
  for (int64_t row = 0; row < rows; ++row, logits += vocabulary) {
    const T target = logits[targets[row]];
    const T max = row_max(logits, vocabulary);
    T sum = 0;
    if (scale == 0) {
      for (int64_t i = 0; i < vocabulary; i += kLanes<T>) {
        T scratch[kLanes<T>];
        const int64_t n = vocabulary - i < kLanes<T> ? vocabulary - i : kLanes<T>;
        sum += exponentials(logits + i, max, scratch, n);
      }
    } else {
      sum = exponentials(logits, max, logits, vocabulary);
      scale_row(logits, static_cast<T>(scale / static_cast<double>(sum)), vocabulary);
      logits[targets[row]] -= static_cast<T>(scale);
    }
    losses[row] = static_cast<T>(log(static_cast<double>(sum)) + static_cast<double>(max) -
                                 static_cast<double>(target));
  }
}

// ---------------------------------------------------------------------------------------------
// Optimizer
// ---------------------------------------------------------------------------------------------

template <class T>
void add(const T* x, T* y, int64_t count) {
  each_vector<T>(count, [&](int64_t i, int64_t n) {
    store(hn::Add(load(x + i, n), load(y + i, n)), y + i, n);
  });
}

/// Short runs in the element's type, their sum in fp64.
template <class T>
double sum_of_squares(const T* x, int64_t count) {
  constexpr int64_t kRun = 1024;
  double total = 0;
  for (int64_t first = 0; first < count; first += kRun) {
    Vector<T> squares = set<T>(0);
    each_vector<T>(count - first < kRun ? count - first : kRun, [&](int64_t i, int64_t n) {
      const Vector<T> v = load(x + first + i, n);
      squares = hn::MulAdd(v, v, squares);
    });
    total += static_cast<double>(sum_lanes<T>(squares));
  }
  return total;
}

template <class T>
void adamw(const AdamWRange& r, const T* gradient, T* value, T* first, T* second, int64_t count) {
  const Vector<T> beta1 = set<T>(r.beta1), beta2 = set<T>(r.beta2);
  const Vector<T> rest1 = set<T>(1 - r.beta1), rest2 = set<T>(1 - r.beta2);
  const Vector<T> epsilon = set<T>(r.epsilon), keep = set<T>(r.keep), rate = set<T>(r.rate);
  const Vector<T> widen = set<T>(r.denominator_scale), clip = set<T>(r.gradient_scale);
  each_vector<T>(count, [&](int64_t i, int64_t n) {
    const Vector<T> g = hn::Mul(load(gradient + i, n), clip);
    const Vector<T> m = hn::MulAdd(beta1, load(first + i, n), hn::Mul(rest1, g));
    const Vector<T> v = hn::MulAdd(beta2, load(second + i, n), hn::Mul(rest2, hn::Mul(g, g)));
    const Vector<T> denominator = hn::MulAdd(hn::Sqrt(v), widen, epsilon);
    const Vector<T> p = hn::Mul(keep, load(value + i, n));
    store(hn::NegMulAdd(rate, hn::Div(m, denominator), p), value + i, n);
    store(m, first + i, n);
    store(v, second + i, n);
  });
}

template <class T>
constexpr KernelTable<T> make_table(const char* name) {
  return {.name = name,
          .rms_norm = &rms_norm<T>,
          .rms_norm_backward = &rms_norm_backward<T>,
          .layer_norm = &layer_norm<T>,
          .layer_norm_backward = &layer_norm_backward<T>,
          .swiglu = &swiglu<T>,
          .swiglu_backward = &swiglu_backward<T>,
          .geglu = &geglu<T>,
          .geglu_backward = &geglu_backward<T>,
          .gelu = &gelu<T>,
          .gelu_backward = &gelu_backward<T>,
          .softmax_row = &softmax_row<T>,
          .cross_entropy = &cross_entropy<T>,
          .add = &add<T>,
          .sum_of_squares = &sum_of_squares<T>,
          .adamw = &adamw<T>};
}

}  // namespace

const KernelTable<float> kFloat = make_table<float>(FLASHLAB_ISA_NAME);
const KernelTable<double> kDouble = make_table<double>(FLASHLAB_ISA_NAME);

}  // namespace FLASHLAB_ISA
}  // namespace flashlab::train::cpu

#endif  // FLASHLAB_ISA
