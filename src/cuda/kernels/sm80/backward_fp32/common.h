#pragma once

// What the kernels of the fp32 backward share: workspace regions, what is known of a tile of
// queries, which queries a block of keys visits, the guard's rule, and how gradients leave. Of a
// ragged call a block has a slot (tile/sequence.h) and the arguments of its sequence's dense call
// in shared memory: registers are few.
//
// Config: the call's part (launch/config.h), print_split's members and
//   int kWarps, kQueryGroups, kRows, kStages, kParts, kMinBlocks   as BackwardFp32Tiling
//   bool kWideTerms         the kernel that multiplies three bf16 terms (guarded.cu)
//   bool kWideFits          there is one: its tiles fit shared memory
//   int kMarkedKeys         keys of a block of the main kernel; what a mark is for
//   int kPlainTile          pairs of kPlainTile x kPlainTile in the plain kernel: 16 or 32
//   bool kRagged            regions have slots of tiles instead of [batch]: [heads, slot]
//   bool kDeterministic     dq is summed in the order of the keys
//   int kGradQRegion        float [batch, heads_q, tile of 64, 64, padded D]
//   int kRowRegion          float lse in powers of two, less kShift, [batch, heads_q, tiles, 64],
//                           then delta of the same shape, then QueryTile [batch, heads_q, tiles]
//   int kGuardRegion        unsigned [kMarkedKeys keys][batch, heads_k]: a Path; of a ragged call
//                           with the number of the sequence that has the slot
//   int kTurnRegion         with kDeterministic: unsigned tickets[kPaths], then turns
//                           [path][part][batch, heads_q][16 queries], of which each kernel uses as
//                           many as it has steps; zero on entry
//   int kSharedBytes

#include "arguments.h"
#include "ptx/atomic.h"
#include "ptx/math.h"
#include "ptx/special.h"
#include "ptx/warp.h"
#include "sm80/backward_fp32/tiles.h"
#include "sm80/terms/terms.h"
#include "tile/key_range.h"
#include "tile/mutation.h"
#include "tile/probability.h"
#include "tile/score.h"
#include "tile/sequence.h"

namespace flashlab::device {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
inline constexpr float kLog2e = 1.4426950408889634f;
// P is made 2^kShift times larger: its terms then keep 22 bits down to P = 2^-17.
inline constexpr int kShift = 14;

/// Whether pairs are more than products: then every block is the plain kernel's, which looks at
/// each by itself. The others fold scores into powers of two that a bend or a dropped pair breaks.
template <class Config>
inline constexpr bool kPlainPairs = kTransformedScores<Config> || Config::kDropout;

__device__ inline Int64 query_tiles(const Shape& s) {
  return split_tile_count(s.seqlen_q);
}

/// The dense call of a ragged call's sequence. With a ticket it takes at most 640 bytes, so that
/// two blocks of head dim 128 fit a multiprocessor of sm_90.
struct SequenceBackward : BackwardArguments {
  TermSlots queries, keys;
  int first_mark;     ///< its first block of keys among all marks
  unsigned sequence;  ///< that stands in its marks
};
static_assert(sizeof(SequenceBackward) <= 636);

/// A block's keys, and the steps of queries that see some of them.
struct KeyBlock {
  int index;  ///< of the kKeys keys
  int bh;     ///< over [batch, heads_k]; of a ragged call over [heads_k]
  int batch, head_k;
  int first_key;
  int first, end;  ///< steps of kRows queries
};

/// x of 2^x <= |value| < 2^(x+1) for a normal number.
__device__ inline int exponent_of(float value) {
  return static_cast<int>(__float_as_uint(value) >> 23 & 255u) - 127;
}

__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(127 + exponent) << 23);
}

/// Why dq's sums are kept larger where dO or K is small: additions to global memory flush subnormal
/// numbers.
__device__ inline float grad_q_scale(float norm, float delta, float largest_k) {
  return fmaxf(norm, delta) * fminf(largest_k, 1.0f) < 0x1p-60f ? 0x1p+64f : 1.0f;
}

/// dS times 2^this stays below 2^14, which leaves room for a P that rounding made larger than 1.
__device__ inline int grad_s_exponent(float bound) {
  return bound > 0 ? 13 - exponent_of(bound) : 0;
}

/// Waits until `count` blocks have added to a step's dq. Called by all threads. kRagged: where
/// offsets decrease another sequence may count, too, and nobody waits for ever.
template <bool kRagged>
__device__ inline void await_turn(unsigned* turn, unsigned count) {
  const volatile unsigned* now = turn;
  if (threadIdx.x == 0) {
    while (kRagged ? *now < count : *now != count) __nanosleep(64);
    __threadfence();
  }
  __syncthreads();
}

/// Gives the turn to the next block. Called by all threads.
__device__ inline void pass_turn(unsigned* turn) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(turn, 1u);
}

__device__ inline float* row_of(const Rows& rows, int batch, int head, Int64 position) {
  return static_cast<float*>(rows.data) + batch * rows.batch_stride + head * rows.head_stride +
         position * rows.row_stride;
}

/// What the kernels of the fp32 backward share.
template <class Config>
struct BackwardFp32 {
  static constexpr int kDim = split_padded_dim(Config::kHeadDim);
  static constexpr int kDimV = split_padded_dim(Config::kHeadDimV);
  static constexpr int kKeys = 16 * Config::kWarps / Config::kQueryGroups;
  static constexpr int kRows = Config::kRows;
  static constexpr int kBlocksPerMark = Config::kMarkedKeys / kKeys;

  /// What a block works with.
  using Arguments = ArgumentsOf<Config::kRagged, BackwardArguments, SequenceBackward>;

  static __device__ Int64 all_query_tiles(const Arguments& args) {
    const Shape& s = args.shape;
    if constexpr (Config::kRagged)
      return Int64(args.queries.all) * s.heads_q;
    else
      return Int64(s.batch) * s.heads_q * query_tiles(s);
  }
  static __device__ Int64 all_key_tiles(const Arguments& args) {
    const Shape& s = args.shape;
    if constexpr (Config::kRagged)
      return Int64(args.keys.all) * s.heads_k;
    else
      return Int64(s.batch) * s.heads_k * split_tile_count(s.seqlen_k);
  }
  /// A query head in the order in which tiles lie.
  static __device__ Int64 head_index(const Shape& s, int batch, int head) {
    if constexpr (Config::kRagged)
      return head;
    else
      return Int64(batch) * s.heads_q + head;
  }
  /// Tile `tile` of its sequence among all tiles of queries, of keys.
  static __device__ Int64 query_tile(const Arguments& args, Int64 bh, Int64 tile) {
    if constexpr (Config::kRagged)
      return bh * args.queries.all + args.queries.first + tile;
    else
      return bh * query_tiles(args.shape) + tile;
  }
  static __device__ Int64 key_tile(const Arguments& args, Int64 bh, Int64 tile) {
    if constexpr (Config::kRagged)
      return bh * args.keys.all + args.keys.first + tile;
    else
      return bh * split_tile_count(args.shape.seqlen_k) + tile;
  }

  static __device__ float* row_lse(const BackwardArguments& args) {
    return static_cast<float*>(args.regions[Config::kRowRegion]);
  }

  static __device__ float* row_delta(const Arguments& args) {
    return row_lse(args) + all_query_tiles(args) * kSplitRows;
  }

  static __device__ QueryTile* row_tiles(const Arguments& args) {
    return reinterpret_cast<QueryTile*>(row_delta(args) + all_query_tiles(args) * kSplitRows);
  }

  static __device__ float* grad_q_sums(const BackwardArguments& args) {
    return static_cast<float*>(args.regions[Config::kGradQRegion]);
  }

  /// `block` counts blocks of keys slowest: with a causal bound the longest start first.
  static __device__ KeyBlock key_block(const Shape& s, unsigned block) {
    const unsigned heads = static_cast<unsigned>(s.batch) * static_cast<unsigned>(s.heads_k);
    KeyBlock w;
    w.index = static_cast<int>(block / heads);
    w.bh = static_cast<int>(block % heads);
    w.batch = w.bh / s.heads_k;
    w.head_k = w.bh % s.heads_k;
    find_steps(s, w);
    return w;
  }

  /// The keys of a block by its number, and the steps that see some of them.
  static __device__ void find_steps(const Shape& s, KeyBlock& w) {
    w.first_key = w.index * kKeys;
    Int64 first = 0, end = s.seqlen_q;
    if constexpr (Config::kBoundedRight) first = min(end, max(Int64(0), w.first_key - s.right));
    if constexpr (Config::kBoundedLeft)
      end = max(first, min(end, Int64(w.first_key) + kKeys + s.left));
    if constexpr (has_chunks<Config>()) {
      const Chunks chunks(s);
      first = max(first, min(Int64(s.seqlen_q), chunks.first_position(w.first_key)));
      end = min(end, max(Int64(0), chunks.end_position(w.first_key + kKeys)));
    }
    w.first = static_cast<int>(first / kRows);
    const int last = static_cast<int>((end + kRows - 1) / kRows);
    w.end = first < end ? mutation::last_tile<Config>(last) : w.first;
    // first_block_of_step() counts on it that a block visits all steps from the one to the other.
    if constexpr (has_chunks<Config>()) w.end = max(w.first, mutation::last_tile<Config>(last));
  }

  /// The sequence's arguments, written by thread 0. Called by all threads.
  static __device__ void open_sequence(const RaggedBackwardArguments& ragged,
                                       const SequenceTile& at, SequenceBackward& args) {
    const Sequences& list = ragged.sequences;
    if (threadIdx.x == 0) {
      static_cast<BackwardArguments&>(args) = ragged.call;
      shape_of_sequence(args.shape, list, at);
      for (Rows* rows : {&args.q, &args.o, &args.d_o, &args.dq})
        shift_rows<Element::kFp32>(*rows, list.q, at.q);
      for (Rows* rows : {&args.k, &args.v, &args.dk, &args.dv})
        shift_rows<Element::kFp32>(*rows, list.k, at.k);
      shift_rows(args.lse, list.q, at.q);
      shift_rows(args.d_lse, list.q, at.q);
      args.queries = term_slots<false>(list, at.sequence);
      args.keys = term_slots<true>(list, at.sequence);
      args.first_mark = static_cast<int>(first_slot<Config::kMarkedKeys>(list.k, at.sequence));
      args.sequence = static_cast<unsigned>(at.sequence);
    }
    __syncthreads();
  }

  /// The slot of block `block`, which counts key heads fastest, and parts of a marked block before
  /// slots: all kernels agree on which sequence has it.
  static __device__ SequenceTile slot_of_keys(const RaggedBackwardArguments& ragged,
                                              unsigned block) {
    const unsigned heads = static_cast<unsigned>(ragged.call.shape.heads_k);
    return tile_of_slot<Config::kMarkedKeys, true, false>(
        ragged.sequences, static_cast<int>(block / heads / kBlocksPerMark));
  }

  /// Block `block` of a ragged call, if it has keys.
  static __device__ bool open_keys(const RaggedBackwardArguments& ragged, const SequenceTile& at,
                                   unsigned block, SequenceBackward& args, KeyBlock& w) {
    const unsigned heads = static_cast<unsigned>(ragged.call.shape.heads_k);
    w.index = at.tile * kBlocksPerMark + static_cast<int>(block / heads % kBlocksPerMark);
    if (at.q.too_long || at.k.too_long || Int64(w.index) * kKeys >= at.k.length) return false;
    open_sequence(ragged, at, args);
    w.bh = w.head_k = static_cast<int>(block % heads);
    w.batch = at.sequence;
    find_steps(args.shape, w);
    return true;
  }

  /// The first block of keys that visits a step: blocks from there on add to its dq in order.
  static __device__ int first_block_of_step(const Shape& s, int step) {
    Int64 key = 0;
    if constexpr (Config::kBoundedLeft) key = max(key, Int64(step) * kRows - s.left);
    if constexpr (has_chunks<Config>())
      key = max(key, Int64(Chunks(s).keys_of(step * kRows).begin));
    return static_cast<int>(key / kKeys);
  }

  static __device__ bool sees(const Shape& s, Int64 query, Int64 key) {
    bool seen = key < s.seqlen_k && query < s.seqlen_q;
    if constexpr (Config::kBoundedRight) seen &= key <= query + mutation::right<Config>(s.right);
    if constexpr (Config::kBoundedLeft) seen &= key >= query - mutation::left<Config>(s.left);
    if constexpr (has_chunks<Config>()) {
      const Chunks chunks(s);
      seen &= chunks.has(chunks.first_position(static_cast<int>(key)), query);
    }
    return seen;
  }

  /// The mask tensor seen from one head; the additive value, or -inf where the key is hidden.
  static __device__ float mask_value(const BackwardArguments& args, Int64 base, Int64 query,
                                     Int64 key) {
    const Int64 at = base + query * args.mask.row_stride + key * args.mask.key_stride;
    if constexpr (Config::kMask == MaskTensor::kBool) {
      return static_cast<const unsigned char*>(args.mask.data)[at] != 0 ? 0.0f : -kInfinity;
    } else if constexpr (Config::kMask == MaskTensor::kAdditive) {
      const float added = static_cast<const float*>(args.mask.data)[at];
      return added <= hiding_value<Element::kFp32>() ? -kInfinity : added;
    }
    return 0.0f;
  }

  /// |dS| <= bound for a tile of queries against 64 keys: P <= 1 and |dP| <= |dO| |V|.
  static __device__ float grad_s_bound(const QueryTile& tile, float largest_v) {
    return fmaf(tile.norm, largest_v * sqrtf(float(Config::kHeadDimV)), tile.delta);
  }

  /// Whether the powers of two that go with terms serve a tile of queries and 64 keys: every factor
  /// must be a normal number, with room for the sums.
  static __device__ bool factors_serve(const Shape& s, const QueryTile& q, const SplitTile& k,
                                       const SplitTile& v) {
    const int eq = exponent_of(q.unscale_q), eo = exponent_of(q.unscale_grad_o);
    const int ek = exponent_of(k.unscale), ev = exponent_of(v.unscale);
    const float bound = grad_s_bound(q, v.largest);
    const int es = grad_s_exponent(bound);
    const auto inside = [](int e) { return e >= -100 && e <= 80; };
    bool serve = bound == 0 || bound >= 1e-30f && bound < 1e30f;
    serve &= inside(eo) && inside(eo + ev) && inside(eo + ev + es - kShift);
    if (s.scale != 0) {
      const int e = exponent_of(s.scale);
      serve &= eq + ek + e <= 80 && inside(eq + e - es) && inside(ek + e - es);
    }
    return serve;
  }

  /// The block that runs next. Blocks that wait for others must start after them: with tickets that
  /// is certain, with blockIdx it is only usual.
  static __device__ unsigned take_ticket(const BackwardArguments& args, Path path) {
    if constexpr (Config::kDeterministic) {
      __shared__ unsigned ticket;
      if (threadIdx.x == 0)
        ticket = atomicAdd(static_cast<unsigned*>(args.regions[Config::kTurnRegion]) + path, 1u);
      __syncthreads();
      return ticket;
    }
    return blockIdx.x;
  }

  static __device__ unsigned* turn_of(const Arguments& args, Path path, int part, Int64 bh,
                                      int step) {
    const Shape& s = args.shape;
    if constexpr (Config::kRagged) {
      constexpr int kTurns = kSplitRows / kTurnRows;  // of a slot
      const Int64 heads = (Int64(path) * Config::kParts + part) * s.heads_q + bh;
      return static_cast<unsigned*>(args.regions[Config::kTurnRegion]) + kPaths +
             (heads * args.queries.all + args.queries.first) * kTurns + step;
    }
    const Int64 steps = (Int64(s.seqlen_q) + kTurnRows - 1) / kTurnRows;
    return static_cast<unsigned*>(args.regions[Config::kTurnRegion]) + kPaths +
           ((Int64(path) * Config::kParts + part) * s.batch * s.heads_q + bh) * steps + step;
  }

  static __device__ unsigned mark_of(unsigned path, int sequence) {
    return path | static_cast<unsigned>(sequence) << 2;
  }

  /// The kernel that a block of keys is for; of a slot that another sequence has, none.
  static __device__ unsigned path_of(const Arguments& args, int index, int bh) {
    const Shape& s = args.shape;
    const Int64 marked = Int64(index) * kKeys / Config::kMarkedKeys;
    if constexpr (Config::kRagged) {
      const unsigned mark = static_cast<const unsigned*>(
          args.regions[Config::kGuardRegion])[(args.first_mark + marked) * s.heads_k + bh];
      return mark ^ args.sequence << 2;
    }
    return static_cast<const unsigned*>(
        args.regions[Config::kGuardRegion])[marked * s.batch * s.heads_k + bh];
  }

  /// How many blocks of this kernel before this one add to the step.
  static __device__ unsigned turns_before(const Arguments& args, const KeyBlock& w, int step,
                                          Path path) {
    unsigned count = 0;
    for (int n = first_block_of_step(args.shape, step); n < w.index; ++n)
      count += path_of(args, n, w.bh) == path;
    return count;
  }

  /// Two neighbours of a gradient's row, replaced or added to.
  template <int kColumns, int kAlign>
  static __device__ void store_gradient(float* row, int c, float x, float y) {
    if constexpr (kAlign >= 8 && kColumns % 2 == 0) {
      if (c >= kColumns) return;
      auto* place = reinterpret_cast<float2*>(row + c);
      const float2 before = Config::kAccumulate ? *place : make_float2(0, 0);
      *place = Config::kAccumulate ? make_float2(before.x + x, before.y + y) : make_float2(x, y);
    } else {
      if (c < kColumns) row[c] = Config::kAccumulate ? row[c] + x : x;
      if (c + 1 < kColumns) row[c + 1] = Config::kAccumulate ? row[c + 1] + y : y;
    }
  }
};

}  // namespace flashlab::device
