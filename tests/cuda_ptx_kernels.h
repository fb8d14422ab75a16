#pragma once

// One kernel per primitive of src/cuda/kernels/ptx. Waits are bounded, so that a fault gives a
// wrong result and not a GPU that hangs.

#include <limits>

#include "cuda_hopper_kernels.h"
#include "cuda_primitives.h"

namespace flashlab::testing {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr unsigned kPoison = 0xdeadbeef;

inline Primitive ptx_kernel(const std::string& name, const std::string& parameters,
                            const std::string& body, int minimum = 80) {
  static const std::vector<std::string> headers{
      "ptx/atomic.h", "ptx/barrier.h", "ptx/convert.h", "ptx/dependency.h", "ptx/math.h",
      "ptx/memory.h", "ptx/mma.h",     "ptx/special.h", "ptx/timer.h",      "ptx/warp.h"};
  return primitive(name, "", headers, parameters, body, minimum);
}

/// One call per thread of the grid: i is its number.
inline Primitive ptx_elementwise(const std::string& name, const std::string& parameters,
                                 const std::string& statement, int minimum = 80) {
  return ptx_kernel(name, parameters,
                    "  const unsigned i = blockIdx.x * blockDim.x + t;\n  " + statement + "\n",
                    minimum);
}

/// 32 rows of 16 bytes, 48 bytes apart; lane t names row (5 t + 3) % 32.
inline Primitive matrix_kernel(const std::string& name, int registers) {
  return ptx_kernel(name, "const unsigned* in, unsigned* out",
                    fmt::format(R"(
  __shared__ __align__(16) unsigned tile[32 * 12];
  for (int i = 0; i < 4; ++i) tile[12 * t + i] = in[4 * t + i];
  __syncthreads();
  unsigned r[{0}];
  ptx::{1}(r, ptx::shared_address(tile + 12 * ((5 * t + 3) % 32)));
  for (int i = 0; i < {0}; ++i) out[{0} * t + i] = r[i];
)",
                                registers, name));
}

/// Per lane 10 words: A's registers, from word 4 on B's, from word 6 on D's before.
inline Primitive mma_kernel(const std::string& name, int words_a, const std::string& b) {
  return ptx_kernel(name, "const unsigned* in, float* out",
                    fmt::format(R"(
  const unsigned* mine = in + 10 * t;
  unsigned a[{}];
  for (int i = 0; i < sizeof(a) / 4; ++i) a[i] = mine[i];
  const unsigned b[2] = {{mine[4], mine[5]}};
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(mine[6 + i]);
  ptx::{}(d, a, {});
  for (int i = 0; i < 4; ++i) out[4 * t + i] = d[i];
)",
                                words_a, name, b));
}

inline void add_memory_kernels(Primitives& list) {
  // Piece t has t valid bytes; the last has the default, all.
  list.push_back(ptx_kernel("copy_async_16", "const unsigned char* in, unsigned char* out", R"(
  __shared__ __align__(16) unsigned char tile[18 * 16];
  for (int i = t; i < 18 * 16; i += 32) tile[i] = 0xee;
  __syncthreads();
  if (t < 17) ptx::copy_async_16(ptx::shared_address(tile + 16 * t), in + 16 * t, t);
  if (t == 17) ptx::copy_async_16(ptx::shared_address(tile + 16 * t), in + 16 * t);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
  __syncthreads();
  for (int i = t; i < 18 * 16; i += 32) out[i] = tile[i];
)"));
  // A line that was fetched before reads as any other.
  for (const int bytes : {4, 8}) {
    list.push_back(ptx_kernel(fmt::format("copy_async_{}", bytes),
                              "const unsigned char* in, unsigned char* out",
                              fmt::format(R"(
  constexpr int kBytes = {};
  __shared__ __align__(16) unsigned char tile[(kBytes + 1) * kBytes];
  for (int i = t; i < sizeof(tile); i += 32) tile[i] = 0xee;
  __syncthreads();
  if (t <= kBytes) {{
    ptx::fetch_line(in + kBytes * t);
    const unsigned to = ptx::shared_address(tile + kBytes * t);
    ptx::copy_async_small<kBytes>(to, in + kBytes * t, t);
  }}
  ptx::copy_async_wait_all();
  __syncthreads();
  for (int i = t; i < sizeof(tile); i += 32) out[i] = tile[i];
)",
                                          bytes)));
  }
  // Each group is read by the thread that copied it, as soon as it should have landed.
  list.push_back(ptx_kernel("copy_async_groups", "const uint4* in, uint4* out", R"(
  __shared__ uint4 tile[3][32];
  for (int group = 0; group < 3; ++group) {
    ptx::copy_async_16(ptx::shared_address(&tile[group][t]), in + 32 * group + t);
    ptx::copy_async_commit();
  }
  ptx::copy_async_wait<2>();
  ptx::forget_memory();
  out[t] = tile[0][t];
  ptx::copy_async_wait<1>();
  out[32 + t] = tile[1][t];
  ptx::copy_async_wait<0>();
  out[64 + t] = tile[2][t];
)"));
  list.push_back(ptx_kernel("load_half_if", "const unsigned short* in, unsigned* out", R"(
  const bool wanted = t % 3 != 0;
  out[t] = ptx::load_half_if(wanted, wanted ? in + t : nullptr);
)"));
  list.push_back(matrix_kernel("load_matrix_4", 4));
  list.push_back(matrix_kernel("load_matrix_4_transposed", 4));
  list.push_back(matrix_kernel("load_matrix_2", 2));
  list.push_back(matrix_kernel("load_matrix_2_transposed", 2));
  list.push_back(ptx_kernel("store_matrix_4", "const unsigned* in, unsigned* out", R"(
  __shared__ __align__(16) unsigned tile[32 * 12];
  const unsigned r[4] = {in[4 * t], in[4 * t + 1], in[4 * t + 2], in[4 * t + 3]};
  ptx::store_matrix_4(ptx::shared_address(tile + 12 * ((5 * t + 3) % 32)), r);
  __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * t + i] = tile[12 * t + i];
)",
                            90));
}

inline void add_synchronisation_kernels(Primitives& list) {
  list.push_back(ptx_elementwise("add_global", "const float* in, float* out",
                                 "ptx::add_global(out + i % 7, in[i]);"));
  list.push_back(ptx_elementwise("add_global_2", "const float* in, float* out",
                                 "ptx::add_global_2(out + i % 7 * 2, in[2 * i], in[2 * i + 1]);",
                                 90));
  list.push_back(ptx_elementwise("add_global_4", "const float* in, float* out",
                                 "const float* x = in + 4 * i;\n"
                                 "  ptx::add_global_4(out + i % 7 * 4, x[0], x[1], x[2], x[3]);",
                                 90));
  // Two blocks: the first puts 32 words into a box and says so, the second takes them out and says
  // so, 16 times over the same box.
  list.push_back(ptx_kernel("release_acquire", "const unsigned* in, unsigned* out", R"(
  unsigned *ready = out, *taken = out + 1, *box = out + 32, *kept = out + 64;
  const auto wait_for = [](const unsigned* flag, unsigned value) {
    for (int i = 0; i < 1 << 18 && ptx::load_acquire(flag) != value; ++i) {}
    __syncwarp();
  };
  for (unsigned round = 0; round < 16; ++round) {
    if (blockIdx.x == 0) {
      box[t] = in[32 * round + t];
      __syncwarp();
      if (t == 0) ptx::store_release(ready, round + 1);
      wait_for(taken, round + 1);
    } else {
      wait_for(ready, round + 1);
      kept[32 * round + t] = box[t];
      __syncwarp();
      if (t == 0) ptx::add_release(taken, 1);
    }
  }
)"));
  // The second of two blocks to count takes what the first wrote.
  list.push_back(ptx_kernel("add_acquire_release", "const unsigned* in, unsigned* out", R"(
  auto* count = reinterpret_cast<unsigned long long*>(out);
  out[32 + 32 * blockIdx.x + t] = in[32 * blockIdx.x + t];
  __syncwarp();
  const unsigned long long before = t == 0 ? ptx::add_acquire_release(count, 1) : 0;
  if (__shfl_sync(ptx::kFullMask, static_cast<unsigned>(before), 0) != 1) return;
  out[96 + t] = out[32 + t];
  out[128 + t] = out[64 + t];
)"));
  // A line is written, given up and written again.
  list.push_back(ptx_kernel("discard_line", "const unsigned* in, unsigned* out", R"(
  out[t] = ~in[t];
  __threadfence();
  __syncwarp();
  if (t == 0) ptx::discard_line(out);
  __threadfence();
  __syncwarp();
  out[t] = in[t];
)"));
  // What a barrier for two arrivals says of both parities, before and after each arrival.
  list.push_back(ptx_kernel("barrier_phases", "const unsigned*, unsigned* out", R"(
  __shared__ unsigned long long barrier;
  const unsigned at = ptx::shared_address(&barrier);
  if (t != 0) return;
  ptx::barrier_init(at, 2);
  for (int arrivals = 0; arrivals < 7; ++arrivals) {
    out[2 * arrivals] = ptx::barrier_passed(at, 0);
    out[2 * arrivals + 1] = ptx::barrier_passed(at, 1);
    ptx::barrier_arrive(at);
  }
)"));
  // Warp 0 fills a buffer that warp 1 empties, 16 times.
  list.push_back(ptx_kernel("barrier_hand_over", "const unsigned* in, unsigned* out", R"(
  __shared__ unsigned long long barriers[2];
  __shared__ unsigned buffer[32];
  const unsigned full = ptx::shared_address(&barriers[0]);
  const unsigned empty = ptx::shared_address(&barriers[1]);
  const auto wait_for = [](unsigned barrier, unsigned parity) {
    for (int i = 0; i < 1 << 18 && !ptx::barrier_passed(barrier, parity); ++i) {}
  };
  if (t == 0) {
    ptx::barrier_init(full, 32);
    ptx::barrier_init(empty, 32);
  }
  __syncthreads();
  const int lane = t % 32;
  for (unsigned round = 0; round < 16; ++round) {
    if (t < 32) {
      if (round > 0) wait_for(empty, (round - 1) % 2);
      buffer[lane] = in[32 * round + lane];
      ptx::barrier_arrive(full);
    } else {
      wait_for(full, round % 2);
      out[32 * round + lane] = buffer[31 - lane];
      ptx::barrier_arrive(empty);
    }
  }
)"));
  // Warp 0 copies in the background; warp 1 reads once the copies have arrived.
  list.push_back(ptx_kernel("barrier_arrive_after_copies", "const uint4* in, uint4* out", R"(
  __shared__ unsigned long long barrier;
  __shared__ uint4 tile[4][32];
  const unsigned at = ptx::shared_address(&barrier);
  if (t == 0) ptx::barrier_init(at, 32);
  __syncthreads();
  const int lane = t % 32;
  if (t < 32) {
    for (int i = 0; i < 4; ++i) {
      ptx::copy_async_16(ptx::shared_address(&tile[i][lane]), in + 32 * i + lane);
    }
    ptx::barrier_arrive_after_copies(at);
    ptx::copy_async_wait_all();
  } else {
    for (int i = 0; i < 1 << 18 && !ptx::barrier_passed(at, 0); ++i) {}
    for (int i = 0; i < 4; ++i) out[32 * i + lane] = tile[i][31 - lane];
  }
)"));
}

inline const Primitives& ptx_primitives() {
  static const Primitives kList = [] {
    Primitives list{
        ptx_kernel("shuffle_xor", "const float* in, float* out",
                   "  for (int lanes = 0; lanes < 32; ++lanes) {\n"
                   "    out[32 * lanes + t] = ptx::shuffle_xor(in[t], lanes);\n  }\n"),
        ptx_kernel("shuffle", "const float* in, float* out",
                   "  for (int lane = 0; lane < 32; ++lane) {\n"
                   "    out[32 * lane + t] = ptx::shuffle(in[t], lane);\n  }\n"
                   "  out[32 * 32 + t] = ptx::shuffle(in[t], (7 * t + 3) % 32);\n"),
        ptx_elementwise("thread_index", "const int*, int* out", "out[i] = ptx::thread_index();"),
        ptx_elementwise("pack_bf16", "const float* in, unsigned* out",
                        "out[i] = ptx::pack_bf16(in[2 * i], in[2 * i + 1]);"),
        ptx_elementwise("pack_fp16", "const float* in, unsigned* out",
                        "out[i] = ptx::pack_fp16(in[2 * i], in[2 * i + 1]);"),
        ptx_elementwise("fp16_bits", "const float* in, unsigned short* out",
                        "out[i] = ptx::fp16_bits(in[i]);"),
        ptx_elementwise("bf16_bits", "const float* in, unsigned short* out",
                        "out[i] = ptx::bf16_bits(in[i]);"),
        ptx_elementwise("float_of_fp16", "const unsigned short* in, float* out",
                        "out[i] = ptx::float_of_fp16(in[i]);"),
        ptx_elementwise("exp2_fast", "const float* in, float* out",
                        "out[i] = ptx::exp2_fast(in[i]);"),
        ptx_elementwise("reciprocal_fast", "const float* in, float* out",
                        "out[i] = ptx::reciprocal_fast(in[i]);"),
        // Launched without the attribute, both do nothing.
        ptx_elementwise("dependency", "const float* in, float* out",
                        "ptx::wait_for_kernel_before();\n  out[i] = in[i] + 1;\n"
                        "  ptx::launch_dependents();",
                        90),
        ptx_elementwise("log2_fast", "const float* in, float* out",
                        "out[i] = ptx::log2_fast(in[i]);"),
        ptx_elementwise("max_nan", "const float* in, float* out",
                        "out[i] = ptx::max_nan(in[2 * i], in[2 * i + 1]);"),
        ptx_elementwise("max_bf16_2", "const unsigned* in, unsigned* out",
                        "out[i] = ptx::max_bf16_2(in[2 * i], in[2 * i + 1]);"),
        ptx_elementwise("max_fp16_2", "const unsigned* in, unsigned* out",
                        "out[i] = ptx::max_fp16_2(in[2 * i], in[2 * i + 1]);"),
        ptx_elementwise("clear_if_negative", "const unsigned* in, unsigned* out",
                        "const unsigned value = in[3 * i], a = in[3 * i + 1], b = in[3 * i + 2];\n"
                        "  out[2 * i] = ptx::clear_if_negative_2(value, a, b);\n"
                        "  out[2 * i + 1] = __float_as_uint(\n"
                        "      ptx::clear_if_negative(__uint_as_float(value), a, b));"),
        ptx_elementwise("dot_bytes", "const unsigned* in, unsigned* out",
                        "out[i] = ptx::dot_bytes(in[3 * i], in[3 * i + 1], in[3 * i + 2]);"),
        // Bytes in order, mixed, and their top bits in all of a byte.
        ptx_elementwise("permute_bytes", "const unsigned* in, unsigned* out",
                        "const unsigned low = ptx::anew(in[2 * i]), high = in[2 * i + 1];\n"
                        "  out[3 * i] = ptx::permute_bytes(low, high, 0x7610);\n"
                        "  out[3 * i + 1] = ptx::permute_bytes(low, high, 0xDD99);\n"
                        "  out[3 * i + 2] = ptx::permute_bytes(low, high, 0xFFBB);"),
        ptx_elementwise("special_registers", "const unsigned*, unsigned* out",
                        "if (t != 0) return;\n"
                        "  out[2 * blockIdx.x] = ptx::block_index_again();\n"
                        "  out[2 * blockIdx.x + 1] = ptx::multiprocessors();"),
        // 64 readings, each later than the one before.
        ptx_kernel("global_timer_ns", "const int*, unsigned long long* out", R"(
  unsigned long long last = ptx::global_timer_ns();
  for (int i = 0; i < 64; ++i) {
    unsigned long long now = last;
    for (int wait = 0; wait < 1 << 18 && now == last; ++wait) now = ptx::global_timer_ns();
    out[i] = last = now;
  }
)"),
        ptx_kernel("clock", "const int*, unsigned long long* out",
                   "  for (int i = 0; i < 64; ++i) out[i] = ptx::clock();"),
        mma_kernel("mma_bf16_16816", 4, "b"), mma_kernel("mma_fp16_16816", 4, "b"),
        mma_kernel("mma_fp16_1688", 2, "b[0]"), mma_kernel("mma_tf32_1688", 4, "b")};
    add_memory_kernels(list);
    add_synchronisation_kernels(list);
    add_hopper_kernels(list);
    return list;
  }();
  return kList;
}

}  // namespace flashlab::testing
