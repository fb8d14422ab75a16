#pragma once

// Of the Hopper backward kernel (kernel.cu): in which order a tile of keys meets its tiles of
// queries. Pure arithmetic, proved on the host (tests/cuda_sm90_backward_test.cpp).

#include "sm90/backward/tiles.h"
#include "tile/query_walk.h"

namespace flashlab::device {

/// How a block goes through the steps of a tile of keys: all of them, or a part's.
struct Stretch {
  bool back = false;  ///< from the last tile of queries on
  int first = 0, steps = 0;

  static constexpr Stretch whole(const Work& w, const Shape& shape, bool back) {
    return {back, 0, w.per_head() * shape.group};
  }
  /// No steps: there is no such part.
  static constexpr Stretch part(const Work& w, const Shape& shape, const KeyParts& cut, int part) {
    const int all = w.per_head() * shape.group, parts = cut.of(all);
    if (part >= parts) return {};
    const int first = cut.first(all, part, parts);
    return {false, first, cut.first(all, part + 1, parts) - first};
  }
};

/// Head after head of the group.
template <bool kAbreast>
struct GroupCursor : Cursor {
  constexpr GroupCursor(const Work& w, const Shape& shape, const Stretch&) : Cursor(w, shape) {}
  constexpr void next(const Work& w, const Shape&) { Cursor::next(w); }
};

/// The group's heads abreast: a tile of queries of every head, then the next tile.
template <>
struct GroupCursor<true> {
  int head, tile, left, step;
  constexpr GroupCursor(const Work& w, const Shape& shape, const Stretch& stretch)
      : head(w.head_k * shape.group + stretch.first % shape.group),
        tile(stretch.back ? w.end_tile - 1 : w.first_tile + stretch.first / shape.group),
        left(stretch.steps),
        step(stretch.back ? -1 : 1) {}
  constexpr void next(const Work& w, const Shape& shape) {
    --left;
    if (++head == (w.head_k + 1) * shape.group) head -= shape.group, tile += step;
  }
};

}  // namespace flashlab::device
