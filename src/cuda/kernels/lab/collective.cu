// The values of a rank for a measured collective, and whether its result is what it must be.
//
// Config: int kBytes (of an element: 2, 4 or 8); bool kFp16 (of two bytes; else bf16).

#include "lab/collective_arguments.h"
#include "train/packs.h"

namespace flashlab::device {

template <class Config>
__device__ inline unsigned long long bits_of(int value) {
  if constexpr (Config::kBytes == 8) {
    return static_cast<unsigned long long>(__double_as_longlong(static_cast<double>(value)));
  } else if constexpr (Config::kBytes == 4) {
    return __float_as_uint(static_cast<float>(value));
  } else {
    constexpr Element kElement = Config::kFp16 ? Element::kFp16 : Element::kBf16;
    return pack_halves<kElement>(static_cast<float>(value), 0.0f) & 0xffff;
  }
}

template <int kBytes>
struct WordOf {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned;
};
template <>
struct WordOf<8> {
  using type = unsigned long long;
};

/// Calls visit(word, index) for each element, by all threads of the grid together.
template <class Config, class Visit>
__device__ inline void for_each_element(const ExchangeArguments& args, const Visit& visit) {
  auto* words = static_cast<typename WordOf<Config::kBytes>::type*>(args.data);
  const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < args.count; i += threads) {
    visit(words[i], i);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(256)
    lab_exchange_fill(const __grid_constant__ flashlab::device::ExchangeArguments args) {
  using namespace flashlab::device;
  for_each_element<Config>(args, [&](auto& word, unsigned long long i) {
    word = bits_of<Config>(exchanged_value(args.rank, i));
  });
}

extern "C" __global__ void __launch_bounds__(256)
    lab_exchange_check(const __grid_constant__ flashlab::device::ExchangeArguments args) {
  using namespace flashlab::device;
  for_each_element<Config>(args, [&](const auto& word, unsigned long long i) {
    const int expected =
        expected_value(static_cast<Exchange>(args.kind), args.ranks, args.rank, args.part, i);
    if (word != bits_of<Config>(expected)) atomicMin(args.wrong, i + 1);
  });
}
