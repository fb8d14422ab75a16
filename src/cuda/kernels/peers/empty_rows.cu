// O = 0 in rows without a visible key, after the product P V: there P is 0, but 0 times a V that is
// not finite is NaN. One block per row.

#include "peers/scores.h"

extern "C" __global__ void __launch_bounds__(flashlab::device::kScoreThreads)
    flash_fwd_cublas_empty_rows(const __grid_constant__ flashlab::device::ComposedEmptyRows args) {
  using namespace flashlab::device;
  const int i = blockIdx.x, h = blockIdx.y;
  if (!args.empty[static_cast<Int64>(h) * args.shape.seqlen_q + i]) return;
  const Int64 row =
      args.batch * args.o.batch_stride + h * args.o.head_stride + i * args.o.row_stride;
  for (int d = threadIdx.x; d < args.shape.head_dim_v; d += kScoreThreads) {
    store_element<Config::kOutput>(args.o.data, row + d, 0.0f);
  }
}
