#pragma once

// The numbers of dropout of the pairs that a lane of mma.sync holds: plain arithmetic, which a CPU
// can run and test. g = lane / 4, t = lane % 4. A lane holds rows g and g + 8 of blocks of 16, and
// columns 2 t and 2 t + 1 of blocks of eight: in 128 rows and 128 columns they are of one group,
// and lane ^ 4 has the rest of it. Queries are the rows, or the columns.

#include "dropout_pattern.h"

namespace flashlab::device {

/// Numbers of a lane's pairs of 64 rows and 64 columns, two in a word: column 2 t in the low half.
struct LaneNumbers {
  unsigned first;          ///< of row g and the first block of columns
  unsigned row_8, row_16;  ///< what rows so much further add (exclusive or), in both halves
  unsigned columns[3];     ///< the same of bits 0 to 2 of a block's index
  unsigned columns_64;     ///< the same of the other 64 columns of 128

  static constexpr unsigned kRow8 = dropout_bytes(8);

  LaneNumbers() = default;
  /// Of the words and the origin of a draw. `row_bytes`: those of row g by dropout_bytes(), and
  /// kRow8, in whole bytes or seven bits each; `column_bytes`: those of the first block's first
  /// column, 0 at a multiple of 64.
  template <class Arithmetic>
  constexpr LaneNumbers(unsigned rows, unsigned row_bytes, unsigned columns_, unsigned column_bytes,
                        unsigned origin, const Arithmetic& arithmetic)
      : first(0), row_8(0), row_16(0), columns{}, columns_64(0) {
    const unsigned numbers = columns_ & 0x7F7F7F7Fu;
    const unsigned own = (rows & row_bytes) ^ (columns_ & column_bytes);
    // Digits of a selector, the first byte's last: 0 to 3 of the word, 5 the origin, 6 zero.
    const auto place = [&](unsigned word, unsigned selector) {
      return arithmetic.permute(word, origin, selector);
    };
    const unsigned folded = place(own, 0x1010u) ^ place(own, 0x5252u) ^ place(numbers, 0x6066u);
    first = (folded ^ folded >> 8) & 0x007F007Fu;
    row_8 = place(own, 0x6363u);
    row_16 = place(rows & 0x7F7F7F7Fu, 0x6161u);
    columns[0] = place(numbers, 0x6363u);
    columns[1] = place(numbers, 0x6161u);
    columns[2] = place(numbers, 0x6262u);
  }
  /// What bit 6 of rows and of columns adds, and whether the first ones have it.
  constexpr void add_far(unsigned rows_64, bool far_rows, unsigned columns_64_, bool far_columns) {
    columns_64 = columns_64_ & 0x007F007Fu;
    if (far_rows) first ^= rows_64 & 0x007F007Fu;
    if (far_columns) change_columns();
  }
  /// To the other 64 columns of 128.
  constexpr void change_columns() { first ^= columns_64; }

  /// Of row 16 m + 8 half + g and a block of columns.
  constexpr unsigned word(int m, int half, int block) const {
    unsigned out = first;
    if (half != 0) out ^= row_8;
    if (m != 0) out ^= row_16;
    for (int bit = 0; bit < 3; ++bit) {
      if ((block >> bit & 1) != 0) out ^= columns[bit];
    }
    return out;
  }
  /// A word with the number of column 2 t + i in its upper half.
  static constexpr unsigned upper(unsigned word, int i) { return i == 0 ? word << 16 : word; }
  /// `addend`: dropout_addend().
  static constexpr bool dropped(unsigned word, int i, unsigned addend) {
    return static_cast<int>(upper(word, i) + addend) < 0;
  }
};

/// The numbers of bit 6 of queries and of keys, in both halves, and other bits.
template <class Arithmetic>
constexpr unsigned far_queries(unsigned phase, const Arithmetic& arithmetic) {
  return arithmetic.permute(phase, 0, 0x4141u);
}
template <class Arithmetic>
constexpr unsigned far_keys(unsigned phase, const Arithmetic& arithmetic) {
  return arithmetic.permute(phase, 0, 0x4242u);
}

/// What a lane keeps of its rows where they are queries.
struct DropoutRows {
  unsigned key;            ///< words.key
  DropoutQueries queries;  ///< high: with words.keys and the group of keys 2 t in it

  DropoutRows() = default;
  constexpr DropoutRows(const DropoutWords& words, int query, int lane)
      : key(words.key), queries(dropout_queries(words, query)) {
    queries.high ^= words.keys ^ dropout_group(lane % 4 * 2);
  }
  constexpr unsigned phase(int first_key) const { return dropout_phase(queries, first_key); }
  /// Of 64 queries that `query` is one of, and keys from `first_key` on, a multiple of 8.
  /// `row_bytes`: LaneNumbers'.
  template <class Arithmetic>
  constexpr LaneNumbers numbers(unsigned row_bytes, int query, int first_key,
                                const Arithmetic& arithmetic) const {
    const DropoutDraw draw = dropout_draw(key, queries, dropout_group(first_key));
    LaneNumbers out(draw.queries, row_bytes, draw.keys, dropout_bytes(first_key),
                    draw.origin(arithmetic), arithmetic);
    const unsigned of_group = phase(first_key);
    out.add_far(far_queries(of_group, arithmetic), (query & 64) != 0,
                far_keys(of_group, arithmetic), (first_key & 64) != 0);
    return out;
  }
};

/// What a lane draws where keys are rows, queries columns.
struct DropoutColumns {
  LaneNumbers numbers;
  unsigned keys;  ///< the word that they have of rows from
  unsigned phase;

  /// Of queries from `query0` on and keys from `key0` on, multiples of 8. `row_bytes`:
  /// LaneNumbers'.
  template <class Arithmetic>
  constexpr DropoutColumns(const DropoutWords& words, int query0, int key0, unsigned row_bytes,
                           int lane, const Arithmetic& arithmetic)
      : keys(0), phase(0) {
    const DropoutQueries first = dropout_queries(words, query0, lane % 4 * 2);
    const unsigned group = words.keys ^ dropout_group(key0) ^ dropout_group(lane / 4);
    const DropoutDraw draw = dropout_draw(words.key, first, group);
    keys = draw.keys, phase = dropout_phase(first, key0);
    numbers = LaneNumbers(keys, row_bytes, draw.queries, dropout_bytes(query0),
                          draw.origin(arithmetic), arithmetic);
    numbers.add_far(far_keys(phase, arithmetic), (key0 & 64) != 0, far_queries(phase, arithmetic),
                    (query0 & 64) != 0);
  }
};

/// What one warp draws of 128 keys, the rows, and up to 128 queries for all that multiply them: a
/// warp of these has 16 keys. 16 groups are drawn, each by two lanes.
struct DropoutTile {
  struct alignas(16) Group {
    unsigned row_8, addend, columns[3], columns_64;
  };
  unsigned first[8][32];  ///< LaneNumbers::first of each warp's lanes
  Group groups[16];       ///< the rest of LaneNumbers, and dropout_addend()

  static constexpr int group_of(int lane) { return lane / 8 * 4 + lane % 4; }

  /// The share of each lane of the warp that draws. Multiples: query0 of 64, key0 of 128.
  template <class Arithmetic>
  constexpr void draw(const DropoutWords& words, unsigned limit, int query0, int key0, int lane,
                      const Arithmetic& arithmetic) {
    const unsigned row_bytes = dropout_bytes(lane / 4) | LaneNumbers::kRow8;
    const DropoutColumns drawn(words, query0, key0, row_bytes, lane, arithmetic);
    const LaneNumbers& numbers = drawn.numbers;
    const unsigned row_32 = arithmetic.permute(drawn.keys & 0x7F7F7F7Fu, 0, 0x4242u);
    const unsigned row_64 = far_keys(drawn.phase, arithmetic) & 0x007F007Fu;
    for (int warp = 0; warp < 8; ++warp) {
      first[warp][lane] = numbers.first ^ ((warp & 1) != 0 ? numbers.row_16 : 0) ^
                          ((warp & 2) != 0 ? row_32 : 0) ^ ((warp & 4) != 0 ? row_64 : 0);
    }
    if ((lane & 4) != 0) return;
    groups[group_of(lane)] = {numbers.row_8,
                              dropout_addend(limit, drawn.phase),
                              {numbers.columns[0], numbers.columns[1], numbers.columns[2]},
                              numbers.columns_64};
  }

  /// Of a lane of the warp with keys 16 `warp` to 16 `warp` + 15.
  constexpr LaneNumbers numbers(int warp, int lane) const {
    const Group& group = groups[group_of(lane)];
    LaneNumbers out;
    out.first = first[warp][lane];
    out.row_8 = group.row_8;
    for (int bit = 0; bit < 3; ++bit) out.columns[bit] = group.columns[bit];
    out.columns_64 = group.columns_64;
    return out;
  }
  constexpr unsigned addend(int lane) const { return groups[group_of(lane)].addend; }
};

/// LaneNumbers' row_bytes of a thread's first row of a warpgroup's product: bits 0, 4 and 5 of the
/// row are bits 2, 5 and 6 of the thread's index, which a product brings to the tops of bytes.
template <class Arithmetic>
constexpr unsigned row_bytes_of_thread(unsigned thread, const Arithmetic& arithmetic) {
  return arithmetic.permute((thread & 0x64u) * 0x20420u, 0, 0x4A98u) | LaneNumbers::kRow8;
}

}  // namespace flashlab::device
