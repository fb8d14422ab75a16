#pragma once

// The weighted sum of rows, y[r] = sum_d w[d] x[r, d], and its gradients, under the clock: the
// naive form beside the one arranged for vectors, caches and threads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flashlab/context.h"
#include "flashlab/tensor.h"
#include "lab/measure/measure.h"
#include "lab/results/subject.h"

namespace flashlab::lab {

struct WeightedSumOptions {
  std::int64_t rows = 16384;   ///< of x
  std::int64_t dim = 1024;     ///< elements of a row, and of w
  DType dtype = DType::kFp32;  ///< of every tensor; on a GPU fp16 and bf16 too
  std::uint64_t seed = 1;
  bool check = false;  ///< the error against fp64 too
  MeasureOptions measure;
};

/// Labels dtype, rows, dim; the implementations are its forms: naive, vector, warp.
const Subject& weighted_sum_subject();
Labels weighted_sum_labels(const WeightedSumOptions& options);

/// Both forms, forward and backward; the forms of a pass take turns. Inputs are random normal.
/// Out of memory is a result, and so is a type that the device's kernels do not know. Cost: 4 (2
/// rows dim) bytes of memory.
std::vector<Measurement> bench_weighted_sum(const Context& context,
                                            const WeightedSumOptions& options);

}  // namespace flashlab::lab
