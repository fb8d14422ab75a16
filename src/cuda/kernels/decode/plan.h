#pragma once

#include <cstdint>
#include <memory>

#include "api/implementation.h"
#include "runtime/cuda/device.h"

namespace flashlab::cuda {

/// `decode`: few queries over many keys, which are shared out equally over all multiprocessors.
/// fp16 and bf16, and one query of each sequence in fp32; sm_80 and later.
const internal::Implementation& decode_implementation();

/// Its plan in fp32. Errors: kUnsupported, by what it lacks.
Result<std::shared_ptr<internal::PlanState>> plan_decode_fp32(const GpuDevice& device,
                                                              const Problem& problem,
                                                              const internal::Geometry& geometry);

/// A number that no other plan has, with which no memory begins but by chance.
std::uint64_t fresh_tag();

}  // namespace flashlab::cuda
