// The AMX kernels' indexing, on any processor with AVX512_BF16: tile registers are plain loops
// here.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cpu_amx_emulated.h"
#include "cpu_amx_software_tiles.h"
#include "cpu_plain_oracle.h"

namespace flashlab::internal::simd {
namespace {

using amx_emulated::StartOf;
using flashlab::testing::Ask;
using flashlab::testing::TileState;
using flashlab::testing::Trial;

class AmxTiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!supported(CpuIsa::kAvx512Bf16)) GTEST_SKIP() << "needs AVX512_BF16";
  }
};

uint32_t pair(float low, float high) {
  return bf16_from_float(low) | static_cast<uint32_t>(bf16_from_float(high)) << 16;
}
float low(uint32_t bits) {
  return float_from_bf16(static_cast<uint16_t>(bits));
}
float high(uint32_t bits) {
  return float_from_bf16(static_cast<uint16_t>(bits >> 16));
}

void check_product(StartOf start, int rows, int64_t columns, int64_t depth) {
  const int64_t panel = amx_emulated::kPanelColumns;
  const int64_t panels = (columns + panel - 1) / panel, padded = (columns + 15) / 16 * 16;
  const int64_t panel_stride = (depth + 3) * panel, a_stride = depth + 5, c_stride = padded + 7;
  const int whole_rows = (rows + 15) / 16 * 16;
  std::mt19937 random(static_cast<uint32_t>(rows * 100 + columns * 10 + depth));
  std::normal_distribution<float> normal;
  // What does not belong to the product is NaN: rows beyond, pairs beyond, C's other columns.
  std::vector<uint32_t> a(static_cast<size_t>(whole_rows * a_stride), 0xffffffffu);
  std::vector<uint32_t> b(static_cast<size_t>(panels * panel_stride), 0xffffffffu);
  std::vector<float> c(static_cast<size_t>(whole_rows * c_stride), NAN), scale(32, 1.0f);
  for (int i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < depth; ++k) a[i * a_stride + k] = pair(normal(random), normal(random));
    for (int64_t j = 0; j < padded && start != StartOf::kZero; ++j) {
      c[i * c_stride + j] = normal(random);
    }
    if (i % 3 != 0) scale[i] = normal(random);
  }
  for (int64_t p = 0; p < panels; ++p) {
    for (int64_t k = 0; k < depth * panel; ++k) {
      b[p * panel_stride + k] = pair(normal(random), normal(random));
    }
  }
  const std::vector<float> before = c;
  amx_emulated::multiply({start, rows, columns, panel_stride, depth, a.data(), a_stride, b.data(),
                          c.data(), c_stride, scale.data()});
  for (int i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < padded; ++j) {
      double want = start == StartOf::kZero ? 0 : before[i * c_stride + j];
      if (start == StartOf::kScale) want *= scale[i];
      for (int64_t k = 0; k < depth; ++k) {
        const uint32_t x = a[i * a_stride + k];
        const uint32_t y = b[j / panel * panel_stride + k * panel + j % panel];
        want += double{low(x)} * low(y) + double{high(x)} * high(y);
      }
      ASSERT_NEAR(c[i * c_stride + j], want, 1e-4)
          << "start " << static_cast<int>(start) << " rows " << rows << " columns " << columns
          << " depth " << depth << " at " << i << ", " << j;
    }
    for (int64_t j = padded; j < c_stride; ++j) ASSERT_TRUE(std::isnan(c[i * c_stride + j]));
  }
}

TEST_F(AmxTiles, ProductsOfEveryShapeOfStrip) {
  for (StartOf start : {StartOf::kZero, StartOf::kAdd, StartOf::kScale}) {
    for (int rows : {1, 2, 15, 16, 17, 31, 32}) {
      for (int64_t columns : {1, 16, 17, 32, 33, 48, 64, 65, 100, 128}) {
        for (int64_t depth : {1, 15, 16, 17, 32, 40}) check_product(start, rows, columns, depth);
      }
    }
  }
  EXPECT_EQ(TileState::outside_session, 0);
  EXPECT_EQ(TileState::open_sessions, 0);
}

RowsView rows_view(const flashlab::testing::Buffer& buffer) {
  const auto& s = buffer.spec.strides;
  return {buffer.bytes.data(), buffer.spec.dtype, s[0], s[1], s[2]};
}

// All tasks of a forward call, `tile_rows` rows each, one thread.
void run_forward(Trial& trial, int64_t key_block, int64_t tile_rows) {
  const Ask& ask = trial.ask;
  ForwardCall call{};
  call.seqlen_q = ask.seqlen_q, call.seqlen_k = ask.seqlen_k;
  call.group = ask.heads_q / ask.heads_k;
  call.head_dim = ask.head_dim, call.head_dim_v = ask.head_dim_v;
  call.query_factor = 1;
  call.score_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(ask.head_dim)));
  constexpr int64_t kFar = int64_t{1} << 40;
  call.band = {-kFar, kFar};
  if (ask.causal != Causal::kNone) {
    call.band.end =
        1 + (ask.causal == Causal::kBottomRight ? ask.seqlen_k - ask.seqlen_q : int64_t{0});
  }
  call.q = rows_view(trial.q), call.k = rows_view(trial.k), call.v = rows_view(trial.v);
  call.o = rows_view(trial.o);
  call.lse = reinterpret_cast<float*>(trial.lse.bytes.data());
  call.lse_batch_stride = trial.lse.spec.strides[0];
  call.lse_head_stride = trial.lse.spec.strides[1];
  call.lse_row_stride = 1;
  if (ask.mask != Ask::MaskKind::kNone) {
    const auto& s = trial.mask.spec.strides;
    call.mask = {trial.mask.bytes.data(), trial.mask.spec.dtype, s[0], s[1], s[2], 1};
  }
  call.batches = ask.batch, call.heads_k = ask.heads_k;
  call.key_block = key_block, call.tile_rows = tile_rows;

  const size_t bytes = amx_emulated::kForward.scratch_bytes(call, true);
  std::vector<char> memory(bytes + 64, '\xff');  // scratch starts as NaN
  void* scratch = memory.data();
  size_t space = memory.size();
  ASSERT_NE(std::align(64, bytes, scratch, space), nullptr);
  const int64_t rows = call.group * ask.seqlen_q;
  for (int64_t b = 0; b < ask.batch; ++b) {
    for (int64_t h = 0; h < ask.heads_k; ++h) {
      for (int64_t r = 0; r < rows; r += tile_rows) {
        amx_emulated::kForward.run(
            call, {b, h, r, std::min(r + tile_rows, rows), 0, ask.seqlen_k, -1}, scratch);
      }
    }
  }
}

TEST_F(AmxTiles, ForwardMatchesFp64) {
  for (int64_t length : {1, 17, 150}) {
    for (Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
      for (Ask::MaskKind mask :
           {Ask::MaskKind::kNone, Ask::MaskKind::kBool, Ask::MaskKind::kAdditive}) {
        for (int64_t dim : {20, 64}) {
          if (dim == 64 && causal != Causal::kNone) continue;
          Trial trial({.batch = 2,
                       .heads_q = 2,
                       .heads_k = 1,
                       .seqlen_q = length,
                       .seqlen_k = 201 - length,
                       .head_dim = dim,
                       .head_dim_v = dim + 12,
                       .dtype = DType::kBf16,
                       .causal = causal,
                       .mask = mask,
                       .row_padding = 1});
          trial.solve();
          run_forward(trial, 128, 48);
          SCOPED_TRACE(::testing::Message() << length << " d " << dim);
          // O is rounded to bf16, and so is P: two relative errors of 2^-8.
          EXPECT_LE(distance(trial.o, trial.want_o),
                    2 * 0x1p-8 * (1 + flashlab::testing::largest(trial.want_o)));
          EXPECT_LE(distance(trial.lse, trial.want_lse), 2e-5);
        }
      }
    }
  }
  EXPECT_GT(TileState::sessions, 0);
  EXPECT_EQ(TileState::outside_session, 0);
}

TEST_F(AmxTiles, KeysBeyondTheLengthHaveNoEffect) {
  // 70 keys in blocks of 128: what follows in the padded rows is NaN, and stays out.
  Trial trial({.seqlen_q = 40,
               .seqlen_k = 70,
               .head_dim = 30,
               .head_dim_v = 50,
               .dtype = DType::kBf16,
               .row_padding = 3});
  trial.solve();
  run_forward(trial, 128, 32);
  EXPECT_LE(distance(trial.o, trial.want_o), 0.02);
}

}  // namespace
}  // namespace flashlab::internal::simd
