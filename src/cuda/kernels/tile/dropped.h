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
  unsigned queries;  ///< the word that they have of columns from
  unsigned phase;

  /// Of queries from `query0` on and keys from `key0` on, multiples of 8. `row_bytes`:
  /// LaneNumbers'.
  template <class Arithmetic>
  constexpr DropoutColumns(const DropoutWords& words, int query0, int key0, unsigned row_bytes,
                           int lane, const Arithmetic& arithmetic)
      : queries(0), phase(0) {
    const DropoutQueries first = dropout_queries(words, query0, lane % 4 * 2);
    const unsigned keys = words.keys ^ dropout_group(key0) ^ dropout_group(lane / 4);
    const DropoutDraw draw = dropout_draw(words.key, first, keys);
    queries = draw.queries, phase = dropout_phase(first, key0);
    numbers = LaneNumbers(draw.keys, row_bytes, queries, dropout_bytes(query0),
                          draw.origin(arithmetic), arithmetic);
    numbers.add_far(far_keys(phase, arithmetic), (key0 & 64) != 0, far_queries(phase, arithmetic),
                    (query0 & 64) != 0);
  }
};

/// The same in three words, for one block of rows.
struct KeptDropoutColumns {
  unsigned rows;  ///< LaneNumbers::first, and row_8 in byte 1
  unsigned queries, phase;

  constexpr KeptDropoutColumns() : rows(0), queries(0), phase(0) {}
  template <class Arithmetic>
  constexpr KeptDropoutColumns(const DropoutColumns& drawn, const Arithmetic& arithmetic)
      : rows(arithmetic.permute(drawn.numbers.first, drawn.numbers.row_8, 0x3240u)),
        queries(drawn.queries & 0x7F7F7F7Fu),
        phase(drawn.phase) {}

  template <class Arithmetic>
  constexpr LaneNumbers numbers(const Arithmetic& arithmetic) const {
    LaneNumbers out;
    out.first = rows & 0x007F007Fu;
    out.row_8 = arithmetic.permute(rows, 0, 0x4141u);
    out.columns[0] = arithmetic.permute(queries, 0, 0x4343u);
    out.columns[1] = arithmetic.permute(queries, 0, 0x4141u);
    out.columns[2] = arithmetic.permute(queries, 0, 0x4242u);
    out.columns_64 = far_queries(phase, arithmetic) & 0x007F007Fu;
    return out;
  }
};

/// LaneNumbers' row_bytes of a thread's first row of a warpgroup's product: bits 0, 4 and 5 of the
/// row are bits 2, 5 and 6 of the thread's index, which a product brings to the tops of bytes.
template <class Arithmetic>
constexpr unsigned row_bytes_of_thread(unsigned thread, const Arithmetic& arithmetic) {
  return arithmetic.permute((thread & 0x64u) * 0x20420u, 0, 0x4A98u) | LaneNumbers::kRow8;
}

}  // namespace flashlab::device
