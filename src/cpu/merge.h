#pragma once

#include <optional>
#include <span>

#include "flashlab/attention.h"

namespace flashlab::internal {

class ThreadPool;

/// flashlab::merge on validated CPU tensors: rows are independent tasks, parts are added in order,
/// so the result does not depend on threads.
void merge_on_cpu(ThreadPool& pool, std::span<const Partial> parts, const Tensor& o,
                  const std::optional<Tensor>& lse);

}  // namespace flashlab::internal
