// How the portable forward kernel cuts problems: pure functions of sizes and of what a device
// grants.

#include <gtest/gtest.h>

#include "cuda/launch/sm80_forward.h"

namespace flashlab::cuda {
namespace {

constexpr int kHopper = 232448, kAmpere = 166912, kAda = 101376;  // bytes a block may have

TEST(ForwardTiling, FitsEveryHeadDimOnEveryDevice) {
  for (const int limit : {kHopper, kAmpere, kAda}) {
    for (const std::int64_t rows : {1, 17, 40, 65, 4096}) {
      for (int dim = 1; dim <= 256; ++dim) {
        for (const int dim_v : {1, dim, 256}) {
          for (const bool transformed : {false, true}) {
            const ForwardTiling t =
                choose_forward_tiling({rows, dim, dim_v, dim % 2 == 0, transformed}, limit);
            EXPECT_LE(forward_shared_bytes(t, dim, dim_v), limit)
                << dim << " " << dim_v << " rows " << rows;
            EXPECT_EQ(t.tile_k % t.piece_k, 0);
            EXPECT_GE(t.stages, 2);
            EXPECT_LE(t.warps, 8);
          }
        }
      }
    }
  }
}

TEST(ForwardTiling, FewRowsGetSmallTiles) {
  EXPECT_EQ(choose_forward_tiling({1, 128, 128, false, false}, kHopper).tile_q(), 16);
  EXPECT_EQ(choose_forward_tiling({33, 128, 128, false, false}, kHopper).tile_q(), 64);
  EXPECT_EQ(choose_forward_tiling({4096, 128, 128, false, false}, kHopper).tile_q(), 128);
}

TEST(KeySplits, FillTheDeviceAndNoMore) {
  EXPECT_EQ(choose_key_splits(1000, 264, 1000), 1);
  EXPECT_EQ(choose_key_splits(132, 264, 1000), 2);
  EXPECT_EQ(choose_key_splits(1, 264, 10000), 32);
  EXPECT_EQ(choose_key_splits(1, 264, 8), 2);  // at least four tiles of keys each
  EXPECT_EQ(choose_key_splits(1, 264, 7), 1);
  EXPECT_EQ(choose_key_splits(8, 264, 0), 1);
}

}  // namespace
}  // namespace flashlab::cuda
