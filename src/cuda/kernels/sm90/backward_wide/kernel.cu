// Attention backward for fp16 and bf16 on Hopper (sm_90a), head dims above 128, step 2 of 3: dK, dV
// and dS. A block has 64 keys; dQ = dS K is step 3 (grad_q.cu), delta and LSE step 1 (sm80's
// prepare.cu).
//
//     P = exp2(scale_log2 S + lse2)   dS = P * (dP - delta)   S = Q K^T, dP = dO V^T
//     dV += P^T dO    dK += dS^T Q (x scale at the end)    dS to the workspace
//
// 64 keys of dV and dK at head dim 256 take 128 registers of 256 threads. So each consumer has one
// of the two, and makes that one's left operand in registers, transposed as products give it:
//
//     scores      S(0)  P(0) | dV(0) S(1)              | P(1)  | dV(1) S(2)            | P(2) ...
//     gradients   dP(0)      . dS(0) | dK(0) dP(1)     | dS(1) | dK(1) dP(2)           | dS(2) ...
//
// P^T goes from one to the other through shared memory, thread to thread, and nothing comes back:
// the first runs ahead, its exponentials beside the other's products. dS^T leaves for memory while
// dK is computed. Tiles of queries (Q and LSE; dO and delta) of all heads of the group come through
// two rings.

#include "ptx/math.h"
#include "sm90/backward_wide/warpgroup.h"
#include "tile/score.h"
#include "tile/slab_copy.h"

namespace flashlab::device {

/// One thread: a tile of keys, then the tiles of queries in the order in which they are read: K, Q
/// and LSE, or V, dO and delta.
template <class Config, class TileFixed, class TileStreamed>
struct WideProducer {
  static constexpr int kStages = Config::kStages;
  using Stream = unsigned char[kStages][TileStreamed::kBytes];
  using Scalars = float[kStages][Config::kTileQ];
  const EncodedTensorMap &fixed, &streamed, &scalars;
  unsigned char* to_fixed;
  Stream& to_streamed;
  Scalars& to_scalars;
  unsigned fixed_full;  ///< a barrier
  Ring<kStages> ring;

  __device__ void run(const Shape& shape, const Work& work) {
    Cursor at(work, shape);
    if (at.left == 0) return;
    ptx::barrier_arrive_expect(fixed_full, TileFixed::kBytes);
    copy_tile<TileFixed>(ptx::shared_address(to_fixed), &fixed, work.key0, work.head_k, work.batch,
                         fixed_full, ptx::kEvictFirst);
#pragma unroll 1
    for (; at.left > 0; at.next(work)) {
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full(), TileStreamed::kBytes + 4 * Config::kTileQ);
      const int row = at.tile * Config::kTileQ, head = work.batch * shape.heads_q + at.head;
      copy_tile<TileStreamed>(ptx::shared_address(to_streamed[ring.stage]), &streamed, row, at.head,
                              work.batch, ring.full(), ptx::kEvictLast);
      ptx::copy_box_4(ptx::shared_address(to_scalars[ring.stage]), &scalars, row, head, 0, 0,
                      ring.full(), ptx::kEvictLast);
      ring.advance();
    }
  }
};

/// What both consumers know.
template <class Config>
struct WideConsumer {
  static constexpr int kTileQ = Config::kTileQ, kTileK = Config::kTileK;
  const Sm90WideArguments& args;
  WideStorage<Config>& shared;
  Work work;
  PairVisibility<Config> visibility;
  Ring<Config::kStages> ring_q, ring_d_o;
  Ring<kProbabilityStages> ring_p;

  __device__ WideConsumer(const Sm90WideArguments& args_, WideStorage<Config>& shared_,
                          const Work& work_)
      : args(args_),
        shared(shared_),
        work(work_),
        visibility(args.call.shape),
        ring_q(shared.ring_q),
        ring_d_o(shared.ring_d_o),
        ring_p(shared.ring_p) {}

  __device__ const Shape& shape() const { return args.call.shape; }
  /// Whether no pair of a tile of queries needs a look.
  __device__ bool sees_all(int query0) const {
    return visibility.sees_all(query0, kTileQ, work.key0, kTileK);
  }
};

/// S^T, P^T and dV.
template <class Config>
struct WideScores : WideConsumer<Config> {
  using Base = WideConsumer<Config>;
  using Base::args, Base::shared, Base::work, Base::ring_q, Base::ring_d_o, Base::ring_p;
  WideWarpgroup<Config, Config::kHeadDim, Config::kHeadDimV> warpgroup;

  using Base::Base;

  __device__ void start_scores() {
    ring_q.wait_full();
    warpgroup.start_pairs(ptx::shared_address(shared.k),
                          ptx::shared_address(shared.q[ring_q.stage]));
  }
  template <bool kSelect>
  __device__ void exponentials(const float* lse2, const PerQuery& rows, int query0) {
    const float unit = unit_of<Config>(args.call.score, this->shape());
    warpgroup.template make_operand<kSelect>(
        this->visibility, query0, work.key0, lse2, [&](int j, int i) {
          const float2 row = rows.pair(j);
          return ptx::exp2_fast(__fmaf_rn(warpgroup.pairs[4 * j + i], unit, i % 2 ? row.y : row.x));
        });
  }
  __device__ void send() {
    ring_p.wait_empty();
#pragma unroll
    for (int step = 0; step < WideTiles<Config>::kSteps; ++step) {
      const unsigned(&from)[4] = warpgroup.operand[step];
      shared.p[ring_p.stage][step][warpgroup.thread] =
          make_uint4(from[0], from[1], from[2], from[3]);
    }
    // Every thread arrives: racecheck does not see that one lane's arrival behind __syncwarp stands
    // for its warp's writes. It takes no longer (H200, 2026-11-25).
    ptx::barrier_arrive(ring_p.full());
    ring_p.advance();
  }

  /// A tile of queries, whose scores are under way. kLast: there is no next one.
  template <bool kLast>
  __device__ void step(const Cursor& at) {
    const int query0 = at.tile * Config::kTileQ;
    const float* lse2 = shared.lse2[ring_q.stage];
    const PerQuery rows(lse2, warpgroup.thread);
    const bool empty = warpgroup.has_empty_row(this->shape(), query0, lse2);
    ptx::wgmma_wait<0>();
    pin(warpgroup.pairs);
    if (!empty && this->sees_all(query0)) {
      exponentials<false>(lse2, rows, query0);
    } else {
      exponentials<true>(lse2, rows, query0);
    }
    send();
    ring_d_o.wait_full();
    unsigned char* const d_o = shared.d_o[ring_d_o.stage];
    if (empty) warpgroup.clear_empty_rows(d_o, lse2, kGradOCleared);
    ring_q.release();
    ring_q.advance();
    warpgroup.start_sum(ptx::shared_address(d_o));
    if constexpr (!kLast) start_scores();
    ptx::wgmma_wait<kLast ? 0 : 1>();
    warpgroup.pin_sum();
    ring_d_o.release();
    ring_d_o.advance();
  }

  __device__ void run() {
    using Writer =
        GradientWriter<Config::kGradV, Config::kHeadDimV, Config::kAlignGradV, Config::kAccumulate>;
    Cursor at(work, this->shape());
    if (at.left > 0) {
      shared.k_full.wait(0);
      start_scores();
#pragma unroll 1
      for (; at.left > 1; at.next(work)) step<false>(at);
      step<true>(at);
    }
    warpgroup.template store<Writer, Config::kGradV>(args.call.dv, this->shape(), work, 1.0f);
  }
};

/// dP^T, dS^T and dK.
template <class Config>
struct WideGradients : WideConsumer<Config> {
  using Base = WideConsumer<Config>;
  using Base::args, Base::shared, Base::work, Base::ring_q, Base::ring_d_o, Base::ring_p;
  using TileScores = typename WideTiles<Config>::TileScores;
  WideWarpgroup<Config, Config::kHeadDimV, Config::kHeadDim> warpgroup;

  using Base::Base;

  __device__ void start_grad_p() {
    ring_d_o.wait_full();
    warpgroup.start_pairs(ptx::shared_address(shared.v),
                          ptx::shared_address(shared.d_o[ring_d_o.stage]));
  }
  /// P^T of the tile, as it is packed.
  __device__ void receive(unsigned (&p)[WideTiles<Config>::kSteps][4]) {
    ring_p.wait_full();
#pragma unroll
    for (int step = 0; step < WideTiles<Config>::kSteps; ++step) {
      const uint4 four = shared.p[ring_p.stage][step][warpgroup.thread];
      p[step][0] = four.x, p[step][1] = four.y, p[step][2] = four.z, p[step][3] = four.w;
    }
    ring_p.release();
    ring_p.advance();
  }
  template <bool kSelect>
  __device__ void differentiate(const unsigned (&p)[WideTiles<Config>::kSteps][4],
                                const float* lse2, const PerQuery& rows, int query0) {
    warpgroup.template make_operand<kSelect>(
        this->visibility, query0, work.key0, lse2, [&](int j, int i) {
          const float2 row = rows.pair(j);
          const float probability = unpack<Config::kElement>(p[j / 2][j % 2 * 2 + i / 2], i % 2);
          return probability * (warpgroup.pairs[4 * j + i] - (i % 2 ? row.y : row.x));
        });
  }
  /// dS^T to its tile in the workspace, a warp's 16 rows through shared memory, so that whole lines
  /// are written.
  __device__ void spill(const Cursor& at) const {
    const unsigned row = warpgroup.thread / 32 * 16 + warpgroup.thread % 16;
    const unsigned tile = ptx::shared_address(shared.d_s);
    const unsigned own = tile + ((row * kSlabRowBytes + row % 8 * kChunkBytes) ^
                                 (warpgroup.thread % 32 / 16 * kChunkBytes));
    __syncwarp();  // the rows of the tile before have been read
#pragma unroll
    for (int step = 0; step < WideTiles<Config>::kSteps; ++step) {
      ptx::store_matrix_4(own ^ (2 * step * kChunkBytes), warpgroup.operand[step]);
    }
    __syncwarp();
    const int head = (work.batch * this->shape().heads_k + work.head_k - args.part.first_head) *
                         this->shape().group +
                     at.head - work.head_k * this->shape().group;
    auto* const to = static_cast<unsigned char*>(args.call.regions[kRegionScores]) +
                     Int64(score_tile(args.part, work.tiles_q, head,
                                      work.tile - args.part.first_tile, at.tile)) *
                         TileScores::kBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_row = 16 * warpgroup.warp() + 4 * i + warpgroup.lane() / 8;
      const int chunk = warpgroup.lane() % 8;
      *reinterpret_cast<uint4*>(to + of_row * kSlabRowBytes + chunk * kChunkBytes) =
          *reinterpret_cast<const uint4*>(shared.d_s + TileScores::offset(of_row, chunk));
    }
  }

  /// A tile of queries, whose dP is under way. kLast: there is no next one.
  template <bool kLast>
  __device__ void step(const Cursor& at) {
    const int query0 = at.tile * Config::kTileQ;
    ring_q.wait_full();
    const float* lse2 = shared.lse2[ring_q.stage];
    const PerQuery rows(shared.delta[ring_d_o.stage], warpgroup.thread);
    const bool empty = warpgroup.has_empty_row(this->shape(), query0, lse2);
    unsigned p[WideTiles<Config>::kSteps][4];
    receive(p);
    ptx::wgmma_wait<0>();
    pin(warpgroup.pairs);
    if (!empty && this->sees_all(query0)) {
      differentiate<false>(p, lse2, rows, query0);
    } else {
      differentiate<true>(p, lse2, rows, query0);
    }
    ring_d_o.release();
    ring_d_o.advance();
    unsigned char* const q = shared.q[ring_q.stage];
    if (empty) warpgroup.clear_empty_rows(q, lse2, kQCleared);
    warpgroup.start_sum(ptx::shared_address(q));
    if constexpr (!kLast) start_grad_p();
    spill(at);
    ptx::wgmma_wait<kLast ? 0 : 1>();
    warpgroup.pin_sum();
    ring_q.release();
    ring_q.advance();
  }

  __device__ void run() {
    using Writer =
        GradientWriter<Config::kGradK, Config::kHeadDim, Config::kAlignGradK, Config::kAccumulate>;
    Cursor at(work, this->shape());
    if (at.left > 0) {
      shared.v_full.wait(0);
      start_grad_p();
#pragma unroll 1
      for (; at.left > 1; at.next(work)) step<false>(at);
      step<true>(at);
    }
    warpgroup.template store<Writer, Config::kGradK>(args.call.dk, this->shape(), work,
                                                     this->shape().scale);
  }
};

template <class Config>
__device__ void wide_producers(const Sm90WideArguments& args, WideStorage<Config>& shared,
                               const Work& work) {
  using Tiles = WideTiles<Config>;
  if (threadIdx.x == 0) {
    WideProducer<Config, typename Tiles::TileKey, typename Tiles::TileQuery>{
        args.k,
        args.q,
        args.lse2,
        shared.k,
        shared.q,
        shared.lse2,
        shared.k_full.address(),
        Ring<Config::kStages>(shared.ring_q)}
        .run(args.call.shape, work);
  } else if (threadIdx.x == 32) {
    WideProducer<Config, typename Tiles::TileValue, typename Tiles::TileGradO>{
        args.v,
        args.d_o,
        args.delta,
        shared.v,
        shared.d_o,
        shared.delta,
        shared.v_full.address(),
        Ring<Config::kStages>(shared.ring_d_o)}
        .run(args.call.shape, work);
  }
}

template <class Config>
__device__ void sm90_backward_wide(const Sm90WideArguments& args) {
  using Tiles = WideTiles<Config>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WideStorage<Config>*>(memory);
  static_assert(sizeof(WideStorage<Config>) == Config::kSharedBytes &&
                Config::kSharedBytes ==
                    shared_bytes(WideTiling{Tiles::kDim, Tiles::kDimV, Config::kStages,
                                            Config::kGradQStages}));

  if (threadIdx.x == 0) {
    ptx::prefetch_tensor_map(&args.k);
    ptx::prefetch_tensor_map(&args.v);
    ptx::prefetch_tensor_map(&args.q);
    ptx::prefetch_tensor_map(&args.d_o);
    shared.init_barriers();
  }
  __syncthreads();
  const Work work = work_of<Config>(args.call.shape, args.part, static_cast<int>(blockIdx.x));
  const int warpgroup = __shfl_sync(ptx::kFullMask, threadIdx.x / kWarpgroupThreads, 0);
  if (warpgroup == 0) {
    ptx::give_registers<Tiles::kProducerRegisters>();
    wide_producers<Config>(args, shared, work);
  } else {
    ptx::take_registers<Tiles::kConsumerRegisters>();
    if (warpgroup == 1) {
      WideScores<Config>(args, shared, work).run();
    } else {
      WideGradients<Config>(args, shared, work).run();
    }
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(384, 1)
    flash_bwd_sm90_wide(const __grid_constant__ flashlab::device::Sm90WideArguments args) {
  flashlab::device::sm90_backward_wide<Config>(args);
}
