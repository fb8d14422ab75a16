#pragma once

// How the decode kernel cuts a problem, and its shared memory: the same text on host and device.
// Nothing is included, so that both can read it.

namespace flashlab::device {

/// The names are the kernel's Config constants.
struct DecodeTiling {
  int teams = 4;         ///< of warps; each has keys of its own
  int row_warps = 1;     ///< of a team: they share its keys
  int warp_rows = 16;    ///< 16 or 32
  int step_keys = 16;    ///< of a team
  int stages = 5;        ///< steps under way, of each team
  int min_blocks = 1;    ///< resident per multiprocessor
  int query_steps = 16;  ///< k16 steps of Q that stay in registers

  constexpr int rows() const noexcept { return row_warps * warp_rows; }
  constexpr int unit_keys() const noexcept { return teams * step_keys; }
  constexpr int threads() const noexcept { return 32 * teams * row_warps; }
  friend bool operator==(const DecodeTiling&, const DecodeTiling&) = default;
};

/// Equal ranges of a row of grains (schedule.h): where one begins.
constexpr int begin_of_range(int range, int ranges, int grains) {
  return static_cast<int>(static_cast<long long>(range) * grains / ranges);
}
/// The range that a grain lies in.
constexpr int range_of_grain(int grain, int ranges, int grains) {
  return static_cast<int>(((grain + 1LL) * ranges - 1) / grains);
}

/// `deterministic`: parts of a sequence begin at multiples of so many of its keys.
inline constexpr int kFixedPartKeys = 4096;

/// A sequence's parts in the workspace: of its rows' sums, floats of a row, padded.
constexpr int decode_pitch(int head_dim_v) {
  return (head_dim_v + 31) / 32 * 32 + 8;
}

/// Of shared memory: where a block stands.
inline constexpr int kDecodeBlockBytes = 256;

/// Dynamic shared memory of a block: sizeof(DecodeStorage).
constexpr int shared_bytes(const DecodeTiling& t, int head_dim, int head_dim_v) {
  // HalfTile: rows of whole k16 steps at an odd pitch of 16-byte chunks.
  const auto tile = [&](int dim) { return t.step_keys * (2 * ((dim + 15) / 16) | 1) * 16; };
  const int ring = t.teams * t.stages * (tile(head_dim) + tile(head_dim_v));
  const int sums = t.rows() * decode_pitch(head_dim_v) * 4;
  const int statistics = (t.teams + 1) * t.rows() * 8;
  const int kept = (head_dim + 15) / 16 - t.query_steps;
  const int queries = kept > 0 ? kept * t.rows() * 32 : 16;
  return ring + sums + queries + statistics + kDecodeBlockBytes;
}

}  // namespace flashlab::device
