// Clears memory where a memset would, between two kernels, leave the GPU idle on both sides.
//
// Config: int kBytes (of an access: 16 or 2; address and bytes are multiples of it).

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kZeroBlock = 256;

template <class Config>
__device__ inline void zero(const ZeroArguments& args) {
  const Index at = static_cast<Index>(blockIdx.x) * kZeroBlock + threadIdx.x;
  if (at >= args.bytes / Config::kBytes) return;
  if constexpr (Config::kBytes == 16) {
    static_cast<uint4*>(args.to)[at] = uint4{};
  } else {
    static_assert(Config::kBytes == 2);
    static_cast<unsigned short*>(args.to)[at] = 0;
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kZeroBlock)
    flash_zero(const __grid_constant__ flashlab::device::ZeroArguments args) {
  flashlab::device::zero<Config>(args);
}
