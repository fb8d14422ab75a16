#pragma once

// src/cuda/kernels/ptx/ for threads of block.h: what the training kernels use of it.

#include "train/cpu/narrow.h"

namespace flashlab::ptx {

inline float shuffle_xor(float value, int lanes) {
  return emulated::shuffle_xor(value, lanes);
}
inline void meet(int barrier, int threads) {
  emulated::meet(barrier, threads);
}
inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - device::shared_bytes);
}
inline void copy_async_16(unsigned shared, const void* global) {
  emulated::Thread& self = emulated::block.threads[emulated::block.current];
  self.copies.push_back({device::shared_bytes + shared, global, self.groups});
}
inline void copy_async_commit() {
  ++emulated::block.threads[emulated::block.current].groups;
}
template <int kPending>
void copy_async_wait() {
  emulated::finish_copies(kPending);
}
inline void copy_async_wait_all() {
  copy_async_commit();
  emulated::finish_copies(0);
}
inline void launch_dependents() {}
inline void wait_for_kernel_before() {}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float float_of_fp16(unsigned short bits) {
  float out;
  train::cpu::widen_fp16(&bits, &out, 1);
  return out;
}
inline unsigned pack_bf16(float low, float high) {
  const float both[] = {low, high};
  std::uint16_t out[2];
  train::cpu::round_to_bf16(both, out, 2);
  return out[0] | static_cast<unsigned>(out[1]) << 16;
}
inline unsigned pack_fp16(float low, float high) {
  const float both[] = {low, high};
  std::uint16_t out[2];
  train::cpu::round_to_fp16(both, out, 2);
  return out[0] | static_cast<unsigned>(out[1]) << 16;
}

}  // namespace flashlab::ptx
