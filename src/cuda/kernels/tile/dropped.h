#pragma once

// Which of the pairs that a lane of mma.sync holds dropout drops: plain arithmetic, which a CPU can
// run and test. g = lane / 4, t = lane % 4.

#include "dropout_pattern.h"

namespace flashlab::device {

/// Queries are rows: of the keys 2 t and 2 t + 1 of two blocks of eight, a word for each 16 rows.
template <int kBlocks>
struct DroppedOfRows {
  unsigned words[kBlocks][2];  ///< the top bit of byte 2 half + (block of keys): row g + 8 half

  /// `keys`: words.keys with dropout_key_group() of the first of the two keys in it. upper_rows: of
  /// 16 rows, that they are their group's upper ones.
  constexpr void draw(unsigned key, const DropoutQueries& rows, unsigned keys, unsigned addend,
                      bool upper_rows) {
    for (unsigned i = 0; i < 2; ++i) {
      const DropoutNumbers numbers = dropout_numbers(key, rows, keys ^ i);
      for (int m = 0; m < kBlocks; ++m) {
        const unsigned word = upper_rows ? numbers.words[1] : numbers.words[m];
        words[m][i] = DropoutLimit::dropped(word, addend);
      }
    }
  }

  /// Of ptx::permute_bytes(words[m][0], words[m][1]): all bits of a half where its key is dropped.
  static constexpr unsigned selector(int half, int block) {
    const auto byte = static_cast<unsigned>(2 * half + block);
    return (byte | 8) * 0x11 | (byte | 12) * 0x1100;
  }
};

/// Keys are rows: a bit for each pair of kM x kN products of 16 keys by 8 queries.
template <int kM, int kN>
struct DroppedOfColumns {
  static_assert(kN % 2 == 0 && kN <= 4 && kM <= 2, "products differ in bits of their groups");
  unsigned bits = 0;

  constexpr void draw(const DropoutWords& words, const DropoutLimit& limit, int query0, int key0,
                      int lane) {
    const unsigned keys = words.keys ^ dropout_key_group(key0 + lane / 4);
    for (int i = 0; i < 2; ++i) {
      const DropoutQueries queries = dropout_queries(words, query0 + lane % 4 * 2 + i);
      const unsigned addend = limit.addend(dropout_phase(words, queries, key0));
      for (int m = 0; m < kM; ++m) {
        const DropoutNumbers numbers =
            dropout_numbers(words.key, queries, keys ^ static_cast<unsigned>(m * 8));
        for (int n = 0; n < kN; n += 2) {
          // Of 16 queries the other 16 of a group are another piece's.
          const bool upper = kN == 2 ? (query0 & 16) != 0 : n != 0;
          const unsigned word = DropoutLimit::dropped(numbers.words[upper ? 1 : 0], addend);
          bits |= (word & 0x80808080u) >> ((m * 2 + i) * 2 + n / 2);
        }
      }
    }
  }

  /// Element i of a lane's four of product (m, n).
  constexpr bool dropped(int m, int n, int i) const {
    return (bits >> (8 * (n % 2 * 2 + i / 2) + 7 - ((m * 2 + i % 2) * 2 + n / 2)) & 1) != 0;
  }
};

}  // namespace flashlab::device
