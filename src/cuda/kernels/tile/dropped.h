#pragma once

// Which of the pairs that a lane of mma.sync holds dropout drops: plain arithmetic, which a CPU can
// run and test. g = lane / 4, t = lane % 4.

#include "dropout_pattern.h"

namespace flashlab::device {

/// Queries are rows, kBlocks times 16: of the keys 2 t and 2 t + 1 of blocks of eight.
template <int kBlocks>
struct DroppedOfRows {
  DropoutDraw draws[2];  ///< of 64 keys
  /// Of two blocks of keys; the top bit of byte 2 half + (block): row g + 8 half.
  unsigned words[kBlocks][2];

  /// `keys`: words.keys with dropout_group() of the first of the two keys in it.
  constexpr void draw(unsigned key, const DropoutQueries& rows, unsigned keys) {
    for (unsigned i = 0; i < 2; ++i) draws[i] = dropout_draw(key, rows, keys ^ i);
  }
  /// upper_rows: of 16 rows, that they have bit 4.
  template <class Permute>
  constexpr void take(const DropoutSelectors& sums, unsigned addend, bool upper_rows,
                      const Permute& permute) {
    for (int i = 0; i < 2; ++i) {
      for (int m = 0; m < kBlocks; ++m) {
        const unsigned word = draws[i].word(kBlocks == 1 ? upper_rows : m != 0, sums, permute);
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

/// What a lane keeps of its queries: the key that it draws behind the first of 16 is in it.
struct PairedRows {
  unsigned key;            ///< words.key
  DropoutQueries queries;  ///< high: with words.keys and the drawn key
  unsigned phase;          ///< of the first 64 keys

  constexpr PairedRows() : key(0), queries{}, phase(0) {}
  constexpr PairedRows(const DropoutWords& words, int query, unsigned lane)
      : key(words.key),
        queries(dropout_queries(words, query)),
        phase(dropout_phase(words, queries, 0)) {
    const unsigned drawn = 2 * (lane % 4) + lane / 16;
    queries.high ^= words.keys ^ dropout_group(static_cast<int>(drawn));
  }
};

/// Queries are rows of a warpgroup's product in that order: of the keys 2 t and 2 t + 1 of the
/// eight blocks of 64, two words for each two blocks, in which a top bit of a byte is as in
/// DroppedOfRows. A lane draws the numbers of one of the keys.
struct DroppedOfPairedRows {
  unsigned own[4], other[4];  ///< of the key that the lane drew, and of the other
  unsigned swap;              ///< of selectors: where the lane drew the second key

  /// far: bit 5 of the lane's queries. `keys`: dropout_group() of the first of the 64. `exchange`:
  /// gives a word to the other lane and returns its.
  template <class Exchange, class Permute>
  constexpr DroppedOfPairedRows(const PairedRows& rows, bool far, unsigned keys, unsigned addend,
                                unsigned lane, const Exchange& exchange, const Permute& permute)
      : own{}, other{}, swap(lane / 16 * 0x4444u) {
    const bool upper = lane / 16 != 0;
    const DropoutDraw draw = dropout_draw(rows.key, rows.queries, keys);
    const unsigned x = upper ? draw.words[1] : draw.words[0];
    const unsigned y = upper ? draw.words[0] : draw.words[1];
    // Eight of the 16 permutations repeat others where a given word's are those of x and y, too.
    const auto sum = [&](unsigned word, bool given, int key) {
      const DropoutBytes near_bytes = dropout_bytes(0, key), far_bytes = dropout_bytes(32, key);
      const auto permuted = [&](DropoutByte near_byte, DropoutByte far_byte) {
        near_byte.other ^= given, far_byte.other ^= given;
        return permute(x, y, far ? dropout_selector(far_byte) : dropout_selector(near_byte));
      };
      return word ^ permuted(near_bytes.first, far_bytes.first) ^
             permuted(near_bytes.second, far_bytes.second);
    };
    for (int step = 0; step < 4; ++step) {
      own[step] = DropoutLimit::dropped(sum(x, false, 16 * step), addend);
      other[step] = DropoutLimit::dropped(exchange(sum(y, true, 16 * step)), addend);
    }
  }
  /// Of ptx::permute_bytes(own[step], other[step]): as DroppedOfRows::selector().
  constexpr unsigned selector(int half, int block) const {
    return DroppedOfRows<1>::selector(half, block) ^ swap;
  }
};

/// Keys are rows: a bit for each pair of kM x kN products of 16 keys by 8 queries.
template <int kM, int kN>
struct DroppedOfColumns {
  static_assert(kN == 2 || kN == 4 || kN % 8 == 0, "whole groups of queries, or a part of one");
  static constexpr int kSlots = kM * kN;  ///< a bit of each of a word's bytes
  static constexpr int kWords = (kSlots + 7) / 8;
  unsigned bits[kWords] = {};

  static constexpr int slot(int m, int n, int query) { return (m * 2 + query) * (kN / 2) + n / 2; }

  template <class Permute>
  constexpr void draw(const DropoutWords& words, const DropoutLimit& limit, int query0, int key0,
                      int lane, const Permute& permute) {
    const unsigned keys = words.keys ^ dropout_group(key0 + lane / 4);
    for (int first = 0; first < kN; first += 8) {
      for (int i = 0; i < 2; ++i) {
        const DropoutQueries queries =
            dropout_queries(words, query0 + 8 * first + lane % 4 * 2 + i);
        const unsigned addend = limit.addend(dropout_phase(words, queries, key0));
        const DropoutDraw drawn = dropout_draw(words.key, queries, keys);
        for (int m = 0; m < kM; ++m) {
          for (int n = first; n < kN && n < first + 8; n += 2) {
            // Whole groups begin at a multiple of 64.
            const int query = (kN % 8 == 0 ? 0 : query0) + 8 * n;
            const DropoutSelectors sums = dropout_selectors(query, key0 + 16 * m);
            const unsigned word =
                DropoutLimit::dropped(drawn.word((query & 16) != 0, sums, permute), addend);
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
