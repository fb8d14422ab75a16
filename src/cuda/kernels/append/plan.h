#pragma once

// The append on a GPU.

#include <cstdint>

#include "flashlab/cache.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"
#include "runtime/program/program.h"

namespace flashlab::cuda {

inline constexpr unsigned kAppendThreads = 128;  ///< of a block

/// The kernel for keys, values and queries of `element` and rotary tables of `table` (fp32, fp16 or
/// bf16).
KernelSpec append_kernel(DType element, DType table);

/// The one step that an append is, with the addresses of the call. `page_size` 0: in no pages.
runtime::Step append_step(const AppendTensors& tensors, const AppendOptions& options,
                          std::int64_t page_size);

/// See internal::Backend::append_program. Precondition: a cache in no pages, rows that are not
/// ragged, nothing that turns.
Result<runtime::Program> append_program(const AppendTensors& tensors, const AppendOptions& options);

/// flashlab::append on validated tensors of the device. Errors: kUnsupported (fp64, sizes beyond 31
/// bits).
Status append_on_gpu(const GpuDevice& device, Stream stream, const AppendTensors& tensors,
                     const AppendOptions& options, std::int64_t page_size);

}  // namespace flashlab::cuda
