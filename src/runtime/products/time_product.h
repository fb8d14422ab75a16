#pragma once

// How long each way of running a product takes on a GPU.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/products/product.h"

namespace flashlab::runtime {

/// Where a timed product lies and runs.
struct ProductMemory {
  void *a = nullptr, *b = nullptr, *c = nullptr, *scratch = nullptr;
  cuda::CUstream stream = nullptr;
};
/// Enqueues the product one way.
using TimedRun = std::function<Status(const ProductMemory&)>;

/// Milliseconds of each way, the least of several runs in turns, on memory and a stream of its own,
/// of short products in a graph of them, as steps run them; infinity for a way that fails or cannot
/// be the best. A thread that captures a graph may ask: nothing of this is in it.
/// Empty where the memory or the stream cannot be had. The GPU's context is current.
std::vector<float> time_product(const cuda::GpuDevice& device, const Product& product,
                                std::size_t scratch_bytes, std::span<const TimedRun> ways);

}  // namespace flashlab::runtime
