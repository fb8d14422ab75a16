#pragma once

// A decoding step under the clock: new keys and values into a cache in pages, with rotary, beside
// the attention that follows it and beside both together.

#include "lab/results/subject.h"

namespace flashlab::lab {

/// Labels dtype, batch, cache_length, queries, heads_q, heads_k, head_dim; the implementations are
/// append, attention, and append+attention.
const Subject& append_subject();

}  // namespace flashlab::lab
