#pragma once

// What the weighted sum's benches on a CPU and on a GPU share: tensors in host memory, the truth in
// fp64, and results.

#include <array>
#include <vector>

#include "lab/subjects/weighted_sum/weighted_sum_bench.h"

namespace flashlab::lab {

/// Tensors of one size. x [rows, dim], w [dim], y and dy [rows], dx as x, dw as w. Inputs are
/// values of the options' type.
struct WeightedSumMemory {
  std::vector<float> x, w, y, dy, dx, dw;
};

/// Fills inputs with random normal numbers and makes room for outputs. Errors: kOutOfMemory.
Status allocate(const WeightedSumOptions& options, WeightedSumMemory& memory);

/// max |output - fp64| over y; over dx and dw.
double forward_error(const WeightedSumMemory& memory);
double backward_error(const WeightedSumMemory& memory);

/// Forward and backward of two forms, nothing measured yet.
std::vector<WeightedSumResult> empty_results(const WeightedSumOptions& options,
                                             std::array<const char*, 2> forms);
void set_times(const Samples& samples, WeightedSumResult& result);
void set_failure(const Status& status, WeightedSumResult& result);

/// bench_weighted_sum on a context of a GPU.
std::vector<WeightedSumResult> bench_weighted_sum_gpu(const Context& context,
                                                      const WeightedSumOptions& options);

}  // namespace flashlab::lab
