#pragma once

// Neighbouring elements of a tensor as floats: a thread moves them in accesses of 16 bytes.

#include "config_types.h"
#include "ptx/convert.h"
#include "ptx/warp.h"
#include "ptx/warpgroup.h"

namespace flashlab::device {

using Index = long long;

template <Element kElement>
inline constexpr int kSizeOf = kElement == Element::kFp32 ? 4 : 2;

template <int kCount>
struct Pack {
  float at[kCount];
};

/// The bits of a pack as they lie in memory: half the registers for elements of 16 bits.
template <Element kElement, int kCount>
struct RawPack {
  static constexpr int kWords = kCount * kSizeOf<kElement> / 4;
  unsigned words[kWords];
};
template <>
struct RawPack<Element::kFp16, 1> {
  unsigned words[1];
};
template <>
struct RawPack<Element::kBf16, 1> {
  unsigned words[1];
};

template <Element kElement>
__device__ inline float half_to_float(unsigned bits) {
  if constexpr (kElement == Element::kFp16) {
    return ptx::float_of_fp16(static_cast<unsigned short>(bits));
  } else {
    return __uint_as_float(bits << 16);
  }
}

template <Element kElement>
__device__ inline unsigned pack_halves(float low, float high) {
  if constexpr (kElement == Element::kFp16) {
    return ptx::pack_fp16(low, high);
  } else {
    return ptx::pack_bf16(low, high);
  }
}

/// Elements index .. index + kCount - 1; the address is a multiple of the pack's bytes, or of 16.
template <Element kElement, int kCount>
__device__ inline RawPack<kElement, kCount> load_raw(const void* data, Index index) {
  RawPack<kElement, kCount> out;
  const char* address = static_cast<const char*>(data) + index * kSizeOf<kElement>;
  if constexpr (kCount * kSizeOf<kElement> >= 16) {
#pragma unroll
    for (int i = 0; i < kCount * kSizeOf<kElement> / 16; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(address)[i];
      out.words[4 * i] = four.x, out.words[4 * i + 1] = four.y;
      out.words[4 * i + 2] = four.z, out.words[4 * i + 3] = four.w;
    }
  } else if constexpr (kCount * kSizeOf<kElement> == 8) {
    const uint2 two = *reinterpret_cast<const uint2*>(address);
    out.words[0] = two.x, out.words[1] = two.y;
  } else if constexpr (kCount * kSizeOf<kElement> == 4) {
    out.words[0] = *reinterpret_cast<const unsigned*>(address);
  } else {
    out.words[0] = *reinterpret_cast<const unsigned short*>(address);
  }
  return out;
}

template <Element kElement, int kCount>
__device__ inline Pack<kCount> floats_of(const RawPack<kElement, kCount>& raw) {
  Pack<kCount> out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kElement == Element::kFp32) {
      out.at[i] = __uint_as_float(raw.words[i]);
    } else {
      const unsigned word = raw.words[i / 2];
      out.at[i] = half_to_float<kElement>(i % 2 == 0 ? word & 0xffff : word >> 16);
    }
  }
  return out;
}

template <Element kElement, int kCount>
__device__ inline Pack<kCount> load_pack(const void* data, Index index) {
  return floats_of<kElement, kCount>(load_raw<kElement, kCount>(data, index));
}

/// Elements of 16 bits, four of them.
template <Element kElement>
__device__ inline void store_raw(void* data, Index index, const RawPack<kElement, 4>& raw) {
  static_assert(kSizeOf<kElement> == 2);
  *reinterpret_cast<uint2*>(static_cast<char*>(data) + index * 2) =
      make_uint2(raw.words[0], raw.words[1]);
}

template <Element kElement, int kCount>
__device__ inline void store_pack(void* data, Index index, const Pack<kCount>& pack) {
  char* address = static_cast<char*>(data) + index * kSizeOf<kElement>;
  if constexpr (kElement == Element::kFp32) {
    if constexpr (kCount % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        reinterpret_cast<float4*>(address)[i / 4] =
            make_float4(pack.at[i], pack.at[i + 1], pack.at[i + 2], pack.at[i + 3]);
      }
    } else {
      for (int i = 0; i < kCount; ++i) reinterpret_cast<float*>(address)[i] = pack.at[i];
    }
  } else if constexpr (kCount == 8) {
    uint4 four;
    four.x = pack_halves<kElement>(pack.at[0], pack.at[1]);
    four.y = pack_halves<kElement>(pack.at[2], pack.at[3]);
    four.z = pack_halves<kElement>(pack.at[4], pack.at[5]);
    four.w = pack_halves<kElement>(pack.at[6], pack.at[7]);
    *reinterpret_cast<uint4*>(address) = four;
  } else if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(address) = make_uint2(pack_halves<kElement>(pack.at[0], pack.at[1]),
                                                    pack_halves<kElement>(pack.at[2], pack.at[3]));
  } else if constexpr (kCount == 2) {
    *reinterpret_cast<unsigned*>(address) = pack_halves<kElement>(pack.at[0], pack.at[1]);
  } else {
    static_assert(kCount == 1);
    *reinterpret_cast<unsigned short*>(address) =
        static_cast<unsigned short>(pack_halves<kElement>(pack.at[0], 0.0f));
  }
}

/// Sums of kValues numbers each over the kThreads threads of a row; a block may have several rows,
/// at most 15 where a row has more than a warp: each meets at a barrier of its own. Every thread of
/// the row gets the same bits. `turn` is 0 and 1 by turns from one call of a row's threads to the
/// next, so that one barrier a call is enough.
template <int kThreads, int kBlock, int kValues>
__device__ inline void sum_over_row(float (&values)[kValues], int turn) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      values[i] += ptx::shuffle_xor(values[i], lanes);
    }
  }
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    __shared__ float sSums[2][kValues][kBlock / 32];
    const int warp = threadIdx.x / 32, first = warp / kWarps * kWarps;
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kValues; ++i) sSums[turn][i][warp] = values[i];
    }
    if constexpr (kThreads == kBlock) {
      __syncthreads();
    } else {
      static_assert(kBlock / kThreads <= 15);
      ptx::meet(1 + warp / kWarps, kThreads);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = 0;
      for (int other = 0; other < kWarps; ++other) values[i] += sSums[turn][i][first + other];
    }
  }
}

}  // namespace flashlab::device
