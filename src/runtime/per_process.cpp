#include "runtime/per_process.h"

#include <pthread.h>

namespace flashlab::internal {

int fork_generation() {
  static std::atomic<int> generation{0};
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return generation.load(std::memory_order_relaxed);
}

}  // namespace flashlab::internal
