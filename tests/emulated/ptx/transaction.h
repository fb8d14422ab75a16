#pragma once

// Fences do nothing: memory is in order here.

namespace flashlab::ptx {

inline void barrier_init_fence() {}
inline void async_proxy_fence() {}
inline void barrier_arrive_expect(unsigned shared, int bytes) {
  emulated::barrier_arrive(shared, bytes);
}
inline bool barrier_passed_soon(unsigned shared, unsigned parity) {
  return emulated::barrier_passed(shared, parity);
}

}  // namespace flashlab::ptx
