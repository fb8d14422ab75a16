// Softmax of naive attention as operations of their own, on rows of scores [batch, heads, context].
//
//   row max    max[r] = the largest visible score, argmax[r] = where it stands first
//   softmax    p = exp(s - max) / sum, sum[r] = sum of the exponentials; 0 at hidden keys
//   backward   ds = p (dp - sum_j p_j dp_j), p made again from the scores; 0 at hidden keys
//
// A warp owns a row. The row stays in no register: it may have any length.
//
// Config: Element kElement; int kContext; bool kCausal.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kSoftmaxBlock = 256;

/// A warp's row and how many of its keys it sees.
struct ScoresRow {
  Index row = static_cast<Index>(blockIdx.x) * (kSoftmaxBlock / 32) + threadIdx.x / 32;
  Index at = row * Config::kContext;
  int lane = threadIdx.x % 32;
  int visible =
      Config::kCausal ? static_cast<int>(row % Config::kContext) + 1 : Config::kContext;
};

__device__ inline float read(const void* data, Index at) {
  return load_pack<Config::kElement, 1>(data, at).at[0];
}
__device__ inline void write(void* data, Index at, float value) {
  store_pack<Config::kElement>(data, at, Pack<1>{value});
}
__device__ inline float sum_over_warp(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += ptx::shuffle_xor(value, lanes);
  return value;
}

__device__ inline void row_max(const SoftmaxArguments& args) {
  const ScoresRow r;
  if (r.row >= args.rows) return;
  float best = read(args.scores, r.at);
  int where = 0;
  for (int key = r.lane; key < r.visible; key += 32) {
    const float score = read(args.scores, r.at + key);
    if (score > best) best = score, where = key;
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const float other = ptx::shuffle_xor(best, lanes);
    const int there = __float_as_int(ptx::shuffle_xor(__int_as_float(where), lanes));
    if (other > best || (other == best && there < where)) best = other, where = there;
  }
  if (r.lane != 0) return;
  args.max[r.row] = best;
  args.argmax[r.row] = where;
}

__device__ inline void softmax(const SoftmaxArguments& args) {
  const ScoresRow r;
  if (r.row >= args.rows) return;
  const float max = args.max[r.row];
  float sum = 0;
  for (int key = r.lane; key < r.visible; key += 32) {
    sum += expf(read(args.scores, r.at + key) - max);
  }
  sum = sum_over_warp(sum);
  for (int key = r.lane; key < Config::kContext; key += 32) {
    const bool seen = key < r.visible;
    write(args.p, r.at + key, seen ? expf(read(args.scores, r.at + key) - max) / sum : 0.0f);
  }
  if (r.lane == 0) args.sum[r.row] = sum;
}

__device__ inline void softmax_backward(const SoftmaxArguments& args) {
  const ScoresRow r;
  if (r.row >= args.rows) return;
  const float max = args.max[r.row], sum = args.sum[r.row];
  float dot = 0;
  for (int key = r.lane; key < r.visible; key += 32) {
    dot += expf(read(args.scores, r.at + key) - max) / sum * read(args.dp, r.at + key);
  }
  dot = sum_over_warp(dot);
  for (int key = r.lane; key < Config::kContext; key += 32) {
    float ds = 0;
    if (key < r.visible) {
      const float p = expf(read(args.scores, r.at + key) - max) / sum;
      ds = p * (read(args.dp, r.at + key) - dot);
    }
    write(args.p, r.at + key, ds);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kSoftmaxBlock)
    flash_fwd_row_max(const __grid_constant__ flashlab::device::SoftmaxArguments args) {
  flashlab::device::row_max(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kSoftmaxBlock)
    flash_fwd_softmax(const __grid_constant__ flashlab::device::SoftmaxArguments args) {
  flashlab::device::softmax(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kSoftmaxBlock)
    flash_bwd_softmax(const __grid_constant__ flashlab::device::SoftmaxArguments args) {
  flashlab::device::softmax_backward(args);
}
