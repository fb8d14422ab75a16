#pragma once

// Kernels of a stream that overlap (sm_90): one launched with the attribute of programmatic
// serialisation may start before the kernel before it has ended. On older GPUs they do not overlap
// and both do nothing. PTX ISA, "griddepcontrol".

namespace flashlab::ptx {

/// The next kernel of the stream may start once every block has called this or ended.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits until the kernel before has ended and its writes are visible. Without the attribute, or
/// without such a kernel, it does nothing.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace flashlab::ptx
