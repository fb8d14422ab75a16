// Attention forward for fp16 and bf16 on mma.sync, sm_80 and later.
//
//     O = softmax(scale Q K^T + mask) V        LSE = log(sum exp(scores))
//
// Softcap and ALiBi change scores (tile/score.h), dropout what multiplies V (tile/probability.h).
//
// A block of kWarps warps takes a tile of kWarps x kWarpRows queries of one head and walks over the
// keys; each warp keeps its rows of Q and O in registers. Keys arrive in tiles of kTileK through
// cp.async, and are worked off in pieces of kPieceK keys:
//
//     tile t     wait until K(t), V(t) have landed
//     piece p    S = Q K(p)^T
//                copy a part of tile t + kAhead (once every warp has released its place)
//                O += P(p - 1) V(p - 1), between its instructions P(p) = 2^(S - r)
//                if a row's sum left its range: raise r, scale O, P(p) anew          (rare)
//
// The products of a piece do not wait for its softmax, so that one warp keeps the tensor cores busy
// while it computes exponentials; nothing couples the pieces of a row (tile/softmax.h). V(p - 1) is
// read one piece later than K(p - 1), so V has one stage more than K. Warps of a block wait for
// data and for places, never for each other's instructions.

#include "arguments.h"
#include "sm80/forward/block.h"
#include "sm80/forward/warp.h"
#include "tile/mutation.h"
#include "tile/schedule.h"
#include "tile/sequence.h"

namespace flashlab::device {

template <int kValue>
struct Constant {
  constexpr operator int() const { return kValue; }
};

/// body(Constant<kFirst>) to body(Constant<kEnd - 1>) in turn, until one returns false.
template <int kFirst, int kEnd, class Body>
__device__ void unroll(const Body& body) {
  if constexpr (kFirst < kEnd) {
    if (body(Constant<kFirst>{})) unroll<kFirst + 1, kEnd>(body);
  }
}

/// Keys of a warp, relative to the block's first: it stops at its own last visible key, and a piece
/// is masked only outside [clear_begin, clear_end).
template <class Config>
struct WarpKeys {
  int first_key;  ///< of the block
  int pieces = 0, clear_begin = 0, clear_end = 0;

  __device__ WarpKeys(const Shape& shape, const ForwardTask<Config>& task, int first_row)
      : first_key(task.first_tile * Config::kTileK) {
    if (first_row >= task.rows) return;
    const KeyRange any = task.seen_by_any(shape, first_row, Config::kWarpRows);
    const KeyRange all = task.seen_by_all(shape, first_row, Config::kWarpRows);
    pieces = smaller(divide_up(larger(any.end - first_key, 0), Config::kPieceK),
                     task.tiles * ForwardTiles<Config>::kPieces);
    clear_begin = all.begin - first_key;
    clear_end = all.end - first_key;
  }

  /// Where the steady loop begins and ends: its tiles have no masked key, nor has the piece behind,
  /// and what is copied meanwhile are whole tiles.
  __device__ int first_steady() const { return divide_up(clear_begin, Config::kTileK); }
  __device__ int steady_end(const Shape& shape, const ForwardTask<Config>& task) const {
    const int whole = shape.seqlen_k / Config::kTileK - task.first_tile;
    return smaller(smaller(task.tiles, whole), clear_end / Config::kTileK) -
           ForwardTiles<Config>::kAhead - 1;
  }

  /// Whether the piece that begins at `key` needs a mask or more than a factor.
  __device__ bool transformed(int key) const {
    return Config::kPrescaled || Config::kMask != MaskTensor::kNone || !all_seen(key);
  }
  /// Whether every row sees, but for a mask tensor, all keys of the piece that begins at `key`.
  __device__ bool all_seen(int key) const {
    return !(Config::kBoundedLeft && key < clear_begin) && key + Config::kPieceK <= clear_end;
  }
};

/// The first tiles under way, and Q in the warps' registers.
template <class Config>
__device__ inline void start(const ForwardArguments& args, const ForwardTask<Config>& task,
                             ForwardStorage<Config>& shared, KeyValueLoader<Config>& loader,
                             ForwardWarp<Config>& warp, int warp_index, uint4* kept_q) {
  using Tiles = ForwardTiles<Config>;
  load_tile<typename Tiles::LayoutQ, Config::kHeadDim, 2, Config::kAlignQ, Tiles::kThreads>(
      shared.v + Tiles::kOffsetQ, QueryRows<Config>{args.q, task}, threadIdx.x);
#pragma unroll
  for (unsigned tile = 0; tile < Tiles::kAhead; ++tile) loader.rest(tile, 0);
  ptx::copy_async_wait_all();
  __syncthreads();
  warp.load_queries(ptx::shared_address(shared.v) + Tiles::kOffsetQ +
                        Tiles::LayoutQ::offset(warp_index * Config::kWarpRows, 0) +
                        lane_offset_rows_first<typename Tiles::LayoutQ>(threadIdx.x % 32),
                    kept_q);
  __syncthreads();  // the memory of Q becomes V's
}

/// One warp's walk over its keys.
template <class Config>
struct WarpLoop {
  using Tiles = ForwardTiles<Config>;
  using Warp = ForwardWarp<Config>;
  /// Whether scores are transformed where no edge is, too.
  static constexpr bool kTransformed = kTransformedScores<Config> && !Warp::kMasked;
  const ForwardArguments& args;
  const ForwardTask<Config>& task;
  const WarpKeys<Config>& keys;
  KeyValueLoader<Config>& loader;
  Warp& warp;
  int first_row;
  const uint4* kept_q;
  unsigned shared_k, shared_v;  ///< the rings, at this lane's row of a matrix

  // The operands of piece p of a tile; p is a constant of the unrolled loop.
  __device__ unsigned keys_of(unsigned tile, int p) const {
    return shared_k + Tiles::StageK::stage(tile) * Tiles::LayoutK::kBytes +
           Tiles::LayoutK::offset(p * Config::kPieceK, 0);
  }
  __device__ unsigned values_of(unsigned tile, int p) const {
    return shared_v + Tiles::StageV::stage(tile) * Tiles::LayoutV::kBytes +
           Tiles::LayoutV::offset(p * Config::kPieceK, 0);
  }
  /// Its first key, relative to the block's.
  __device__ static int key_of(unsigned tile, int p) {
    return static_cast<int>(tile) * Config::kTileK + p * Config::kPieceK;
  }

  __device__ void read_mask(unsigned tile, int p) const {
    const int key = key_of(tile, p);
    if constexpr (!Warp::kMasked) {
    } else if (keys.all_seen(key)) {
      warp.template read_mask<true>(args, task, first_row, keys.first_key + key);
    } else {
      warp.template read_mask<false>(args, task, first_row, keys.first_key + key);
    }
  }

  /// Scores of a piece whose mask is read already; then the next one's mask.
  __device__ void scores(unsigned tile, int p) const {
    warp.scores(keys_of(tile, p), kept_q);
    const int key = key_of(tile, p);
    if (kTransformed && keys.all_seen(key)) {
      warp.template transform<true>(args, task, first_row, keys.first_key + key);
    } else if (keys.transformed(key)) {
      warp.template transform<false>(args, task, first_row, keys.first_key + key);
    }
    read_mask(tile, p + 1);
  }

  /// Piece p of a tile and, for the tensor cores to do meanwhile, P V of the piece before. kSteady:
  /// no test of what is there, so that a step is one run of instructions.
  template <bool kSteady, int p>
  __device__ void piece(unsigned tile, unsigned values) const {
    const int first_key = keys.first_key + key_of(tile, p);
    const auto piece_scores = [&] {
      if constexpr (kSteady) {
        warp.scores(keys_of(tile, p), kept_q);
      } else {
        scores(tile, p);
      }
    };
    // Behind the copies: beside the products of V, without a branch between.
    const auto finish_scores = [&] {
      if constexpr (kSteady && kTransformed) {
        warp.template transform<true>(args, task, first_row, first_key);
      }
    };
    piece_scores();
    loader.template part<p, kSteady>(tile + Tiles::kAhead);
    warp.begin_piece(args.dropout, first_key);
    finish_scores();
    warp.values_and_exponentials(values, [&] {
      read_mask(tile, p);
      piece_scores();
      finish_scores();
    });
  }

  /// From the first key to the last. Returns the tile it ends in, of whose successor kAhead tiles
  /// further the parts before `next_part` are copied.
  __device__ unsigned run(int& next_part) const {
    unsigned tile = 0;
    read_mask(0, 0);
    loader.wait_for(0);
    scores(0, 0);
    loader.template part<0>(Tiles::kAhead);
    warp.begin_piece(args.dropout, keys.first_key);
    warp.first_exponentials();
    const auto steady_tiles = [&] {
      const int end = keys.steady_end(args.shape, task);
#pragma unroll 1
      for (; static_cast<int>(tile) < end; ++tile) {
        unroll<1, Tiles::kPieces>([&](auto p) {
          piece<true, p>(tile, values_of(tile, p - 1));
          return true;
        });
        loader.release(tile);
        loader.wait_for(tile + 1);
        piece<true, 0>(tile + 1, values_of(tile, Tiles::kPieces - 1));
      }
    };
    if constexpr (Config::kSteadyLoop && !Config::kBoundedLeft) steady_tiles();
    for (;; ++tile) {
      // A left edge lies before the steady tiles.
      if constexpr (Config::kSteadyLoop && Config::kBoundedLeft) {
        if (keys.first_steady() <= static_cast<int>(tile)) steady_tiles();
      }
      const int left = keys.pieces - static_cast<int>(tile) * Tiles::kPieces;
      next_part = 1;
      unroll<1, Tiles::kPieces>([&](auto p) {
        if (p >= left) return false;
        piece<false, p>(tile, values_of(tile, p - 1));
        next_part = p + 1;
        return true;
      });
      if (left <= Tiles::kPieces) break;
      loader.release(tile);
      loader.wait_for(tile + 1);
      piece<false, 0>(tile + 1, values_of(tile, Tiles::kPieces - 1));
    }
    warp.values(values_of(tile, (keys.pieces - 1) % Tiles::kPieces));
    return tile;
  }
};

template <class Config>
__device__ void forward(const ForwardArguments& args, const ForwardTask<Config>& task) {
  using Tiles = ForwardTiles<Config>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardStorage<Config>*>(memory);
  static_assert(sizeof(ForwardStorage<Config>) == Config::kSharedBytes &&
                Config::kSharedBytes ==
                    shared_bytes(ForwardTiling{Config::kWarps, Config::kWarpRows, Config::kTileK,
                                               Config::kPieceK, Config::kStages, Config::kMinBlocks,
                                               Config::kQuerySteps},
                                 Config::kHeadDim, Config::kHeadDimV));

  const int lane = threadIdx.x % 32, warp_index = __shfl_sync(ptx::kFullMask, threadIdx.x / 32, 0);
  const int first_row = task.first_row + warp_index * Config::kWarpRows;
  KeyValueLoader<Config> loader(args, task, shared);
  ForwardWarp<Config> warp;
  warp.init(args, task, first_row);

  shared.init_barriers();
  __syncthreads();
  uint4* kept_q = shared.q + warp_index * (Tiles::kSharedSteps * Tiles::kBlocks * 32) + lane;
  if (task.tiles > 0) start(args, task, shared, loader, warp, warp_index, kept_q);

  const WarpKeys<Config> keys(args.shape, task, first_row);
  const WarpLoop<Config> loop{
      args,
      task,
      keys,
      loader,
      warp,
      first_row,
      kept_q,
      ptx::shared_address(shared.k) + lane_offset_chunks_first<typename Tiles::LayoutK>(lane),
      ptx::shared_address(shared.v) + lane_offset_rows_first<typename Tiles::LayoutV>(lane)};
  unsigned tile = 0;
  int next_part = 0;
  if (keys.pieces > 0) tile = loop.run(next_part);
  // A warp that is done goes on copying for the others.
  for (; tile < static_cast<unsigned>(task.tiles); ++tile) {
    loader.rest(tile + Tiles::kAhead, next_part);
    next_part = 0;
    loader.release(tile);
  }

  ptx::copy_async_wait_all();
  __syncthreads();  // O passes through the memory of K and V
  store_results<Config>(args, task, warp, first_row, memory + warp_index * Tiles::LayoutO::kBytes);
}

template <class Config>
__device__ void run(const ForwardArguments& args) {
  forward(args, ForwardTask<Config>(args.shape, args.parts));
}

/// Blocks are tiles in the order of the list (tile/schedule.h), which has no more than there are
/// slots. One has a tile of a sequence, as in that sequence's dense call, and the rows in it that
/// no sequence has.
template <class Config>
__device__ void run(const RaggedForwardArguments& ragged) {
  constexpr int kTileQ = ForwardTiles<Config>::kTileQ;
  const Sequences& list = ragged.sequences;
  const TileSchedule& schedule = ragged.schedule;
  const Int64 index = blockIdx.y * Int64{gridDim.x} + blockIdx.x;
  const int heads = ragged.call.shape.heads_q;
  if (index >= Int64{schedule.header[0]} * heads) return;
  const auto tile =
      OrderedTile::of<Config::kBoundedRight>(schedule.tiles[index / heads], index, heads);
  const int head = tile.head;
  SequenceTile at;
  at.sequence = tile.sequence;
  at.tile = tile.tile;
  at.q = rows_of(list.q, at.sequence, list.count);
  if constexpr (has_cached_keys<Config>()) {
    at.k = keys_in_cache<Config>(ragged.call.shape, list, ragged.cache, at);
  } else {
    at.k = rows_of(list.k, at.sequence, list.count);
  }
  ForwardArguments args = ragged.call;
  shift_rows<Config::kElement>(args.q, list.q, at.q);
  shift_rows<Config::kElement>(args.k, list.k, at.k);
  shift_rows<Config::kElement>(args.v, list.k, at.k);
  shift_rows<Config::kOutput>(args.o, list.q, at.q);
  shift_rows(args.lse, list.q, at.q);
  shape_of_sequence(args.shape, list, at);

  const bool wrong = at.q.too_long || at.k.too_long;
  const UnusedRows unused = unused_rows<kTileQ>(at.q, at.tile, wrong);
  if (unused.begin < unused.end) {
    fill_rows<Config::kOutput, Config::kHeadDimV>(args.o, at.sequence, head, unused,
                                                  wrong ? kNaN : 0.0f);
    fill_rows(args.lse, at.sequence, head, unused, wrong ? kNaN : kMinusInfinity);
  }
  if (wrong || at.tile >= divide_up(at.q.length, kTileQ)) return;
  ForwardTask<Config> task(args.shape, at.sequence, head, at.tile);
  if constexpr (has_cached_keys<Config>()) {
    __shared__ CachedPlace place;
    if (threadIdx.x == 0) place = cached_place(list, ragged.cache, at.sequence);
    task.place = &place;  // forward() meets before it reads
  }
  forward(args, task);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarps, Config::kMinBlocks)
    flash_fwd_sm80(const __grid_constant__ flashlab::device::ForwardCall<Config> args) {
  flashlab::device::run<Config>(args);
}
