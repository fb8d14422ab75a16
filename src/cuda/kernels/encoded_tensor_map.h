#pragma once

// What the driver encodes for the copy engine (CUtensorMap): the same text on host and device.

namespace flashlab::device {

struct alignas(64) EncodedTensorMap {
  unsigned char bytes[128];
};

}  // namespace flashlab::device
