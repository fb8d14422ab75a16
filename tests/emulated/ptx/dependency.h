#pragma once

// Kernels run one after the other here.

namespace flashlab::ptx {

inline void launch_dependents() {}
inline void wait_for_kernel_before() {}

}  // namespace flashlab::ptx
