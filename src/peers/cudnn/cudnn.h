#pragma once

// cuDNN's fused attention as a peer: its graph API through the C++ front end.

#include "api/implementation.h"

namespace flashlab::peers {

/// "cudnn": forward and backward, fp16 and bf16. A build without the front end's headers refuses
/// every plan and says how to get them.
const internal::Implementation& cudnn_implementation();

}  // namespace flashlab::peers
