// Attention forward for fp16 and bf16 on mma.sync, sm_80 and later.
//
//     O = softmax(scale Q K^T + mask) V        LSE = log(sum exp(scores))
//
// A block of kWarps warps takes a tile of kWarps x kWarpRows queries of one head and walks over the
// keys; each warp keeps its rows of Q and O in registers. Keys arrive in tiles of kTileK through
// cp.async, and are worked off in pieces of kPieceK keys:
//
//     tile t     wait for K(t), V(t); barrier; start the copy of tile t + kStages - 1
//     piece p    S = Q K(p)^T
//                O += P(p - 1) V(p - 1), between its instructions P(p) = 2^(S - r)
//                if a row's sum left its range: raise r, scale O, P(p) anew          (rare)
//
// The products of a piece do not wait for its softmax, so that one warp keeps the tensor cores busy
// while it computes exponentials; nothing couples the pieces of a row (tile/softmax.h). V(p - 1) is
// read one piece later than K(p - 1): V has one stage more than K, and one barrier per tile does.

#include "arguments.h"
#include "ptx/barrier.h"
#include "ptx/memory.h"
#include "tile/fragments.h"
#include "tile/load.h"
#include "tile/mask.h"
#include "tile/output.h"
#include "tile/softmax.h"
#include "tile/swizzle.h"

namespace flashlab::device {

/// Sizes that follow from a Config.
template <class Config>
struct ForwardTiles {
  static constexpr int kThreads = 32 * Config::kWarps;
  static constexpr int kTileQ = Config::kWarps * Config::kWarpRows;
  static constexpr int kBlocks = Config::kWarpRows / 16;  ///< of 16 query rows, per warp
  static constexpr int kDimSteps = divide_up(Config::kHeadDim, 16);
  /// The first kQuerySteps k16 steps of Q stay in registers, the others are read again per piece.
  static constexpr int kSharedSteps = larger(kDimSteps - Config::kQuerySteps, 0);
  static constexpr int kQuerySteps = kDimSteps - kSharedSteps;
  static constexpr int kDimBlocks = 2 * divide_up(Config::kHeadDimV, 16);  ///< of 8 features of V
  static constexpr int kPieceBlocks = Config::kPieceK / 8;
  static constexpr int kPieces = Config::kTileK / Config::kPieceK;  ///< of a tile of keys
  using LayoutQ = HalfTile<kTileQ, Config::kHeadDim>;
  using LayoutK = HalfTile<Config::kTileK, Config::kHeadDim>;
  using LayoutV = HalfTile<Config::kTileK, Config::kHeadDimV>;
  using LayoutO =
      HalfTile<Config::kWarpRows, Config::kHeadDimV>;  ///< one warp's rows, on the way out
  static constexpr int kStagesV = Config::kStages + 1;
  /// How many tiles copying is ahead of reading. With three stages or more one is left over: a warp
  /// may run ahead of the slowest one by a tile before it finds no place to copy to.
  static constexpr int kAhead = larger(Config::kStages - 2, 1);
  /// Q passes through shared memory before V's later stages are filled for the first time.
  static constexpr int kOffsetQ = kAhead * LayoutV::kBytes;
  static constexpr int kBytesV = larger(kStagesV * LayoutV::kBytes, kOffsetQ + LayoutQ::kBytes);
  static_assert(Config::kStages >= 2 && Config::kTileK % Config::kPieceK == 0);
  static_assert(Config::kPieceK % 16 == 0 && Config::kWarpRows % 16 == 0);
};

template <class Config>
struct ForwardStorage {
  using Tiles = ForwardTiles<Config>;
  unsigned char k[Config::kStages * Tiles::LayoutK::kBytes];
  unsigned char v[Tiles::kBytesV];  ///< V's stages; before them Q
  /// Operands of Q that have no register: [warp, step, block, lane].
  uint4 q[larger(Config::kWarps * Tiles::kSharedSteps * Tiles::kBlocks * 32, 1)];
  Int64 landed[Tiles::kStagesV];    ///< barriers: a tile of keys is complete; all threads arrive
  Int64 released[Config::kStages];  ///< barriers: every warp is done with a tile
};

/// What of the problem a block does. Rows are positions of one query head or, packed, of all the
/// heads that share a key head: row = position * group + member.
template <class Config>
struct ForwardTask {
  int batch, head_k, head_q;  ///< head_q: of the first member
  int group;                  ///< 1 unless packed
  int first_row, rows;        ///< of the tile; all rows
  int first_tile, tiles;      ///< of keys

  __device__ int position(int row) const { return Config::kPackGroup ? row / group : row; }
  __device__ int head(int row) const { return Config::kPackGroup ? head_q + row % group : head_q; }
  /// Keys that some row, and that every row of [from, from + count) sees.
  __device__ KeyRange seen_by_any(const Shape& shape, int from, int count) const {
    return keys_seen_by_any<Config>(shape, position(from),
                                    position(smaller(from + count, rows) - 1));
  }
  __device__ KeyRange seen_by_all(const Shape& shape, int from, int count) const {
    return keys_seen_by_all<Config>(shape, position(from),
                                    position(smaller(from + count, rows) - 1));
  }

  __device__ explicit ForwardTask(const Shape& shape) {
    constexpr int kTileQ = ForwardTiles<Config>::kTileQ;
    group = Config::kPackGroup ? shape.group : 1;
    rows = shape.seqlen_q * group;
    const int heads = shape.heads_q / group;
    const unsigned tiles_q = (rows + kTileQ - 1u) / kTileQ;
    const unsigned index = blockIdx.x / tiles_q;
    unsigned tile_q = blockIdx.x % tiles_q;
    // Causal: the tiles with most keys first, so that the last ones to start are short.
    if constexpr (Config::kBoundedRight) tile_q = tiles_q - 1 - tile_q;
    first_row = tile_q * kTileQ;
    batch = index / heads;
    head_q = index % heads * group;
    head_k = head_q / shape.group;

    const KeyRange seen = seen_by_any(shape, first_row, kTileQ);
    first_tile = seen.begin / Config::kTileK;
    int end_tile = divide_up(seen.end, Config::kTileK);
    if constexpr (Config::kSplits > 1) {
      const int all = larger(end_tile - first_tile, 0), split = blockIdx.y;
      end_tile = first_tile + all * (split + 1) / Config::kSplits;
      first_tile += all * split / Config::kSplits;
    }
    tiles = larger(end_tile - first_tile, 0);
  }
};

/// Rows of Q for tile/load.h.
template <class Config>
struct QueryRows {
  const Rows& q;
  const ForwardTask<Config>& task;
  __device__ bool exists(int r) const { return task.first_row + r < task.rows; }
  __device__ const unsigned char* row(int r) const {
    const int row = smaller(task.first_row + r, task.rows - 1);
    return row_address<Config::kElement>(q, task.batch, task.head(row), task.position(row));
  }
};

/// Copies K and V tile by tile, in order, into their rings; a tile in as many parts as it has
/// pieces, because a burst of copies would hold up the matrix loads behind it.
template <class Config>
struct KeyValueLoader {
  using Tiles = ForwardTiles<Config>;
  static constexpr int kBytesK = 2 * Config::kHeadDim, kBytesV = 2 * Config::kHeadDimV;
  using CopyK = ThreadCopy<typename Tiles::LayoutK, kBytesK, Config::kAlignK, Tiles::kThreads>;
  using CopyV = ThreadCopy<typename Tiles::LayoutV, kBytesV, Config::kAlignV, Tiles::kThreads>;

  const ForwardArguments& args;
  const ForwardTask<Config>& task;
  ForwardStorage<Config>& shared;
  CopyK copy_k;
  CopyV copy_v;

  __device__ KeyValueLoader(const ForwardArguments& args_, const ForwardTask<Config>& task_,
                            ForwardStorage<Config>& shared_)
      : args(args_),
        task(task_),
        shared(shared_),
        copy_k(first_row(args_.k, task_.first_tile * Config::kTileK), args_.k.row_stride * 2,
               threadIdx.x),
        copy_v(first_row(args_.v, task_.first_tile * Config::kTileK), args_.v.row_stride * 2,
               threadIdx.x) {}

  __device__ const unsigned char* first_row(const Rows& rows, int key) const {
    return row_address<Config::kElement>(rows, task.batch, task.head_k, key);
  }

  template <int kPart, class Copy>
  __device__ void load(Copy& copy, unsigned char* to, const Rows& rows, int first_key) {
    constexpr int kFirst = Copy::Plan::kPasses * kPart / Tiles::kPieces;
    constexpr int kEnd = Copy::Plan::kPasses * (kPart + 1) / Tiles::kPieces;
    const int valid = args.shape.seqlen_k - first_key;
    if (valid >= Config::kTileK) {
      copy.template passes<kFirst, kEnd>(to, rows.row_stride * 2);
    } else {
      copy.template last_passes<kFirst, kEnd>(
          to, DenseRows{first_row(rows, first_key), rows.row_stride * 2, valid});
    }
  }

  /// Starts one part of a tile, if it exists; tiles come in order. K takes the place of the tile
  /// kStages before it, V that of the one before that, which was read one piece longer.
  template <int kPart>
  __device__ void part(unsigned tile) {
    if (tile >= static_cast<unsigned>(task.tiles)) return;
    if (kPart == 0 && tile >= Config::kStages) {
      wait(shared.released[tile % Config::kStages], tile / Config::kStages - 1);
    }
    const int first_key = (task.first_tile + static_cast<int>(tile)) * Config::kTileK;
    load<kPart>(copy_k, shared.k + tile % Config::kStages * Tiles::LayoutK::kBytes, args.k,
                first_key);
    load<kPart>(copy_v, shared.v + tile % Tiles::kStagesV * Tiles::LayoutV::kBytes, args.v,
                first_key);
    if constexpr (kPart + 1 == Tiles::kPieces) {
      const unsigned landed = ptx::shared_address(&shared.landed[tile % Tiles::kStagesV]);
      if constexpr (Config::kAlignK >= 4 && Config::kAlignV >= 4) {
        ptx::barrier_arrive_after_copies(landed);
      } else {
        ptx::copy_async_wait_all();
        ptx::barrier_arrive(landed);
      }
    }
  }

  __device__ static void wait(const Int64& barrier, unsigned phase) {
    while (!ptx::barrier_passed(ptx::shared_address(&barrier), phase % 2)) {
    }
  }

  __device__ void wait_for(unsigned tile) const {
    wait(shared.landed[tile % Tiles::kStagesV], tile / Tiles::kStagesV);
  }

  /// This warp needs the tile's keys and the previous tile's values no more.
  __device__ void release(unsigned tile) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      ptx::barrier_arrive(ptx::shared_address(&shared.released[tile % Config::kStages]));
    }
  }

  /// The parts from `first` on.
  template <int kPart = 0>
  __device__ void rest(unsigned tile, int first) {
    if (kPart >= first) part<kPart>(tile);
    if constexpr (kPart + 1 < Tiles::kPieces) rest<kPart + 1>(tile, first);
  }
};

/// A warp's registers and what it does with them. g = lane / 4, t = lane % 4.
template <class Config>
struct ForwardWarp {
  using Tiles = ForwardTiles<Config>;
  static constexpr Element kElement = Config::kElement;
  static constexpr int kBlocks = Tiles::kBlocks, kPieceBlocks = Tiles::kPieceBlocks;

  unsigned rQ[kBlocks][Tiles::kQuerySteps][4];     // left operands
  float rO[kBlocks][Tiles::kDimBlocks][4];         // rows g, g + 8; features 2t, 2t + 1 of a block
  float rS[kBlocks][kPieceBlocks][4];              // scores of the current piece
  unsigned rP[kBlocks][kPieceBlocks / 2][4];       // left operands: P of the previous piece
  unsigned rP_next[kBlocks][kPieceBlocks / 2][4];  // of the current one
  RowStatistics<kBlocks> statistics;
  float factor;  ///< from rS to units of log2

  __device__ void load_queries(unsigned shared_q, uint4* kept_q) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int d = 0; d < Tiles::kDimSteps; ++d) {
        unsigned operand[4];
        ptx::load_matrix_4(operand, shared_q + Tiles::LayoutQ::offset(16 * m, 2 * d));
        if (d < Tiles::kQuerySteps) {
#pragma unroll
          for (int i = 0; i < 4; ++i) rQ[m][d < Tiles::kQuerySteps ? d : 0][i] = operand[i];
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
    for (int d = 0; d < Tiles::kDimSteps; ++d) {
      unsigned operand[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) {
        if (d < Tiles::kQuerySteps) {
#pragma unroll
          for (int i = 0; i < 4; ++i) operand[m][i] = rQ[m][d < Tiles::kQuerySteps ? d : 0][i];
        } else {
          const uint4 q = kept_q[((d - Tiles::kQuerySteps) * kBlocks + m) * 32];
          operand[m][0] = q.x, operand[m][1] = q.y, operand[m][2] = q.z, operand[m][3] = q.w;
        }
      }
#pragma unroll
      for (int n = 0; n < kPieceBlocks; n += 2) {
        unsigned rK[4];
        ptx::load_matrix_4(rK, shared_k + Tiles::LayoutK::offset(8 * n, 2 * d));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          multiply_add<kElement>(rS[m][n], operand[m], rK[0], rK[1]);
          multiply_add<kElement>(rS[m][n + 1], operand[m], rK[2], rK[3]);
        }
      }
    }
  }

  /// Pair `index` of the piece's scores becomes two probabilities.
  __device__ void exponentials(int index) {
    const int half = index % 2, n = index / 2 % kPieceBlocks, m = index / 2 / kPieceBlocks;
    const float reference = statistics.reference[m][half];
    const float p0 = ptx::exp2_fast(__fmaf_rn(rS[m][n][2 * half], factor, -reference));
    const float p1 = ptx::exp2_fast(__fmaf_rn(rS[m][n][2 * half + 1], factor, -reference));
    statistics.step[m][half] += p0 + p1;
    rP_next[m][n / 2][n % 2 * 2 + half] = pack<kElement>(p0, p1);
  }
  static constexpr int kPairs = kBlocks * kPieceBlocks * 2;

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
        exponentials(i);
      }
    }
    if (statistics.out_of_range()) {
      again();
      raise_references<true>();
#pragma unroll
      for (int i = 0; i < kPairs; ++i) exponentials(i);
    }
    accept();
  }

  /// The first piece: its maxima become the references.
  __device__ void first_exponentials() {
    raise_references<false>();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) exponentials(i);
    accept();
  }

 private:
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
  /// Scale and mask of the current piece: only where an edge crosses it, or always if the Config
  /// says that scores need more than a factor.
  __device__ void transform(const ForwardArguments& args, const ForwardTask<Config>& task,
                            int first_row, int first_key) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = smaller(first_row + 16 * m + 8 * half + lane / 4, task.rows - 1);
        const int position = task.position(row);
        const KeyRange seen = visible_keys<Config>(args.shape, position);
        const MaskRows<Config> mask(args.mask, task.batch, task.head(row));
#pragma unroll
        for (int n = 0; n < kPieceBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int key = first_key + 8 * n + 2 * (lane % 4) + i;
            float& score = rS[m][n][2 * half + i];
            if constexpr (Config::kPrescaled) score *= args.shape.scale_log2;
            score = seen.contains(key) ? mask.apply(score, position, key) : kMinusInfinity;
          }
        }
      }
    }
  }
};

/// O (divided by the row sums) and LSE of a warp's rows. `staging` is shared memory of LayoutO.
template <class Config>
__device__ void store_results(const ForwardArguments& args, const ForwardTask<Config>& task,
                              ForwardWarp<Config>& warp, int first_row, unsigned char* staging) {
  using Tiles = ForwardTiles<Config>;
  using Layout = typename Tiles::LayoutO;
  constexpr Element kOutput = Config::kSplits > 1 ? Element::kFp32 : Config::kOutput;
  constexpr bool kStaged =
      kOutput != Element::kFp32 && Config::kAlignO >= 16 && Config::kHeadDimV % 8 == 0;
  const int lane = threadIdx.x % 32;
  const Shape& shape = args.shape;
  Rows o = args.o;
  RowScalars lse = args.lse;
  if constexpr (Config::kSplits > 1) {
    // Parts in the workspace: o [split, batch, head, position, feature], lse without features.
    const Int64 heads = Int64(blockIdx.y) * shape.batch * shape.heads_q;
    o = {static_cast<float*>(args.regions[0]) + heads * shape.seqlen_q * Config::kHeadDimV,
         Int64(shape.heads_q) * shape.seqlen_q * Config::kHeadDimV, Config::kHeadDimV,
         Int64(shape.seqlen_q) * Config::kHeadDimV};
    lse = {static_cast<float*>(args.regions[1]) + heads * shape.seqlen_q,
           Int64(shape.heads_q) * shape.seqlen_q, shape.seqlen_q, 1};
  }
  warp.statistics.finish();
#pragma unroll
  for (int m = 0; m < Tiles::kBlocks; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_in_warp = 16 * m + 8 * half + lane / 4, row = first_row + row_in_warp;
      const bool exists = row < task.rows;
      const int position = task.position(row), head = task.head(row);
      const float total = warp.statistics.sum[m][half];
      if constexpr (Config::kLse || Config::kSplits > 1) {
        if (exists && lane % 4 == 0) {
          static_cast<float*>(lse.data)[task.batch * lse.batch_stride + head * lse.head_stride +
                                        position * lse.row_stride] = warp.statistics.lse(m, half);
        }
      }
      const float inverse = 1.0f / total;
      unsigned char* to = row_address<kOutput>(o, task.batch, head, position);
#pragma unroll
      for (int n = 0; n < Tiles::kDimBlocks; ++n) {
        // An empty row is 0 whatever V holds.
        const float x = total == 0 ? 0 : warp.rO[m][n][2 * half] * inverse;
        const float y = total == 0 ? 0 : warp.rO[m][n][2 * half + 1] * inverse;
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

/// The next place of a ring of addresses.
template <int kStages, int kBytes>
__device__ inline void advance(unsigned& address, unsigned first) {
  address += kBytes;
  if (address == first + kStages * kBytes) address = first;
}

template <class Config>
__device__ void forward(const ForwardArguments& args) {
  using Tiles = ForwardTiles<Config>;
  using Warp = ForwardWarp<Config>;
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardStorage<Config>*>(memory);
  static_assert(sizeof(ForwardStorage<Config>) == Config::kSharedBytes);
  static_assert(Config::kWarps * Tiles::LayoutO::kBytes <= Config::kSharedBytes);

  const ForwardTask<Config> task(args.shape);
  const int lane = threadIdx.x % 32, warp_index = __shfl_sync(ptx::kFullMask, threadIdx.x / 32, 0);
  const int first_row = task.first_row + warp_index * Config::kWarpRows;
  constexpr unsigned kAhead = Tiles::kAhead;
  KeyValueLoader<Config> loader(args, task, shared);
  Warp warp;
  warp.factor = Config::kPrescaled ? 1.0f : args.shape.scale_log2;
  warp.clear();

  if (threadIdx.x == 0) {
#pragma unroll
    for (Int64& barrier : shared.landed) {
      ptx::barrier_init(ptx::shared_address(&barrier), Tiles::kThreads);
    }
#pragma unroll
    for (Int64& barrier : shared.released) {
      ptx::barrier_init(ptx::shared_address(&barrier), Config::kWarps);
    }
  }
  __syncthreads();
  uint4* kept_q = shared.q + warp_index * (Tiles::kSharedSteps * Tiles::kBlocks * 32) + lane;
  if (task.tiles > 0) {
    load_tile<typename Tiles::LayoutQ, Config::kHeadDim, 2, Config::kAlignQ, Tiles::kThreads>(
        shared.v + Tiles::kOffsetQ, QueryRows<Config>{args.q, task}, threadIdx.x);
#pragma unroll
    for (unsigned tile = 0; tile < kAhead; ++tile) loader.rest(tile, 0);
    ptx::copy_async_wait_all();
    __syncthreads();
    warp.load_queries(ptx::shared_address(shared.v) + Tiles::kOffsetQ +
                          Tiles::LayoutQ::offset(warp_index * Config::kWarpRows, 0) +
                          lane_offset_rows_first<typename Tiles::LayoutQ>(lane),
                      kept_q);
    __syncthreads();  // the memory of Q becomes V's
  }

  // Keys of this warp, relative to the block's first: a warp stops at its own last visible key,
  // and a piece is masked only outside [clear_begin, clear_end).
  const int first_key = task.first_tile * Config::kTileK;
  int pieces = 0, clear_begin = 0, clear_end = 0;
  if (first_row < task.rows) {
    const KeyRange any = task.seen_by_any(args.shape, first_row, Config::kWarpRows);
    const KeyRange all = task.seen_by_all(args.shape, first_row, Config::kWarpRows);
    pieces = smaller(divide_up(larger(any.end - first_key, 0), Config::kPieceK),
                     task.tiles * Tiles::kPieces);
    clear_begin = all.begin - first_key;
    clear_end = all.end - first_key;
  }
  constexpr bool kAlwaysTransform = Config::kPrescaled || Config::kMask != MaskTensor::kNone;

  const unsigned shared_k =
      ptx::shared_address(shared.k) + lane_offset_chunks_first<typename Tiles::LayoutK>(lane);
  const unsigned shared_v =
      ptx::shared_address(shared.v) + lane_offset_rows_first<typename Tiles::LayoutV>(lane);

  // The operands of piece p of a tile; p is a constant of the unrolled loop.
  auto keys_of = [&](unsigned tile, int p) {
    return shared_k + tile % Config::kStages * Tiles::LayoutK::kBytes +
           Tiles::LayoutK::offset(p * Config::kPieceK, 0);
  };
  auto values_of = [&](unsigned tile, int p) {
    return shared_v + tile % Tiles::kStagesV * Tiles::LayoutV::kBytes +
           Tiles::LayoutV::offset(p * Config::kPieceK, 0);
  };
  auto piece_scores = [&](unsigned tile, int p) {
    warp.scores(keys_of(tile, p), kept_q);
    const int key = static_cast<int>(tile) * Config::kTileK + p * Config::kPieceK;
    if (kAlwaysTransform || (Config::kBoundedLeft && key < clear_begin) ||
        key + Config::kPieceK > clear_end) {
      warp.transform(args, task, first_row, first_key + key);
    }
  };

  unsigned tile = 0;
  int next_part = 0;
  if (pieces > 0) {
    loader.wait_for(0);
    piece_scores(0, 0);
    loader.template part<0>(kAhead);
    warp.first_exponentials();
    for (;; ++tile) {
      const int left = pieces - static_cast<int>(tile) * Tiles::kPieces;
      next_part = 1;
      unroll<1, Tiles::kPieces>([&](auto p) {
        if (p >= left) return false;
        piece_scores(tile, p);
        loader.template part<p>(tile + kAhead);
        warp.values_and_exponentials(values_of(tile, p - 1), [&] { piece_scores(tile, p); });
        next_part = p + 1;
        return true;
      });
      if (left <= Tiles::kPieces) break;
      loader.release(tile);
      loader.wait_for(tile + 1);
      piece_scores(tile + 1, 0);
      loader.template part<0>(tile + 1 + kAhead);
      warp.values_and_exponentials(values_of(tile, Tiles::kPieces - 1),
                                   [&] { piece_scores(tile + 1, 0); });
    }
    warp.values(values_of(tile, (pieces - 1) % Tiles::kPieces));
  }
  // A warp that is done goes on copying for the others.
  for (; tile < static_cast<unsigned>(task.tiles); ++tile) {
    loader.rest(tile + kAhead, next_part);
    next_part = 0;
    loader.release(tile);
  }

  ptx::copy_async_wait_all();
  __syncthreads();  // O passes through the memory of K and V
  store_results<Config>(args, task, warp, first_row, memory + warp_index * Tiles::LayoutO::kBytes);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(32 * Config::kWarps, Config::kMinBlocks)
    flash_fwd_sm80(const __grid_constant__ flashlab::device::ForwardArguments args) {
  flashlab::device::forward<Config>(args);
}
