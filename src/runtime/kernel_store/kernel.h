#pragma once

// Kernels that are loaded on a GPU and can be launched.

#include <string>

#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::cuda {

/// A kernel that can be launched.
struct Kernel {
  CUfunction function = nullptr;  ///< of the kernel in the device's primary context
  std::string entry;
  ResourceUse use;
  ImageOrigin origin = ImageOrigin::kCompiler;
};

/// A launch: sizes in blocks and threads, dynamic shared memory in bytes, and attributes.
struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  unsigned cluster_x = 1, cluster_y = 1, cluster_z = 1;  ///< in blocks; 1: no cluster
  bool cooperative = false;                              ///< all blocks are resident at once
  /// Blocks may start before the stream's kernel before has ended: griddepcontrol.wait in the
  /// kernel says from where on it needs that one's results (PTX ISA, "griddepcontrol").
  bool programmatic = false;
  /// Blocks of a cluster go on as long as there is work, by the size of the grid: it has no more of
  /// them than run at once (`fitted`).
  bool staying = false;
};

/// The kernel of a spec, found or compiled and loaded on first use; thread-safe, and different
/// kernels compile in parallel. `shared_bytes` is the largest dynamic shared memory it is launched
/// with. Loading is not allowed while a stream is being captured on some drivers: prepare first.
Result<const Kernel*> load_kernel(const GpuDevice& device, const KernelSpec& spec,
                                  unsigned shared_bytes = 0);

/// The shape to launch the kernel with: where blocks stay, its grid is cut in x.
Result<LaunchShape> fitted(const GpuDevice& device, const Kernel& kernel, const LaunchShape& shape);

/// Enqueues a launch. `arguments` are pointers to the parameters, in order.
Status launch(const GpuDevice& device, const Kernel& kernel, const LaunchShape& shape,
              CUstream stream, void** arguments);

}  // namespace flashlab::cuda
