// The fp32 backward's tiling: every head dim gets one that fits, on small and large devices.

#include <gtest/gtest.h>

#include "cuda/launch/sm80_backward_fp32.h"

namespace flashlab::cuda {
namespace {

// Shared memory of one block: sm_86 and sm_89, sm_80, sm_90.
constexpr int kLimits[] = {101376, 166912, 232448};

TEST(Sm80BackwardFp32Tiling, FitsEveryHeadDimOnEveryDevice) {
  for (const int limit : kLimits) {
    for (int terms = 1; terms <= 2; ++terms) {
      for (int dim = 1; dim <= 256; ++dim) {
        for (const int dim_v : {1, dim, 256}) {
          const BackwardFp32Tiling t = choose_backward_fp32_tiling(dim, dim_v, terms, limit);
          EXPECT_LE(backward_fp32_shared_bytes(t, dim, dim_v, terms), limit)
              << "head dims " << dim << " and " << dim_v << ", " << terms << " terms";
          EXPECT_EQ(64 % t.rows, 0);
          EXPECT_TRUE(64 % t.keys() == 0 || t.keys() % 64 == 0);
          EXPECT_EQ(t.parts, dim > 128 || dim_v > 128 ? 2 : 1);
        }
      }
    }
  }
}

TEST(Sm80BackwardFp32Tiling, TwoBlocksShareAMultiprocessorUpToHeadDim128) {
  for (const int dim : {16, 32, 64, 96, 128}) {
    const BackwardFp32Tiling t = choose_backward_fp32_tiling(dim, dim, 2, 232448);
    EXPECT_EQ(t.warps, 4);
    EXPECT_LE(2 * (backward_fp32_shared_bytes(t, dim, dim, 2) + 1024), 232448 + 1024) << dim;
  }
}

TEST(Sm80BackwardFp32Tiling, SharedMemoryIsWhatTheKernelLaysOut) {
  // K and V 2 x 64 rows of 72 halves in two terms, two steps of 32 queries with their scalars, dS,
  // what the block keeps about its keys.
  const BackwardFp32Tiling t{.warps = 4, .rows = 32, .stages = 2};
  const int keys = 2 * 2 * 64 * 72 * 2, step = 2 * 2 * 32 * 72 * 2 + 2 * 32 * 4 + 32;
  EXPECT_EQ(backward_fp32_shared_bytes(t, 64, 64, 2), keys + 2 * step + 2 * 64 * 40 * 2 + 80);
}

TEST(Sm80BackwardFp32Tiling, ThreeTermsFitUpToHeadDim192EverywhereAndTo256OnDataCentreGpus) {
  for (const int limit : kLimits) {
    for (int dim = 8; dim <= (limit == kLimits[0] ? 192 : 256); ++dim) {
      const BackwardFp32Tiling t = choose_backward_fp32_tiling(dim, dim, 3, limit);
      EXPECT_LE(backward_fp32_shared_bytes(t, dim, dim, 3), limit) << dim;
      EXPECT_EQ(64 % t.keys(), 0);
      EXPECT_GE(t.rows / t.groups, 16);
      // A block of it lies within one of the main kernel.
      EXPECT_EQ(choose_backward_fp32_tiling(dim, dim, 2, limit).keys() % t.keys(), 0) << dim;
    }
  }
}

}  // namespace
}  // namespace flashlab::cuda
