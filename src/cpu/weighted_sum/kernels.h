#pragma once

// The loops themselves, without checks. naive.cpp and vector.cpp each give one form.

#include <cstdint>

#include "cpu/weighted_sum/weighted_sum.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {

void naive_forward(const WeightedSumTensors& t);
void naive_backward(const WeightedSumTensors& t);

/// Rows per task: a multiple of what one task needs to be worth handing out, and few enough tasks
/// that their partial sums of dw stay small.
struct RowChunks {
  static constexpr std::int64_t kMaxChunks = 64;
  static constexpr std::int64_t kMinRows = 64;
  explicit RowChunks(std::int64_t rows) noexcept;
  std::int64_t rows_per_chunk = 0;
  std::int64_t count = 0;
};

void vector_forward(ThreadPool& pool, const WeightedSumTensors& t);
/// `partials` is [RowChunks(rows).count, dim] fp32 of scratch.
void vector_backward(ThreadPool& pool, const WeightedSumTensors& t, float* partials);

}  // namespace flashlab::internal
