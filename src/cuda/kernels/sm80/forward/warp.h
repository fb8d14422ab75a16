#pragma once

// Of the portable forward kernel (kernel.cu): what a warp holds in registers, its products and its
// softmax, and its results.

#include "ptx/convert.h"
#include "ptx/special.h"
#include "sm80/forward/block.h"
#include "tile/dropped.h"
#include "tile/fragments.h"
#include "tile/mask.h"
#include "tile/output.h"
#include "tile/probability.h"
#include "tile/score.h"
#include "tile/sinks.h"
#include "tile/softmax.h"

namespace flashlab::device {

/// A warp's registers and what it does with them. g = lane / 4, t = lane % 4.
template <class Config>
struct ForwardWarp {
  using Tiles = ForwardTiles<Config>;
  static constexpr Element kElement = Config::kElement;
  static constexpr int kBlocks = Tiles::kBlocks, kPieceBlocks = Tiles::kPieceBlocks;
  static_assert(!Config::kDropout || Config::kPieceK <= 64, "a piece has one draw of dropout");
  static constexpr bool kMasked = Config::kMask != MaskTensor::kNone;
  using Mask = MaskRows<Config>;
  static_assert(!(kMasked && Config::kSteadyLoop), "the steady loop has no mask");
  static_assert(!Config::kDropout || !Config::kPackGroup, "dropout is drawn for one head");

  unsigned rQ[larger(Tiles::kQuerySteps, 1)][kBlocks][4];  // left operands
  float rO[kBlocks][Tiles::kDimBlocks][4];         // rows g, g + 8; features 2t, 2t + 1 of a block
  float rS[kBlocks][kPieceBlocks][4];              // scores of the current piece
  unsigned rP[kBlocks][kPieceBlocks / 2][4];       // left operands: P of the previous piece
  unsigned rP_next[kBlocks][kPieceBlocks / 2][4];  // of the current one
  typename Mask::Pair rM[kBlocks][kPieceBlocks][2];  // the mask tensor's elements of rows g, g + 8
  HeadSlope<Config> slopes[Config::kPackGroup ? kBlocks : 1][Config::kPackGroup ? 2 : 1];
  KeepMask<Config> keep;
  DropoutRows keep_rows;     ///< of this lane's rows, which are of one group
  unsigned keep_bytes;       ///< of the first of them: LaneNumbers' row_bytes
  int keep_query, keep_key;  ///< that row, and the first key of the current piece
  unsigned keep_addend;      ///< of the current piece
  LaneNumbers keep_numbers;
  RowStatistics<Config, kBlocks> statistics;
  float factor;  ///< from rS to units of log2

  /// Before the first piece.
  __device__ void init(const ForwardArguments& args, const ForwardTask<Config>& task,
                       int first_row) {
    factor = Config::kPrescaled ? 1.0f : unit_of<Config>(args.score, args.shape);
    if constexpr (Config::kAlibi) {
      const float unit = Config::kPrescaled ? kLog2E : args.score.slope_unit;
#pragma unroll
      for (int m = 0; m < (Config::kPackGroup ? kBlocks : 1); ++m) {
#pragma unroll
        for (int half = 0; half < (Config::kPackGroup ? 2 : 1); ++half) {
          const int row = first_row + 16 * m + 8 * half + static_cast<int>(threadIdx.x) % 32 / 4;
          slopes[m][half] = HeadSlope<Config>(args.slopes, task.batch,
                                              task.head(smaller(row, task.rows - 1)), unit);
        }
      }
    }
    if constexpr (Config::kDropout) {
      keep = KeepMask<Config>(args.dropout, args.shape, task.batch, task.head_q);
      const int thread = static_cast<int>(threadIdx.x), row = first_row + thread % 32 / 4;
      keep_rows = DropoutRows(keep.words, row, thread);
      keep_query = row;
      keep_bytes = dropout_bytes(row) | LaneNumbers::kRow8;
    }
    clear();
  }

  /// The keys of the piece that begins at `first_key` are the current ones.
  __device__ void begin_piece(const DropoutArguments& dropout, int first_key) {
    if constexpr (Config::kDropout) {
      keep_key = first_key;
      keep_addend = dropout_addend(dropout.limit, keep_rows.phase(first_key));
    }
  }

  __device__ void load_queries(unsigned shared_q, uint4* kept_q) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int d = 0; d < Tiles::kDimSteps; ++d) {
        unsigned operand[4];
        ptx::load_matrix_4(operand, shared_q + Tiles::LayoutQ::offset(16 * m, 2 * d));
        if (d < Tiles::kQuerySteps) {
#pragma unroll
          for (int i = 0; i < 4; ++i) rQ[d < Tiles::kQuerySteps ? d : 0][m][i] = operand[i];
        } else {
          kept_q[((d - Tiles::kQuerySteps) * kBlocks + m) * 32] =
              make_uint4(operand[0], operand[1], operand[2], operand[3]);
        }
      }
    }
  }

  __device__ void clear() {
    statistics.clear();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < Tiles::kDimBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rO[m][n][i] = 0;
      }
    }
  }

  /// S = Q K^T of the piece whose keys begin at `shared_k`.
  __device__ void scores(unsigned shared_k, const uint4* kept_q) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kPieceBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rS[m][n][i] = 0;
      }
    }
#pragma unroll
    for (int d = 0; d < Tiles::kQuerySteps; ++d) add_scores(shared_k, d, rQ[d]);
#pragma unroll(Tiles::kUnrolledSteps)
    for (int d = Tiles::kQuerySteps; d < Tiles::kDimSteps; ++d) {
      unsigned operand[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        const uint4 q = kept_q[((d - Tiles::kQuerySteps) * kBlocks + m) * 32];
        operand[m][0] = q.x, operand[m][1] = q.y, operand[m][2] = q.z, operand[m][3] = q.w;
      }
      add_scores(shared_k, d, operand);
    }
  }

  /// Pair `index` of the piece's scores becomes two probabilities. kAgain: in the rare case; it
  /// draws its numbers itself, or the usual one would keep them for it.
  template <bool kAgain>
  __device__ void exponentials(int index) {
    const int half = index % 2, n = index / 2 % kPieceBlocks, m = index / 2 / kPieceBlocks;
    const float reference = statistics.reference[m][half];
    float p0 = ptx::exp2_fast(__fmaf_rn(rS[m][n][2 * half], factor, -reference));
    float p1 = ptx::exp2_fast(__fmaf_rn(rS[m][n][2 * half + 1], factor, -reference));
    statistics.step[m][half] += p0 + p1;
    unsigned& packed = rP_next[m][n / 2][n % 2 * 2 + half];
    packed = pack<kElement>(p0, p1);
    if constexpr (Config::kDropout) {
      if (index == 0) draw<kAgain>();
      packed = ptx::clear_if_negative_2(packed, keep_numbers.word(m, half, n), keep_addend);
    }
  }
  static constexpr int kPairs = kBlocks * kPieceBlocks * 2;

  template <bool kAgain>
  __device__ void draw() {
    DropoutRows rows = keep_rows;
    if constexpr (kAgain) rows.queries.high = ptx::anew(rows.queries.high);
    keep_numbers = rows.numbers(keep_bytes, keep_query, keep_key, PtxArithmetic{});
  }

  /// O += P V of the previous piece, whose values begin at `shared_v`.
  __device__ void values(unsigned shared_v) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) values_of_group(shared_v, group);
  }

  /// The same, and between its instructions the exponentials of the current piece. `again` computes
  /// its scores anew: in the rare case that they are needed twice, so that their registers are free
  /// after their first use.
  template <class Again>
  __device__ void values_and_exponentials(unsigned shared_v, const Again& again) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      values_of_group(shared_v, group);
#pragma unroll
      for (int i = group * kPairs / kGroups; i < (group + 1) * kPairs / kGroups; ++i) {
        exponentials<false>(i);
      }
    }
    if (statistics.out_of_range()) {
      again();
      raise_references<true>();
#pragma unroll
      for (int i = 0; i < kPairs; ++i) exponentials<true>(i);
    }
    accept();
  }

  /// The first piece: its maxima become the references.
  __device__ void first_exponentials() {
    raise_references<false>();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) exponentials<false>(i);
    accept();
  }

 private:
  /// The share of k16 step d; `queries`: its left operands.
  __device__ void add_scores(unsigned shared_k, int d, const unsigned (&queries)[kBlocks][4]) {
#pragma unroll
    for (int n = 0; n < kPieceBlocks; n += 2) {
      unsigned rK[4];
      ptx::load_matrix_4(rK, shared_k + Tiles::LayoutK::offset(8 * n, 2 * d));
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        multiply_add<kElement>(rS[m][n], queries[m], rK[0], rK[1]);
        multiply_add<kElement>(rS[m][n + 1], queries[m], rK[2], rK[3]);
      }
    }
  }

  static constexpr int kColumns = Tiles::kDimBlocks / 2;  ///< pairs of blocks of features
  static constexpr int kGroups = kPieceBlocks / 2 * kColumns;

  __device__ void values_of_group(unsigned shared_v, int group) {
    const int step = group / kColumns, column = group % kColumns;
    unsigned rV[4];
    ptx::load_matrix_4_transposed(rV, shared_v + Tiles::LayoutV::offset(16 * step, 2 * column));
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      multiply_add<kElement>(rO[m][2 * column], rP[m][step], rV[0], rV[1]);
      multiply_add<kElement>(rO[m][2 * column + 1], rP[m][step], rV[2], rV[3]);
    }
  }

  /// The current piece becomes the previous one.
  __device__ void accept() {
    statistics.accept();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int n = 0; n < kPieceBlocks / 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rP[m][n][i] = rP_next[m][n][i];
      }
    }
  }

  /// References become the maxima of the current scores where these are larger; O follows.
  template <bool kScaleO>
  __device__ void raise_references() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = kMinusInfinity;
#pragma unroll
        for (int n = 0; n < kPieceBlocks; ++n) {
          largest = fmaxf(largest, fmaxf(rS[m][n][2 * half], rS[m][n][2 * half + 1]));
        }
        const float scale = statistics.raise(m, half, largest, factor);
        if constexpr (kScaleO) {
#pragma unroll
          for (int n = 0; n < Tiles::kDimBlocks; ++n) {
            rO[m][n][2 * half] *= scale;
            rO[m][n][2 * half + 1] *= scale;
          }
        }
      }
    }
  }

 public:
  /// Reads what the mask tensor says of the piece whose keys begin at `first_key`: a piece early,
  /// so that nobody waits for it. Keys that a row does not see are hidden, whatever the mask says;
  /// kAllSeen: there are none.
  template <bool kAllSeen>
  __device__ void read_mask(const ForwardArguments& args, const ForwardTask<Config>& task,
                            int first_row, int first_key) {
    if (kAllSeen && Config::kMaskPairs && args.mask.pairs) {
      read_mask_of<kAllSeen, true>(args, task, first_row, first_key);
    } else {
      read_mask_of<kAllSeen, false>(args, task, first_row, first_key);
    }
  }
  template <bool kAllSeen, bool kPairs>
  __device__ void read_mask_of(const ForwardArguments& args, const ForwardTask<Config>& task,
                               int first_row, int first_key) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const LaneRow own(args, task, first_row + 16 * m + 8 * half, first_key);
        const Mask mask(args.mask, task.batch, task.head(own.row));
        const Int64 own_mask = mask.index(task.position(own.row), own.key);
#pragma unroll
        for (int n = 0; n < kPieceBlocks; ++n) {
          const Int64 index = own_mask + mask.distance(8 * n);
          const int key = own.key + 8 * n;
          if constexpr (kPairs) {
            rM[m][n][half] = mask.pair(index);
          } else {
            rM[m][n][half] = mask.pair(index, kAllSeen || own.seen.contains(key),
                                       kAllSeen || own.seen.contains(key + 1));
          }
        }
      }
    }
  }

  /// Scores and mask of the current piece: only where an edge crosses it, or always if the Config
  /// says that scores need more than a factor. kAllSeen: no edge does, and there is no mask tensor.
  template <bool kAllSeen>
  __device__ void transform(const ForwardArguments& args, const ForwardTask<Config>& task,
                            int first_row, int first_key) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const LaneRow own(args, task, first_row + 16 * m + 8 * half, first_key);
#pragma unroll
        for (int n = 0; n < kPieceBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = rS[m][n][2 * half + i];
            if constexpr (kTransformedScores<Config>) {
              score = value_of<Config>(args.score, score);
              if constexpr (Config::kPrescaled) {
                score = fmaf(score, unit_of<Config>(args.score, args.shape),
                             offset_of<Config>(args.score));
              }
              score = slopes[Config::kPackGroup ? m : 0][Config::kPackGroup ? half : 0].apply(
                  score, distance(args.shape, task, first_row, first_key, m, half) +
                             static_cast<float>(8 * n + i));
            } else if constexpr (Config::kPrescaled) {
              score *= args.shape.scale_log2;
            }
            if constexpr (kAllSeen) continue;
            const bool seen = kMasked ? Mask::reveal(score, rM[m][n][half].bits(i))
                                      : own.seen.contains(own.key + 8 * n + i);
            if (!seen) score = kMinusInfinity;
          }
        }
      }
    }
  }

 private:
  /// ALiBi's, of this lane's row (m, half) and its first key. Rows of one head are a constant
  /// apart.
  static __device__ float distance(const Shape& shape, const ForwardTask<Config>& task,
                                   int first_row, int first_key, int m, int half) {
    const int lane = threadIdx.x % 32, row = first_row + lane / 4, key = first_key + lane % 4 * 2;
    if constexpr (Config::kPackGroup) {
      const int position = task.position(smaller(row + 16 * m + 8 * half, task.rows - 1));
      return HeadSlope<Config>::distance(shape, position, key);
    }
    return HeadSlope<Config>::distance(shape, row, key) - static_cast<float>(16 * m + 8 * half);
  }

  /// Of the 8 rows from `first_row` on the one this lane has scores of, its keys, and the first key
  /// this lane has.
  struct LaneRow {
    int row;
    KeyRange seen;
    int key;
    __device__ LaneRow(const ForwardArguments& args, const ForwardTask<Config>& task, int first_row,
                       int first_key) {
      const int lane = threadIdx.x % 32;
      row = smaller(first_row + lane / 4, task.rows - 1);
      seen = visible_keys<Config>(args.shape, task.position(row));
      key = first_key + 2 * (lane % 4);
    }
  };
};

/// O (divided by the row sums) and LSE of a warp's rows, with a sink; kPart: of one part of the
/// keys, to the workspace, without. `staging` is shared memory of LayoutO.
template <class Config, bool kPart>
__device__ void store_rows(const ForwardArguments& args, const ForwardTask<Config>& task,
                           ForwardWarp<Config>& warp, int first_row, unsigned char* staging) {
  using Tiles = ForwardTiles<Config>;
  using Layout = typename Tiles::LayoutO;
  constexpr Element kOutput = kPart ? Element::kFp32 : Config::kOutput;
  constexpr bool kSink = Config::kSinks && !kPart;  // else the merge adds it
  constexpr bool kStaged =
      kOutput != Element::kFp32 && Config::kAlignO >= 16 && Config::kHeadDimV % 8 == 0;
  const int lane = threadIdx.x % 32;
  const Shape& shape = args.shape;
  Rows o = args.o;
  RowScalars lse = args.lse;
  if constexpr (kPart) {
    const Int64 heads = Int64(blockIdx.y) * shape.batch * shape.heads_q;
    o = {static_cast<float*>(args.regions[kPartialO]) + heads * shape.seqlen_q * Config::kHeadDimV,
         Int64(shape.heads_q) * shape.seqlen_q * Config::kHeadDimV, Config::kHeadDimV,
         Int64(shape.seqlen_q) * Config::kHeadDimV};
    lse = {static_cast<float*>(args.regions[kPartialLse]) + heads * shape.seqlen_q,
           Int64(shape.heads_q) * shape.seqlen_q, shape.seqlen_q, 1};
  }
  warp.statistics.finish();
  const float offset = Config::kPrescaled ? 0.0f : offset_of<Config>(args.score);
#pragma unroll
  for (int m = 0; m < Tiles::kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_in_warp = 16 * m + 8 * half + lane / 4, row = first_row + row_in_warp;
      const bool exists = row < task.rows;
      const int position = task.position(row), head = task.head(row);
      const float total = warp.statistics.sum[m][half];
      SinkRow sink{1, 0};
      if constexpr (kSink) {
        sink = with_sink(warp.statistics.lse(m, half, offset), args.sinks[head]);
      }
      if (exists && lane % 4 == 0 && (kPart || lse.data != nullptr)) {
        static_cast<float*>(lse.data)[task.batch * lse.batch_stride + head * lse.head_stride +
                                      position * lse.row_stride] =
            kSink ? sink.lse : warp.statistics.lse(m, half, offset);
      }
      const float inverse = keep_scale<Config>(args.dropout) / total * sink.factor;
      unsigned char* to = row_address<kOutput>(o, task.batch, head, position);
#pragma unroll
      for (int n = 0; n < Tiles::kDimBlocks; ++n) {
        // An empty row is 0 whatever V holds.
        const float x = total == 0 ? sink.nothing() : warp.rO[m][n][2 * half] * inverse;
        const float y = total == 0 ? sink.nothing() : warp.rO[m][n][2 * half + 1] * inverse;
        const int column = 8 * n + 2 * (lane % 4);
        if constexpr (kStaged) {
          *reinterpret_cast<unsigned*>(staging + Layout::offset(row_in_warp, n) + 4 * (lane % 4)) =
              pack<kOutput>(x, y);
        } else {
          if (exists) store_pair<kOutput>(to, column, Config::kHeadDimV - column, x, y);
        }
      }
    }
  }
  if constexpr (kStaged) {
    __syncwarp();
    constexpr int kChunks = Config::kHeadDimV / 8;
#pragma unroll 4
    for (int i = lane; i < Config::kWarpRows * kChunks; i += 32) {
      const int row = first_row + i / kChunks, chunk = i % kChunks;
      if (row < task.rows) {
        unsigned char* to = row_address<kOutput>(o, task.batch, task.head(row), task.position(row));
        *reinterpret_cast<uint4*>(to + chunk * kChunkBytes) =
            *reinterpret_cast<const uint4*>(staging + Layout::offset(i / kChunks, chunk));
      }
    }
  }
}

/// With kSplit the number of parts is an argument, and may be 1.
template <class Config>
__device__ void store_results(const ForwardArguments& args, const ForwardTask<Config>& task,
                              ForwardWarp<Config>& warp, int first_row, unsigned char* staging) {
  if constexpr (Config::kSplit) {
    if (args.parts > 1) return store_rows<Config, true>(args, task, warp, first_row, staging);
  }
  store_rows<Config, false>(args, task, warp, first_row, staging);
}

}  // namespace flashlab::device
