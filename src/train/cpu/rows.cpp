// Norms, activations and sums over rows: ranges of rows for the kernels of rows-inl.h.

#include <algorithm>
#include <cstring>
#include <vector>

#include "train/cpu/call.h"
#include "train/cpu/product.h"

namespace flashlab::train::cpu {
namespace {

constexpr std::int64_t kRowGrain = 32;

// Rows of part `part` of kReductionParts: [first, end).
struct Part {
  std::int64_t first, end;
};
Part part_of(std::int64_t rows, std::int64_t part) {
  return {rows * part / kReductionParts, rows * (part + 1) / kReductionParts};
}

// The parts [kReductionParts, width] become one by pairwise addition, then go to `out`.
template <class T>
void reduce_parts(const Call<T>& call, T* parts, T* out, std::int64_t width, bool accumulate) {
  for (std::int64_t step = 1; step < kReductionParts; step *= 2) {
    for (std::int64_t i = 0; i + step < kReductionParts; i += 2 * step) {
      call.kernels.add(parts + (i + step) * width, parts + i * width, width);
    }
  }
  if (accumulate) {
    call.kernels.add(parts, out, width);
  } else {
    std::memcpy(out, parts, static_cast<std::size_t>(width) * sizeof(T));
  }
}

}  // namespace

std::int64_t scratch_bytes(const StepPlan& plan, const Operation& operation) {
  // 16-bit operands are widened: what is summed is fp32 at least.
  const auto bytes_of = [&](TensorId id) {
    return std::max(size_of(plan.tensor(id).element), size_of(Element::kFp32));
  };
  switch (operation.kind) {
    case OperationKind::kHeadNormBackward: {
      const std::int64_t width = std::get<HeadNormAttributes>(operation.attributes).head_dim;
      return 2 * kReductionParts * width * bytes_of(operation.inputs.front());
    }
    case OperationKind::kColumnSum:
    case OperationKind::kRmsNormBackward:
    case OperationKind::kLayerNormBackward: {
      const std::int64_t width = std::get<RowsAttributes>(operation.attributes).width;
      return 2 * kReductionParts * width * bytes_of(operation.inputs.front());
    }
    default:
      return 0;
  }
}

template <class T>
void column_sum(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  T* parts = reinterpret_cast<T*>(call.scratch);
  const T* x = call.in(Slot::kX);
  call.pool.run(kReductionParts, [&](std::int64_t i, int) {
    T* sum = parts + i * a.width;
    std::fill(sum, sum + a.width, T(0));
    const Part part = part_of(a.rows, i);
    for (std::int64_t row = part.first; row < part.end; ++row) {
      call.kernels.add(x + row * a.width, sum, a.width);
    }
  });
  reduce_parts(call, parts, call.out(Slot::kSum), a.width, a.accumulate_parameters);
}

namespace {

// What a norm multiplies by: its weight, or 1 + weight.
template <class T>
class NormFactor {
 public:
  NormFactor(const T* weight, const RowsAttributes& a) : factor_(weight) {
    if (!a.one_plus_weight) return;
    for (std::int64_t i = 0; i < a.width; ++i) sums_.push_back(1 + weight[i]);
    factor_ = sums_.data();
  }
  const T* get() const { return factor_; }

 private:
  std::vector<T> sums_;
  const T* factor_;
};

}  // namespace

template <class T>
void rms_norm(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  const NormFactor<T> factor(call.in(Slot::kWeight), a);
  call.parallel(a.rows, kRowGrain, [&](std::int64_t first, std::int64_t rows) {
    call.kernels.rms_norm(call.in(Slot::kX) + first * a.width, factor.get(),
                          call.out(Slot::kY) + first * a.width, call.out(Slot::kRstd) + first, rows,
                          a.width, a.epsilon);
  });
}

template <class T>
void rms_norm_backward(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  T* parts = reinterpret_cast<T*>(call.scratch);
  const NormFactor<T> factor(call.in(Slot::kWeight), a);
  call.pool.run(kReductionParts, [&](std::int64_t i, int) {
    T* dw = parts + i * a.width;
    std::fill(dw, dw + a.width, T(0));
    const Part part = part_of(a.rows, i);
    const std::int64_t at = part.first * a.width;
    call.kernels.rms_norm_backward(call.in(Slot::kDY) + at, call.in(Slot::kX) + at, factor.get(),
                                   call.in(Slot::kRstd) + part.first, call.out(Slot::kDX) + at, dw,
                                   part.end - part.first, a.width, a.accumulate);
  });
  reduce_parts(call, parts, call.out(Slot::kWeight), a.width, a.accumulate_parameters);
}

// Heads of q are rows of head_dim elements, and so are those of k behind them.
template <class T>
void head_norm(const Call<T>& call) {
  const auto& a = call.template attributes<HeadNormAttributes>();
  const std::int64_t q = a.heads * a.head_dim, kv = a.keys * a.head_dim;
  call.parallel(a.rows, kRowGrain, [&](std::int64_t first, std::int64_t rows) {
    for (std::int64_t row = first; row < first + rows; ++row) {
      const T* x = call.in(Slot::kX) + row * a.row_elements();
      T* y = call.out(Slot::kY) + row * a.row_elements();
      T* rstd = call.out(Slot::kRstd) + row * (a.heads + a.keys);
      call.kernels.rms_norm(x, call.in(Slot::kWeight), y, rstd, a.heads, a.head_dim, a.epsilon);
      call.kernels.rms_norm(x + q, call.in(Slot::kKeyWeight), y + q, rstd + a.heads, a.keys,
                            a.head_dim, a.epsilon);
      std::copy_n(x + q + kv, kv, y + q + kv);
    }
  });
}

template <class T>
void head_norm_backward(const Call<T>& call) {
  const auto& a = call.template attributes<HeadNormAttributes>();
  T* q_parts = reinterpret_cast<T*>(call.scratch);
  T* k_parts = q_parts + kReductionParts * a.head_dim;
  const std::int64_t q = a.heads * a.head_dim;
  call.pool.run(kReductionParts, [&](std::int64_t i, int) {
    T* dq = q_parts + i * a.head_dim;
    T* dk = k_parts + i * a.head_dim;
    std::fill(dq, dq + a.head_dim, T(0));
    std::fill(dk, dk + a.head_dim, T(0));
    const Part part = part_of(a.rows, i);
    for (std::int64_t row = part.first; row < part.end; ++row) {
      const std::int64_t at = row * a.row_elements();
      const T* dy = call.in(Slot::kDY) + at;
      const T* x = call.in(Slot::kX) + at;
      const T* rstd = call.in(Slot::kRstd) + row * (a.heads + a.keys);
      T* dx = call.out(Slot::kDX) + at;
      call.kernels.rms_norm_backward(dy, x, call.in(Slot::kWeight), rstd, dx, dq, a.heads,
                                     a.head_dim, false);
      call.kernels.rms_norm_backward(dy + q, x + q, call.in(Slot::kKeyWeight), rstd + a.heads,
                                     dx + q, dk, a.keys, a.head_dim, false);
    }
  });
  reduce_parts(call, q_parts, call.out(Slot::kWeight), a.head_dim, a.accumulate_parameters);
  reduce_parts(call, k_parts, call.out(Slot::kKeyWeight), a.head_dim, a.accumulate_parameters);
}

template <class T>
void layer_norm(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  call.parallel(a.rows, kRowGrain, [&](std::int64_t first, std::int64_t rows) {
    call.kernels.layer_norm(call.in(Slot::kX) + first * a.width, call.in(Slot::kWeight),
                            call.in(Slot::kBias), call.out(Slot::kY) + first * a.width,
                            call.out(Slot::kMean) + first, call.out(Slot::kRstd) + first, rows,
                            a.width, a.epsilon);
  });
}

template <class T>
void layer_norm_backward(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  T* dw_parts = reinterpret_cast<T*>(call.scratch);
  T* db_parts = dw_parts + kReductionParts * a.width;
  call.pool.run(kReductionParts, [&](std::int64_t i, int) {
    T* dw = dw_parts + i * a.width;
    T* db = db_parts + i * a.width;
    std::fill(dw, dw + a.width, T(0));
    std::fill(db, db + a.width, T(0));
    const Part part = part_of(a.rows, i);
    const std::int64_t at = part.first * a.width;
    call.kernels.layer_norm_backward(call.in(Slot::kDY) + at, call.in(Slot::kX) + at,
                                     call.in(Slot::kWeight), call.in(Slot::kMean) + part.first,
                                     call.in(Slot::kRstd) + part.first, call.out(Slot::kDX) + at,
                                     dw, db, part.end - part.first, a.width, a.accumulate);
  });
  reduce_parts(call, dw_parts, call.out(Slot::kWeight), a.width, a.accumulate_parameters);
  reduce_parts(call, db_parts, call.out(Slot::kBias), a.width, a.accumulate_parameters);
}

template <class T>
void activation(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  const KernelTable<T>& k = call.kernels;
  call.parallel(a.rows, kRowGrain, [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t at = first * a.width, count = rows * a.width;
    switch (call.operation.kind) {
      case OperationKind::kSwiGlu:
        return k.swiglu(call.in(Slot::kX) + 2 * at, call.out(Slot::kY) + at, rows, a.width);
      case OperationKind::kSwiGluBackward:
        return k.swiglu_backward(call.in(Slot::kDY) + at, call.in(Slot::kX) + 2 * at,
                                 call.out(Slot::kDX) + 2 * at, rows, a.width);
      case OperationKind::kGeGlu:
        return k.geglu(call.in(Slot::kX) + 2 * at, call.out(Slot::kY) + at, rows, a.width);
      case OperationKind::kGeGluBackward:
        return k.geglu_backward(call.in(Slot::kDY) + at, call.in(Slot::kX) + 2 * at,
                                call.out(Slot::kDX) + 2 * at, rows, a.width);
      case OperationKind::kGelu:
        return k.gelu(call.in(Slot::kX) + at, call.out(Slot::kY) + at, count);
      default:
        return k.gelu_backward(call.in(Slot::kDY) + at, call.in(Slot::kX) + at,
                               call.out(Slot::kDX) + at, count);
    }
  });
}

template <class T>
void product(const Call<T>& call) {
  const auto& p = call.template attributes<ProductAttributes>();
  ProductOperands<T> operands;
  operands.a = call.in(Slot::kA);
  operands.b = call.in(Slot::kB);
  operands.bias = call.in(Slot::kBias);
  operands.addend = call.in(Slot::kAddend);
  operands.c = call.out(Slot::kC);
  multiply(call.pool, p, operands);
}

#define FLASHLAB_INSTANTIATE(T)                         \
  template void column_sum<T>(const Call<T>&);          \
  template void rms_norm<T>(const Call<T>&);            \
  template void rms_norm_backward<T>(const Call<T>&);   \
  template void head_norm<T>(const Call<T>&);           \
  template void head_norm_backward<T>(const Call<T>&);  \
  template void layer_norm<T>(const Call<T>&);          \
  template void layer_norm_backward<T>(const Call<T>&); \
  template void activation<T>(const Call<T>&);          \
  template void product<T>(const Call<T>&);
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::train::cpu
