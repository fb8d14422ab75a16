// Operations that look tokens up: embedding, loss, dropout.

#include <algorithm>
#include <cstring>

#include "train/cpu/call.h"
#include "train/cpu/random.h"

namespace flashlab::train::cpu {

template <class T>
void embedding(const Call<T>& call) {
  const auto& a = call.template attributes<EmbeddingAttributes>();
  const std::int32_t* tokens = call.template input<std::int32_t>(0) + a.first;
  const T* table = call.input(1);
  const T* positions = a.has_positions ? call.input(2) : nullptr;
  T* x = call.output(0);
  const std::int64_t start = a.at_position ? static_cast<std::int64_t>(call.template input<double>(
                                                 a.has_positions ? 3 : 2)[kPosition])
                                           : 0;
  call.parallel(a.rows, 64, [&](std::int64_t first, std::int64_t rows) {
    for (std::int64_t row = first; row < first + rows; ++row) {
      std::memcpy(x + row * a.width, table + tokens[row] * a.width,
                  static_cast<std::size_t>(a.width) * sizeof(T));
      if (positions) {
        call.kernels.add(positions + (start + row % a.context) * a.width, x + row * a.width,
                         a.width);
      }
    }
  });
}

// Each task owns a range of the vocabulary and of the positions: rows are added in the order of the
// batch whatever the threads do.
template <class T>
void embedding_backward(const Call<T>& call) {
  const auto& a = call.template attributes<EmbeddingAttributes>();
  const std::int32_t* tokens = call.template input<std::int32_t>(0) + a.first;
  const T* dx = call.input(1);
  constexpr std::int64_t kTasks = 16;
  call.pool.run(kTasks, [&](std::int64_t task, int) {
    T* table = call.output(0);
    const std::int64_t begin = a.vocabulary * task / kTasks;
    const std::int64_t end = a.vocabulary * (task + 1) / kTasks;
    if (!a.accumulate) std::fill(table + begin * a.width, table + end * a.width, T(0));
    for (std::int64_t row = 0; row < a.rows; ++row) {
      if (tokens[row] < begin || tokens[row] >= end) continue;
      call.kernels.add(dx + row * a.width, table + tokens[row] * a.width, a.width);
    }
    if (!a.has_positions) return;
    T* positions = call.output(1);
    for (std::int64_t p = task; p < a.context; p += kTasks) {
      T* out = positions + p * a.width;
      if (!a.accumulate_positions) std::fill(out, out + a.width, T(0));
      for (std::int64_t row = p; row < a.rows; row += a.context) {
        call.kernels.add(dx + row * a.width, out, a.width);
      }
    }
  });
  // A context shorter than the model's leaves positions without a gradient.
  if (a.has_positions && !a.accumulate_positions) {
    T* positions = call.output(1);
    const std::int64_t all = a.table_positions * a.width;
    std::fill(positions + a.context * a.width, positions + all, T(0));
  }
}

template <class T>
void dropout(const Call<T>& call) {
  const auto& a = call.template attributes<DropoutAttributes>();
  const double* scalars = call.template input<double>(0);
  const RandomKey key = key_of(a.site, scalars);
  const T* x = call.input(1);
  const T* addend = a.has_addend ? call.input(2) : nullptr;
  T* y = call.output(0);
  const T scale = static_cast<T>(1 / (1 - a.probability));
  const std::uint64_t limit = dropout_limit(a.probability);
  call.parallel(a.elements, 8192, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t i = first; i < first + count; ++i) {
      const bool kept = random_bits(key, static_cast<std::uint64_t>(i)) >= limit;
      y[i] = (kept ? x[i] * scale : T(0)) + (addend ? addend[i] : T(0));
    }
  });
}

template <class T>
void cross_entropy(const Call<T>& call) {
  const auto& a = call.template attributes<CrossEntropyAttributes>();
  const std::int32_t* targets = call.template input<std::int32_t>(1) + a.first;
  T* losses = call.output(0) + a.first;
  T* logits = call.input(0);
  // The gradient takes the logits' place, or that of a copy.
  T* work = a.gradient_scale != 0 ? call.output(1) : logits;
  const double scale = a.scaled
                           ? a.gradient_scale * static_cast<double>(*call.template input<float>(2))
                           : a.gradient_scale;
  call.parallel(a.rows, 16, [&](std::int64_t first, std::int64_t rows) {
    const std::int64_t at = first * a.vocabulary;
    if (work != logits) {
      std::memcpy(work + at, logits + at,
                  static_cast<std::size_t>(rows * a.vocabulary) * sizeof(T));
    }
    call.kernels.cross_entropy(work + at, targets + first, losses + first, rows, a.vocabulary,
                               scale);
  });
}

namespace {

// The same tree for any batch: halves, down to eight values.
template <class T>
double tree_sum(const T* x, std::int64_t count) {
  if (count <= 8) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(x[i]);
    return sum;
  }
  return tree_sum(x, count / 2) + tree_sum(x + count / 2, count - count / 2);
}

}  // namespace

template <class T>
void mean_loss(const Call<T>& call) {
  const auto& a = call.template attributes<RowsAttributes>();
  *call.output(0) = static_cast<T>(tree_sum(call.input(0), a.rows) / static_cast<double>(a.rows));
}

#define FLASHLAB_INSTANTIATE(T)                        \
  template void embedding<T>(const Call<T>&);          \
  template void embedding_backward<T>(const Call<T>&); \
  template void dropout<T>(const Call<T>&);            \
  template void cross_entropy<T>(const Call<T>&);      \
  template void mean_loss<T>(const Call<T>&);
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::train::cpu
