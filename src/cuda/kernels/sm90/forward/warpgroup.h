#pragma once

// Of the Hopper forward kernel (kernel.cu): what a consumer warpgroup holds in registers, its
// products, its softmax and its results.

#include "ptx/convert.h"
#include "sm90/forward/block.h"
#include "tile/dropped.h"
#include "tile/fragments.h"
#include "tile/mask.h"
#include "tile/output.h"
#include "tile/probability.h"
#include "tile/score.h"
#include "tile/sequence.h"
#include "tile/sinks.h"
#include "tile/softmax.h"
#include "tile/warpgroup.h"

namespace flashlab::device {

/// Whether a quad reads 64 keys of a row of the mask, 16 bytes at a time, and exchanges them.
template <class Config>
inline constexpr bool kSm90WideMask =
    Config::kMask != MaskTensor::kNone&& Config::kMaskWide&& Config::kBlockKeys == 64;

/// Index of key 0 in the mask of each of a thread's rows, where a thread keeps that rather than
/// finding out every step: bounds take the registers. A base, so that it is nothing otherwise.
template <bool kKept>
struct Sm90MaskRows {
  Int64 mask_begins[2];
};
template <>
struct Sm90MaskRows<false> {};
template <class Config>
inline constexpr bool kSm90KeptMask =
    kSm90WideMask<Config> && !Config::kBoundedRight && !Config::kBoundedLeft;

/// Whether a thread keeps the numbers of 128 keys for two blocks.
template <class Config>
inline constexpr bool kSm90KeptNumbers = Config::kBlockKeys == 64 && Config::kHeadDimV <= 128;
/// Whether it keeps LaneNumbers' row_bytes or, for want of registers, finds them anew.
template <class Config>
inline constexpr bool kSm90KeptRowBytes = kSm90KeptNumbers<Config> || Config::kHeadDimV <= 48;

/// What a thread keeps of dropout. A base, so that it is nothing otherwise.
template <class Config, bool kDropout>
struct Sm90Dropped {
  DropoutRows keep_rows;  ///< of this thread's rows, which are of one group
  unsigned row_bytes;     ///< LaneNumbers', where kSm90KeptRowBytes
  LaneNumbers numbers;    ///< of 64 keys, from block to block where kSm90KeptNumbers
  unsigned addend;        ///< what they are compared by
};
template <class Config>
struct Sm90Dropped<Config, false> {};

/// A warpgroup's 64 rows. With warp w of it, g = lane / 4 and t = lane % 4 a thread holds rows
/// 16 w + g and 16 w + g + 8: index 4 j + 2 h + i is row half h, column 8 j + 2 t + i.
template <class Config>
struct Sm90Warpgroup : Sm90MaskRows<kSm90KeptMask<Config>>, Sm90Dropped<Config, Config::kDropout> {
  using Tiles = Sm90Tiles<Config>;
  static constexpr Element kElement = Config::kElement;
  static constexpr int kBlocks = Config::kBlockKeys / 8;  ///< of 8 keys
  using Scores = float[Tiles::kScores];
  using Rows = Sm90Rows<Config>;
  using Mask = MaskRows<Config>;
  static constexpr bool kMasked = Config::kMask != MaskTensor::kNone;
  /// Whether scores are more than a factor times their product where no edge hides them, too.
  static constexpr bool kTransformed = kMasked || kTransformedScores<Config>;
  static_assert(!Config::kDropout || !Config::kPackGroup, "dropout is drawn for one head");
  /// The mask tensor's elements of a thread's rows, per 8 keys.
  using Elements = typename Mask::Pair[kMasked ? kBlocks : 1][2];
  /// Whether a mask is read a block early, or while the block's own products are under way: the
  /// registers of larger heads are taken between.
  static constexpr bool kEarlyMask = Config::kHeadDimV <= 128;
  static constexpr bool kWideMask = kSm90WideMask<Config>;

  float rO[larger(Tiles::kFullSlabs, 1)][32];          // [slab]: 64 features each
  float rO_last[larger(Tiles::kLastColumns, 16) / 2];  // the rest of the features
  unsigned rP[Tiles::kKeySteps][4];                    // left operands, per 16 keys
  RowStatistics<Config, 1> statistics;
  int first_row;  ///< of the warpgroup
  unsigned shared_q;
  static constexpr int kSlopes = Config::kPackGroup ? 2 : 1;
  HeadSlope<Config> slopes[kSlopes];  ///< packed: of each of a thread's rows
  int alibi_keys[kSlopes];  ///< of a block's first key 0: from the aligned key to a thread's first
  float alibi[2];           ///< of the current block: what each row's scores still lack of ALiBi

  /// From values of scores to units of log2.
  __device__ static float factor_of(const ForwardArguments& args) {
    return unit_of<Config>(args.score, args.shape);
  }

  /// Index of a key of one of a thread's rows in the mask tensor.
  __device__ Int64 mask_index(const ForwardArguments& args, const Sm90Task<Config>& task, int half,
                              int key) const {
    const Shape& shape = shape_of(args, task);
    const int own = smaller(row(half), Rows::count(shape) - 1);
    const Mask mask(args.mask, task.batch, Rows::head(shape, task.head_q, own));
    return mask.index(Rows::position(shape, own), key);
  }

  __device__ Int64 wide_index(const ForwardArguments& args, const Sm90Task<Config>& task, int half,
                              int key) const {
    if constexpr (kSm90KeptMask<Config>) {
      return this->mask_begins[half] + key;
    } else {
      return mask_index(args, task, half, key);
    }
  }

  /// Before a tile's first block.
  __device__ void begin(const ForwardArguments& args, const Sm90Task<Config>& task) {
    statistics.clear();
    if constexpr (kSm90KeptMask<Config>) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        this->mask_begins[half] = mask_index(args, task, half, 0);
      }
    }
    if constexpr (Config::kAlibi) {
      const Shape& shape = shape_of(args, task);
      const float unit = args.score.slope_unit;
#pragma unroll
      for (int half = 0; half < kSlopes; ++half) {
        slopes[half] = HeadSlope<Config>(args.slopes, task.batch,
                                         Rows::head(shape, task.head_q, row(half)), unit);
        alibi_keys[half] = HeadSlope<Config>::keys_to(shape, Rows::position(shape, row(half)),
                                                      2 * (ptx::thread_index() % 4));
      }
    }
    if constexpr (Config::kDropout) {
      const KeepMask<Config> keep(args.dropout, args.shape, task.batch, task.head_q);
      this->keep_rows = DropoutRows(keep.words, row(0), ptx::thread_index());
      this->row_bytes = row_bytes_of_thread();
    }
#pragma unroll
    for (auto& slab : rO) {
#pragma unroll
      for (float& value : slab) value = 0;
    }
#pragma unroll
    for (float& value : rO_last) value = 0;
  }

  __device__ void pin_outputs() {
#pragma unroll
    for (int slab = 0; slab < Tiles::kFullSlabs; ++slab) pin(rO[slab]);
    if constexpr (Tiles::kLastColumns > 0) pin(rO_last);
  }
  __device__ void pin_probabilities() {
#pragma unroll
    for (auto& step : rP) pin(step);
  }

  /// Starts S = Q K^T of a block whose keys lie at `shared_k`.
  __device__ void start_scores(Scores& rS, unsigned shared_k) {
    pin(rS);
    ptx::wgmma_fence();
    const unsigned long long q = slab_descriptor(shared_q), k = slab_descriptor(shared_k);
#pragma unroll
    for (int step = 0; step < Tiles::kDimSteps; ++step) {
      multiply_shared<kElement>(rS, q + (Tiles::TileQ::step_offset(step) >> 4),
                                k + (Tiles::TileK::step_offset(step) >> 4), step > 0);
    }
    ptx::wgmma_commit();
  }

  /// Starts O += P V of a block whose values lie at `shared_v`.
  __device__ void start_outputs(unsigned shared_v) {
    pin_outputs();
    pin_probabilities();
    ptx::wgmma_fence();
    const unsigned long long v = slab_descriptor(shared_v);
#pragma unroll
    for (int step = 0; step < Tiles::kKeySteps; ++step) {
#pragma unroll
      for (int slab = 0; slab < Tiles::kFullSlabs; ++slab) {
        multiply_registers<kElement>(rO[slab], rP[step],
                                     v + (Tiles::TileV::step_offset_rows(step, slab) >> 4));
      }
      if constexpr (Tiles::kLastColumns > 0) {
        multiply_registers<kElement>(
            reinterpret_cast<float(&)[Tiles::kLastColumns / 2]>(rO_last), rP[step],
            v + (Tiles::TileV::step_offset_rows(step, Tiles::kFullSlabs) >> 4));
      }
    }
    ptx::wgmma_commit();
  }

  /// The first of a thread's rows and, 8 further, the second. The thread's index is read anew: the
  /// loop has no registers for what follows from it.
  __device__ int row(int half) const {
    return first_row + ptx::thread_index() % kWarpgroupThreads / 32 * 16 +
           ptx::thread_index() % 32 / 4 + 8 * half;
  }

  /// Reads what the mask tensor says of the block that begins at `first_key`. kAllSeen: all its
  /// keys exist.
  template <bool kAllSeen>
  __device__ void read_mask(Elements& elements, const ForwardArguments& args,
                            const Sm90Task<Config>& task, int first_key) const {
    const Shape& shape = shape_of(args, task);
    const int lane = ptx::thread_index() % 4;
    const Mask mask(args.mask, task.batch, 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kWideMask) {
        // Lane t of a quad has keys 16 t to 16 t + 15 (arrange_mask).
        const int key = first_key + 16 * lane;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          if (!kAllSeen && key + 8 * part >= shape.seqlen_k) continue;
          const uint4 eight = mask.eight(wide_index(args, task, half, key + 8 * part));
          elements[4 * part][half] = {{eight.x}}, elements[4 * part + 1][half] = {{eight.y}};
          elements[4 * part + 2][half] = {{eight.z}}, elements[4 * part + 3][half] = {{eight.w}};
        }
      } else {
        const int key = first_key + 2 * lane;
        const Int64 first = mask_index(args, task, half, key);
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const Int64 index = first + mask.distance(8 * j);
          elements[j][half] =
              kAllSeen ? mask.pair(index) : mask.pair_of(index, shape.seqlen_k - key - 8 * j);
        }
      }
    }
  }

  /// From eight neighbouring keys at once to the two that a lane has of every eight: words w and
  /// w + 4 of lane s are keys 16 s + 2 w and 8 further; lane t gets words t and t + 4 of every
  /// lane.
  __device__ static void arrange_mask(Elements& elements) {
    if constexpr (!kWideMask) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned words[2][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) words[i / 4][i % 4] = elements[i][half].words[0];
      transpose_quad(words[0]);
      transpose_quad(words[1]);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) elements[j][half].words[0] = words[j % 2][j / 2];
    }
  }

  /// ALiBi of a thread's first key of a block in one of its rows. Rows of one head are 8 apart.
  __device__ float alibi_of(float by_key, int half, int first_key) const {
    const int own = Config::kPackGroup ? half : 0;
    const float first = by_key * static_cast<float>(first_key + alibi_keys[own]);
    return own == half ? first : fmaf(by_key, -8.0f, first);
  }

  /// Products become scores, or values that a factor makes scores, and those that the rows do not
  /// see are hidden. kClear: no edge hides keys of the block and, with ALiBi, none is ahead of the
  /// one that is aligned with its row, or, with kAhead, behind: a score gets what depends on its
  /// place in the block, one instruction, and `alibi` the rest. kNoneHidden: nor does the mask hide
  /// any.
  template <bool kClear, bool kAhead = false, bool kNoneHidden = false>
  __device__ void transform(Scores& rS, const ForwardArguments& args, const Sm90Task<Config>& task,
                            const Elements& elements, int first_key) {
    const Shape& shape = shape_of(args, task);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = Rows::position(shape, smaller(row(half), Rows::count(shape) - 1));
      const KeyRange seen = visible_keys<Config>(shape, position);
      const int key = first_key + 2 * (ptx::thread_index() % 4);
      const HeadSlope<Config>& slope = slopes[Config::kPackGroup ? half : 0];
      const float distance = HeadSlope<Config>::distance(shape, position, key);
      const float by_key = kAhead ? -slope.slope : slope.slope;
      if constexpr (Config::kAlibi) alibi[half] = kClear ? alibi_of(by_key, half, first_key) : 0.0f;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = rS[4 * j + 2 * half + i];
          if constexpr (kTransformedScores<Config>) {
            score = value_of<Config>(args.score, score);
            if constexpr (Config::kAlibi && kClear) {
              if (8 * j + i > 0) score = fmaf(by_key, static_cast<float>(8 * j + i), score);
            } else {
              score = slope.apply(score, distance + static_cast<float>(8 * j + i));
            }
          }
          if constexpr (kMasked) {
            const unsigned element = elements[j][half].bits(i);
            const bool seen_by_mask = Mask::reveal(score, element, args.score.slope_unit);
            if (!kNoneHidden && !seen_by_mask) score = kMinusInfinity;
          }
          if constexpr (!kClear) {
            if (!seen.contains(key + 8 * j + i)) score = kMinusInfinity;
          }
        }
      }
    }
  }

  /// Whether a warp's elements of an additive mask hide no key of the block; if in doubt it says
  /// no.
  __device__ static bool hide_nothing(const Elements& elements) {
    unsigned largest = 0;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      largest = __vimax3_u16x2(largest, elements[j][0].words[0], elements[j][1].words[0]);
    }
    const bool hiding = larger(largest >> 16, largest & 0xffff) >= Mask::kFirstHiding;
    return !__any_sync(ptx::kFullMask, hiding);
  }
  /// Transform of a clear block. Half of an additive mask's work is for what it hides.
  template <bool kAhead>
  __device__ void transform_clear(Scores& rS, const ForwardArguments& args,
                                  const Sm90Task<Config>& task, const Elements& elements,
                                  int first_key) {
    if constexpr (Config::kMask == MaskTensor::kAdditive && Mask::kBits == 16) {
      if (hide_nothing(elements)) {
        return transform<true, kAhead, true>(rS, args, task, elements, first_key);
      }
    }
    transform<true, kAhead>(rS, args, task, elements, first_key);
  }

  /// Scores become probabilities in their place, summed in statistics.step.
  __device__ void exponentials(Scores& rS, const ForwardArguments& args) {
    const float factor = factor_of(args);
    float references[2] = {statistics.reference[0][0], statistics.reference[0][1]};
    if constexpr (Config::kAlibi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        references[half] = fmaf(-factor, alibi[half], references[half]);
      }
    }
    float sums[2][2] = {};
#pragma unroll
    for (int i = 0; i < Tiles::kScores; ++i) {
      const int half = i / 2 % 2;
      rS[i] = ptx::exp2_fast(__fmaf_rn(rS[i], factor, -references[half]));
      sums[half][i % 2] += rS[i];
    }
    statistics.step[0][0] = sums[0][0] + sums[0][1];
    statistics.step[0][1] = sums[1][0] + sums[1][1];
  }

  /// Raises the references to the maxima of scores where these are larger; with kScaleO what
  /// was summed follows.
  template <bool kScaleO>
  __device__ void raise_references(const Scores& rS, const ForwardArguments& args) {
    const float factor = factor_of(args);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = kMinusInfinity;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        largest = fmaxf(largest, fmaxf(rS[4 * j + 2 * half], rS[4 * j + 2 * half + 1]));
      }
      if constexpr (Config::kAlibi) largest += alibi[half];
      const float scale = statistics.raise(0, half, largest, factor);
      if constexpr (kScaleO) {
#pragma unroll
        for (auto& slab : rO) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            slab[4 * j + 2 * half] *= scale;
            slab[4 * j + 2 * half + 1] *= scale;
          }
        }
#pragma unroll
        for (int j = 0; j < Tiles::kLastColumns / 8; ++j) {
          rO_last[4 * j + 2 * half] *= scale;
          rO_last[4 * j + 2 * half + 1] *= scale;
        }
      }
    }
  }

  /// A sum left its range: raw scores anew, by this warp alone, then references that fit them.
  __device__ void exponentials_again(Scores& rS, const ForwardArguments& args,
                                     const Sm90Task<Config>& task, unsigned shared_k,
                                     int first_key) {
    const int lane = ptx::thread_index() % 32;
    const int warp_row = ptx::thread_index() % kWarpgroupThreads / 32 * 16;
#pragma unroll
    for (float& score : rS) score = 0;
#pragma unroll 1
    for (int step = 0; step < Tiles::kDimSteps; ++step) {
      unsigned rQ[4], rK[4];
      ptx::load_matrix_4(
          rQ, shared_q + Tiles::TileQ::offset(warp_row + lane % 16, 2 * step + lane / 16));
#pragma unroll
      for (int j = 0; j < kBlocks; j += 2) {
        ptx::load_matrix_4(rK, shared_k + Tiles::TileK::offset(8 * j + lane % 8 + lane / 16 * 8,
                                                               2 * step + lane / 8 % 2));
        multiply_add<kElement>(reinterpret_cast<float(&)[4]>(rS[4 * j]), rQ, rK[0], rK[1]);
        multiply_add<kElement>(reinterpret_cast<float(&)[4]>(rS[4 * j + 4]), rQ, rK[2], rK[3]);
      }
    }
    Elements elements;
    if constexpr (kMasked) read_mask<false>(elements, args, task, first_key);
    arrange_mask(elements);
    transform<false>(rS, args, task, elements, first_key);
    raise_references<true>(rS, args);
    exponentials(rS, args);
  }

  /// Probabilities become the left operand of O += P V. The accumulator's columns are the operand's
  /// k in the same threads: no exchange. What dropout drops is 0 there, and counts in the sums.
  template <bool kFirst>
  __device__ void accept(const Scores& rS, const ForwardArguments& args, int first_key) {
    statistics.accept();
#pragma unroll
    for (int step = 0; step < Tiles::kKeySteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rP[step][i] = pack<kElement>(rS[8 * step + 2 * i], rS[8 * step + 2 * i + 1]);
      }
    }
    if constexpr (Config::kDropout) drop<kFirst>(args.dropout, first_key);
  }
  __device__ static unsigned row_bytes_of_thread() {
    const auto thread = static_cast<unsigned>(ptx::thread_index());
    return device::row_bytes_of_thread(thread, PtxArithmetic{});
  }
  /// kFirst: of the first block. Two blocks of 64 keys share numbers, where there are registers.
  template <bool kFirst>
  __device__ void drop(const DropoutArguments& dropout, int first_key) {
    static_assert(!Config::kDropout || Config::kBlockKeys == 64 || Config::kBlockKeys == 128);
    if (kFirst || !kSm90KeptNumbers<Config> ||
        first_key % 128 == (Tiles::kLastKeysFirst ? 64 : 0)) {
      if constexpr (!kSm90KeptRowBytes<Config>) this->row_bytes = row_bytes_of_thread();
      this->numbers =
          this->keep_rows.numbers(this->row_bytes, first_row, first_key, PtxArithmetic{});
      this->addend = dropout_addend(dropout.limit, this->keep_rows.phase(first_key));
    } else {
      this->numbers.change_columns();
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (block == 8) this->numbers.change_columns();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unsigned& pair = rP[block / 2][block % 2 * 2 + half];
        pair = ptx::clear_if_negative_2(pair, this->numbers.word(0, half, block % 8), this->addend);
      }
    }
  }

  /// Four blocks of 8 columns of one row, two columns a lane: lane t of the quad gets all of block
  /// t.
  __device__ static void transpose_quad(unsigned (&words)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
      const bool upper = threadIdx.x & bit;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j & bit) continue;
        const unsigned got = __float_as_uint(
            ptx::shuffle_xor(__uint_as_float(upper ? words[j] : words[j | bit]), bit));
        (upper ? words[j] : words[j | bit]) = got;
      }
    }
  }

  /// Features [32 group, 32 group + 32) of a row's O, scaled; those beyond the tile are not there.
  template <int kGroup>
  __device__ float output(int half, int block, int i) const {
    constexpr int kSlab = kGroup / 2, kFirst = kGroup % 2 * 4;
    const int index = 4 * (kFirst + block) + 2 * half + i;
    if constexpr (kSlab < Tiles::kFullSlabs) {
      return rO[kSlab][index];
    } else {
      return index < Tiles::kLastColumns / 2 ? rO_last[index < Tiles::kLastColumns / 2 ? index : 0]
                                             : 0.0f;
    }
  }

  /// Whether a lane has 16 neighbouring bytes of each 32 features.
  static constexpr bool kWideStores =
      Config::kOutput != Element::kFp32 && Config::kHeadDimV % 8 == 0;
  /// Bytes between a row of results and what a lane stores of it first: the rest is at constant
  /// distances from there.
  __device__ static int first_byte() {
    const int lane = static_cast<int>(threadIdx.x) % 4;
    return kWideStores ? 16 * lane : 0;
  }

  template <int kGroup>
  __device__ void store_group(unsigned char* to, bool exists, int half, float inverse) const {
    const int lane = static_cast<int>(threadIdx.x) % 4;
    if constexpr (kWideStores) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        words[j] = pack<Config::kOutput>(output<kGroup>(half, j, 0) * inverse,
                                         output<kGroup>(half, j, 1) * inverse);
      }
      transpose_quad(words);
      constexpr bool kWhole = 32 * (kGroup + 1) <= Config::kHeadDimV;
      if (exists && (kWhole || 32 * kGroup + 8 * lane < Config::kHeadDimV)) {
        *reinterpret_cast<uint4*>(to + 64 * kGroup) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    } else if (exists) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = 32 * kGroup + 8 * j + 2 * lane;
        store_pair<Config::kOutput>(to, column, Config::kHeadDimV - column,
                                    output<kGroup>(half, j, 0) * inverse,
                                    output<kGroup>(half, j, 1) * inverse);
      }
    }
    if constexpr (32 * (kGroup + 1) < Config::kHeadDimV) {
      store_group<kGroup + 1>(to, exists, half, inverse);
    }
  }

  /// O divided by the row sums, and LSE, straight from registers: nothing waits for a store.
  __device__ void store(const Sm90ForwardArguments& args, const Sm90Task<Config>& task) {
    const ForwardArguments& call = args.call;
    const Shape& shape = shape_of(call, task);
    statistics.finish();
    const float offset = offset_of<Config>(call.score);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = row(half);
      const int place = Rows::position(shape, own) + task.first_row_of_results();
      const auto head = [&] { return Rows::head(shape, task.head_q, own); };
      const bool exists = own < Rows::count(shape);
      const float total = statistics.sum[0][half];
      // An empty row has P = 0 throughout; 0 is right unless V holds what is not finite.
      const float inverse = total == 0 ? 0.0f : keep_scale<Config>(call.dropout) / total;
      if constexpr (Config::kStream) {
        if (task.slot >= 0) {
          if (exists) store_part(args.stream, task, half, inverse, offset);
          continue;
        }
      }
      SinkRow sink{1, 0};
      if constexpr (Config::kSinks) {
        sink = with_sink(statistics.lse(0, half, offset), call.sinks[head()]);
      }
      const RowScalars& lse = call.lse;
      if (exists && threadIdx.x % 4 == 0 && lse.data != nullptr) {
        static_cast<float*>(lse.data)[task.batch * lse.batch_stride + head() * lse.head_stride +
                                      place * lse.row_stride] =
            Config::kSinks ? sink.lse : statistics.lse(0, half, offset);
      }
      unsigned char* to = row_address<Config::kOutput>(call.o, task.batch, head(), place);
      store_group<0>(to + first_byte(), exists, half, inverse * sink.factor);
    }
  }

  /// What the tile's rows get that their sequence does not use, and rows of no sequence.
  __device__ void store_unused(const ForwardArguments& call, const Sm90Task<Config>& task) const {
    const Shape& shape = task.shape;
    const int begin = larger(shape.seqlen_q, Rows::position(shape, larger(first_row, 0)));
    const int end =
        smaller(task.room, Rows::position(shape, larger(first_row + kWarpgroupRows, 0)));
    if (begin >= end) return;
    const UnusedRows rows{begin + task.results, end + task.results};
    for (int member = 0; member < 1 << Rows::members_log2(shape); ++member) {
      const int head = task.head_q + member;
      fill_rows<Config::kOutput, Config::kHeadDimV, kWarpgroupThreads>(call.o, task.batch, head,
                                                                       rows, task.unused_o);
      fill_rows<kWarpgroupThreads>(call.lse, task.batch, head, rows, task.unused_lse);
    }
  }

  /// A row of a part of a tile.
  __device__ void store_part(const KeyStream& stream, const Sm90Task<Config>& task, int half,
                             float inverse, float offset) const {
    const Int64 at = Int64(task.slot) * Tiles::kTileQ + row(half) - task.first_row;
    if (threadIdx.x % 4 == 0) stream.lse[at] = statistics.lse(0, half, offset);
    const int lane = static_cast<int>(threadIdx.x) % 4;
    store_part_group<0>(stream.o + at * Config::kHeadDimV + 2 * lane, half, inverse);
  }
  /// `to`: where a lane's first two features belong.
  template <int kGroup>
  __device__ void store_part_group(float* to, int half, float inverse) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Head dims are multiples of 8: all of a quad's features or none exist.
      if (32 * kGroup + 8 * j >= Config::kHeadDimV) continue;
      *reinterpret_cast<float2*>(to + 32 * kGroup + 8 * j) =
          make_float2(output<kGroup>(half, j, 0) * inverse, output<kGroup>(half, j, 1) * inverse);
    }
    if constexpr (32 * (kGroup + 1) < Config::kHeadDimV) {
      store_part_group<kGroup + 1>(to, half, inverse);
    }
  }
};

}  // namespace flashlab::device
