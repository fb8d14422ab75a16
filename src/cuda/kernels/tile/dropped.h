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

/// Which position of 64 has row `row` of a warpgroup's product, its bits 2 and 4 exchanged: then a
/// lane and the one 16 further have the four queries that share numbers with one another, and each
/// draws for both. The function is its own inverse.
constexpr int position_of_paired_row(int row) {
  return (row & ~20) | (row & 4) << 2 | (row & 16) >> 2;
}

/// Queries are rows of a warpgroup's product in that order: of the keys 2 t and 2 t + 1 of two
/// blocks of eight, two words in which a top bit of a byte is as in DroppedOfRows. A lane draws the
/// numbers of one of the keys.
struct DroppedOfPairedRows {
  unsigned own, other;  ///< of the key that the lane drew, and that the other drew
  unsigned swap;        ///< of selectors: where the lane drew the second key

  /// What a lane keeps of its queries: the key that it draws behind the first of 16 is in it.
  struct Rows {
    unsigned key;            ///< words.key
    DropoutQueries queries;  ///< high: with words.keys and the drawn key
    unsigned phase;          ///< of the first 32 keys

    constexpr Rows() : key(0), queries{}, phase(0) {}
    constexpr Rows(const DropoutWords& words, int query, unsigned lane)
        : key(words.key),
          queries(dropout_queries(words, query)),
          phase(dropout_phase(words, queries, 0)) {
      const unsigned drawn = 2 * (lane % 4) + lane / 16;
      queries.high ^= words.keys ^ dropout_key_group(static_cast<int>(drawn));
    }
  };

  /// `keys`: dropout_key_group() of the first of the 16. `exchange`: gives a word to the other lane
  /// and returns its.
  template <class Exchange>
  constexpr DroppedOfPairedRows(const Rows& rows, unsigned keys, unsigned addend, unsigned lane,
                                const Exchange& exchange)
      : own(0), other(0), swap(lane / 16 * 0x4444u) {
    const bool upper = lane / 16 != 0;
    const DropoutNumbers numbers = dropout_numbers(rows.key, rows.queries, keys);
    own = DropoutLimit::dropped(upper ? numbers.words[1] : numbers.words[0], addend);
    const unsigned given = upper ? numbers.words[0] : numbers.words[1];
    other = DropoutLimit::dropped(exchange(given), addend);
  }
  /// Of ptx::permute_bytes(own, other): as DroppedOfRows::selector().
  constexpr unsigned selector(int half, int block) const {
    return DroppedOfRows<1>::selector(half, block) ^ swap;
  }
};

/// Keys are rows: a bit for each pair of kM x kN products of 16 keys by 8 queries.
template <int kM, int kN>
struct DroppedOfColumns {
  static_assert(kN == 2 || kN % 4 == 0, "whole groups of queries, or half of one");
  static constexpr int kSlots = kM * kN;  ///< a bit of each of a word's bytes
  static constexpr int kWords = (kSlots + 7) / 8;
  unsigned bits[kWords] = {};

  static constexpr int slot(int m, int n, int query) { return (m * 2 + query) * (kN / 2) + n / 2; }

  constexpr void draw(const DropoutWords& words, const DropoutLimit& limit, int query0, int key0,
                      int lane) {
    const unsigned keys = words.keys ^ dropout_key_group(key0 + lane / 4);
    for (int group = 0; group < kN; group += 4) {
      for (int i = 0; i < 2; ++i) {
        const DropoutQueries queries =
            dropout_queries(words, query0 + 8 * group + lane % 4 * 2 + i);
        const unsigned addend = limit.addend(dropout_phase(words, queries, key0));
        for (int m = 0; m < kM; ++m) {
          const DropoutNumbers numbers =
              dropout_numbers(words.key, queries, keys ^ static_cast<unsigned>(m * 8));
          for (int n = group; n < kN && n < group + 4; n += 2) {
            // Of 16 queries the other 16 of a group are another piece's.
            const bool upper = kN == 2 ? (query0 & 16) != 0 : n % 4 != 0;
            const unsigned word = DropoutLimit::dropped(numbers.words[upper ? 1 : 0], addend);
            bits[slot(m, n, i) / 8] |= (word & 0x80808080u) >> slot(m, n, i) % 8;
          }
        }
      }
    }
  }

  /// Where the bit of element i of a lane's four of product (m, n) is.
  constexpr unsigned word(int m, int n, int i) const { return bits[slot(m, n, i % 2) / 8]; }
  static constexpr unsigned bit(int m, int n, int i) {
    return 0x80u >> slot(m, n, i % 2) % 8 << 8 * (n % 2 * 2 + i / 2);
  }
  constexpr bool dropped(int m, int n, int i) const { return (word(m, n, i) & bit(m, n, i)) != 0; }
};

}  // namespace flashlab::device
