#pragma once

namespace flashlab::ptx {

inline void add_global(float* global, float value) {
  *global += value;
}
inline void add_global_2(float* global, float x, float y) {
  global[0] += x, global[1] += y;
}
inline void add_global_4(float* global, float x, float y, float z, float w) {
  global[0] += x, global[1] += y, global[2] += z, global[3] += w;
}
inline unsigned load_acquire(const unsigned* global) {
  emulated::give_way();
  return *global;
}
inline void store_release(unsigned* global, unsigned value) {
  *global = value;
}

inline void add_release(unsigned* global, unsigned value) {
  *global += value;
}
inline unsigned long long add_acquire_release(unsigned long long* global,
                                              unsigned long long value) {
  const unsigned long long before = *global;
  *global += value;
  return before;
}

}  // namespace flashlab::ptx
