#pragma once

// What a caller hands to a GPU, looked at before anything is enqueued: a kernel that reads a wrong
// address kills the process' CUDA context, and every other library's work with it.

#include "flashlab/attention.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {

/// Every tensor and the workspace lie in this GPU's memory (or in managed memory). Null pointers
/// pass: whether they may be null was checked before.
/// Errors: kInvalidArgument (host memory, another device's memory). Cost: one driver call per
/// tensor, about 60 ns (H200, 2026-11-22).
Status check_pointers(const GpuDevice& device, const ForwardTensors& tensors, Workspace workspace);
Status check_pointers(const GpuDevice& device, const BackwardTensors& tensors, Workspace workspace);
Status check_pointers(const GpuDevice& device, const char* name, const void* data);

/// The stream belongs to this GPU's primary context. Errors: kInvalidArgument.
Status check_stream(const GpuDevice& device, Stream stream);

}  // namespace flashlab::cuda
