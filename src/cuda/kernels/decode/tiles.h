#pragma once

// How the decode kernel cuts a problem, and its shared memory: the same text on host and device.
// Nothing is included, so that both can read it.

namespace flashlab::device {

/// The names are the kernel's Config constants.
struct DecodeTiling {
  int teams = 4;            ///< of warps; each has keys of its own
  int row_warps = 1;        ///< of a team: they share its keys
  int warp_rows = 16;       ///< 16 or 32
  int step_keys = 16;       ///< of a team
  int stages = 5;           ///< units under way
  int min_blocks = 1;       ///< resident per multiprocessor
  int query_steps = 16;     ///< k16 steps of Q that stay in registers
  int sums = 1;             ///< teams that leave their sums in shared memory at once
  bool warpgroups = false;  ///< four row warps multiply as one; keys come in boxes
  int box_rows = 0;         ///< of a copy by the copy engine, a divisor of a unit; 0: by threads

  constexpr int rows() const noexcept { return row_warps * warp_rows; }
  constexpr int unit_keys() const noexcept { return teams * step_keys; }
  /// The copy engine is told by one warp; of others each has 32 keys of a unit.
  constexpr int copy_warps() const noexcept { return box_rows > 0 ? 1 : unit_keys() / 32; }
  constexpr int threads() const noexcept { return 32 * (teams * row_warps + copy_warps()); }
  friend bool operator==(const DecodeTiling&, const DecodeTiling&) = default;
};

/// A row of `grains` cut into `ranges`, at most as many, of equal length but for one grain, the
/// longer ones first. Divisions of 64 bits would take a block longer than its first keys.
struct EqualRanges {
  unsigned each, longer;  ///< grains of a range; ranges with one more
  EqualRanges() = default;
  constexpr EqualRanges(int ranges, int grains)
      : each(static_cast<unsigned>(grains) / static_cast<unsigned>(ranges)),
        longer(static_cast<unsigned>(grains) - each * static_cast<unsigned>(ranges)) {}
  constexpr int begin(int range) const {
    const auto n = static_cast<unsigned>(range);
    return static_cast<int>(n * each + (n < longer ? n : longer));
  }
  /// The range that a grain lies in.
  constexpr int of(int grain) const {
    const auto n = static_cast<unsigned>(grain);
    const unsigned in_longer = longer * (each + 1);
    const bool is_longer = n < in_longer;
    const unsigned behind = is_longer ? n : n - in_longer;
    return static_cast<int>(behind / (is_longer ? each + 1 : each) + (is_longer ? 0 : longer));
  }
};

/// Divides by a number that the host knows, with a product.
struct Divisor {
  int value;
  unsigned inverse;  ///< (2^32 - 1) / value
  struct Parts {
    int quotient, rest;
  };

  static constexpr Divisor of(int value) {
    return {value, 0xffffffffu / static_cast<unsigned>(value)};
  }
  constexpr Parts divide(int number) const {
    const auto size = static_cast<unsigned>(value), n = static_cast<unsigned>(number);
    // At most one too low.
    auto quotient = static_cast<unsigned>(static_cast<unsigned long long>(n) * inverse >> 32);
    if (n - quotient * size >= size) ++quotient;
    return {static_cast<int>(quotient), static_cast<int>(n - quotient * size)};
  }
};

/// `deterministic`: parts of a sequence begin at multiples of so many of its keys.
inline constexpr int kFixedPartKeys = 4096;

/// A sequence's parts in the workspace: of its rows' sums, floats of a row, padded.
constexpr int decode_pitch(int head_dim_v) {
  return (head_dim_v + 31) / 32 * 32 + 8;
}

/// Of shared memory: segments that are handed from the warps that copy to the teams.
inline constexpr int kDecodeSegments = 2, kDecodeSegmentBytes = 192;

/// Dynamic shared memory of a block: sizeof(DecodeStorage).
constexpr int shared_bytes(const DecodeTiling& t, int head_dim, int head_dim_v) {
  // HalfTile: rows of whole k16 steps at an odd pitch of 16-byte chunks. Boxes: SlabTile.
  const auto tile = [&](int dim) {
    const int chunks = t.box_rows > 0 ? (dim + 63) / 64 * 8 : 2 * ((dim + 15) / 16) | 1;
    return t.unit_keys() * chunks * 16;
  };
  const int ring = t.stages * (tile(head_dim) + tile(head_dim_v));
  const int sums = t.sums * t.rows() * decode_pitch(head_dim_v) * 4;
  const int handshakes = (t.stages + kDecodeSegments) * 16;
  const int statistics = (t.teams + 1) * t.rows() * 8;
  const int kept = (head_dim + 15) / 16 - t.query_steps;
  const int queries = t.warpgroups ? t.rows() * ((head_dim + 63) / 64) * 128
                                   : (kept > 0 ? kept * t.rows() * 32 : 16);
  return ring + sums + queries + statistics + handshakes + kDecodeSegments * kDecodeSegmentBytes +
         16;
}

}  // namespace flashlab::device
