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
#include "lab/results/result.h"

namespace flashlab::lab {

struct WeightedSumOptions {
  std::int64_t rows = 16384;   ///< of x
  std::int64_t dim = 1024;     ///< elements of a row, and of w
  DType dtype = DType::kFp32;  ///< of every tensor; on a GPU fp16 and bf16 too
  std::uint64_t seed = 1;
  bool check = false;  ///< the error against fp64 too
  MeasureOptions measure;
};

/// One form and pass.
struct WeightedSumResult {
  std::string form;  ///< "naive", "vector"
  std::string pass;  ///< "forward", "backward"
  std::int64_t rows = 0, dim = 0;
  DType dtype = DType::kFp32;
  RunStatus status = RunStatus::kOk;
  std::string message;
  int samples = 0;
  std::optional<double> median_ms, min_ms, mean_ms, max_ms, std_ms;
  std::optional<double> gflops;         ///< FLOPs / median
  std::optional<double> gb_per_s;       ///< bytes that must move / median
  std::optional<double> error_vs_fp64;  ///< max |x - fp64| over the pass's outputs
};

/// Both forms, forward and backward; the forms of a pass take turns. Inputs are random normal.
/// Out of memory is a result, and so is a type that the device's kernels do not know. Cost: 4 (2
/// rows dim) bytes of memory.
std::vector<WeightedSumResult> bench_weighted_sum(const Context& context,
                                                  const WeightedSumOptions& options);

}  // namespace flashlab::lab
