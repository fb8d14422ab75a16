#pragma once

// What an append does to each sequence, where its lengths lie in host memory.

#include <cstdint>
#include <vector>

#include "flashlab/cache.h"

namespace flashlab::internal {

/// One sequence of the call: its new rows, and where they go.
struct Appended {
  std::int64_t first_new = 0;  ///< of k_new: a row where that is ragged, else of its entry
  std::int64_t count = 0;
  std::int64_t length = 0;    ///< rows of the cache before
  std::int64_t position = 0;  ///< of the first new row
  std::int64_t first_q = 0, queries = 0;
  std::int64_t entry = 0;  ///< of a cache that is not in pages
};

/// Reads lengths, offsets, positions, entries and pages. Errors: kInvalidArgument, with name, index
/// and value. Precondition: a validated call; these tensors are on the host.
Result<std::vector<Appended>> read_appended(const AppendTensors& tensors,
                                            const AppendOptions& options, std::int64_t page_size);

}  // namespace flashlab::internal
