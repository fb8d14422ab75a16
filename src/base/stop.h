#pragma once

#include <atomic>

namespace flashlab::base {

/// Whether somebody else (Ctrl-C) has asked long work to end. No flag is never set.
inline bool is_set(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

}  // namespace flashlab::base
