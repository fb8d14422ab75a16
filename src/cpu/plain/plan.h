#pragma once

// What make_plain_plan decides and forward.cpp and backward.cpp run by.

#include "api/implementation.h"
#include "cpu/plain/tile_kernels.h"
#include "cpu/plain/tiles.h"

namespace flashlab::internal {

/// Queries and keys per tile.
struct TileShape {
  std::int64_t q = 0, k = 0;
};

/// One worker's tiles in forward. D and Dv are padded to whole vectors.
template <class Acc>
struct ForwardTiles {
  ForwardTiles(Arena& arena, const Geometry& g, TileShape t)
      : ld_d(padded<Acc>(g.head_dim)), ld_v(padded<Acc>(g.head_dim_v)), ld_k(padded<Acc>(t.k)) {
    q = arena.take<Acc>(t.q, ld_d);
    kt = arena.take<Acc>(g.head_dim, ld_k);
    v = arena.take<Acc>(t.k, ld_v);
    s = arena.take<Acc>(t.q, ld_k);
    o = arena.take<Acc>(t.q, ld_v);
    maximum = arena.take<Acc>(t.q, 1);
    sum = arena.take<Acc>(t.q, 1);
    lines = arena.take<Acc>(kTurnedRows, g.head_dim);
  }
  std::int64_t ld_d, ld_v, ld_k;
  Acc *q, *kt, *v;     // [q][D] [D][k] [k][Dv]
  Acc *s, *o;          // [q][k], scores and then probabilities; [q][Dv], not yet divided by sum
  Acc *maximum, *sum;  // [q]
  Acc* lines;          // scratch of load_transposed
};

/// One worker's tiles in backward. A pass over key tiles accumulates dk and dv, a pass over query
/// tiles accumulates dq.
template <class Acc>
struct BackwardTiles {
  BackwardTiles(Arena& arena, const Geometry& g, TileShape t)
      : ld_d(padded<Acc>(g.head_dim)), ld_v(padded<Acc>(g.head_dim_v)), ld_k(padded<Acc>(t.k)) {
    q = arena.take<Acc>(t.q, ld_d);
    d_o = arena.take<Acc>(t.q, ld_v);
    kt = arena.take<Acc>(g.head_dim, ld_k);
    vt = arena.take<Acc>(g.head_dim_v, ld_k);
    p = arena.take<Acc>(t.q, ld_k);
    ds = arena.take<Acc>(t.q, ld_k);
    k = arena.take<Acc>(t.k, ld_d);
    dk = arena.take<Acc>(t.k, ld_d);
    dv = arena.take<Acc>(t.k, ld_v);
    dq = arena.take<Acc>(t.q, ld_d);
    lse = arena.take<Acc>(t.q, 1);
    delta = arena.take<Acc>(t.q, 1);
    factor = arena.take<Acc>(t.q, 1);
    lines = arena.take<Acc>(kTurnedRows, std::max(g.head_dim, g.head_dim_v));
  }
  std::int64_t ld_d, ld_v, ld_k;
  Acc *q, *d_o, *kt, *vt;  // [q][D] [q][Dv] [D][k] [Dv][k]
  Acc *p, *ds;             // [q][k]
  Acc *k, *dk, *dv, *dq;   // [k][D] [k][D] [k][Dv] [q][D]
  Acc *lse, *delta;        // [q]
  Acc* factor;             // [q] P = factor exp(S - lse)
  Acc* lines;
};

template <class Acc>
class PlainPlan final : public PlanState {
 public:
  Status forward(ContextState& context, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace) const override;
  Status backward(ContextState& context, Stream stream, const BackwardTensors& tensors,
                  Workspace workspace) const override;

  TileShape tile;
  Acc scale = 1;
  const TileKernels<Acc>* kernels = nullptr;
  std::size_t scratch_offset = 0;  // of worker 0
  std::size_t scratch_bytes = 0;   // of each worker
  std::size_t delta_offset = 0;    // [batch, heads_q, seqlen_q] Acc, backward only
  bool additive_mask = false;      // whether there are lse_parts
  std::size_t parts_offset = 0;    // [2][batch, heads_q, seqlen_q] Acc: see BackwardCall

  void* scratch(Workspace workspace, int worker) const {
    return static_cast<char*>(workspace.data) + scratch_offset +
           static_cast<std::size_t>(worker) * scratch_bytes;
  }
};

inline std::int64_t tiles_in(std::int64_t length, std::int64_t tile) {
  return (length + tile - 1) / tile;
}

}  // namespace flashlab::internal
