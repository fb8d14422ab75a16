#pragma once

// From a validated call to what kernels are launched with.

#include "api/problem.h"
#include "cuda/kernels/arguments.h"
#include "flashlab/attention.h"

namespace flashlab::cuda {

device::Shape shape_of(const internal::Geometry& geometry);
device::ForwardArguments arguments_of(const internal::Geometry& geometry,
                                      const ForwardTensors& tensors);
device::BackwardArguments arguments_of(const internal::Geometry& geometry,
                                       const BackwardTensors& tensors);

}  // namespace flashlab::cuda
