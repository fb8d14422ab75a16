// bf16 kernels for AMX (Sapphire Rapids and later): tdpbf16ps, fp32 sums. Forward alone: backward
// on such a processor runs the fp32 kernels on widened inputs (kernels.cpp says why).

#define FLASHLAB_SIMD_BF16
#define FLASHLAB_SIMD_STRIP_ROWS 32
#define FLASHLAB_ISA amx

#include "cpu/simd/amx-inl.h"
#include "cpu/simd/amx_tiles-inl.h"
#include "cpu/simd/forward-inl.h"

static_assert(HWY_TARGET == HWY_AVX3, "the compile flags of this file name another target");

namespace flashlab::internal::simd::amx {
namespace {

using MultiplyAmx = MultiplyTiles<HardwareTiles>;

void run_task(const ForwardCall& call, const ForwardTask& task, void* scratch) {
  const HardwareTiles::Session session;
  forward_pass::run_task<MultiplyAmx>(call, task, scratch);
}

// Four independent sums: a product takes 52 cycles and one starts every 16.
double tile_roof(int64_t iterations) {
  const HardwareTiles::Session session;
  HardwareTiles::zero<0>();
  HardwareTiles::zero<1>();
  HardwareTiles::zero<2>();
  HardwareTiles::zero<3>();
  HardwareTiles::zero<4>();
  HardwareTiles::zero<5>();
  HardwareTiles::zero<6>();
  HardwareTiles::zero<7>();
  for (int64_t n = 0; n < iterations; ++n) {
    HardwareTiles::multiply_add<0, 0>();
    HardwareTiles::multiply_add<0, 1>();
    HardwareTiles::multiply_add<1, 0>();
    HardwareTiles::multiply_add<1, 1>();
  }
  constexpr double kFlopsPerProduct = 2.0 * kTileRows * kTileColumns * kTileDepth * 2;
  return 4 * kFlopsPerProduct * static_cast<double>(iterations);
}

}  // namespace

const KernelTable kKernels = {
    .name = "amx_bf16",
    .isa = CpuIsa::kAmx,
    .depth_per = MultiplyAmx::kDepthPer,
    .lanes = kLanes,
    .strip_rows = kStripRows,
    .panel = kPanel,
    .pack = pack_kernels<MultiplyAmx>(),
    .forward = {&forward_pass::scratch_bytes<MultiplyAmx>, &run_task,
                &forward_pass::merge<MultiplyAmx>},
    .backward = nullptr,
    .roof = &tile_roof,
};

}  // namespace flashlab::internal::simd::amx
