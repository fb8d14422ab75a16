#pragma once

namespace flashlab::ptx {

inline constexpr unsigned kFullMask = 0xffffffffu;
inline float shuffle_xor(float value, int lanes) {
  return emulated::exchange(value, emulated::lane() ^ lanes);
}
inline float shuffle(float value, int lane) {
  return emulated::exchange(value, lane);
}
inline int thread_index() {
  return static_cast<int>(threadIdx.x);
}

}  // namespace flashlab::ptx
