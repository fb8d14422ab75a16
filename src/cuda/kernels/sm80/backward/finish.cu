// Backward, step 3 of 3: dQ = scale / (1 - p) dQ_fp32, from the order of the accumulator to rows,
// in the type of dq. p: of dropout.
// One block per tile of queries and head, of ragged calls as many as run at once. Bound by memory:
// 4 B Hq Sq D bytes read, 2 written.

#include "ptx/atomic.h"
#include "ptx/dependency.h"
#include "sm80/backward/finish.h"

namespace flashlab::device {

/// Where the kernel before counts the tiles of keys of each head that it is done with, blocks begin
/// beside its last ones.
template <class Config>
__device__ inline void await_head(const BackwardArguments& args, int batch, int head_q) {
  const Shape& shape = args.shape;
  const auto tiles = static_cast<unsigned>(divide_up(shape.seqlen_k, Config::kTileK));
  const unsigned* done =
      done_counter(args, static_cast<int>(gridDim.x), batch, head_q / shape.group);
  if (threadIdx.x == 0) {
    while (ptx::load_acquire(done) != tiles) __nanosleep(100);
  }
  __syncthreads();
}

template <class Config>
__device__ void run(const BackwardArguments& args) {
  const Shape& shape = args.shape;
  const int tiles = (shape.seqlen_q + Config::kTileQ - 1) / Config::kTileQ;
  // From the last tile on: the last ones that the main kernel added to are still in L2. Beside it
  // in its order.
  const auto index =
      static_cast<int>(Config::kCountsHeads ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const int tile = index % tiles, head_index = index / tiles;
  const int batch = head_index / shape.heads_q, head = head_index % shape.heads_q;
  if constexpr (Config::kCountsHeads) await_head<Config>(args, batch, head);
  finish(args, QueryPlace<Config>(tiles), batch, head, head_index, tile);
  // The kernel before has stored dK and dV when this one ends.
  if (Config::kCountsHeads && blockIdx.x + 1 == gridDim.x) ptx::wait_for_kernel_before();
}

/// A sequence's tile of queries, and its rows of no sequence.
template <class Config>
__device__ void finish_tile(const RaggedBackwardArguments& ragged, const SequenceTile& at,
                            int head) {
  constexpr int kTileQ = Config::kTileQ;
  const Sequences& list = ragged.sequences;
  BackwardArguments args = ragged.call;
  shift_rows<Config::kGradQ>(args.dq, list.q, at.q);
  shape_of_sequence(args.shape, list, at);
  const bool wrong = at.q.too_long || at.k.too_long;
  const UnusedRows unused = unused_rows<kTileQ>(at.q, at.tile, wrong);
  if ((wrong || !Config::kAccumulate) && unused.begin < unused.end) {
    fill_rows<Config::kGradQ, Config::kHeadDim>(args.dq, at.sequence, head, unused,
                                                wrong ? kNaN : 0.0f);
  }
  if (wrong || at.tile >= divide_up(at.q.length, kTileQ)) return;
  finish(args, QueryPlace<Config>(list, at.sequence, at.slot), at.sequence, head, head, at.tile);
}

template <class Config>
__device__ void run(const RaggedBackwardArguments& ragged) {
  for_each_query_slot<Config::kTileQ>(
      ragged.sequences, ragged.call.shape.heads_q,
      [&](const SequenceTile& at, int, int head) { finish_tile<Config>(ragged, at, head); });
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarpsQ * Config::kWarpsK)
    flash_bwd_sm80_finish(const __grid_constant__ flashlab::device::BackwardCall<Config> args) {
  flashlab::device::run<Config>(args);
}
