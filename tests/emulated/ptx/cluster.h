#pragma once

namespace flashlab::ptx {

inline int cluster_rank() {
  return emulated::cluster_rank();
}
inline void meet_cluster() {
  emulated::meet_cluster();
}
inline void send_in_cluster(unsigned shared, int rank, float x, float y, unsigned barrier) {
  emulated::send_in_cluster(shared, rank, x, y, barrier);
}

}  // namespace flashlab::ptx
