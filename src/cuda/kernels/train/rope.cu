// Rotary positions: neighbouring elements 2i, 2i + 1 of a head of q and k are turned in place by
// the angle position / theta^(2i / head_dim); backward turns them back.
//
// The table is made once a step in fp64: an angle of thousands of radians has no digits left in
// fp32.
//
// Config: Element kElement; int kContext, kWidth, kHeadDim, kVector (even); bool kInverse.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kRopeBlock = 256;

template <class Config>
__device__ inline void rope_angles(const RopeArguments& args) {
  constexpr int kPairs = Config::kHeadDim / 2;
  const int at = blockIdx.x * kRopeBlock + threadIdx.x;
  if (at >= Config::kContext * kPairs) return;
  const double frequency = pow(args.theta, -2.0 * (at % kPairs) / Config::kHeadDim);
  double sine, cosine;
  sincos(at / kPairs * frequency, &sine, &cosine);
  args.cosine[at] = static_cast<float>(cosine);
  args.sine[at] = static_cast<float>(sine);
}

template <class Config>
__device__ inline void rope_turn(const RopeArguments& args) {
  constexpr int kVector = Config::kVector, kRowPacks = 2 * Config::kWidth / kVector;
  const Index pack = static_cast<Index>(blockIdx.x) * kRopeBlock + threadIdx.x;
  const Index row = pack / kRowPacks;
  if (row >= args.rows) return;
  const int column = static_cast<int>(pack % kRowPacks) * kVector;  // q, then k
  const int position = static_cast<int>(row % Config::kContext);
  const int angle = position * (Config::kHeadDim / 2) + column % Config::kHeadDim / 2;
  const Index at = row * 3 * Config::kWidth + column;
  auto x = load_pack<Config::kElement, kVector>(args.qkv, at);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float c = args.cosine[angle + i];
    const float s = Config::kInverse ? -args.sine[angle + i] : args.sine[angle + i];
    const float a = x.at[2 * i], b = x.at[2 * i + 1];
    x.at[2 * i] = a * c - b * s;
    x.at[2 * i + 1] = a * s + b * c;
  }
  store_pack<Config::kElement>(args.qkv, at, x);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kRopeBlock)
    flash_fwd_rope_angles(const __grid_constant__ flashlab::device::RopeArguments args) {
  flashlab::device::rope_angles<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kRopeBlock)
    flash_fwd_rope(const __grid_constant__ flashlab::device::RopeArguments args) {
  flashlab::device::rope_turn<Config>(args);
}
