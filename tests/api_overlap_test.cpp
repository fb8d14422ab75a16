#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>

#include "api/overlap.h"

namespace flashlab::internal {
namespace {

// Every byte of a view, by walking it.
std::multiset<std::uintptr_t> bytes_of(const ConstTensor& t) {
  std::multiset<std::uintptr_t> bytes;
  const auto& n = t.spec.shape;
  const auto& s = t.spec.strides;
  const auto size = size_of(t.spec.dtype);
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d) {
          const auto offset =
              static_cast<std::uintptr_t>(a * s[0] + b * s[1] + c * s[2] + d * s[3]);
          for (std::size_t k = 0; k < size; ++k) {
            bytes.insert(reinterpret_cast<std::uintptr_t>(t.data) + offset * size + k);
          }
        }
  return bytes;
}

ConstTensor random_view(std::mt19937& random) {
  auto below = [&](int n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  ConstTensor t;
  const DType types[] = {DType::kFp16, DType::kFp32, DType::kFp64};
  t.spec.dtype = types[below(3)];
  t.spec.rank = 4;
  for (int i = 0; i < 4; ++i) {
    t.spec.shape[i] = 1 + below(4);
    t.spec.strides[i] = t.spec.shape[i] > 1 ? below(24) : 0;
  }
  t.spec.strides[3] = t.spec.shape[3] > 1 ? 1 : 0;
  t.data = reinterpret_cast<const void*>(std::uintptr_t{4096} +
                                         static_cast<std::uintptr_t>(below(60)) * 2);
  return t;
}

TEST(Overlap, AgreesWithCountingBytes) {
  std::mt19937 random(7);
  int overlapping = 0, apart = 0;
  for (int round = 0; round < 3000; ++round) {
    const ConstTensor a = random_view(random), b = random_view(random);
    const auto bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    bool meet = false;
    for (auto byte : bytes_a) meet = meet || bytes_b.count(byte) > 0;
    EXPECT_EQ(overlap(a, b), meet) << to_string(a.spec) << " " << to_string(b.spec);
    const bool twice =
        std::set<std::uintptr_t>(bytes_a.begin(), bytes_a.end()).size() != bytes_a.size();
    EXPECT_EQ(overlaps_itself(a.spec), twice) << to_string(a.spec);
    (meet ? overlapping : apart)++;
  }
  EXPECT_GT(overlapping, 300);
  EXPECT_GT(apart, 300);
}

TEST(Overlap, SlicesOfAPackedBufferAreApart) {
  float buffer[2 * 3 * 3 * 2 * 4] = {};
  ConstTensor q = tensor(static_cast<const float*>(buffer), {2, 3, 2, 4});
  q.spec.strides = {72, 24, 4, 1};  // [batch, seqlen, (q k v), heads, head_dim]
  ConstTensor k = q;
  k.data = buffer + 8;
  EXPECT_FALSE(overlap(q, k));
  k.data = buffer + 7;
  EXPECT_TRUE(overlap(q, k));
}

TEST(Overlap, HugeStridesDoNotWrap) {
  ConstTensor a{reinterpret_cast<const void*>(std::uintptr_t{1} << 40), {}};
  a.spec = contiguous_spec(DType::kFp32, {2, 2, 2, 8});
  a.spec.strides = {std::int64_t{1} << 58, std::int64_t{1} << 40, 8, 1};
  EXPECT_FALSE(overlaps_itself(a.spec));
  ConstTensor b = a;
  b.data = reinterpret_cast<const void*>((std::uintptr_t{1} << 40) + 64);
  EXPECT_FALSE(overlap(a, b));
  b.data = reinterpret_cast<const void*>((std::uintptr_t{1} << 40) + 60);
  EXPECT_TRUE(overlap(a, b));
}

}  // namespace
}  // namespace flashlab::internal
