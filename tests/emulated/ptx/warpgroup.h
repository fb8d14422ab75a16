#pragma once

namespace flashlab::ptx {

template <int kCount>
void give_registers() {}
template <int kCount>
void take_registers() {}
inline void meet(int barrier, int threads) {
  emulated::meet(barrier, threads);
}
inline void meet_later(int barrier, int threads) {
  emulated::meet_later(barrier, threads);
}

}  // namespace flashlab::ptx
