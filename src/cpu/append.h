#pragma once

#include <cstdint>

#include "flashlab/cache.h"

namespace flashlab::internal {

class ThreadPool;

/// flashlab::append on validated CPU tensors. Lengths, entries, pages and positions are read first:
/// an error leaves the cache as it was.
Status append_on_cpu(ThreadPool& pool, const AppendTensors& tensors, const AppendOptions& options,
                     std::int64_t page_size);

}  // namespace flashlab::internal
