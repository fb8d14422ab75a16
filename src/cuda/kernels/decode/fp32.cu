// One query of each sequence over its keys, in fp32: plain products, for tensor cores have none of
// that error and a query would fill one row of sixteen.
//
// A block has a part of the keys of one query head. Groups of kLanes threads take turns in them,
// kAtOnce keys of each are under way; a lane has kPacks packs of four columns of the query, of a
// key, a value and the sums. Sums are relative to the largest score that their group has met, and
// join as those of results.h: groups in shared memory, parts by the block that counts the last one.
//
// Config: int kHeadDim, kHeadDimV, kLanes, kPacks, kThreads.

#include "decode/count.h"
#include "ptx/math.h"
#include "ptx/warp.h"
#include "tile/mask.h"
#include "tile/sequence.h"
#include "tile/softmax.h"

namespace flashlab::device {

inline constexpr int kAtOnce = 4;

/// Columns of a row that a lane has: packs lie kLanes apart.
template <class Config>
struct LanePacks {
  float4 at[Config::kPacks];

  /// `from`: null without a row. Columns from kColumns on are zeros.
  template <int kColumns>
  __device__ void load(const float* from, int lane) {
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
      const int column = 4 * (lane + i * Config::kLanes);
      at[i] = from != nullptr && column < kColumns ? *reinterpret_cast<const float4*>(from + column)
                                                   : make_float4(0, 0, 0, 0);
    }
  }
  __device__ float dot(const LanePacks& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
      sum = fmaf(at[i].x, other.at[i].x, sum);
      sum = fmaf(at[i].y, other.at[i].y, sum);
      sum = fmaf(at[i].z, other.at[i].z, sum);
      sum = fmaf(at[i].w, other.at[i].w, sum);
    }
    return sum;
  }
  /// at = scale * at
  __device__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
      at[i].x *= factor, at[i].y *= factor, at[i].z *= factor, at[i].w *= factor;
    }
  }
  /// at += weight * other
  __device__ void add(float weight, const LanePacks& other) {
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
      at[i].x = fmaf(weight, other.at[i].x, at[i].x);
      at[i].y = fmaf(weight, other.at[i].y, at[i].y);
      at[i].z = fmaf(weight, other.at[i].z, at[i].z);
      at[i].w = fmaf(weight, other.at[i].w, at[i].w);
    }
  }
};

/// Where a sequence's keys and values lie. A page that is not there has no rows.
struct CachedRow {
  bool there;
  Int64 place, row;  ///< entry or page of k and v; row in it
};
__device__ inline CachedRow cached_row(const DecodeFp32Arguments& args, const CachedRows& keys,
                                       int sequence, int key) {
  const int row = keys.padding + key;
  if (args.cache.table == nullptr) return {true, keys.entry, row};
  const Divisor::Parts at = args.page.divide(row);
  const Int64 page = args.cache.table[sequence * args.cache.table_stride + at.quotient];
  return {page >= 0 && page < args.cache.pages, page, at.rest};
}
__device__ inline const float* row_of_head(const Rows& rows, const CachedRow& at, int head) {
  return static_cast<const float*>(rows.data) + at.place * rows.batch_stride +
         at.row * rows.row_stride + head * rows.head_stride;
}

/// Of a group of threads, of a block or of all: what is relative to `reference`.
struct Fp32Sum {
  float reference, sum;
};
__device__ inline float weight_of(float reference, float common) {
  return ptx::exp2_fast(reference - common);
}

/// Sums over the keys of a group of lanes.
template <class Config>
struct LaneSums {
  Fp32Sum row{kLowestReference, 0};
  LanePacks<Config> o{};

  /// kAtOnce keys; those that are not there have a score of -inf and values of zero.
  __device__ void add(const float* scores, const LanePacks<Config>* values) {
    float reference = row.reference;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) reference = fmaxf(reference, scores[i]);
    const float before = weight_of(row.reference, reference);
    o.scale(before);
    row.sum *= before;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = weight_of(scores[i], reference);
      row.sum += weight;
      o.add(weight, values[i]);
    }
    row.reference = reference;
  }
};

template <class Config>
struct DecodeFp32 {
  static constexpr int kGroups = Config::kThreads / Config::kLanes;
  static constexpr int kColumns = 4 * Config::kLanes * Config::kPacks;

  struct Storage {
    Fp32Sum rows[kGroups];
    float o[kGroups][kColumns];
    int is_last;
  };

  const DecodeFp32Arguments& args;
  Storage& shared;
  int sequence, head, part;

  __device__ DecodeFp32(const DecodeFp32Arguments& args_, Storage& shared_)
      : args(args_), shared(shared_) {
    const int tile = static_cast<int>(blockIdx.x) / args.parts;
    part = static_cast<int>(blockIdx.x) - tile * args.parts;
    sequence = tile / args.call.shape.heads_q;
    head = tile - sequence * args.call.shape.heads_q;
  }

  /// A group's sums over its keys of [begin, end), into shared memory.
  __device__ void attend(const CachedRows& keys, int begin, int end) {
    const int lane = static_cast<int>(threadIdx.x) % Config::kLanes;
    const int group = static_cast<int>(threadIdx.x) / Config::kLanes;
    const int head_k = head / args.call.shape.group;
    const CachedRow own{true, sequence, 0};
    LanePacks<Config> q;
    q.template load<Config::kHeadDim>(row_of_head(args.call.q, own, head), lane);
    LaneSums<Config> sums;
    for (int first = begin; first < end; first += kGroups * kAtOnce) {
      LanePacks<Config> k[kAtOnce], v[kAtOnce];
      float scores[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int key = first + i * kGroups + group;
        CachedRow at{false, 0, 0};
        if (key < end) at = cached_row(args, keys, sequence, key);
        const bool wrong = key < end && !at.there;
        scores[i] = wrong ? kNaN : (at.there ? 0.0f : kMinusInfinity);
        k[i].template load<Config::kHeadDim>(
            at.there ? row_of_head(args.call.k, at, head_k) : nullptr, lane);
        v[i].template load<Config::kHeadDimV>(
            at.there ? row_of_head(args.call.v, at, head_k) : nullptr, lane);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        float dot = q.dot(k[i]);
#pragma unroll
        for (int lanes = Config::kLanes / 2; lanes > 0; lanes /= 2) {
          dot += ptx::shuffle_xor(dot, lanes);
        }
        scores[i] += dot * args.call.shape.scale_log2;
      }
      sums.add(scores, v);
    }
    if (lane == 0) shared.rows[group] = sums.row;
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
      *reinterpret_cast<float4*>(&shared.o[group][4 * (lane + i * Config::kLanes)]) = sums.o.at[i];
    }
    __syncthreads();
  }

  /// The sum of `count` rows and a function of the weight of each, which adds up their columns.
  template <class RowAt, class Add>
  __device__ static Fp32Sum join(int count, const RowAt& row_at, const Add& add) {
    Fp32Sum out{kLowestReference, 0};
    for (int i = 0; i < count; ++i) out.reference = fmaxf(out.reference, row_at(i).reference);
    for (int i = 0; i < count; ++i) {
      const Fp32Sum row = row_at(i);
      const float weight = weight_of(row.reference, out.reference);
      out.sum += weight * row.sum;
      add(i, weight);
    }
    return out;
  }

  /// A column's result, and with the first one LSE.
  __device__ void store(int column, Fp32Sum row, float sum) const {
    const bool empty = row.sum == 0;
    const Rows& o = args.call.o;
    static_cast<float*>(o.data)[sequence * o.batch_stride + head * o.head_stride + column] =
        empty ? 0.0f : sum / row.sum;
    const RowScalars& lse = args.call.lse;
    if (column > 0 || lse.data == nullptr) return;
    static_cast<float*>(lse.data)[sequence * lse.batch_stride + head * lse.head_stride] =
        empty ? kMinusInfinity : (row.reference + ptx::log2_fast(row.sum)) * kLn2;
  }

  __device__ void run() {
    if (sequence >= args.sequences.count) return;
    const CachedRows keys = cached_rows(args.sequences.k, args.cache, sequence);
    const Int64 length = keys.length;
    attend(keys, static_cast<int>(length * part / args.parts),
           static_cast<int>(length * (part + 1) / args.parts));
    const int column = static_cast<int>(threadIdx.x);
    const int tile = static_cast<int>(blockIdx.x) / args.parts;
    Fp32Sum row{};
    float sum = 0;
    if (column < Config::kHeadDimV) {
      row = join(
          kGroups, [&](int i) { return shared.rows[i]; },
          [&](int i, float weight) { sum = fmaf(weight, shared.o[i][column], sum); });
      if (keys.wrong) row.sum = kNaN;
    }
    if (args.parts == 1) {
      if (column < Config::kHeadDimV) store(column, row, sum);
      return;
    }
    const Int64 first = Int64{tile} * args.parts;
    if (column < Config::kHeadDimV) {
      args.o[(first + part) * Config::kHeadDimV + column] = sum;
      if (column < 2) args.statistics[2 * (first + part) + column] = column == 0 ? row.reference
                                                                                : row.sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      shared.is_last = count_part(args.counts + tile, args.tag, args.parts) == args.parts - 1;
    }
    __syncthreads();
    if (shared.is_last == 0 || column >= Config::kHeadDimV) return;
    const volatile float* statistics = args.statistics + 2 * first;
    const volatile float* o = args.o + first * Config::kHeadDimV + column;
    sum = 0;
    row = join(
        args.parts,
        [&](int i) { return Fp32Sum{statistics[2 * i], statistics[2 * i + 1]}; },
        [&](int i, float weight) { sum = fmaf(weight, o[i * Config::kHeadDimV], sum); });
    store(column, row, sum);
  }
};

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(Config::kThreads)
    flash_fwd_decode_fp32(const __grid_constant__ flashlab::device::DecodeFp32Arguments args) {
  __shared__ flashlab::device::DecodeFp32<Config>::Storage shared;
  flashlab::device::DecodeFp32<Config>(args, shared).run();
}
