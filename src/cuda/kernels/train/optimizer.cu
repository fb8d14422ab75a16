// The gradients' norm over the flat arena, and AdamW.
//
//   norm   = sqrt(sum g^2)
//   g'     = g min(1, max_norm / (norm + 1e-6))
//   m      = b1 m + (1 - b1) g',   v = b2 v + (1 - b2) g'^2
//   p      = p (1 - lr decay) - rate m / (sqrt(v) denominator_scale + eps)
// with  rate = lr / (1 - b1^t), denominator_scale = 1 / sqrt(1 - b2^t)          (torch)
//       rate = lr sqrt(1 - b2^t) / (1 - b1^t), denominator_scale = 1           (cs336)
//       rate = lr / (1 - b1), denominator_scale = 0, b2 = eps = 1              (sgd)
//
// Everything streams: 28 bytes a parameter in fp32, and what forward's copy takes. The norm's
// blocks leave a sum each, which one block adds in order; nothing comes back to the host.
//
// Where ranks own parts of the arenas, or their sums are to be those of one rank, every kNormChunk
// elements have a sum of their own first, so that no parting shows.
//
// With a loss scale the gradients are scale times too large: norm and factors divide it out. A norm
// that is no number halves the scale, and the step leaves parameters and moments as they are.
//
// With kLowHalves there are no values in fp32: `parameters` are the low halves of their bits, 28
// bytes a parameter with the copies in bf16, from which the high halves follow. A copy is rounded
// to nearest, so it is the high half or one more, which the low half's top bit says; half-way
// between two, where it does not, the sign of the second moment, which has none, does.
//
// Config: Element kParameter, kGradient, kState, kCopy; bool kHasCopy, kLowHalves, kCs336, kSgd,
// kScaled; int kNormBlocks.

#include "train/arguments.h"
#include "train/packs.h"

namespace flashlab::device {

inline constexpr int kNormBlock = 512, kFinishBlock = 256, kUpdateBlock = 256;
inline constexpr int kUpdatePack = 4;  // 16 bytes of fp32: a warp's accesses are whole lines
inline constexpr int kRateScalar = 0, kStepScalar = 1;  // of the step's scalars

template <int kBlock>
__device__ inline double sum_of_block(double mine) {
  __shared__ double sSums[kBlock];
  sSums[threadIdx.x] = mine;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sSums[threadIdx.x] += sSums[threadIdx.x + half];
  }
  __syncthreads();
  return sSums[0];
}

// Every thread adds its squares in fp32: some thousands of them for billions of parameters.
template <class Config>
__device__ inline void norm_sums(const OptimizerArguments& args) {
  constexpr int kPack = kUpdatePack;
  const Index packs = args.elements / kPack, stride = static_cast<Index>(gridDim.x) * kNormBlock;
  float sum = 0;
#pragma unroll 8
  for (Index i = static_cast<Index>(blockIdx.x) * kNormBlock + threadIdx.x; i < packs;
       i += stride) {
    const auto g = load_pack<Config::kGradient, kPack>(args.gradients, i * kPack);
    for (int j = 0; j < kPack; ++j) sum += g.at[j] * g.at[j];
  }
  const double total = sum_of_block<kNormBlock>(sum);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = total;
}

// The same of whole chunks: a warp has one.
template <class Config>
__device__ inline void norm_chunks(const OptimizerArguments& args) {
  constexpr int kPack = kUpdatePack, kRounds = kNormChunk / (32 * kPack);
  const Index chunk = (static_cast<Index>(blockIdx.x) * kNormBlock + threadIdx.x) / 32;
  const Index first = chunk * kNormChunk + threadIdx.x % 32 * kPack;
  if (chunk * kNormChunk >= args.elements) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const Index at = first + i * 32 * kPack;
    if (at >= args.elements) continue;
    const auto g = load_pack<Config::kGradient, kPack>(args.gradients, at);
    for (int j = 0; j < kPack; ++j) sum += g.at[j] * g.at[j];
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += ptx::shuffle_xor(sum, lanes);
  if (threadIdx.x % 32 == 0) args.chunks[chunk] = sum;
}

// The chunks' sums become those of blocks.
__device__ inline void norm_of_chunks(const OptimizerArguments& args) {
  const Index chunks = (args.elements + kNormChunk - 1) / kNormChunk;
  const Index stride = static_cast<Index>(gridDim.x) * kNormBlock;
  double sum = 0;
  for (Index i = static_cast<Index>(blockIdx.x) * kNormBlock + threadIdx.x; i < chunks;
       i += stride) {
    sum += args.chunks[i];
  }
  const double total = sum_of_block<kNormBlock>(sum);
  if (threadIdx.x == 0) args.sums[blockIdx.x] = total;
}

template <class Config>
__device__ inline void adamw_factors(const OptimizerArguments& args, float norm) {
  const double lr = args.scalars[kRateScalar];
  double step = args.scalars[kStepScalar];
  // Moments have seen only the steps that were taken.
  if constexpr (Config::kScaled) step -= args.loss_scale[2];
  const double correction1 = 1 - pow(args.beta1, step), correction2 = 1 - pow(args.beta2, step);
  AdamWFactors out;
  const double clipped = args.max_norm / (static_cast<double>(norm) + 1e-6);
  // A norm that is no number stays one.
  out.gradient_scale = args.max_norm > 0 && !(clipped >= 1) ? static_cast<float>(clipped) : 1.0f;
  out.rate =
      static_cast<float>(Config::kCs336 ? lr * sqrt(correction2) / correction1 : lr / correction1);
  out.denominator_scale = Config::kCs336 ? 1.0f : static_cast<float>(1 / sqrt(correction2));
  if constexpr (Config::kSgd) {
    out.rate = static_cast<float>(lr / (1 - args.beta1));
    out.denominator_scale = 0;
  }
  out.keep = static_cast<float>(1 - lr * args.weight_decay);
  if constexpr (Config::kScaled) {
    out.gradient_scale /= args.loss_scale[0];
    out.skips = !isfinite(norm);
  }
  *args.factors = out;
}

// What the blocks have left becomes the norm and, with it, the factors of the update.
template <class Config>
__device__ inline void norm_finish(const OptimizerArguments& args) {
  double sum = 0;
  for (int i = threadIdx.x; i < Config::kNormBlocks; i += kFinishBlock) sum += args.sums[i];
  const double total = sum_of_block<kFinishBlock>(sum);
  if (threadIdx.x != 0) return;
  double norm = sqrt(total);
  if constexpr (Config::kScaled) norm /= args.loss_scale[0];
  args.norm[0] = static_cast<float>(norm);
  adamw_factors<Config>(args, static_cast<float>(norm));
}

// What the step's norm says of the scale, after the update.
__device__ inline void update_loss_scale(const OptimizerArguments& args) {
  float* scale = args.loss_scale;
  const bool good = isfinite(args.norm[0]);
  if (!good) scale[2] += 1;
  if (args.scale_interval == 0) return;
  scale[1] = good ? scale[1] + 1 : 0;
  if (!good) {
    scale[0] = fmaxf(scale[0] / 2, 1.0f);
  } else if (scale[1] >= static_cast<float>(args.scale_interval)) {
    scale[0] = fminf(scale[0] * 2, 1099511627776.0f);  // 2^40
    scale[1] = 0;
  }
}

/// One pack of each arena on its way through an update.
template <class Config>
struct Update {
  static constexpr int kPack = kUpdatePack;
  using Halves = RawPack<Element::kBf16, kPack>;
  Pack<kPack> g, p, m, v;
  Halves high, low;

  __device__ void load(const OptimizerArguments& args, Index at) {
    g = load_pack<Config::kGradient, kPack>(args.gradients, at);
    if constexpr (Config::kLowHalves) {
      high = load_raw<Element::kBf16, kPack>(args.copies, at);
      low = load_raw<Element::kBf16, kPack>(args.parameters, at);
    } else {
      p = load_pack<Config::kParameter, kPack>(args.parameters, at);
    }
    m = load_pack<Config::kState, kPack>(args.first, at);
    v = load_pack<Config::kState, kPack>(args.second, at);
  }
  __device__ void join_halves() {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const unsigned copy = high.words[i / 2] >> 16 * (i % 2) << 16;
      const int below = static_cast<short>(low.words[i / 2] >> 16 * (i % 2));
      const unsigned tie = __float_as_uint(v.at[i]) >> 31 << 16;
      p.at[i] = __uint_as_float(copy + static_cast<unsigned>(below) + tie);
      v.at[i] = fabsf(v.at[i]);
    }
  }
  __device__ void split_halves() {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const unsigned bits = __float_as_uint(p.at[i]);
      const bool tie = (bits & 0x1ffff) == 0x8000;  // rounded down, to even
      v.at[i] = tie ? -v.at[i] : v.at[i];
      low.words[i / 2] = i % 2 == 0 ? bits & 0xffff : low.words[i / 2] | bits << 16;
    }
  }
  __device__ void advance(const OptimizerArguments& args, const AdamWFactors& factors, float keep) {
    if constexpr (Config::kLowHalves) join_halves();
    const auto beta1 = static_cast<float>(args.beta1), beta2 = static_cast<float>(args.beta2);
    const auto rest1 = static_cast<float>(1 - args.beta1);
    const auto rest2 = static_cast<float>(1 - args.beta2);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float scaled = g.at[i] * factors.gradient_scale;
      m.at[i] = beta1 * m.at[i] + rest1 * scaled;
      v.at[i] = beta2 * v.at[i] + rest2 * scaled * scaled;
      const float denominator = sqrtf(v.at[i]) * factors.denominator_scale + args.epsilon;
      // Products that the compiler may not contract, so that a rank that keeps values and one that
      // keeps halves come to the same bits.
      p.at[i] = __fmul_rn(keep, p.at[i]) - __fmul_rn(factors.rate, m.at[i] / denominator);
    }
    if constexpr (Config::kLowHalves) split_halves();
  }
  __device__ void store(const OptimizerArguments& args, Index at) const {
    if constexpr (Config::kLowHalves) {
      store_raw<Element::kBf16>(args.parameters, at, low);
    } else {
      store_pack<Config::kParameter>(args.parameters, at, p);
    }
    store_pack<Config::kState>(args.first, at, m);
    store_pack<Config::kState>(args.second, at, v);
    if constexpr (Config::kHasCopy) store_pack<Config::kCopy>(args.copies, at, p);
  }
};

// A block updates the 2048 elements of one word of decay bits, a thread two packs of them.
template <class Config>
__device__ inline void adamw(const OptimizerArguments& args) {
  constexpr int kHalf = kUpdateBlock * kUpdatePack;
  static_assert(2 * kHalf == 64 * 32);
  const Index at = static_cast<Index>(blockIdx.x) * 2 * kHalf + threadIdx.x * kUpdatePack;
  Update<Config> updates[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (at + i * kHalf < args.elements) updates[i].load(args, at + i * kHalf);
  }
  const AdamWFactors factors = *args.factors;
  if (Config::kScaled && factors.skips) return;
  const unsigned decays = args.decays[blockIdx.x];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Index element = at + i * kHalf;
    if (element >= args.elements) continue;
    const bool decayed = decays >> (element / 64 % 32) & 1;
    updates[i].advance(args, factors, decayed ? factors.keep : 1.0f);
    updates[i].store(args, element);
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kNormBlock)
    flash_opt_norm_sums(const __grid_constant__ flashlab::device::OptimizerArguments args) {
  flashlab::device::norm_sums<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kNormBlock)
    flash_opt_norm_chunks(const __grid_constant__ flashlab::device::OptimizerArguments args) {
  flashlab::device::norm_chunks<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kNormBlock)
    flash_opt_norm_of_chunks(const __grid_constant__ flashlab::device::OptimizerArguments args) {
  flashlab::device::norm_of_chunks(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kFinishBlock)
    flash_opt_norm_finish(const __grid_constant__ flashlab::device::OptimizerArguments args) {
  flashlab::device::norm_finish<Config>(args);
}

extern "C" __global__ void __launch_bounds__(flashlab::device::kUpdateBlock)
    flash_opt_adamw(const __grid_constant__ flashlab::device::OptimizerArguments args) {
  flashlab::device::adamw<Config>(args);
}

extern "C" __global__ void __launch_bounds__(1)
    flash_opt_loss_scale(const __grid_constant__ flashlab::device::OptimizerArguments args) {
  flashlab::device::update_loss_scale(args);
}
