#include "cpu_amx_emulated.h"

#define FLASHLAB_SIMD_BF16
#define FLASHLAB_SIMD_STRIP_ROWS 32
#define FLASHLAB_ISA amx_emulated

#include "cpu/simd/amx-inl.h"
#include "cpu/simd/forward-inl.h"
#include "cpu_amx_software_tiles.h"

namespace flashlab::internal::simd::amx_emulated {
namespace {

using Multiply = MultiplyTiles<flashlab::testing::SoftwareTiles>;

void run_task(const ForwardCall& call, const ForwardTask& task, void* scratch) {
  const Multiply::Tiles::Session session;
  forward_pass::run_task<Multiply>(call, task, scratch);
}

}  // namespace

const PackKernels kPack = pack_kernels<Multiply>();
const ForwardKernels kForward = {&forward_pass::scratch_bytes<Multiply>, &run_task,
                                 &forward_pass::merge<Multiply>};
const int kStrip = kStripRows, kPanelColumns = kPanel;

void multiply(const Product& p) {
  const Multiply::Tiles::Session session;
  TileArguments<Multiply> t{};
  t.depth = p.depth;
  t.a = p.a;
  t.a_row_stride = p.a_row_stride;
  t.a_depth_stride = 1;
  t.b = p.b;
  t.b_depth_stride = kPanel;
  t.c = p.c;
  t.c_row_stride = p.c_row_stride;
  t.row_scale = p.row_scale;
  switch (p.start) {
    case StartOf::kZero:
      return multiply_panels<Multiply, Start::kZero>(p.rows, p.columns, p.panel_stride, t);
    case StartOf::kAdd:
      return multiply_panels<Multiply, Start::kAdd>(p.rows, p.columns, p.panel_stride, t);
    case StartOf::kScale:
      return multiply_panels<Multiply, Start::kScale>(p.rows, p.columns, p.panel_stride, t);
  }
}

}  // namespace flashlab::internal::simd::amx_emulated
