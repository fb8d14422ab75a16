#include "cpu/plain/tile_kernels.h"

namespace flashlab::internal {

template <>
const TileKernels<float>& tile_kernels(CpuIsa isa) noexcept {
  return FLASHLAB_ISA_TABLE(isa, kFloatKernels);
}

template <>
const TileKernels<double>& tile_kernels(CpuIsa isa) noexcept {
  return FLASHLAB_ISA_TABLE(isa, kDoubleKernels);
}

const char* tile_kernels_name(CpuIsa isa) noexcept {
  return isa < CpuIsa::kAvx2 ? "baseline" : tile_kernels<float>(isa).name;
}

}  // namespace flashlab::internal
