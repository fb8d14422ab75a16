#pragma once

namespace flashlab::ptx {

inline void copy_bytes(unsigned shared, const void* global, int bytes, unsigned barrier,
                       unsigned long long) {
  emulated::copy_bytes(shared, global, bytes, barrier);
}

}  // namespace flashlab::ptx
