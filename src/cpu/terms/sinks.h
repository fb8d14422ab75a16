#pragma once

// Attention sinks on a CPU: one more score of every row of a head, to a key whose value is zero. It
// joins a row when its sums are done, so that no main loop knows it.

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "api/problem.h"
#include "cpu/terms/sink_row.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {

/// The sink of a query head; -inf, which changes nothing, without sinks.
inline double sink_of(const std::optional<ConstTensor>& sinks, std::int64_t head) {
  if (!sinks) return -std::numeric_limits<double>::infinity();
  return static_cast<double>(static_cast<const float*>(sinks->data)[head]);
}

/// A row of backward: LSE in two numbers, and delta.
struct SinkStatistics {
  double lse, lse_rest, delta;
};

/// d_sinks[h] -= sum over batch and positions, in order, of exp(sink - LSE) delta; replaced unless
/// `accumulate`. row(batch, head, i) gives the statistics.
template <class RowOf>
void write_sink_gradients(ThreadPool& pool, const Geometry& g, const BackwardTensors& t,
                          bool accumulate, const RowOf& row) {
  if (!t.d_sinks) return;
  auto* gradients = static_cast<float*>(t.d_sinks->data);
  pool.run(g.heads_q, [&](std::int64_t head, int) {
    const double sink = sink_of(t.sinks, head);
    double sum = 0;
    for (std::int64_t b = 0; b < g.batch && sink != -std::numeric_limits<double>::infinity(); ++b) {
      for (std::int64_t i = 0; i < g.seqlen_q; ++i) {
        const SinkStatistics s = row(b, head, i);
        sum += std::exp(sink - s.lse - s.lse_rest) * s.delta;
      }
    }
    const double before = accumulate ? static_cast<double>(gradients[head]) : 0.0;
    gradients[head] = static_cast<float>(before - sum);
  });
}

}  // namespace flashlab::internal
