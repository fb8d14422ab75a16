// Operations that look tokens up: embedding, loss, dropout.

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "train/cpu/call.h"
#include "train/cpu/random.h"

namespace flashlab::train::cpu {

template <class T>
void embedding(const Call<T>& call) {
  const auto& a = call.template attributes<EmbeddingAttributes>();
  const std::int32_t* tokens = call.template in<std::int32_t>(Slot::kTokens) + a.first;
  const T* table = call.in(Slot::kTable);
  const T* positions = call.in(Slot::kPositions);
  T* x = call.out(Slot::kX);
  const double* scalars = call.template in<double>(Slot::kScalars);
  const auto start = scalars ? static_cast<std::int64_t>(scalars[kPosition]) : 0;
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
  const std::int32_t* tokens = call.template in<std::int32_t>(Slot::kTokens) + a.first;
  const T* dx = call.in(Slot::kDX);
  T* positions = call.out(Slot::kPositions);
  constexpr std::int64_t kTasks = 16;
  call.pool.run(kTasks, [&](std::int64_t task, int) {
    T* table = call.out(Slot::kTable);
    const std::int64_t begin = a.vocabulary * task / kTasks;
    const std::int64_t end = a.vocabulary * (task + 1) / kTasks;
    if (!a.accumulate) std::fill(table + begin * a.width, table + end * a.width, T(0));
    for (std::int64_t row = 0; row < a.rows; ++row) {
      if (tokens[row] < begin || tokens[row] >= end) continue;
      call.kernels.add(dx + row * a.width, table + tokens[row] * a.width, a.width);
    }
    if (!positions) return;
    for (std::int64_t p = task; p < a.context; p += kTasks) {
      T* out = positions + p * a.width;
      if (!a.accumulate_positions) std::fill(out, out + a.width, T(0));
      for (std::int64_t row = p; row < a.rows; row += a.context) {
        call.kernels.add(dx + row * a.width, out, a.width);
      }
    }
  });
  // A context shorter than the model's leaves positions without a gradient.
  if (positions && !a.accumulate_positions) {
    const std::int64_t all = a.table_positions * a.width;
    std::fill(positions + a.context * a.width, positions + all, T(0));
  }
}

template <class T>
void dropout(const Call<T>& call) {
  const auto& a = call.template attributes<DropoutAttributes>();
  const double* scalars = call.template in<double>(Slot::kScalars);
  const RandomKey key = key_of(a.site, scalars);
  const T* x = call.in(Slot::kX);
  const T* addend = call.in(Slot::kAddend);
  T* y = call.out(Slot::kY);
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
  const std::int32_t* targets = call.template in<std::int32_t>(Slot::kTargets) + a.first;
  T* losses = call.out(Slot::kLosses) + a.first;
  T* logits = call.in(Slot::kLogits);
  // The gradient takes the logits' place, or that of a copy.
  T* work = a.gradient_scale != 0 ? call.out(Slot::kDLogits) : logits;
  const float* loss_scale = call.template in<float>(Slot::kLossScale);
  const double scale =
      loss_scale ? a.gradient_scale * static_cast<double>(*loss_scale) : a.gradient_scale;
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

// Neighbours first: the left half is the largest power of two below the whole.
double neighbours_sum(const double* x, std::int64_t count) {
  if (count == 1) return x[0];
  const auto left =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(count - 1)));
  return neighbours_sum(x, left) + neighbours_sum(x + left, count - left);
}

}  // namespace

template <class T>
void mean_loss(const Call<T>& call) {
  const auto& a = call.template attributes<MeanLossAttributes>();
  const T* losses = call.in(Slot::kLosses);
  double* partial = call.template out<double>(Slot::kSum);
  double sum = 0;
  if (losses) {
    // Of one share after the other, added as their gradients are.
    const std::int64_t rows = a.rows / a.shares;
    std::vector<double> sums;
    for (std::int64_t share = 0; share < a.shares; ++share) {
      sums.push_back(tree_sum(losses + share * rows, rows));
    }
    sum = neighbours_sum(sums.data(), a.shares);
  } else {
    sum = *call.template in<double>(Slot::kSum);
  }
  if (partial) {
    *partial = sum;
  } else {
    *call.out(Slot::kLoss) = static_cast<T>(sum / static_cast<double>(a.rows));
  }
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
