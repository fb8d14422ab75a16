#pragma once

// PtxArithmetic on a host.

#include "dropout_pattern.h"

namespace flashlab::device {

struct HostArithmetic : DropoutArithmetic {
  // prmt.b32: a selector's digit takes one of eight bytes or, with its top bit, that byte's top
  // bit.
  static unsigned permute(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
      const unsigned digit = selector >> (4 * i) & 15;
      const auto byte = static_cast<unsigned>(both >> (8 * (digit & 7)) & 0xff);
      out |= ((digit & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xffu : 0u) << (8 * i);
    }
    return out;
  }
};

}  // namespace flashlab::device
