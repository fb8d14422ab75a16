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
std::vector<Measurement> empty_results(const WeightedSumOptions& options, Device device,
                                       std::array<const char*, 2> forms);

/// One call of a form (0, 1): complete, or enqueued where a SampleClock waits for it.
using WeightedSumCall = std::function<Status(int form, bool backward)>;

/// Times both passes, the forms of a pass in turns, and takes the errors where asked for; `fetch`
/// brings what a pass wrote into `memory`.
void measure_forms(const WeightedSumOptions& options, const MeasureOptions& measure,
                   const WeightedSumCall& call, const std::function<Status(bool backward)>& fetch,
                   WeightedSumMemory& memory, std::vector<Measurement>& results);

/// bench_weighted_sum on a context of a GPU.
std::vector<Measurement> bench_weighted_sum_gpu(const Context& context,
                                                const WeightedSumOptions& options);

}  // namespace flashlab::lab
