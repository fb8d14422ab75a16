// Zeros in the rows of O = P V, or of dQ = scale dS K, without a visible key: there P and dS are 0,
// but 0 times a V or K that is not finite is NaN. One block per row.

#include "peers/scores.h"

namespace flashlab::device {

template <class C>
constexpr Element row_element() {
  if constexpr (requires { C::kOutput; }) {
    return C::kOutput;
  } else {
    return C::kGradQ;
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kScoreThreads)
    flash_cublas_empty_rows(const __grid_constant__ flashlab::device::ComposedEmptyRows args) {
  using namespace flashlab::device;
  const int i = blockIdx.x, h = blockIdx.y;
  if (!args.empty[static_cast<Int64>(h) * args.seqlen_q + i]) return;
  const Rows& rows = args.rows;
  const Int64 row = args.batch * rows.batch_stride + h * rows.head_stride + i * rows.row_stride;
  for (int d = threadIdx.x; d < args.width; d += kScoreThreads) {
    store_element<row_element<Config>()>(rows.data, row + d, 0.0f);
  }
}
