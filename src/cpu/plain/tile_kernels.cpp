#include "cpu/plain/tile_kernels.h"

namespace flashlab::internal {

#define FLASHLAB_DECLARE_TILE_KERNELS(isa)         \
  namespace isa {                                  \
  extern const TileKernels<float> kFloatKernels;   \
  extern const TileKernels<double> kDoubleKernels; \
  }
FLASHLAB_DECLARE_TILE_KERNELS(baseline)
#if defined(__x86_64__)
FLASHLAB_DECLARE_TILE_KERNELS(avx2)
FLASHLAB_DECLARE_TILE_KERNELS(avx512)
#endif

namespace {

enum class Build { kBaseline, kAvx2, kAvx512 };

Build build_for(CpuIsa isa) noexcept {
#if defined(__x86_64__)
  if (isa >= CpuIsa::kAvx512) return Build::kAvx512;
  if (isa == CpuIsa::kAvx2) return Build::kAvx2;
#endif
  (void)isa;
  return Build::kBaseline;
}

}  // namespace

const char* tile_kernels_name(CpuIsa isa) noexcept {
  switch (build_for(isa)) {
    case Build::kAvx512:
      return "avx512";
    case Build::kAvx2:
      return "avx2";
    case Build::kBaseline:
      break;
  }
  return "baseline";
}

template <>
const TileKernels<float>& tile_kernels(CpuIsa isa) noexcept {
  switch (build_for(isa)) {
#if defined(__x86_64__)
    case Build::kAvx512:
      return avx512::kFloatKernels;
    case Build::kAvx2:
      return avx2::kFloatKernels;
#endif
    default:
      return baseline::kFloatKernels;
  }
}

template <>
const TileKernels<double>& tile_kernels(CpuIsa isa) noexcept {
  switch (build_for(isa)) {
#if defined(__x86_64__)
    case Build::kAvx512:
      return avx512::kDoubleKernels;
    case Build::kAvx2:
      return avx2::kDoubleKernels;
#endif
    default:
      return baseline::kDoubleKernels;
  }
}

}  // namespace flashlab::internal
