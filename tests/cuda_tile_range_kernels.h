#pragma once

// Small kernels over what blocks see: keys of a query, queries of a tile of keys.

#include "cuda_primitives.h"

namespace flashlab::testing {

/// "key_range_right": of the bounds that there are.
inline std::string bounds_name(const char* what, bool right, bool left) {
  return fmt::format("{}_{}", what, left ? "both" : right ? "right" : "unbounded");
}
inline std::string bounds_config(bool right, bool left) {
  return fmt::format(
      "struct Config {{\n  static constexpr bool kBoundedRight = {}, kBoundedLeft = {};\n"
      "  static constexpr int kTileQ = 8, kTileK = 16;\n"
      "  static constexpr bool kDeterministic = false;\n}};\n",
      right, left);
}

/// What positions 0 to 63 see, and tiles of 4 positions: six numbers each. `in`: the Shape.
inline Primitive key_range_kernel(bool right, bool left) {
  return primitive(bounds_name("key_range", right, left), bounds_config(right, left),
                   {"tile/key_range.h"}, "const Shape* in, int* out", R"(
  const KeyRange one = visible_keys<Config>(*in, t);
  const KeyRange any = keys_seen_by_any<Config>(*in, t, t + 3);
  const KeyRange all = keys_seen_by_all<Config>(*in, t, t + 3);
  int* mine = out + 6 * t;
  mine[0] = one.begin, mine[1] = one.end, mine[2] = any.begin, mine[3] = any.end;
  mine[4] = all.begin, mine[5] = all.end;
)");
}

/// How many numbers a thread of query_walk_kernel leaves.
constexpr int kWalkNumbers = 10;

/// The work of block t: its tile, the first and the last tile of queries on its way, and how the
/// first tile of queries sees it. `in`: the Shape.
inline Primitive query_walk_kernel(bool right, bool left) {
  return primitive(bounds_name("query_walk", right, left), bounds_config(right, left),
                   {"tile/query_walk.h"}, "const Shape* in, int* out",
                   fmt::format("  int* mine = out + {} * t;\n", kWalkNumbers) + R"(
  const Work work = tile_of_keys<Config>(*in, t);
  Cursor at(work, *in);
  const PairVisibility<Config> visibility(*in);
  mine[0] = work.batch, mine[1] = work.head_k, mine[2] = work.key0, mine[3] = work.per_head();
  mine[4] = at.head, mine[5] = at.tile;
  for (; at.left > 1;) at.next(work);
  mine[6] = at.head, mine[7] = at.tile;
  const int query = work.first_tile * Config::kTileQ;
  mine[8] = visibility.sees(query, work.key0);
  mine[9] = visibility.sees_all(query, Config::kTileQ, work.key0, Config::kTileK) +
            2 * visibility.sees_none(query, Config::kTileQ, work.key0, Config::kTileK) +
            4 * (visibility.clamp_bound(in->right) == clamp_to(in->right, 0x7fffffff));
)");
}

}  // namespace flashlab::testing
