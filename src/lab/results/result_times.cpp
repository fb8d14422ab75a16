#include "lab/results/result_times.h"

namespace flashlab::lab {

void set_times(const std::optional<Statistics>& statistics, Pass pass, BenchResult& result) {
  if (!statistics) return;
  set_statistics(*statistics, result);
  result.q1_ms = statistics->q1;
  result.q3_ms = statistics->q3;
  if (statistics->median > 0) {
    result.tflops = result.problem.flops(pass) / statistics->median * 1e-9;
    result.gb_per_s = result.problem.ideal_bytes(pass) / statistics->median * 1e-6;
  }
  if (statistics->min > 0) {
    result.tflops_peak = result.problem.flops(pass) / statistics->min * 1e-9;
  }
}

}  // namespace flashlab::lab
