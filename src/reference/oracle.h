#pragma once

// The truth that every kernel is judged by: the formulas of flashlab/attention.h as plain loops in
// fp64 (extended precision for fp64 inputs, so that the truth is better than what it judges).

#include <cstdint>
#include <vector>

#include "flashlab/attention.h"
#include "reference/view.h"

namespace flashlab::reference {

/// Outputs of forward for the rows that were asked for.
struct ForwardRows {
  std::vector<Row> rows;
  std::vector<double> o;    ///< [rows, head_dim_v]
  std::vector<double> lse;  ///< [rows]
  /// [rows] |scale| |q| max |k| over visible, finite keys: how large the products are that cancel
  /// in a score.
  std::vector<double> magnitude;
  /// Rows in which a masked key meets a V that is not finite: the API lets o be anything there.
  std::vector<std::uint8_t> dont_care;
};

/// Gradients for the rows that were asked for. Gradients are those of this call alone: adding to
/// what dq, dk and dv held (GradientMode::kAccumulate) is the caller's.
struct BackwardRows {
  std::vector<Row> queries;  ///< of dq
  std::vector<Row> keys;     ///< of dk and dv
  std::vector<double> dq;    ///< [queries, head_dim]
  std::vector<double> dk;    ///< [keys, head_dim]
  std::vector<double> dv;    ///< [keys, head_dim_v]
  /// [heads_q] where there are sinks and every row is asked for.
  std::vector<double> d_sinks;
  /// [heads_q] what rounding O to the type of q makes of d_sinks, half a unit in the last place of
  /// each element by itself: one sum over all rows has no neighbours whose luck differs.
  std::vector<double> d_sinks_rounding;
  /// Rows in which a masked pair meets an operand that is not finite.
  std::vector<std::uint8_t> dq_dont_care, dk_dont_care, dv_dont_care;
};

/// Where backward's LSE and delta = rowsum(dO * O) - dLSE come from.
enum class Statistics : std::uint8_t {
  kRecomputed,  ///< from q, k, v in fp64: the true gradient. Costs a forward of every needed row
  kGiven,       ///< from the tensors o and lse, as the API's backward defines it
};

/// Forward of the sample's queries. Reads q, k, v, mask; ignores o and lse.
/// Precondition: tensors as flashlab::validate accepts them.
/// Errors: kOutOfMemory. Cost: about 1 ns per multiply-add, one thread.
Result<ForwardRows> forward(const ForwardTensors& tensors, const Options& options,
                            const Sample& sample);

/// Backward of the sample's queries (dq) and keys (dk, dv). Ignores dq, dk, dv; reads o and lse
/// only for Statistics::kGiven. A sample of keys needs the statistics of every query that may see
/// them.
Result<BackwardRows> backward(const BackwardTensors& tensors, const Options& options,
                              const Sample& sample, Statistics statistics);

/// Multiply-adds of one forward: visible pairs x (D + Dv) per query head. Masks are not counted.
double multiply_adds(const Sizes& sizes, const Options& options);

}  // namespace flashlab::reference
