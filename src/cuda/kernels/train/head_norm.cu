// RMSNorm of every head of q and k in rows of q, k and v, and its gradient; v is copied.
//
//   y = w x r,  r = 1 / sqrt(mean(x^2) + eps) over a head;   g = w dy,  n = x r
//   dx = r (g - n mean(g n)) in dy's place,  dw = sum over rows and heads of dy n
//
// kLanes threads own a head and keep it in registers. In backward a thread has the same columns of
// every head, so that both weights' gradients grow in registers: first all heads of q, then those
// of k. Each block leaves one row of partial sums of each, which columns.cu adds in order.
//
// Turned, RoPE of halves (rope_halves.cu) goes along: y is turned before it is written, dy is
// turned back when it is read. A lane has one pack then, and the pack of its other half is that of
// the lane half a head away.
//
// Config: Element kElement; int kHeads (of q), kKeys, kHeadDim, kVector (divides a head), kLanes (a
// power of two up to a warp), kPacks (of a lane); bool kTurned, int kContext (positions of the
// angles: a row's is its number modulo these).

#include "ptx/warp.h"
#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kHeadBlock = 256;

template <class Config>
struct HeadShare {
  static constexpr int kVector = Config::kVector, kPacks = Config::kPacks, kLanes = Config::kLanes;
  static constexpr int kGroups = kHeadBlock / kLanes;
  static constexpr int kRow = (Config::kHeads + 2 * Config::kKeys) * Config::kHeadDim;
  using Head = Pack<kVector>[kPacks];

  int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;

  __device__ int column(int pack) const { return (pack * kLanes + lane) * kVector; }
  __device__ bool inside(int pack) const { return column(pack) < Config::kHeadDim; }
  __device__ void load(const void* data, Index at, bool there, Head& out) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      out[p] = there && inside(p) ? load_pack<Config::kElement, kVector>(data, at + column(p))
                                  : Pack<kVector>{};
    }
  }
  __device__ void store(void* data, Index at, const Head& head) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (inside(p)) store_pack<Config::kElement>(data, at + column(p), head[p]);
    }
  }
  /// Both halves of the head in all lanes; `normed` of q and k alone.
  template <bool kInverse>
  __device__ void turn(const HeadNormArguments& args, Index row, bool normed, Head& head) const {
    constexpr int kHalf = Config::kHeadDim / 2;
    static_assert(kPacks == 1 && kLanes * kVector == Config::kHeadDim);
    const bool high = lane >= kLanes / 2;
    const Index angle = row % Config::kContext * kHalf + column(0) % kHalf;
    Pack<kVector> cosine{}, sine{};
    if (normed) {
      cosine = load_pack<Element::kFp32, kVector>(args.cosine, angle);
      sine = load_pack<Element::kFp32, kVector>(args.sine, angle);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float own = head[0].at[i], other = ptx::shuffle_xor(own, kLanes / 2);
      const float s = high != kInverse ? sine.at[i] : -sine.at[i];
      if (normed) head[0].at[i] = own * cosine.at[i] + other * s;
    }
  }
  __device__ static float sum(float value) {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) value += ptx::shuffle_xor(value, lanes);
    return value;
  }
};

template <class Config>
__device__ inline void head_norm_forward(const HeadNormArguments& args) {
  using Share = HeadShare<Config>;
  constexpr int kNormed = Config::kHeads + Config::kKeys, kAll = kNormed + Config::kKeys;
  const Share share;
  const Index item = static_cast<Index>(blockIdx.x) * Share::kGroups + share.group;
  const Index row = item / kAll;
  const int head = static_cast<int>(item % kAll);
  const bool there = row < args.rows;
  const Index at = row * Share::kRow + head * Config::kHeadDim;
  typename Share::Head x, w;
  share.load(args.x, at, there, x);
  share.load(head < Config::kHeads ? args.weight : args.key_weight, 0, true, w);
  float squares = 0;
  for (int p = 0; p < Share::kPacks; ++p) {
    for (int i = 0; i < Share::kVector; ++i) squares += x[p].at[i] * x[p].at[i];
  }
  squares = Share::sum(squares);  // of all lanes: those of v, too
  const bool normed = there && head < kNormed;
  if (normed) {
    const float rstd = rsqrtf(squares * (1.0f / Config::kHeadDim) + args.epsilon);
    if (share.lane == 0) args.rstd[row * kNormed + head] = rstd;
    for (int p = 0; p < Share::kPacks; ++p) {
      for (int i = 0; i < Share::kVector; ++i) x[p].at[i] = w[p].at[i] * (x[p].at[i] * rstd);
    }
  }
  if constexpr (Config::kTurned) share.template turn<false>(args, row, normed, x);
  if (there) share.store(args.y, at, x);
}

/// All heads of q or of k, `first` of a row's normed heads and those behind it, `count` a row.
template <class Config>
__device__ inline void backward_heads(const HeadNormArguments& args, int first, int count,
                                      const void* weight, float* partials) {
  using Share = HeadShare<Config>;
  constexpr int kNormed = Config::kHeads + Config::kKeys;
  const Share share;
  typename Share::Head w, dw{};
  share.load(weight, 0, true, w);
  const Index items = args.rows * count;
  const Index stride = static_cast<Index>(gridDim.x) * Share::kGroups;
  // Groups of a warp end together.
  for (Index begin = static_cast<Index>(blockIdx.x) * Share::kGroups; begin < items;
       begin += stride) {
    const Index item = begin + share.group;
    const bool there = item < items;
    const Index row = item / count;
    const int head = first + static_cast<int>(item % count);
    const Index at = row * Share::kRow + head * Config::kHeadDim;
    typename Share::Head x, dy;
    share.load(args.x, at, there, x);
    share.load(args.y, at, there, dy);
    if constexpr (Config::kTurned) share.template turn<true>(args, row, there, dy);
    const float rstd = there ? args.rstd[row * kNormed + head] : 0.0f;
    float dot = 0;
    for (int p = 0; p < Share::kPacks; ++p) {
      for (int i = 0; i < Share::kVector; ++i) {
        const float n = x[p].at[i] * rstd;
        dot += dy[p].at[i] * w[p].at[i] * n;
        dw[p].at[i] += dy[p].at[i] * n;
      }
    }
    const float mean = Share::sum(dot) * (1.0f / Config::kHeadDim);
    if (!there) continue;
    for (int p = 0; p < Share::kPacks; ++p) {
      for (int i = 0; i < Share::kVector; ++i) {
        dy[p].at[i] = rstd * (dy[p].at[i] * w[p].at[i] - x[p].at[i] * rstd * mean);
      }
    }
    share.store(args.y, at, dy);
  }
  __shared__ float sSums[Share::kGroups][Config::kHeadDim];
  __syncthreads();  // the sums before have been read
  for (int p = 0; p < Share::kPacks; ++p) {
    if (!share.inside(p)) continue;
    for (int i = 0; i < Share::kVector; ++i) {
      sSums[share.group][share.column(p) + i] = dw[p].at[i];
    }
  }
  __syncthreads();
  partials += static_cast<Index>(blockIdx.x) * Config::kHeadDim;
  for (int column = threadIdx.x; column < Config::kHeadDim; column += kHeadBlock) {
    float sum = 0;
    for (int group = 0; group < Share::kGroups; ++group) sum += sSums[group][column];
    partials[column] = sum;
  }
}

template <class Config>
__device__ inline void head_norm_backward(const HeadNormArguments& args) {
  const Index vector = static_cast<Index>(gridDim.x) * Config::kHeadDim;
  backward_heads<Config>(args, 0, Config::kHeads, args.weight, args.partials);
  backward_heads<Config>(args, Config::kHeads, Config::kKeys, args.key_weight,
                         args.partials + vector);
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kHeadBlock)
    flash_fwd_head_norm(const __grid_constant__ flashlab::device::HeadNormArguments args) {
  flashlab::device::head_norm_forward<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kHeadBlock)
    flash_bwd_head_norm(const __grid_constant__ flashlab::device::HeadNormArguments args) {
  flashlab::device::head_norm_backward<Config>(args);
}
