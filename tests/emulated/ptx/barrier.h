#pragma once

namespace flashlab::ptx {

inline void barrier_init(unsigned shared, int arrivals) {
  emulated::barrier_init(shared, arrivals);
}
inline void barrier_arrive(unsigned shared) {
  emulated::barrier_arrive(shared, 0);
}
inline void barrier_arrive_after_copies(unsigned shared) {
  emulated::barrier_arrive_after_copies(shared);
}
inline bool barrier_passed(unsigned shared, unsigned parity) {
  return emulated::barrier_passed(shared, parity);
}

}  // namespace flashlab::ptx
