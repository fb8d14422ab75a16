#pragma once

// Small kernels over src/cuda/kernels/tile: one per part that can be called alone.

#include "cuda_primitives.h"
#include "cuda_tile_range_kernels.h"

namespace flashlab::testing {

inline constexpr char kNoConfig[] = "struct Config {};";

/// Layouts that kernels use, by the type's text: the host instantiates the same.
#define FLASHLAB_TESTED_LAYOUTS(X)          \
  X(half_tile_64, HalfTile<64, 64>)         \
  X(half_tile_40, HalfTile<48, 40>)         \
  X(padded_rows, PaddedLayout<20, 9>)       \
  X(operand_tile_32, OperandTile<64, 32>)   \
  X(operand_tile_64, OperandTile<64, 64>)   \
  X(operand_tile_96, OperandTile<24, 96>)   \
  X(operand_tile_128, OperandTile<32, 128>) \
  X(operand_tile_256, OperandTile<32, 256>)
inline constexpr int kCopyThreads = 96;

/// Of a layout: every chunk's offset, the 32 lanes' offsets in both orders, and for every pass and
/// thread of a copy its row, chunk and whether it has any. Sizes come from `in`, so that nothing is
/// computed by the compiler.
inline Primitive layout_kernel(const std::string& name, const std::string& type) {
  return primitive(name, "", {"tile/fragments.h", "tile/swizzle.h"}, "const int* in, int* out",
                   fmt::format(R"(
  using Layout = {};
  using Plan = CopyPlan<Layout, {}>;
  const int rows = in[0], chunks = in[1], passes = in[2];
  for (int i = t; i < rows * chunks; i += blockDim.x) {{
    out[i] = Layout::offset(i / chunks, i % chunks);
  }}
  out += rows * chunks;
  if (t < 32) {{
    out[t] = lane_offset_rows_first<Layout>(t);
    out[32 + t] = lane_offset_chunks_first<Layout>(t);
  }}
  out += 64;
  for (int pass = 0; pass < passes; ++pass) {{
    int* mine = out + 3 * (pass * blockDim.x + t);
    mine[0] = Plan::row(t, pass), mine[1] = Plan::chunk(t), mine[2] = Plan::active(t, pass);
  }}
)",
                               type, kCopyThreads));
}

/// S = Q K^T (16 x dim by 16 x dim), then O = S V (16 x 16), operands loaded from tiles. `in`: Q, K
/// (16 rows of dim), V (16 rows of 16), 16-bit. `out`: S, O (16 x 16 each).
struct ProductCase {
  const char* name;
  const char* element;
  const char* tile;
  int dim;
  const char* step;  ///< the address of a step's operand, from that of the lane's first
};
inline void PrintTo(const ProductCase& product, std::ostream* out) {
  *out << product.name;
}
inline constexpr ProductCase kProductCases[] = {
    {"products_bf16", "kBf16", "HalfTile<16, 32>", 32, "from + Tile::offset(0, 2 * step)"},
    {"products_fp16", "kFp16", "HalfTile<16, 32>", 32, "from + Tile::offset(0, 2 * step)"},
    {"products_swizzled", "kBf16", "OperandTile<16, 128>", 128,
     "Tile::advance(from, 0, 2 * step)"}};
inline Primitive products_kernel(const ProductCase& product) {
  return primitive(product.name, "", {"tile/fragments.h", "tile/output.h"},
                   "const unsigned* in, float* out",
                   fmt::format(R"(
  constexpr Element kElement = Element::{};
  using Tile = {};
  constexpr int kDim = {};
  const auto at_step = [](unsigned from, int step) {{ return {}; }};
)",
                               product.element, product.tile, product.dim, product.step) +
                       R"(
  using TileV = HalfTile<16, 16>;
  constexpr int kRowWords = kDim / 2, kWords = 16 * kRowWords;
  __shared__ __align__(128) unsigned char q[Tile::kBytes], k[Tile::kBytes], v[TileV::kBytes];
  const auto put = [&](unsigned char* tile, int offset, int word) {
    *reinterpret_cast<unsigned*>(tile + offset + t % 4 * 4) = in[word];
  };
  for (int i = t; i < kWords; i += 32) {
    const int offset = Tile::offset(i / kRowWords, i % kRowWords / 4);
    put(q, offset, i);
    put(k, offset, kWords + i);
  }
  for (int i = t; i < 16 * 8; i += 32) put(v, TileV::offset(i / 8, i % 8 / 4), 2 * kWords + i);
  __syncthreads();
  const unsigned from_q = ptx::shared_address(q) + lane_offset_rows_first<Tile>(t);
  const unsigned from_k = ptx::shared_address(k) + lane_offset_chunks_first<Tile>(t);
  const unsigned from_v = ptx::shared_address(v) + lane_offset_rows_first<TileV>(t);
  float s[2][4] = {}, o[2][4] = {};
  unsigned a[4], b[4];
  for (int step = 0; step < kDim / 16; ++step) {
    ptx::load_matrix_4(a, at_step(from_q, step));
    ptx::load_matrix_4(b, at_step(from_k, step));
    multiply_add<kElement>(s[0], a, b[0], b[1]);
    multiply_add<kElement>(s[1], a, b[2], b[3]);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = pack<kElement>(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
  }
  ptx::load_matrix_4_transposed(b, from_v);
  multiply_add<kElement>(o[0], a, b[0], b[1]);
  multiply_add<kElement>(o[1], a, b[2], b[3]);
  for (int i = 0; i < 4; ++i) {
    const int row = t / 4 + i % 2 * 8, n = i / 2, column = 8 * n + t % 4 * 2;
    store_pair<Element::kFp32>(out + 16 * row, column, 2, s[n][i % 2 * 2], s[n][i % 2 * 2 + 1]);
    store_pair<Element::kFp32>(out + 256 + 16 * row, column, 2, o[n][i % 2 * 2],
                               o[n][i % 2 * 2 + 1]);
  }
)");
}

/// A copy of tiles of 24 rows by 64 threads. `out`: a whole tile, one of 19 rows, then the stream's
/// first, second and last (19 rows), each as shared memory holds it, 0xee where nobody wrote.
struct TileCopy {
  int align, dim, row_bytes;
};
inline constexpr int kTileRows = 24, kLastRows = 19;
inline constexpr TileCopy kTileCopies[] = {{16, 40, 96}, {8, 36, 88},   {4, 34, 76},
                                           {2, 33, 70},  {16, 64, 128}, {2, 48, 98}};
inline std::string tile_copy_name(const TileCopy& copy) {
  return fmt::format("load_tile_{}_{}", copy.align, copy.dim);
}
inline void PrintTo(const TileCopy& copy, std::ostream* out) {
  *out << tile_copy_name(copy);
}
inline Primitive tile_copy_kernel(const TileCopy& copy) {
  return primitive(tile_copy_name(copy), "", {"tile/load.h"},
                   "const unsigned char* in, unsigned char* out",
                   fmt::format(R"(
  constexpr int kAlign = {}, kDim = {}, kThreads = 64, kRows = {}, kLast = {};
  constexpr Int64 kRowBytes = {};
  using Layout = HalfTile<kRows, kDim>;
  using Copy = ThreadCopy<Layout, kDim * 2, kAlign, kThreads>;
  constexpr int kPasses = Copy::Plan::kPasses;
  __shared__ __align__(16) unsigned char tile[Layout::kBytes];
  in += kAlign;
  const auto clear = [&] {{
    __syncthreads();
    for (int i = t; i < Layout::kBytes; i += kThreads) tile[i] = 0xee;
    __syncthreads();
  }};
  const auto take_out = [&] {{
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncthreads();
    for (int i = t; i < Layout::kBytes; i += kThreads) out[i] = tile[i];
    out += Layout::kBytes;
    clear();
  }};
  clear();
  load_tile<Layout, kDim, 2, kAlign, kThreads>(tile, FullRows{{in, kRowBytes}}, t);
  take_out();
  load_tile<Layout, kDim, 2, kAlign, kThreads>(tile, DenseRows{{in, kRowBytes, kLast}}, t);
  take_out();
  Copy stream(in, kRowBytes, t);
  for (int i = 0; i < 2; ++i) {{
    stream.template passes<0, kPasses / 2>(tile, kRowBytes);
    stream.template passes<kPasses / 2, kPasses>(tile, kRowBytes);
    take_out();
  }}
  stream.template last_passes<0, kPasses>(
      tile, DenseRows{{in + 2 * kRows * kRowBytes, kRowBytes, kLast}});
  take_out();
)",
                               copy.align, copy.dim, kTileRows, kLastRows, copy.row_bytes));
}

/// Warp 0 fills a ring of three places with 16 tiles of 512 bytes, by cp.async for even tiles and
/// by stores for odd ones; warp 1 takes them out, a lane its neighbour's chunk. Then the places of
/// 7 steps, kept instead of counted.
inline Primitive ring_kernel() {
  return primitive("ring", "", {"tile/pipeline.h"}, "const uint4* in, uint4* out", R"(
  constexpr unsigned kTiles = 16;
  using Stage = StageOf<3>;
  __shared__ PhaseBarrier full[3], empty[3];
  __shared__ uint4 tiles[3][32];
  const int lane = t % 32;
  if (t == 0) {
    for (PhaseBarrier& barrier : full) barrier.init(32);
    for (PhaseBarrier& barrier : empty) barrier.init(32);
  }
  __syncthreads();
  for (unsigned tile = 0; tile < kTiles; ++tile) {
    const unsigned stage = Stage::stage(tile);
    if (t < 32) {
      empty[stage].wait(Stage::phase_before(tile));
      if (tile % 2 == 0) {
        ptx::copy_async_16(ptx::shared_address(&tiles[stage][lane]), in + 32 * tile + lane);
        full[stage].arrive_after_copies();
      } else {
        tiles[stage][lane] = in[32 * tile + lane];
        full[stage].arrive();
      }
    } else {
      full[stage].wait_parity(Stage::phase(tile) % 2);
      out[32 * tile + lane] = tiles[stage][lane ^ 1];
      empty[stage].arrive();
    }
  }
  unsigned places = 0;
  int place = 0;
  for (int step = 0; step < 7; ++step, place = Stage::next(place)) places = 4 * places + place;
  if (t == 0) out[32 * kTiles] = make_uint4(places, full[0].address() % 8, 0, 0);
)");
}

inline constexpr float kTestedCap = 30, kTestedSlope = 0.25f;

/// A lane's product x through softcap (scale 1) and ALiBi 3 keys away: tanh(x / cap); the score in
/// units of log2 and its derivative by either form of the 16-bit kernels; the score of the fp32
/// kernels in units of log2; in natural units with its derivative. 8 numbers a lane.
inline Primitive score_kernel() {
  return primitive(
      "score",
      "struct Config {\n  static constexpr bool kSoftcap = true, kAlibi = true, kWideCap = false;\n"
      "};\nstruct Wide {\n  static constexpr bool kSoftcap = true, kAlibi = false, kWideCap = "
      "true;\n"
      "};",
      {"tile/score.h"}, "const float* in, float* out",
      fmt::format(R"(
  constexpr float kCap = {}, kLog2 = 1.4426950408889634f;
  const float x = in[t];
  const Shape shape = {{}};
  ScoreArguments narrow = {{}}, wide = {{}};
  narrow.argument = 2 * kLog2 / kCap;
  narrow.unit = 2 * kCap * kLog2;
  narrow.offset = narrow.unit / 2;
  narrow.cap = kCap, narrow.cap_log2 = kCap * kLog2, narrow.log2_over_cap = 1 / narrow.cap_log2;
  wide.argument = 1 / kCap;
  wide.unit = kCap * kLog2;
  const float slopes[1] = {{{}f}};
  const auto slope = HeadSlope<Config>(HeadScalars{{slopes, 0, 0}}, 0, 0, 1.0f);
  float* mine = out + 8 * t;
  mine[0] = tanh_of(x / kCap);
  const float v = value_of<Config>(narrow, x), w = value_of<Wide>(wide, x);
  mine[1] = fmaf(unit_of<Config>(narrow, shape), v, offset_of<Config>(narrow));
  mine[2] = slope_of<Config>(v);
  mine[3] = fmaf(unit_of<Wide>(wide, shape), w, offset_of<Wide>(wide));
  mine[4] = slope_of<Wide>(w);
  mine[5] = score_of_scaled<Config>(narrow, slope, x * kLog2, 3.0f);
  mine[6] = score_of_natural<Config>(narrow, slope, x, 3.0f, mine[7]);
  mine[5] += slope.apply(1.0f, 3.0f) - (1.0f - 3.0f * slope.slope);
)",
                  kTestedCap, kTestedSlope));
}

/// Lane t: of the pair (in[2 t], in[2 t + 1]), for seed 7, offset 5, batch 1 and head 2 of 3,
/// dropout's draw and phase; then what keeps them is multiplied by, as bits, and with keys as rows,
/// from (in[0], in[1]) on, a word of numbers as they are drawn and one as they are kept. 6 words.
inline Primitive keep_kernel() {
  return primitive("keep", "struct Config { static constexpr bool kDropout = true; };",
                   {"tile/dropped.h", "tile/probability.h"}, "const unsigned* in, unsigned* out",
                   R"(
  Shape shape = {};
  shape.heads_q = 3;
  DropoutArguments dropout = {};
  dropout.seed = 7, dropout.offset = 5, dropout.scale = 1.25f;
  const auto keep = KeepMask<Config>(dropout, shape, 1, 2);
  const int query = in[2 * t], key = in[2 * t + 1];
  const DropoutQueries queries = dropout_queries(keep.words, query);
  const unsigned keys = keep.words.keys ^ dropout_group(key);
  const DropoutDraw draw = dropout_draw(keep.words.key, queries, keys);
  unsigned* mine = out + 6 * t;
  mine[0] = draw.queries;
  mine[1] = draw.keys;
  mine[2] = dropout_phase(queries, key);
  mine[3] = __float_as_uint(keep_scale<Config>(dropout));
  constexpr PtxArithmetic kArithmetic;
  const unsigned row_bytes = row_bytes_of_thread(t, kArithmetic);
  const DropoutColumns drawn(keep.words, in[0], in[1], row_bytes, t, kArithmetic);
  mine[4] = drawn.numbers.word(1, 1, 7);
  __shared__ DropoutTile tile;
  tile.draw(keep.words, 50000, 64, 128, t, kArithmetic);
  __syncwarp();
  LaneNumbers kept = tile.numbers(t % 8, t);
  kept.change_columns();
  mine[5] = kept.word(0, 1, 7) + tile.addend(t);
)");
}

/// 16 rows of scores, 12 steps of 8, then one value per key. `out`, per row: LSE, the weighted mean
/// of the values, and the maximum and the sum over the row's lanes of the first step's scores.
inline Primitive softmax_kernel() {
  return primitive("online_softmax", kNoConfig, {"tile/softmax.h"}, "const float* in, float* out",
                   R"(
  constexpr int kSteps = 12, kKeys = 8 * kSteps;
  RowStatistics<Config, 1> statistics;
  statistics.clear();
  float o[2] = {}, s[2][2], step_o[2];
  for (int step = 0; step < kSteps; ++step) {
    const int column = 8 * step + t % 4 * 2;
    for (int h = 0; h < 2; ++h) {
      for (int j = 0; j < 2; ++j) s[h][j] = in[(t / 4 + 8 * h) * kKeys + column + j];
    }
    const float* values = in + 16 * kKeys + column;
    const auto exponentials = [&] {
      for (int h = 0; h < 2; ++h) {
        const float reference = statistics.reference[0][h];
        const float p0 = ptx::exp2_fast(__fmaf_rn(s[h][0], kLog2E, -reference));
        const float p1 = ptx::exp2_fast(__fmaf_rn(s[h][1], kLog2E, -reference));
        statistics.step[0][h] += p0 + p1;
        step_o[h] = p0 * values[0] + p1 * values[1];
      }
    };
    const auto raise = [&] {
      for (int h = 0; h < 2; ++h) {
        o[h] *= statistics.raise(0, h, fmaxf(s[h][0], s[h][1]), kLog2E);
      }
      exponentials();
    };
    if (step == 0) {
      for (int h = 0; h < 2; ++h) {
        const float largest = quad_max(fmaxf(s[h][0], s[h][1]));
        const float total = quad_sum(s[h][0] + s[h][1]);
        out[4 * (t / 4 + 8 * h) + 2] = largest, out[4 * (t / 4 + 8 * h) + 3] = total;
      }
      raise();
    } else {
      exponentials();
      if (statistics.out_of_range()) raise();
    }
    statistics.accept();
    o[0] += step_o[0], o[1] += step_o[1];
  }
  statistics.finish();
  for (int h = 0; h < 2; ++h) {
    const float mean = quad_sum(o[h]) / statistics.sum[0][h];
    out[4 * (t / 4 + 8 * h)] = statistics.lse(0, h);
    out[4 * (t / 4 + 8 * h) + 1] = mean;
  }
)");
}

/// One row per block. `in`, per row: the number of parts, 40 LSEs, 40 times 200 columns. `out`, per
/// row: the merged LSE, the columns.
inline constexpr int kMostParts = 40, kMergeColumns = 200;
inline Primitive merge_kernel(int vector) {
  return primitive(fmt::format("merge_row_{}", vector), std::string(kNoConfig) + R"(
struct Parts {
  const float* row;
  int count;
  float lse(int part) const { return row[1 + part]; }
  template <int kN>
  void load(int part, int column, float (&o)[kN]) const {
    for (int i = 0; i < kN; ++i) o[i] = row[41 + 200 * part + column + i];
  }
};
)",
                   {"tile/merge.h"}, "const float* in, float* out",
                   fmt::format(R"(
  const float* row = in + blockIdx.x * (41 + 40 * 200);
  const Parts parts{{row, static_cast<int>(row[0])}};
  const float merged = merged_lse(parts, t);
  float* to = out + blockIdx.x * 201;
  if (t == 0) to[0] = merged;
  merge_row<{0}>(parts, merged, 200, t, [&](int column, auto& values) {{
    for (int i = 0; i < {0}; ++i) to[1 + column + i] = values[i];
  }});
)",
                               vector));
}

/// A mask tensor of 2 batches, 2 heads, 5 queries, 8 keys; strides in elements, of `MaskCase`.
/// `out`, per key: its bits as one of a pair; whether it shows the key, and a score of 0.25 after
/// it; both again one by one; its bits where only the even key of a pair is seen, where one key is
/// left from there on, and where none is.
struct MaskCase {
  const char* name;
  const char* kind;
  const char* element;
  int bytes;
  bool dense, pairs;

  int key_stride() const { return dense ? 1 : 3; }
  int row_stride() const { return 8 * key_stride() + 2; }
  int head_stride() const { return dense ? 5 * row_stride() : 0; }  // 0: all heads share one
  int batch_stride() const { return 10 * row_stride() + 4; }
};
inline void PrintTo(const MaskCase& mask, std::ostream* out) {
  *out << mask.name;
}
inline constexpr MaskCase kMaskCases[] = {
    {"mask_bool_pairs", "kBool", "kFp32", 1, true, true},
    {"mask_bool_strided", "kBool", "kFp32", 1, false, false},
    {"mask_fp32_pairs", "kAdditive", "kFp32", 4, true, true},
    {"mask_fp32_strided", "kAdditive", "kFp32", 4, false, false},
    {"mask_fp16_pairs", "kAdditive", "kFp16", 2, true, true},
    {"mask_bf16_pairs", "kAdditive", "kBf16", 2, true, true},
    {"mask_bf16_dense", "kAdditive", "kBf16", 2, true, false}};
inline Primitive mask_kernel(const MaskCase& mask) {
  const std::string config = fmt::format(
      "struct Config {{\n"
      "  static constexpr MaskTensor kMask = MaskTensor::{};\n"
      "  static constexpr Element kMaskElement = Element::{};\n"
      "  static constexpr bool kMaskDense = {}, kMaskPairs = {};\n}};\n",
      mask.kind, mask.element, mask.dense, mask.pairs);
  return primitive(
      mask.name, config, {"tile/mask.h"}, "const void* in, unsigned* out",
      fmt::format(R"(
  if (t >= 2 * 2 * 5 * 4) return;
  const int key = t % 4 * 2, query = t / 4 % 5, head = t / 20 % 2, batch = t / 40;
  using Mask = MaskRows<Config>;
  const Mask mask({{in, {}, {}, {}, {}}}, batch, head);
  const Int64 index = mask.index(query, key);
  const typename Mask::Pair both = mask.pair(index), first = mask.pair(index, true, false);
  for (int i = 0; i < 2; ++i) {{
    unsigned* mine = out + 8 * (2 * t + i);
    float one = 0.25f, other = 0.25f;
    mine[0] = both.bits(i);
    mine[1] = Mask::reveal(one, both.bits(i));
    mine[2] = __float_as_uint(one);
    mine[3] = mask.reveal_at(other, index + mask.distance(i));
    mine[4] = __float_as_uint(other);
    mine[5] = first.bits(i);
    mine[6] = mask.pair_of(index, 1).bits(i);
    mine[7] = mask.pair_of(index, 0).bits(i);
  }}
)",
                  mask.batch_stride(), mask.head_stride(), mask.row_stride(), mask.key_stride()));
}

/// `in` as 16-bit elements, copied eight at a time.
inline Primitive mask_eight_kernel() {
  return primitive("mask_eight",
                   "struct Config {\n  static constexpr MaskTensor kMask = MaskTensor::kAdditive;\n"
                   "  static constexpr Element kMaskElement = Element::kBf16;\n"
                   "  static constexpr bool kMaskDense = true, kMaskPairs = true;\n};\n",
                   {"tile/mask.h"}, "const void* in, uint4* out",
                   "  out[t] = MaskRows<Config>({in, 0, 0, 0, 1}, 0, 0).eight(8 * t);\n");
}

/// 12 rows, of which pairs at columns 0, 2, 4, 6 are stored with 0, 1, 2 and 5 features left.
inline Primitive store_kernel(const std::string& element) {
  return primitive("store_pair_" + element, "", {"tile/output.h"},
                   "const float* in, unsigned char* out",
                   "  constexpr Element kElement = Element::" + element + R"(;
  if (t >= 12) return;
  const Rows rows{out, 70, 10, 32};
  unsigned char* row = row_address<kElement>(rows, t / 6, t / 3 % 2, t % 3);
  const int left[4] = {0, 1, 2, 5};
  for (int i = 0; i < 4; ++i) {
    store_pair<kElement>(row, 2 * i, left[i], in[8 * t + 2 * i], in[8 * t + 2 * i + 1]);
  }
)");
}

/// Warp 0 hands 32 words to warp 1 through a ring of 3 places, 16 times; warp 1 reverses them. Only
/// lane 0 of the first ends a place's phase. The second gives it back both ways.
inline Primitive hopper_ring_kernel() {
  return primitive("ring_hand_over", "", {"tile/pipeline.h"}, "const unsigned* in, unsigned* out",
                   R"(
  __shared__ RingBarriers<3> barriers;
  __shared__ unsigned places[3][32];
  if (t == 0) barriers.init(1, 1 + 32);
  __syncthreads();
  auto ring = Ring<3>(barriers);
  ring.attach(barriers);
  const int lane = t % 32;
  for (int round = 0; round < 16; ++round) {
    if (t < 32) {
      ring.wait_empty();
      places[ring.stage][lane] = in[32 * round + lane];
      __syncwarp();
      if (lane == 0) ptx::barrier_arrive(ring.full());
    } else {
      ring.wait_full();
      out[32 * round + lane] = places[ring.stage][31 - lane];
      ring.release();
      ring.release_own();
    }
    ring.advance();
  }
  wait_for_phase(ring.empty(), ring.phase ^ 1);
)",
                   90);
}

inline const Primitives& tile_primitives() {
  static const Primitives kList = [] {
    Primitives list;
#define FLASHLAB_LAYOUT_KERNEL(name, ...) list.push_back(layout_kernel(#name, #__VA_ARGS__));
    FLASHLAB_TESTED_LAYOUTS(FLASHLAB_LAYOUT_KERNEL)
#undef FLASHLAB_LAYOUT_KERNEL
    for (const ProductCase& product : kProductCases) list.push_back(products_kernel(product));
    for (const TileCopy& copy : kTileCopies) list.push_back(tile_copy_kernel(copy));
    list.push_back(ring_kernel());
    list.push_back(score_kernel());
    list.push_back(keep_kernel());
    list.push_back(softmax_kernel());
    list.push_back(hopper_ring_kernel());
    list.push_back(merge_kernel(1));
    list.push_back(merge_kernel(4));
    for (const MaskCase& mask : kMaskCases) list.push_back(mask_kernel(mask));
    list.push_back(mask_eight_kernel());
    for (const Hidden hidden : kHidden) {
      list.push_back(key_range_kernel(hidden));
      list.push_back(query_walk_kernel(hidden));
    }
    list.push_back(sequence_kernel());
    list.push_back(primitive("with_sink", "struct Config {};", {"tile/sinks.h"},
                             "const float* in, float* out",
                             "  const SinkRow row = with_sink(in[t], in[32 + t]);\n"
                             "  out[t] = row.factor, out[32 + t] = row.lse;\n"
                             "  out[64 + t] = row.nothing();\n"));
    for (const char* element : {"kFp32", "kFp16", "kBf16"}) list.push_back(store_kernel(element));
    list.push_back(primitive("read_element", "struct Config {};", {"tile/mask.h"},
                             "const unsigned* in, float* out",
                             "  out[t] = read_element<Element::kFp32>(in, t);\n"
                             "  out[32 + t] = read_element<Element::kFp16>(in, t);\n"
                             "  out[64 + t] = read_element<Element::kBf16>(in, t);\n"
                             "  out[96 + t] = float_of_bits<Element::kFp32>(in[t]);\n"
                             "  out[128 + t] = float_of_bits<Element::kFp16>(in[t] & 0xffff);\n"
                             "  out[160 + t] = float_of_bits<Element::kBf16>(in[t] & 0xffff);\n"));
    return list;
  }();
  return kList;
}

}  // namespace flashlab::testing
