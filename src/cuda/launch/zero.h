#pragma once

#include "flashlab/tensor.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {

/// Enqueues zeros over the elements of a tensor [batch, seqlen, heads, dim] with any strides, and
/// over nothing between them: the gradients of keys without a query. One memset per batch and head.
Status zero_rows(const GpuDevice& device, Stream stream, const Tensor& tensor);

}  // namespace flashlab::cuda
