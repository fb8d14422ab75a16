#pragma once

// One kernel per primitive of src/cuda/kernels/ptx that only sm_90 has. Threads of a product hold
// what ptx/wgmma.h says; tiles lie in shared memory as tile/slab.h says.

#include "cuda_primitives.h"

namespace flashlab::testing {

inline constexpr int kHopper = 90;

inline Primitive hopper_kernel(const std::string& name, const std::string& parameters,
                               const std::string& body) {
  return primitive(name, "",
                   {"ptx/barrier.h", "ptx/bulk_copy.h", "ptx/cluster.h", "ptx/memory.h",
                    "ptx/tensor_copy.h", "ptx/transaction.h", "ptx/warpgroup.h", "ptx/wgmma.h",
                    "ptx/wgmma_rows.h", "tile/slab_copy.h"},
                   parameters, body, kHopper);
}

/// A [64, 32] and B [columns, 32], both by rows; D [64, columns] in the threads' order.
inline Primitive shared_product_kernel(const std::string& element, int columns) {
  return hopper_kernel(fmt::format("wgmma_shared_{}_{}", element, columns),
                       "const uint4* in, float* out",
                       fmt::format(R"(
  using TileA = SlabTile<64, 64>;
  using TileB = SlabTile<{0}, 64>;
  __shared__ __align__(1024) unsigned char memory[TileA::kBytes + TileB::kBytes];
  for (int i = t; i < 64 * 4; i += 128) {{
    *reinterpret_cast<uint4*>(memory + TileA::offset(i / 4, i % 4)) = in[i];
  }}
  for (int i = t; i < {0} * 4; i += 128) {{
    *reinterpret_cast<uint4*>(memory + TileA::kBytes + TileB::offset(i / 4, i % 4)) = in[256 + i];
  }}
  ptx::async_proxy_fence();
  __syncthreads();
  const unsigned long long a = slab_descriptor(ptx::shared_address(memory));
  const unsigned long long b = slab_descriptor(ptx::shared_address(memory + TileA::kBytes));
  float d[{0} / 2];
  for (float& value : d) value = 1000;
  for (float& value : d) ptx::pin(value);
  ptx::wgmma_fence();
  ptx::wgmma_shared_{1}(d, a, b, false);
  constexpr int kStep = TileA::step_offset(1) >> 4;
  ptx::wgmma_shared_{1}(d, a + kStep, b + kStep, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (float& value : d) ptx::pin(value);
  for (int i = 0; i < {0} / 2; ++i) out[{0} / 2 * t + i] = d[i];
)",
                                   columns, element));
}

/// A [32, 64] and B [32, columns], both by rows; D [64, columns] = A^T B in the threads' order.
inline Primitive shared_rows_product_kernel(const std::string& element, int columns) {
  return hopper_kernel(fmt::format("wgmma_shared_rows_{}_{}", element, columns),
                       "const uint4* in, float* out",
                       fmt::format(R"(
  using TileA = SlabTile<32, 64>;
  using TileB = SlabTile<32, {0}>;
  __shared__ __align__(1024) unsigned char memory[TileA::kBytes + TileB::kBytes];
  for (int i = t; i < 32 * 8; i += 128) {{
    *reinterpret_cast<uint4*>(memory + TileA::offset(i / 8, i % 8)) = in[i];
  }}
  constexpr int kChunks = {0} / 8;
  for (int i = t; i < 32 * kChunks; i += 128) {{
    *reinterpret_cast<uint4*>(memory + TileA::kBytes + TileB::offset(i / kChunks, i % kChunks)) =
        in[256 + i];
  }}
  ptx::async_proxy_fence();
  __syncthreads();
  const unsigned long long a = slab_descriptor(ptx::shared_address(memory));
  const unsigned long long b =
      slabs_descriptor(ptx::shared_address(memory + TileA::kBytes), TileB::kSlabBytes);
  float d[{0} / 2];
  for (float& value : d) value = 1000;
  for (float& value : d) ptx::pin(value);
  ptx::wgmma_fence();
  ptx::wgmma_shared_rows_{1}(d, a, b, false);
  constexpr int kStep = TileA::step_offset_rows(1, 0) >> 4;
  ptx::wgmma_shared_rows_{1}(d, a + kStep, b + kStep, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (float& value : d) ptx::pin(value);
  for (int i = 0; i < {0} / 2; ++i) out[{0} / 2 * t + i] = d[i];
)",
                                   columns, element));
}

/// A [64, 16] by rows, B [16, 64] by rows, of which `columns` are multiplied; D starts at 0.5.
inline Primitive register_product_kernel(const std::string& element, int columns) {
  return hopper_kernel(fmt::format("wgmma_registers_{}_{}", element, columns),
                       "const unsigned* in, float* out",
                       fmt::format(R"(
  using TileB = SlabTile<16, 64>;
  __shared__ __align__(1024) unsigned char memory[TileB::kBytes];
  const uint4* rows = reinterpret_cast<const uint4*>(in + 64 * 8);
  *reinterpret_cast<uint4*>(memory + TileB::offset(t / 8, t % 8)) = rows[t];
  ptx::async_proxy_fence();
  __syncthreads();
  unsigned a[4];
  const int row = t / 32 * 16 + t % 32 / 4;
  for (int i = 0; i < 4; ++i) a[i] = in[(row + i % 2 * 8) * 8 + t % 4 + i / 2 * 4];
  float d[{0} / 2];
  for (float& value : d) value = 0.5f;
  for (float& value : d) ptx::pin(value);
  for (unsigned& value : a) ptx::pin(value);
  ptx::wgmma_fence();
  ptx::wgmma_registers_{1}(d, a, slab_descriptor(ptx::shared_address(memory)));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (float& value : d) ptx::pin(value);
  for (int i = 0; i < {0} / 2; ++i) out[{0} / 2 * t + i] = d[i];
)",
                                   columns, element));
}

/// A tensor map, then nothing; what `copy` brings comes out row by row.
inline Primitive box_kernel(const char* name, const std::string& copy) {
  return hopper_kernel(name, "const unsigned char* map, uint4* out", R"(
  using Tile = SlabTile<64, 64>;
  __shared__ __align__(1024) unsigned char memory[Tile::kBytes];
  __shared__ unsigned long long barrier;
  const unsigned at = ptx::shared_address(&barrier);
  if (t == 0) {
    ptx::prefetch_tensor_map(map);
    ptx::barrier_init(at, 1);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (t == 0) {
    ptx::barrier_arrive_expect(at, Tile::kBytes);
    )" + copy + R"(
  }
  for (int i = 0; i < 1 << 18 && !ptx::barrier_passed_soon(at, 0); ++i) {}
  for (int i = t; i < 64 * 8; i += 32) {
    out[i] = *reinterpret_cast<const uint4*>(memory + Tile::offset(i / 8, i % 8));
  }
)");
}

/// A cluster of two blocks of a warp: each copies 32 numbers of its own, and sends the other lane
/// by lane a number and, in the second half, one that counts from the end.
inline Primitive cluster_kernel() {
  return hopper_kernel("cluster_exchange", "const float* in, float* out", R"(
  __shared__ __align__(128) float own[32];
  __shared__ __align__(8) float2 got[32];
  __shared__ unsigned long long barriers[2];
  const unsigned copied = ptx::shared_address(&barriers[0]);
  const unsigned sent = ptx::shared_address(&barriers[1]);
  const int rank = ptx::cluster_rank();
  if (t == 0) {
    ptx::barrier_init(copied, 1);
    ptx::barrier_init(sent, 1);
    ptx::barrier_init_fence();
    ptx::barrier_arrive_expect(copied, sizeof own);
    ptx::copy_bytes(ptx::shared_address(own), in + 32 * rank, sizeof own, copied, ptx::kEvictFirst);
    ptx::barrier_arrive_expect(sent, sizeof got);
  }
  ptx::meet_cluster();
  for (int i = 0; i < 1 << 18 && !ptx::barrier_passed_soon(copied, 0); ++i) {}
  ptx::send_in_cluster(ptx::shared_address(&got[t]), 1 - rank, own[t], own[31 - t], sent);
  for (int i = 0; i < 1 << 18 && !ptx::barrier_passed_soon(sent, 0); ++i) {}
  out[64 * rank + t] = got[t].x;
  out[64 * rank + 32 + t] = got[t].y;
  ptx::meet_cluster();
)");
}

/// The second warpgroup, with registers that the first gave it, reverses what that hands over.
inline Primitive warpgroup_kernel() {
  Primitive kernel = hopper_kernel("warpgroup_hand_over", "const unsigned* in, unsigned* out", R"(
  __shared__ unsigned buffer[128];
  if (t < 128) {
    ptx::give_registers<40>();
    for (int round = 0; round < 16; ++round) {
      buffer[t] = in[128 * round + t];
      ptx::meet_later(1, 256);
      ptx::meet(2, 256);
    }
  } else {
    ptx::take_registers<216>();
    for (int round = 0; round < 16; ++round) {
      ptx::meet(1, 256);
      out[128 * round + t - 128] = buffer[255 - t];
      ptx::meet_later(2, 256);
    }
  }
)");
  // Registers change owner only in a kernel whose block is known.
  const std::string plain = "__global__ void ";
  kernel.text.replace(kernel.text.find(plain), plain.size(),
                      "__global__ void __launch_bounds__(256, 1) ");
  return kernel;
}

inline void add_hopper_kernels(Primitives& list) {
  for (const char* element : {"bf16", "fp16"}) {
    for (const int columns : {64, 128}) list.push_back(shared_product_kernel(element, columns));
    for (const int columns : {64, 192, 256}) {
      list.push_back(shared_rows_product_kernel(element, columns));
    }
    for (const int columns : {16, 32, 48, 64}) {
      list.push_back(register_product_kernel(element, columns));
    }
  }
  list.push_back(box_kernel(
      "copy_box_4",
      "ptx::copy_box_4(ptx::shared_address(memory), map, 0, 40, 1, 1, at, ptx::kEvictLast);"));
  list.push_back(box_kernel("copy_box_5", R"(
    const BoundedRows rows(17, 70, 40);
    copy_bounded_tile<Tile>(ptx::shared_address(memory), map, rows.row, 1, rows.end, at,
                            ptx::kEvictLast);)"));
  list.push_back(cluster_kernel());
  list.push_back(warpgroup_kernel());
}

}  // namespace flashlab::testing
