#pragma once

namespace flashlab::ptx {

inline unsigned shared_address(const void* pointer) {
  return emulated::shared_address(pointer);
}
inline void copy_async_16(unsigned shared, const void* global, int valid_bytes = 16) {
  emulated::copy_async(shared, global, 16, valid_bytes);
}
inline void fetch_line(const void*) {}
template <int kBytes>
void copy_async_small(unsigned shared, const void* global, int valid_bytes) {
  emulated::copy_async(shared, global, kBytes, valid_bytes);
}
inline unsigned load_half_if(bool wanted, const void* global) {
  return wanted ? *static_cast<const unsigned short*>(global) : 0;
}
inline void discard_line(void* global) {
  std::memset(global, 0xff, 128);
}
inline void copy_async_commit() {
  emulated::copy_async_commit();
}
template <int kPending>
void copy_async_wait() {
  emulated::copy_async_wait(kPending);
}
inline void copy_async_wait_all() {
  emulated::copy_async_commit();
  emulated::copy_async_wait(0);
}
inline void forget_memory() {}
inline void load_matrix_4(unsigned (&r)[4], unsigned shared) {
  emulated::load_matrices(r, 4, shared, false);
}
inline void load_matrix_4_transposed(unsigned (&r)[4], unsigned shared) {
  emulated::load_matrices(r, 4, shared, true);
}
inline void load_matrix_2(unsigned (&r)[2], unsigned shared) {
  emulated::load_matrices(r, 2, shared, false);
}
inline void load_matrix_2_transposed(unsigned (&r)[2], unsigned shared) {
  emulated::load_matrices(r, 2, shared, true);
}
inline void store_matrix_4(unsigned shared, const unsigned (&matrices)[4]) {
  emulated::store_matrices(matrices, 4, shared);
}

}  // namespace flashlab::ptx
