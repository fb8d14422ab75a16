#pragma once

// fp32 values as a GPU keeps them where forward reads copies of them in bf16: the copies, the low
// halves of the values' bits, and a sign.
//
// A copy is the high half, rounded to nearest, to even half-way: where the low half is below the
// middle the high half is the copy, above it one less. In the middle it is the copy where that was
// even before, too: then the second moment, which is never negative, has a negative sign.

#include <cstddef>
#include <cstdint>

namespace flashlab::train {

/// Elements of the arenas [count]: `copies` are of `values`.
struct SplitValues {
  float* values;
  std::uint16_t* copies;
  std::uint16_t* low;  ///< halves
  float* second;       ///< moments
  std::int64_t count;
};

/// From values and moments to low halves, copies and signs.
void split_values(const SplitValues& arenas);
/// And back; signs are gone.
void join_values(const SplitValues& arenas);

}  // namespace flashlab::train
