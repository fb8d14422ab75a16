// fp32 forward, split keys: merges the parts that the blocks of grid y left in the workspace.
// With part i's maximum m_i, sum l_i and output O_i (times l_i), M = max m_i, w_i = 2^(m_i - M):
//     O = sum w_i O_i / sum w_i l_i,   LSE = ln 2 (M + log2(sum w_i l_i))
// in the order of the parts. One warp merges one row.

#include "sm80/forward_fp32_common.h"

namespace flashlab::device {

inline constexpr int kThreads = 256;

__device__ inline void merge_row(const ForwardArguments& args, Int64 row, int lane) {
  const Shape& s = args.shape;
  const Int64 rows = Int64(s.batch) * s.heads_q * s.seqlen_q;
  const auto* statistics = static_cast<const float2*>(args.regions[Config::kStatisticsRegion]);
  const auto* partial = static_cast<const float*>(args.regions[Config::kPartialRegion]);
  const int parts = static_cast<int>(*marks_of(args).parts);

  float reference = kMinusInfinity, sum = 0;
  for (int part = 0; part < parts; ++part)
    reference = fmaxf(reference, statistics[part * rows + row].x);
  const float shift = reference == kMinusInfinity ? 0.0f : reference;
  for (int part = 0; part < parts; ++part) {
    const float2 state = statistics[part * rows + row];
    sum = fmaf(ptx::exp2_fast(state.x - shift), state.y, sum);
  }
  const bool empty = sum == 0;
  const float inverse = empty ? 0.0f : 1.0f / sum;

  const Int64 i = row % s.seqlen_q, bh = row / s.seqlen_q, b = bh / s.heads_q, h = bh % s.heads_q;
  float* o = static_cast<float*>(args.o.data) + b * args.o.batch_stride + h * args.o.head_stride +
             i * args.o.row_stride;
  for (int c = lane; c < Config::kHeadDimV; c += 32) {
    float total = 0;
    for (int part = 0; part < parts; ++part) {
      const float x = partial[(part * rows + row) * Config::kHeadDimV + c];
      // An infinity stays, however small its part's share.
      const bool keep = fabsf(x) == -kMinusInfinity;
      total = keep ? total + x
                   : fmaf(ptx::exp2_fast(statistics[part * rows + row].x - shift), x, total);
    }
    o[c] = empty ? 0.0f : total * inverse;
  }
  if constexpr (Config::kLse) {
    float* lse = static_cast<float*>(args.lse.data) + b * args.lse.batch_stride +
                 h * args.lse.head_stride + i * args.lse.row_stride;
    if (lane == 0) *lse = empty ? kMinusInfinity : (reference + log2f(sum)) * kLn2;
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kThreads)
    flash_fwd_fp32_merge(const __grid_constant__ flashlab::device::ForwardArguments args) {
  using namespace flashlab::device;
  const Int64 row = Int64(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row < Int64(args.shape.batch) * args.shape.heads_q * args.shape.seqlen_q)
    merge_row(args, row, static_cast<int>(threadIdx.x % 32));
}
