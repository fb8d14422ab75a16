// Compiled once per instruction set (cmake/InstructionSets.cmake), which FLASHLAB_ISA names. No
// #pragma once, and nothing from the standard library that could be emitted as a shared inline
// function: the linker would keep one copy for all, perhaps the one an older processor cannot run.

#include <math.h>

#include "cpu/plain/tile_kernels.h"

namespace flashlab::internal::FLASHLAB_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class Acc>
struct VectorOf {
  typedef Acc Type __attribute__((vector_size(kVectorBytes)));
};

// C[Rows][Vectors of lanes] stays in registers over all of k: per step Vectors loads of b and Rows
// broadcasts of a feed Rows x Vectors multiply-adds. 4 x 2 independent sums hide the latency of two
// 4-cycle FMA units and fit the 16 registers of AVX2.
template <class Acc, int Rows, int Vectors>
void block(std::int64_t depth, const Acc* a, std::int64_t a_row, std::int64_t a_col, const Acc* b,
           std::int64_t ldb, Acc* c, std::int64_t ldc) {
  using Vector = typename VectorOf<Acc>::Type;
  constexpr int kLanes = kVectorBytes / sizeof(Acc);
  Vector sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      __builtin_memcpy(&sum[r][v], c + r * ldc + v * kLanes, kVectorBytes);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Vector column[Vectors];
    for (int v = 0; v < Vectors; ++v) {
      __builtin_memcpy(&column[v], b + k * ldb + v * kLanes, kVectorBytes);
    }
    for (int r = 0; r < Rows; ++r) {
      const Acc factor = a[r * a_row + k * a_col];
      for (int v = 0; v < Vectors; ++v) sum[r][v] += factor * column[v];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) {
      __builtin_memcpy(c + r * ldc + v * kLanes, &sum[r][v], kVectorBytes);
    }
  }
}

template <class Acc, int Vectors>
void panel(std::int64_t m, std::int64_t depth, const Acc* a, std::int64_t a_row, std::int64_t a_col,
           const Acc* b, std::int64_t ldb, Acc* c, std::int64_t ldc) {
  std::int64_t i = 0;
  for (; i + 4 <= m; i += 4) {
    block<Acc, 4, Vectors>(depth, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc);
  }
  for (; i < m; ++i) {
    block<Acc, 1, Vectors>(depth, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc);
  }
}

template <class Acc>
void multiply_add(std::int64_t m, std::int64_t n, std::int64_t depth, const Acc* a,
                  std::int64_t a_row, std::int64_t a_col, const Acc* b, std::int64_t ldb, Acc* c,
                  std::int64_t ldc) {
  constexpr std::int64_t kLanes = kVectorBytes / sizeof(Acc);
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    panel<Acc, 2>(m, depth, a, a_row, a_col, b + j, ldb, c + j, ldc);
  }
  for (; j < n; j += kLanes) panel<Acc, 1>(m, depth, a, a_row, a_col, b + j, ldb, c + j, ldc);
}

inline float exponential(float x) {
  // exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to an
  // integer and leaves it in the low bits; ln 2 is subtracted in two parts, the first exact in n.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors: n = 128 alone would overflow where exp(x) does not.
  std::int32_t bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  const std::int32_t power = bits - 0x4b400000;
  const std::int32_t half = power >> 1;
  const std::int32_t low_bits = (half + 127) << 23, high_bits = (power - half + 127) << 23;
  float low, high;
  __builtin_memcpy(&low, &low_bits, sizeof low);
  __builtin_memcpy(&high, &high_bits, sizeof high);
  float result = p * low * high;
  result = x < -87.3f ? 0.0f : result;
  return x > 88.7f ? __builtin_inff() : result;
}

inline double exponential(double x) {
  return ::exp(x);
}

template <class Acc>
Acc exponentials(std::int64_t n, Acc offset, Acc* row) {
  constexpr int kSums = 16;  // independent sums: a single chain of additions would not vectorise
  Acc sums[kSums] = {};
  std::int64_t j = 0;
  for (; j + kSums <= n; j += kSums) {
    for (int s = 0; s < kSums; ++s) {
      const Acc value = exponential(row[j + s] - offset);
      row[j + s] = value;
      sums[s] += value;
    }
  }
  Acc sum = 0;
  for (; j < n; ++j) {
    row[j] = exponential(row[j] - offset);
    sum += row[j];
  }
  for (int s = 0; s < kSums; ++s) sum += sums[s];
  return sum;
}

}  // namespace

const TileKernels<float> kFloatKernels{FLASHLAB_ISA_NAME, multiply_add<float>, exponentials<float>};
const TileKernels<double> kDoubleKernels{FLASHLAB_ISA_NAME, multiply_add<double>,
                                         exponentials<double>};

}  // namespace flashlab::internal::FLASHLAB_ISA
