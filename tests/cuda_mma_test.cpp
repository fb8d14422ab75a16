// Products of tensor cores (src/cuda/kernels/ptx/mma.h) against sums in fp64.

#include "cuda_ptx_kernels.h"

namespace flashlab::testing {
namespace {

// D += A B. PTX ISA, "Matrix Fragments for mma": with g = lane / 4 and
// t = lane % 4, register r of A holds row g + 8 (r % 2), columns from 2 t + 8 (r / 2) on (tf32: the
// one column t + 4 (r / 2)), register r of B rows from 2 t + 8 r on of column g (tf32: row t + 4
// r).
struct Product {
  const char* name;
  int depth;
  bool fp16, tf32;
};

void PrintTo(const Product& product, std::ostream* out) {
  *out << product.name;
}

struct Matrices {
  double a[16][16] = {}, b[16][8] = {}, d[16][8] = {};
};

class PtxMma : public PrimitiveTest, public ::testing::WithParamInterface<Product> {
 protected:
  PtxMma() : PrimitiveTest(ptx_primitives()) {}
  const Product product_ = GetParam();

  const HalfFormat& format() const { return product_.fp16 ? kFp16Format : kBf16Format; }
  double representable(double value) const {
    if (!product_.tf32) return number(format(), rounded(format(), value));
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) & ~0x1fffu);
  }

  /// `noise` goes into the bits of tf32 operands that are ignored.
  std::vector<std::uint32_t> registers(const Matrices& m, std::uint32_t noise = 0) const {
    const auto pair = [&](double low, double high) {
      return static_cast<std::uint32_t>(rounded(format(), low)) |
             static_cast<std::uint32_t>(rounded(format(), high)) << 16;
    };
    const auto word = [&](double value) {
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    };
    std::vector<std::uint32_t> words;
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int r = 0; r < 4; ++r) {
        const double* row = m.a[g + 8 * (r % 2)];
        const int wide = (2 * t + 8 * (r / 2)) % product_.depth;
        words.push_back(product_.tf32 ? word(row[t + 4 * (r / 2)]) | noise
                                      : pair(row[wide], row[wide + 1]));
      }
      for (int r = 0; r < 2; ++r) {
        const int first = 2 * t + 8 * r;
        words.push_back(product_.tf32            ? word(m.b[t + 4 * r][g]) | noise
                        : first < product_.depth ? pair(m.b[first][g], m.b[first + 1][g])
                                                 : kPoison);
      }
      for (int i = 0; i < 4; ++i) words.push_back(word(m.d[g + 8 * (i / 2)][2 * t + i % 2]));
    }
    return words;
  }

  /// `error`: relative to the sum of magnitudes.
  std::vector<Expected> sums(const Matrices& m, double error) const {
    std::vector<Expected> expected;
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = m.d[row][column], size = std::abs(sum);
        for (int k = 0; k < product_.depth; ++k) {
          sum += m.a[row][k] * m.b[k][column];
          size += std::abs(m.a[row][k] * m.b[k][column]);
        }
        expected.push_back({sum, error == 0 ? 0 : error * size});
      }
    }
    return expected;
  }

  template <class Number>
  Matrices matrices(const Number& random) const {
    Matrices m;
    for (auto& row : m.a) {
      for (double& x : row) x = random();
    }
    for (auto& row : m.b) {
      for (double& x : row) x = random();
    }
    for (auto& row : m.d) {
      for (double& x : row) x = random();
    }
    return m;
  }
  Matrices integers() const {
    std::mt19937 random(3);
    return matrices([&] { return static_cast<int>(random() % 16) * 2 - 15; });  // none is zero
  }
  void expect(const Matrices& m, double error, std::uint32_t noise = 0) {
    const auto got = run(product_.name, registers(m, noise), std::vector<float>(128, -7));
    EXPECT_TRUE(close(product_.name, got, sums(m, error)));
  }
};

TEST_P(PtxMma, IntegersAreExact) {
  expect(integers(), 0);
}

// The tensor core adds with a few bits beyond fp32, cut and not rounded: 17 terms, each within
// 2^-23 of the largest.
TEST_P(PtxMma, RandomNumbers) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  Matrices m = matrices([&] { return representable(normal(random)); });
  expect(m, 17 * std::exp2(-23));
}

TEST_P(PtxMma, InfinitiesAndNans) {
  Matrices m = integers();
  m.a[3][5] = kInfinity;
  m.b[5][2] = 0;
  m.b[1][6] = kNan;
  m.a[12][7] = -kInfinity;
  m.d[9][4] = kInfinity;
  expect(m, 0);
}

// fp16 only: of the other operands every product of ordinary size is far from subnormal.
class PtxMmaFp16 : public PtxMma {};

TEST_P(PtxMmaFp16, SubnormalsTakePart) {
  Matrices m = integers();
  for (auto& row : m.a) {
    for (double& x : row) x = std::ldexp(x, -24);
  }
  for (auto& row : m.d) {
    for (double& x : row) x = std::ldexp(x, -24);
  }
  expect(m, 0);
}

class PtxMmaTf32 : public PtxMma {};

TEST_P(PtxMmaTf32, LowBitsAreIgnored) {
  expect(integers(), 0, 0x1fff);
}

constexpr Product kBf16{"mma_bf16_16816", 16, false, false},
    kFp16{"mma_fp16_16816", 16, true, false}, kFp16Short{"mma_fp16_1688", 8, true, false},
    kTf32{"mma_tf32_1688", 8, false, true};

std::string name_of(const ::testing::TestParamInfo<Product>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Products, PtxMma, ::testing::Values(kBf16, kFp16, kFp16Short, kTf32),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Products, PtxMmaFp16, ::testing::Values(kFp16, kFp16Short), name_of);
INSTANTIATE_TEST_SUITE_P(Products, PtxMmaTf32, ::testing::Values(kTf32), name_of);

}  // namespace
}  // namespace flashlab::testing
