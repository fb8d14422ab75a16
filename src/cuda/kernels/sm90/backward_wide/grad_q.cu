// Attention backward on Hopper (sm_90a), head dims above 128, step 3 of 3: dQ = scale dS K, from
// the tiles of dS^T that step 2 (kernel.cu) left in the workspace. A block has 128 queries of a
// head, a consumer 64 of them with all features; tiles of keys come through a ring:
//
//     producer      dS K (0) | dS K (1) | ...
//     consumers     dQ += dS K, two tiles of keys under way
//
// dS^T is read as its transposed left operand. Nothing is added in memory: the order of additions
// is fixed. Where a part of a call has not all tiles of keys, dQ waits in fp32 for the next part.

#include "ptx/special.h"
#include "ptx/warpgroup.h"
#include "sm90/backward_wide/block.h"
#include "tile/mutation.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

/// Sizes and shared memory.
template <class Config>
struct alignas(kSlabAlignment) WideGradQStorage {
  using Tiles = WideTiles<Config>;
  using TileScores = typename Tiles::TileScores;
  static constexpr int kStages = Config::kGradQStages;
  static constexpr int kStageBytes = 2 * TileScores::kBytes + Tiles::TileKey::kBytes;
  unsigned char d_s[kStages][2][TileScores::kBytes], k[kStages][Tiles::TileKey::kBytes];
  RingBarriers<kStages> ring;

  /// By one thread, before the block's first barrier.
  __device__ void init_barriers() {
    ring.init(1, 2 * kWarpgroupThreads / 32);
    ptx::barrier_init_fence();
  }
};

/// What a block works on: a pair of tiles of queries of a head.
template <class Config>
struct WidePair {
  int head;  ///< in the part
  int batch, head_q, head_k, tile, tiles_q;
  KeyRange keys;  ///< tiles of keys that one of both sees, of the part

  __device__ WidePair(const Shape& shape, const WidePart& part, unsigned index) {
    tiles_q = (shape.seqlen_q + Config::kTileQ - 1) / Config::kTileQ;
    const int pairs = (tiles_q + 1) / 2;
    const HeadTile at = in_sections(static_cast<int>(index), part.heads * shape.group, pairs,
                                    part.section * shape.group);
    // Where the mask is causal the last queries see most keys: they go first.
    tile = 2 * (pairs - 1 - at.tile);
    head = at.head;
    const int of_keys = part.first_head + head / shape.group;
    batch = of_keys / shape.heads_k, head_k = of_keys % shape.heads_k;
    head_q = head_k * shape.group + head % shape.group;
    keys = seen_by(shape, part, tile);
    if (tile + 1 < tiles_q) keys.end = larger(keys.end, seen_by(shape, part, tile + 1).end);
  }
  /// Tiles of keys of the part.
  static __device__ KeyRange seen_by(const Shape& shape, const WidePart& part, int tile) {
    const KeyRange all = tiles_seen_by<Config>(shape, tile);
    return {larger(all.begin, part.first_tile), smaller(all.end, part.first_tile + part.tiles)};
  }
};

/// One thread.
template <class Config>
__device__ inline void produce_scores(const Sm90WideArguments& args,
                                      WideGradQStorage<Config>& shared,
                                      const WidePair<Config>& pair) {
  using Storage = WideGradQStorage<Config>;
  using TileKey = typename Storage::Tiles::TileKey;
  Ring<Storage::kStages> ring(shared.ring);
#pragma unroll 1
  for (int tile_k = pair.keys.begin; tile_k < pair.keys.end; ++tile_k) {
    ring.wait_empty();
    ptx::barrier_arrive_expect(ring.full(), Storage::kStageBytes);
    const int scores =
        score_tile(args.part, pair.tiles_q, pair.head, tile_k - args.part.first_tile, pair.tile);
    // Both tiles, even if one is not there: who has no use for it skips it.
    ptx::copy_box_4(ptx::shared_address(shared.d_s[ring.stage]), &args.d_s, 0,
                    scores * Config::kTileK, 0, 0, ring.full(), ptx::kEvictFirst);
    copy_tile<TileKey>(ptx::shared_address(shared.k[ring.stage]), &args.k, tile_k * Config::kTileK,
                       pair.head_k, pair.batch, ring.full(), ptx::kEvictLast);
    ring.advance();
  }
}

/// One consumer warpgroup: 64 queries of dQ.
template <class Config>
struct WideGradQConsumer {
  using Storage = WideGradQStorage<Config>;
  using Tiles = WideTiles<Config>;
  using TileScores = typename Tiles::TileScores;
  using TileKey = typename Tiles::TileKey;
  static constexpr int kBlocks = Tiles::kDim / 8;  ///< of 8 features
  const Sm90WideArguments& args;
  Storage& shared;
  WidePair<Config> pair;
  int consumer;
  Ring<Storage::kStages> ring;
  float sum[4 * kBlocks];

  __device__ WideGradQConsumer(const Sm90WideArguments& args_, Storage& shared_,
                               const WidePair<Config>& pair_, int consumer_)
      : args(args_), shared(shared_), pair(pair_), consumer(consumer_), ring(shared.ring) {}

  __device__ int thread() const { return static_cast<int>(threadIdx.x) % kWarpgroupThreads; }
  __device__ int tile() const { return pair.tile + consumer; }
  /// Of dQ between two parts, as threads hold it.
  __device__ float4* partial() const {
    const int pairs = (pair.tiles_q + 1) / 2;
    const Int64 index = Int64(pair.head * pairs + pair.tile / 2) * 2 + consumer;
    return static_cast<float4*>(args.call.regions[kRegionPartialQ]) +
           index * (kBlocks * kWarpgroupThreads) + thread();
  }

  __device__ void start() {
    pin(sum);
    ptx::wgmma_fence();
    const unsigned long long a =
        slab_descriptor(ptx::shared_address(shared.d_s[ring.stage][consumer]));
    const unsigned long long b =
        slabs_descriptor(ptx::shared_address(shared.k[ring.stage]), TileKey::kSlabBytes);
#pragma unroll
    for (int step = 0; step < Tiles::kSteps; ++step) {
      multiply_shared_rows<Config::kElement>(sum, a + (TileScores::step_offset_rows(step, 0) >> 4),
                                             b + (TileKey::step_offset_rows(step, 0) >> 4), true);
    }
    ptx::wgmma_commit();
  }
  /// A tile of keys that only the other consumer's queries see.
  __device__ void skip() {
    ring.wait_full();
    ring.release();
    ring.advance();
  }
  __device__ void walk(const KeyRange& own) {
    int tile_k = pair.keys.begin;
#pragma unroll 1
    for (; tile_k < own.begin; ++tile_k) skip();
    ring.wait_full();
    start();
    int stage = ring.stage;
    ring.advance();
#pragma unroll 1
    for (++tile_k; tile_k < own.end; ++tile_k) {
      ring.wait_full();
      start();
      ptx::wgmma_wait<1>();
      pin(sum);
      ring.release(stage);
      stage = ring.stage;
      ring.advance();
    }
    ptx::wgmma_wait<0>();
    pin(sum);
    ring.release(stage);
#pragma unroll 1
    for (; tile_k < pair.keys.end; ++tile_k) skip();
  }

  /// Rows of dQ. An empty row's is 0 whatever its K holds.
  __device__ void store() {
    using Writer =
        GradientWriter<Config::kGradQ, Config::kHeadDim, Config::kAlignGradQ, Config::kAccumulate>;
    const Shape& shape = args.call.shape;
    const int row0 = thread() / 32 * 16, lane = thread() % 32;
    const auto* lse2 =
        static_cast<const float*>(args.call.regions[kRegionLse]) +
        (Int64(pair.batch * shape.heads_q + pair.head_q) * pair.tiles_q + tile()) * Config::kTileQ;
    const bool empty[2] = {lse2[row0 + lane / 4] == kMinusInfinity,
                           lse2[row0 + lane / 4 + 8] == kMinusInfinity};
#pragma unroll
    for (int i = 0; i < 4 * kBlocks; ++i) sum[i] = empty[i / 2 % 2] ? 0.0f : sum[i];
    Writer::write(
        reinterpret_cast<const float(&)[kBlocks][4]>(sum),
        mutation::grad_q_scale<Config>(shape.scale), 0, lane, [&](int row) -> unsigned char* {
          const int position = tile() * Config::kTileQ + row0 + row;
          if (position >= shape.seqlen_q) return nullptr;
          return row_address<Config::kGradQ>(args.call.dq, pair.batch, pair.head_q, position);
        });
  }

  __device__ void run() {
    const KeyRange own = tile() < pair.tiles_q
                             ? WidePair<Config>::seen_by(args.call.shape, args.part, tile())
                             : KeyRange{0, 0};
    if (own.begin >= own.end) {
#pragma unroll 1
      for (int left = pair.keys.end - pair.keys.begin; left > 0; --left) skip();
    }
    if (tile() >= pair.tiles_q) return;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      float4 four = make_float4(0, 0, 0, 0);
      if (args.part.adds) four = partial()[i * kWarpgroupThreads];
      sum[4 * i] = four.x, sum[4 * i + 1] = four.y, sum[4 * i + 2] = four.z,
              sum[4 * i + 3] = four.w;
    }
    if (own.begin < own.end) walk(own);
    if (args.part.ends) return store();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      partial()[i * kWarpgroupThreads] =
          make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
    }
  }
};

template <class Config>
__device__ void sm90_backward_wide_grad_q(const Sm90WideArguments& args) {
  using Tiles = WideTiles<Config>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WideGradQStorage<Config>*>(memory);
  static_assert(sizeof(WideGradQStorage<Config>) == Config::kGradQSharedBytes &&
                Config::kGradQSharedBytes ==
                    grad_q_shared_bytes(WideTiling{Tiles::kDim, Tiles::kDimV, Config::kStages,
                                                   Config::kGradQStages}));

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&args.k);
    ptx::prefetch_tensor_map(&args.d_s);
    shared.init_barriers();
  }
  __syncthreads();
  const WidePair<Config> pair(args.call.shape, args.part, blockIdx.x);
  const int warpgroup = __shfl_sync(ptx::kFullMask, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    ptx::give_registers<Tiles::kProducerRegisters>();
    if (threadIdx.x == 0) produce_scores<Config>(args, shared, pair);
  } else {
    ptx::take_registers<Tiles::kConsumerRegisters>();
    WideGradQConsumer<Config>(args, shared, pair, warpgroup - 1).run();
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(384, 1)
    flash_bwd_sm90_wide_grad_q(const __grid_constant__ flashlab::device::Sm90WideArguments args) {
  flashlab::device::sm90_backward_wide_grad_q<Config>(args);
}
