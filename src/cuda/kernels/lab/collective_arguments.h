#pragma once

// The values that ranks exchange when collectives are measured, and what each result must be: one
// text for host and device.

namespace flashlab::device {

/// Of runtime::Collective, in its order.
enum class Exchange { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast };

/// Whole numbers from -2 to 2, of which sums over 64 ranks are exact in every type.
constexpr int exchanged_value(int rank, unsigned long long index) {
  const unsigned long long mixed = index * 7 + (index >> 9) * 5 + static_cast<unsigned>(rank) * 11;
  return static_cast<int>(mixed % 5) - 2;
}

/// What element `index` of a rank's result must be, `part` elements a rank; root 0.
constexpr int expected_value(Exchange kind, int ranks, int rank, unsigned long long part,
                             unsigned long long index) {
  const unsigned long long begin = static_cast<unsigned>(rank) * part;
  if (kind == Exchange::kAllReduce || kind == Exchange::kReduceScatter) {
    int sum = 0;
    for (int other = 0; other < ranks; ++other) {
      sum += exchanged_value(other, index + (kind == Exchange::kAllReduce ? 0 : begin));
    }
    return sum;
  }
  if (kind == Exchange::kAllGather)
    return exchanged_value(static_cast<int>(index / part), index % part);
  if (kind == Exchange::kAllToAll) {
    return exchanged_value(static_cast<int>(index / part), begin + index % part);
  }
  return exchanged_value(0, index);
}

struct ExchangeArguments {
  void* data;                 ///< [count]
  unsigned long long count;   ///< elements
  unsigned long long part;    ///< of a rank
  unsigned long long* wrong;  ///< the first element that is not right, by its number plus one
  int kind, ranks, rank;
};

}  // namespace flashlab::device
