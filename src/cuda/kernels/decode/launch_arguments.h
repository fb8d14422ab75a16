#pragma once

// What the decode kernel is launched with, on host and device.

#include "sequence_arguments.h"

namespace flashlab::device {

/// The bits of a word that count parts.
inline constexpr unsigned long long kCountMask = (1ull << 20) - 1;

/// Sums that blocks leave for the one that comes last, and how the keys are shared out.
struct DecodeParts {
  float* o;           ///< [slot, row of a tile, feature]: sums, relative to the row's reference
  float* statistics;  ///< [slot, row, 2]: reference in units of log2, and sum
  unsigned long long* counts;  ///< parts of a tile that are there, and the tag
  unsigned long long tag;      ///< a number that no other plan has; its low bits count
  int slot_rows;               ///< rows of a tile that exist in the fullest one
  int spread;                  ///< key heads that as many blocks with one range have, one each
  int units_of_grain;          ///< units of keys that are never shared out between blocks
  int fixed;                   ///< `deterministic`: every grain is a part of its own
};

struct DecodeArguments {
  ForwardArguments call;
  Sequences sequences;
  KeyCache cache;
  DecodeParts parts;
};

}  // namespace flashlab::device
