#pragma once

#include "api/implementation.h"

namespace flashlab::cuda {

/// `decode`: few queries over many keys, which are shared out equally over all multiprocessors.
/// fp16 and bf16, sm_80 and later.
const internal::Implementation& decode_implementation();

}  // namespace flashlab::cuda
