#include "dist/sums/tree_sum.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/narrow.h"

namespace flashlab::dist {
namespace {

// Elements that are summed at once: the partial sums of all levels stay in the nearest cache.
constexpr std::size_t kBlock = 512;

/// Sums are of the stored type.
template <class T>
struct Same {
  using Stored = T;
  using Sum = T;
  static void widen(const T* from, T* to, std::size_t n) { std::memcpy(to, from, n * sizeof(T)); }
  static void round(const T* from, T* to, std::size_t n) { std::memcpy(to, from, n * sizeof(T)); }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static void widen(const Stored* from, Sum* to, std::size_t n) {
    base::widen_bf16(from, to, static_cast<std::int64_t>(n));
  }
  static void round(const Sum* from, Stored* to, std::size_t n) {
    base::round_to_bf16(from, to, static_cast<std::int64_t>(n));
  }
};
struct Fp16 {
  using Stored = std::uint16_t;
  using Sum = float;
  static void widen(const Stored* from, Sum* to, std::size_t n) {
    base::widen_fp16(from, to, static_cast<std::int64_t>(n));
  }
  static void round(const Sum* from, Stored* to, std::size_t n) {
    base::round_to_fp16(from, to, static_cast<std::int64_t>(n));
  }
};

template <class T>
void add(const T* a, const T* b, T* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = a[i] + b[i];
}

// Level by level, neighbours first: the left half is the largest power of two below the whole.
template <class Type>
void sum_block(std::span<const void* const> parts, std::size_t offset, typename Type::Sum* to,
               std::size_t n) {
  using Stored = typename Type::Stored;
  using Sum = typename Type::Sum;
  if (parts.size() == 1) {
    Type::widen(static_cast<const Stored*>(parts[0]) + offset, to, n);
    return;
  }
  const std::size_t left = std::bit_floor(parts.size() - 1);
  Sum right[kBlock];
  sum_block<Type>(parts.first(left), offset, to, n);
  sum_block<Type>(parts.subspan(left), offset, right, n);
  add(to, right, to, n);
}

template <class Type>
void sum(std::span<const void* const> parts, void* to, std::size_t count) {
  using Stored = typename Type::Stored;
  using Sum = typename Type::Sum;
  auto* out = static_cast<Stored*>(to);
  if constexpr (std::is_same_v<Stored, Sum>) {
    // Two ranks are the usual case, and need no block between.
    if (parts.size() == 2) {
      add(static_cast<const Sum*>(parts[0]), static_cast<const Sum*>(parts[1]), out, count);
      return;
    }
  }
  Sum block[kBlock];
  for (std::size_t i = 0; i < count; i += kBlock) {
    const std::size_t n = std::min(kBlock, count - i);
    sum_block<Type>(parts, i, block, n);
    Type::round(block, out + i, n);
  }
}

}  // namespace

void tree_sum(std::span<const void* const> parts, void* to, std::size_t count, DType dtype) {
  if (parts.size() == 1) {  // nothing is added, so nothing is rounded
    if (to != parts[0]) std::memcpy(to, parts[0], count * size_of(dtype));
    return;
  }
  switch (dtype) {
    case DType::kFp64:
      return sum<Same<double>>(parts, to, count);
    case DType::kFp16:
      return sum<Fp16>(parts, to, count);
    case DType::kBf16:
      return sum<Bf16>(parts, to, count);
    default:
      return sum<Same<float>>(parts, to, count);
  }
}

}  // namespace flashlab::dist
