// fp32 forward, split keys: merges the parts that the forward kernels left in the workspace. With
// part i's maximum m_i, sum l_i and output O_i (times l_i), M = max m_i, w_i = 2^(m_i - M):
//     O = sum w_i O_i / sum w_i l_i,   LSE = ln 2 (M + log2(sum w_i l_i))
// in the order of the parts. A thread merges four neighbouring channels of a row.

#include "sm80/forward_fp32/common.h"

namespace flashlab::device {

inline constexpr int kThreads = 256;
inline constexpr int kWidth = 4;  // channels per thread

/// The whole of the kernel that merges parts.
template <class Config>
struct ForwardFp32Merge : ForwardFp32<Config> {
  using Base = ForwardFp32<Config>;

  static constexpr int kPieces = (Config::kHeadDimV + kWidth - 1) / kWidth;

  /// Four channels of a part's row; zeros past the last.
  static __device__ void load_piece(const float* row, int c0, float (&out)[kWidth]) {
    if constexpr (Config::kHeadDimV % kWidth == 0) {
      const float4 four = *reinterpret_cast<const float4*>(row + c0);
      out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) out[j] = c0 + j < Config::kHeadDimV ? row[c0 + j] : 0.0f;
    }
  }

  static __device__ void merge_piece(const ForwardArguments& args, Int64 row, int c0) {
    const Shape& s = args.shape;
    const Int64 rows = Int64(s.batch) * s.heads_q * s.seqlen_q;
    const auto* statistics = static_cast<const float2*>(args.regions[Config::kStatisticsRegion]);
    const auto* partial = static_cast<const float*>(args.regions[Config::kPartialRegion]);

    float reference = kMinusInfinity, sum = 0, o[kWidth] = {};
    for (int part = 0; part < args.parts; ++part)
      reference = fmaxf(reference, statistics[part * rows + row].x);
    const float shift = reference == kMinusInfinity ? 0.0f : reference;
#pragma unroll 2
    for (int part = 0; part < args.parts; ++part) {
      const float2 state = statistics[part * rows + row];
      float part_o[kWidth];
      load_piece(partial + (part * rows + row) * Config::kHeadDimV, c0, part_o);
      const float weight = mutation::rescale<Config>(ptx::exp2_fast(state.x - shift));
      sum = fmaf(weight, state.y, sum);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        // An infinity stays, however small its part's share.
        const bool keep = fabsf(part_o[j]) == -kMinusInfinity;
        o[j] = fmaf(keep ? 1.0f : weight, part_o[j], o[j]);
      }
    }
    // Of parts that kernel.cu made; of guarded ones it would be 0, which changes the LSE by
    // less than 3e-7.
    constexpr float kUsualShift = 14;
    const bool empty = sum == 0;
    float inverse = empty ? 0.0f : keep_scale<Config>(args.dropout) / sum;
    const Int64 i = row % s.seqlen_q, bh = row / s.seqlen_q, b = bh / s.heads_q, h = bh % s.heads_q;
    const auto natural = [&] {
      return empty ? kMinusInfinity
                   : natural_lse(s, reference, kUsualShift, sum, kTransformedScores<Config>);
    };
    SinkRow sink{1, 0};
    if constexpr (Config::kSinks) {
      sink = with_sink(natural(), args.sinks[h]);
      inverse *= sink.factor;
    }
    float* g = static_cast<float*>(args.o.data) + b * args.o.batch_stride + h * args.o.head_stride +
               i * args.o.row_stride;
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      if (c0 + j < Config::kHeadDimV) g[c0 + j] = empty ? sink.nothing() : o[j] * inverse;
    if (c0 == 0 && args.lse.data != nullptr) {
      float* lse = static_cast<float*>(args.lse.data) + b * args.lse.batch_stride +
                   h * args.lse.head_stride + i * args.lse.row_stride;
      *lse = Config::kSinks ? sink.lse : natural();
    }
  }

  /// The kernel.
  static __device__ void run(const ForwardArguments& args) {
    const Int64 at = Int64(blockIdx.x) * kThreads + threadIdx.x, row = at / kPieces;
    if (row < Int64(args.shape.batch) * args.shape.heads_q * args.shape.seqlen_q)
      merge_piece(args, row, static_cast<int>(at % kPieces) * kWidth);
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kThreads)
    flash_fwd_fp32_merge(const __grid_constant__ flashlab::device::ForwardArguments args) {
  flashlab::device::ForwardFp32Merge<Config>::run(args);
}
