#pragma once

namespace flashlab::ptx {

inline void prefetch_tensor_map(const void*) {}
inline constexpr unsigned long long kEvictNormal = 0, kEvictFirst = 0, kEvictLast = 0;
inline void copy_box_4(unsigned shared, const void* map, int x, int y, int z, int w,
                       unsigned barrier, unsigned long long) {
  const int at[] = {x, y, z, w};
  emulated::copy_box(shared, map, at, 4, barrier);
}

inline void copy_box_5(unsigned shared, const void* map, int x, int y, int z, int w, int u,
                       unsigned barrier, unsigned long long) {
  const int at[] = {x, y, z, w, u};
  emulated::copy_box(shared, map, at, 5, barrier);
}

}  // namespace flashlab::ptx
