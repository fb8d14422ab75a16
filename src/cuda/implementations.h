#pragma once

// Every implementation of attention on NVIDIA GPUs, production first.

#include <vector>

#include "api/implementation.h"

namespace flashlab::cuda {

std::vector<const internal::Implementation*> implementations();

}  // namespace flashlab::cuda
