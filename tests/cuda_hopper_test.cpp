// The primitives that only sm_90 has, run on such a GPU against what the host computes. Elsewhere
// they are compiled (PtxKernels.CompileForSm90) and not run.

#include <gtest/gtest.h>

#include <cstring>

#include "cuda_ptx_kernels.h"

namespace flashlab::testing {
namespace {

using Halves = std::vector<std::uint16_t>;

class Hopper : public PrimitiveTest {
 protected:
  Hopper() : PrimitiveTest(ptx_primitives()) {}
  void SetUp() override {
    PrimitiveTest::SetUp();
    if (IsSkipped()) return;
    const auto& info = gpu_->info();
    if (info.major * 10 + info.minor != kHopper) GTEST_SKIP() << info.name << " is no sm_90";
  }

  /// Small whole numbers: every sum is exact in fp32, whatever the order.
  Halves whole_numbers(const HalfFormat& format, std::size_t count) {
    Halves out(count);
    for (auto& value : out) value = rounded(format, static_cast<int>(random_() % 17) - 8);
    return out;
  }

  /// D [64, columns] out of the order in which threads hold it.
  static std::vector<float> by_rows(const std::vector<float>& held, int columns) {
    std::vector<float> out(held.size());
    for (int t = 0; t < 128; ++t) {
      for (int index = 0; index < columns / 2; ++index) {
        const int row = t / 32 * 16 + t % 32 / 4 + index / 2 % 2 * 8;
        const int column = index / 4 * 8 + t % 4 * 2 + index % 2;
        out[static_cast<std::size_t>(row * columns + column)] =
            held[static_cast<std::size_t>(columns / 2 * t + index)];
      }
    }
    return out;
  }

  std::mt19937 random_{3};
};

TEST_F(Hopper, ProductsOfTilesInSharedMemory) {
  for (const bool bf16 : {true, false}) {
    const HalfFormat& format = bf16 ? kBf16Format : kFp16Format;
    for (const int columns : {64, 128}) {
      const auto n = static_cast<std::size_t>(columns);
      const Halves in = whole_numbers(format, (64 + n) * 32);
      std::vector<Expected> expected(64 * n);
      for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          for (std::size_t k = 0; k < 32; ++k) {
            expected[i * n + j].value +=
                number(format, in[32 * i + k]) * number(format, in[32 * (64 + j) + k]);
          }
        }
      }
      const std::string name = fmt::format("wgmma_shared_{}_{}", bf16 ? "bf16" : "fp16", columns);
      const auto held = run<float>(name, in, std::vector<float>(64 * n), 128);
      ASSERT_FALSE(held.empty());
      EXPECT_TRUE(close(name, by_rows(held, columns), expected));
    }
  }
}

TEST_F(Hopper, ProductsOfTilesByRows) {
  for (const bool bf16 : {true, false}) {
    const HalfFormat& format = bf16 ? kBf16Format : kFp16Format;
    for (const int columns : {64, 192, 256}) {
      const auto n = static_cast<std::size_t>(columns);
      const Halves in = whole_numbers(format, 32 * (64 + n));
      std::vector<Expected> expected(64 * n);
      for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          for (std::size_t k = 0; k < 32; ++k) {
            expected[i * n + j].value +=
                number(format, in[64 * k + i]) * number(format, in[64 * 32 + n * k + j]);
          }
        }
      }
      const std::string name =
          fmt::format("wgmma_shared_rows_{}_{}", bf16 ? "bf16" : "fp16", columns);
      const auto held = run<float>(name, in, std::vector<float>(64 * n), 128);
      ASSERT_FALSE(held.empty());
      EXPECT_TRUE(close(name, by_rows(held, columns), expected));
    }
  }
}

TEST_F(Hopper, ProductsOfRegistersAndATile) {
  for (const bool bf16 : {true, false}) {
    const HalfFormat& format = bf16 ? kBf16Format : kFp16Format;
    for (const int columns : {16, 32, 48, 64}) {
      const auto n = static_cast<std::size_t>(columns);
      const Halves in = whole_numbers(format, 64 * 16 + 16 * 64);
      std::vector<Expected> expected(64 * n, {0.5, 0});
      for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          for (std::size_t k = 0; k < 16; ++k) {
            expected[i * n + j].value +=
                number(format, in[16 * i + k]) * number(format, in[64 * 16 + 64 * k + j]);
          }
        }
      }
      const std::string name =
          fmt::format("wgmma_registers_{}_{}", bf16 ? "bf16" : "fp16", columns);
      const auto held = run<float>(name, in, std::vector<float>(64 * n), 128);
      ASSERT_FALSE(held.empty());
      EXPECT_TRUE(close(name, by_rows(held, columns), expected));
    }
  }
}

// [2, 2, 70, 24]: of the box's rows 30 exist, of its columns 24; the rest arrives as zeros.
TEST_F(Hopper, ABoxArrivesSwizzledAndFilledWithZeros) {
  constexpr std::uint64_t kColumns = 24, kRows = 70, kHeads = 2, kBatch = 2;
  Halves tensor(kColumns * kRows * kHeads * kBatch);
  for (auto& value : tensor) value = static_cast<std::uint16_t>(random_() | 1);
  void* memory = upload(tensor.data(), tensor.size() * 2);
  const std::uint64_t extents[] = {kColumns, kRows, kHeads, kBatch};
  const std::uint64_t strides[] = {kColumns * 2, kColumns * kRows * 2,
                                   kColumns * kRows * kHeads * 2};
  const std::uint32_t box[] = {64, 64, 1, 1}, every[] = {1, 1, 1, 1};
  cuda::CUtensorMap map{};
  const auto current = gpu_->current();
  ASSERT_EQ(gpu_->api().cuTensorMapEncodeTiled(&map, cuda::kMapBf16, 4, memory, extents, strides,
                                               box, every, 0, /*128-byte swizzle=*/3, 0, 0),
            cuda::kCudaSuccess);
  std::vector<unsigned char> in(sizeof map);
  std::memcpy(in.data(), &map, sizeof map);
  Halves expected(64 * 64, 0);
  const std::uint64_t first = (kHeads + 1) * kRows + 40;  // batch 1, head 1, row 40
  for (std::uint64_t row = 0; row < kRows - 40; ++row) {
    for (std::uint64_t column = 0; column < kColumns; ++column) {
      expected[64 * row + column] = tensor[(first + row) * kColumns + column];
    }
  }
  EXPECT_TRUE(
      same("copy_box_4", run<std::uint16_t>("copy_box_4", in, Halves(64 * 64, 0xeeee)), expected));
}

// [200, 2, 24], of which a sequence has rows 17 to 86: a box from its row 40 on ends with it, and
// what its neighbour has does not come.
TEST_F(Hopper, ABoundedBoxEndsWithItsSequence) {
  constexpr std::uint64_t kColumns = 24, kRows = 200, kHeads = 2, kAny = std::uint64_t{1} << 31;
  Halves tensor(kColumns * kRows * kHeads);
  for (auto& value : tensor) value = static_cast<std::uint16_t>(random_() | 1);
  void* memory = upload(tensor.data(), tensor.size() * 2);
  const std::uint64_t row = kColumns * kHeads * 2;
  const std::uint64_t extents[] = {kColumns, std::uint64_t{1} << 30, kHeads, kAny, kAny};
  const std::uint64_t strides[] = {row, kColumns * 2, row, (std::uint64_t{1} << 34) - row};
  const std::uint32_t box[] = {64, 64, 1, 1, 1}, every[] = {1, 1, 1, 1, 1};
  cuda::CUtensorMap map{};
  const auto current = gpu_->current();
  ASSERT_EQ(gpu_->api().cuTensorMapEncodeTiled(&map, cuda::kMapBf16, 5, memory, extents, strides,
                                               box, every, 0, /*128-byte swizzle=*/3, 0, 0),
            cuda::kCudaSuccess);
  std::vector<unsigned char> in(sizeof map);
  std::memcpy(in.data(), &map, sizeof map);
  Halves expected(64 * 64, 0);
  for (std::uint64_t i = 0; i < 70 - 40; ++i) {
    for (std::uint64_t column = 0; column < kColumns; ++column) {
      expected[64 * i + column] = tensor[((17 + 40 + i) * kHeads + 1) * kColumns + column];
    }
  }
  EXPECT_TRUE(
      same("copy_box_5", run<std::uint16_t>("copy_box_5", in, Halves(64 * 64, 0xeeee)), expected));
}

TEST_F(Hopper, BlocksOfAClusterCopyAndSend) {
  std::vector<float> in(64), expected;
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i) + 0.5f;
  for (const std::size_t sender : {1, 0}) {
    for (std::size_t i = 0; i < 32; ++i) expected.push_back(in[32 * sender + i]);
    for (std::size_t i = 0; i < 32; ++i) expected.push_back(in[32 * sender + 31 - i]);
  }
  const auto got = run("cluster_exchange", in, std::vector<float>(128, -7), 32, 2, 2);
  EXPECT_TRUE(same("cluster_exchange", bits_of(got), bits_of(expected)));
}

TEST_F(Hopper, WarpgroupsMeetAndExchangeRegisters) {
  std::vector<std::uint32_t> in(16 * 128), expected;
  for (auto& word : in) word = static_cast<std::uint32_t>(random_());
  for (std::size_t i = 0; i < in.size(); ++i) expected.push_back(in[i / 128 * 128 + 127 - i % 128]);
  EXPECT_TRUE(same(
      "warpgroup_hand_over",
      run<std::uint32_t>("warpgroup_hand_over", in, std::vector<std::uint32_t>(in.size()), 256),
      expected));
}

}  // namespace
}  // namespace flashlab::testing
