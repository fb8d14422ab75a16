#pragma once

// What the decode kernel is launched with, on host and device.

#include "decode/tiles.h"
#include "encoded_tensor_map.h"
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
  int heads;                   ///< key heads that a block has, in turn
  int grain_log2;              ///< of units of keys that are never shared out between blocks
  int most;                    ///< grains of all tiles that the plan has room for, by ranges
  Divisor group;               ///< query heads of a key head
  int fixed;                   ///< `deterministic`: every grain is a part of its own
};

struct DecodeArguments {
  ForwardArguments call;
  Sequences sequences;
  KeyCache cache;
  DecodeParts parts;
  Divisor page;              ///< rows of a page
  EncodedTensorMap k, v;     ///< bounded, in boxes of kBoxRows rows; unused where that is 0
  int waits_first;           ///< for the kernel before: it may write what is read here
  int spares_l2;             ///< keys take the place of each other in L2, and of nothing else
  int between_k, between_v;  ///< rows from one entry or page to the next
  int slabs_k, slabs_v;      ///< of kSlabsAtOnce: 64 columns, from a head to the next
};

/// Of the kernel for one query of each sequence in fp32 (fp32.cu). Parts are numbered by sequence,
/// query head and part, tiles by sequence and query head.
struct DecodeFp32Arguments {
  ForwardArguments call;
  Sequences sequences;
  KeyCache cache;
  Divisor page;                ///< rows of a page
  float* o;                    ///< [part, feature]: sums, relative to the part's reference
  float* statistics;           ///< [part, 2]: reference in units of log2, and sum
  unsigned long long* counts;  ///< as DecodeParts::counts
  unsigned long long tag;
  int parts;  ///< of a tile
};

}  // namespace flashlab::device
