#pragma once

// The flags of ragged batches and caches: --lengths, --lengths-k, --cache-length, --page-size.

#include <string>

#include "case.h"
#include "cli/flags.h"
#include "cli/problems.h"

namespace flashlab::cli {

/// Gives the job's problem the sequences and the cache that the flags or its sweep name, drawn by
/// its seed. `passes_asked`: a flag has named the passes, so that a backward pass through a cache
/// is refused; else it is left out. Throws Failure for flags that contradict each other.
void apply_sequences(const Arguments& arguments, bool passes_asked, Job& job);

/// The flags that give a problem its lengths again: " --seqlen 1024", " --lengths chat:1024 --seed
/// 1".
std::string sequence_flags(const cases::Case& problem);

}  // namespace flashlab::cli
