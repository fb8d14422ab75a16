#pragma once

// The plan of `naive`: two matrices in the workspace and the steps between them.

#include "api/implementation.h"
#include "cpu/plain/score_mask.h"
#include "cpu/plain/score_transform.h"
#include "cpu/plain/tile_kernels.h"
#include "cpu/plain/tiles.h"
#include "cpu/sequences/key_rows.h"
#include "cpu/terms/dropout.h"

namespace flashlab::internal {

/// Rows and columns per block of a product: 128 x 128 fp32 sums are 64 KiB, a part of L2.
inline constexpr std::int64_t kNaiveBlock = 128;

/// One worker's blocks. Which matrix is in a block changes from step to step.
template <class Acc>
struct NaiveBlocks {
  NaiveBlocks(Arena& arena, const Geometry& g) {
    const std::int64_t dim = std::max(padded<Acc>(g.head_dim), padded<Acc>(g.head_dim_v));
    left = arena.take<Acc>(kNaiveBlock, std::max(dim, kNaiveBlock));
    right = arena.take<Acc>(kNaiveBlock, dim);
    sums = arena.take<Acc>(kNaiveBlock, std::max(dim, kNaiveBlock));
    row = arena.take<Acc>(1, std::max(padded<Acc>(g.seqlen_k), kNaiveBlock));
    lines = arena.take<Acc>(kTurnedRows, dim);
    statistics = arena.take<Acc>(kNaiveBlock, 1);
  }
  Acc *left, *right, *sums;  // factors and sums of one block of a product
  Acc* row;                  // one row of a matrix
  Acc* lines;                // scratch of load_transposed
  Acc* statistics;           // a number per row of the block
};

template <class Acc>
class NaivePlan final : public PlanState {
 public:
  Status forward(ContextState& context, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace) const override;
  Status backward(ContextState& context, Stream stream, const BackwardTensors& tensors,
                  Workspace workspace) const override;

  // The steps, in order; each reads what the one before left in the workspace.
  // S, P and dS have shape [batch, heads_q, seqlen_q, seqlen_k].

  /// S = scale Q K^T + mask, in Acc: scores rounded to 16 bits would be wrong in the third digit,
  /// and so would LSE, which is promised to 1e-5, and all that backward makes of it. Hidden: -inf.
  void scores(ContextState& context, const ForwardTensors& tensors, const KeyRows& keys,
              Workspace workspace) const;
  /// P = softmax(S), rounded to T, and LSE
  void softmax(ContextState& context, const ForwardTensors& tensors, Workspace workspace) const;
  /// O = P V
  void values(ContextState& context, const ForwardTensors& tensors, const KeyRows& keys,
              Workspace workspace) const;

  /// P = exp(scale Q K^T + mask - LSE), rounded to T
  void probabilities(ContextState& context, const BackwardTensors& t, Workspace workspace) const;
  /// dV = P^T dO
  void value_gradient(ContextState& context, const BackwardTensors& t, Workspace workspace) const;
  /// dS = P * (dO V^T - delta), rounded to T; delta = rowsum(dO * O) - dLSE
  void score_gradient(ContextState& context, const BackwardTensors& t, Workspace workspace) const;
  /// dQ = scale dS K
  void query_gradient(ContextState& context, const BackwardTensors& t, Workspace workspace) const;
  /// dK = scale dS^T Q
  void key_gradient(ContextState& context, const BackwardTensors& t, Workspace workspace) const;

  const TileKernels<Acc>* kernels = nullptr;
  std::size_t scores_offset = 0;         // S, forward
  std::size_t probabilities_offset = 0;  // P
  std::size_t gradients_offset = 0;      // dS, backward
  std::size_t slopes_offset = 0;         // d S / d (scale Q K^T), backward with softcap
  std::size_t blocks_offset = 0;         // of worker 0
  std::size_t blocks_bytes = 0;          // of each worker

  /// Columns [column, column + columns) of one head's P or dS.
  HeadRows matrix(Workspace workspace, std::size_t offset, std::int64_t batch, std::int64_t head,
                  std::int64_t column, std::int64_t columns) const {
    return {geometry.dtype, static_cast<char*>(workspace.data) + offset,
            first_score(batch, head, 0) + column, geometry.seqlen_k, columns};
  }

  /// Row i of one head's S, or in backward of the slopes of softcap.
  Acc* slope_row(Workspace workspace, std::int64_t batch, std::int64_t head, std::int64_t i) const {
    return reinterpret_cast<Acc*>(static_cast<char*>(workspace.data) + slopes_offset) +
           first_score(batch, head, i);
  }
  Acc* score_row(Workspace workspace, std::int64_t batch, std::int64_t head, std::int64_t i) const {
    return reinterpret_cast<Acc*>(static_cast<char*>(workspace.data) + scores_offset) +
           first_score(batch, head, i);
  }

  /// Position of (batch, head, i, 0) in a matrix.
  std::int64_t first_score(std::int64_t batch, std::int64_t head, std::int64_t i) const {
    const Geometry& g = geometry;
    return ((batch * g.heads_q + head) * g.seqlen_q + i) * g.seqlen_k;
  }

  NaiveBlocks<Acc> blocks(Workspace workspace, int worker) const {
    Arena arena(static_cast<char*>(workspace.data) + blocks_offset +
                static_cast<std::size_t>(worker) * blocks_bytes);
    return NaiveBlocks<Acc>(arena, geometry);
  }
};

/// Position of a row's statistic in an LSE-like tensor [batch, heads_q, seqlen_q].
inline std::int64_t statistic_index(const TensorSpec& spec, std::int64_t batch, std::int64_t head,
                                    std::int64_t i) {
  return batch * spec.strides[0] + head * spec.strides[1] + i * spec.strides[2];
}

}  // namespace flashlab::internal
