#pragma once

// Which probabilities dropout keeps: pure arithmetic, one text for host and device. No include
// here: device code has no library headers.
//
// A pair's number depends on seed, offset, batch, head, query and key alone, never on threads or
// tiles, so that forward, backward and every device agree. A head gets three words of
// Philox-4x32-10; groups of 2 x 2 pairs, (i, i + 8) x (j, j + 8), share the 64 bits of one
// Philox-2x32-7: what a lane of mma.sync holds of 16 rows and 16 columns, whichever of them are the
// queries. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

namespace flashlab::device {

/// Of one (batch, head).
struct DropoutWords {
  unsigned key, query, keys;
};

constexpr unsigned dropout_high(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

/// head = batch * heads_q + the query head.
constexpr DropoutWords dropout_words(unsigned long long seed, unsigned long long offset,
                                     unsigned long long head) {
  unsigned c0 = static_cast<unsigned>(head), c1 = static_cast<unsigned>(head >> 32);
  unsigned c2 = static_cast<unsigned>(offset), c3 = static_cast<unsigned>(offset >> 32);
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = dropout_high(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high2 = dropout_high(0xCD9E8D57u, c2), low2 = 0xCD9E8D57u * c2;
    c0 = high2 ^ c1 ^ k0;
    c1 = low2;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2};
}

/// The four numbers of the group that query and key are in.
struct DropoutNumbers {
  unsigned words[2];  ///< of the lower and of the upper query; low half: of the lower key

  constexpr unsigned of(int upper_query, int upper_key) const {
    const unsigned word = upper_query != 0 ? words[1] : words[0];
    return upper_key != 0 ? word >> 16 : word & 0xFFFFu;
  }
};

/// A position without its bit 3.
constexpr unsigned dropout_group(int position) {
  const auto bits = static_cast<unsigned>(position);
  return (bits >> 4 << 3) | (bits & 7u);
}

/// By the words of a group's queries and keys: those of the head with dropout_group() in them.
constexpr DropoutNumbers dropout_group_numbers(unsigned key, unsigned c0, unsigned c1) {
  unsigned round_key = key;
  for (int round = 0; round < 7; ++round) {
    const unsigned long long product = static_cast<unsigned long long>(0xD256D193u) * c0;
    c0 = static_cast<unsigned>(product >> 32) ^ c1 ^ round_key;
    c1 = static_cast<unsigned>(product);
    round_key += 0x9E3779B9u;
  }
  return {{c0, c1}};
}

constexpr DropoutNumbers dropout_numbers(const DropoutWords& words, int query, int key) {
  return dropout_group_numbers(words.key, words.query ^ dropout_group(query),
                               words.keys ^ dropout_group(key));
}

/// A pair is kept where its number is below this: 65536 (1 - p), rounded.
constexpr unsigned dropout_limit(double probability) {
  return static_cast<unsigned>(65536.0 * (1.0 - probability) + 0.5);
}

/// The same of both numbers of a word at once, without a comparison and a predicate for each, which
/// cost more than the numbers.
struct DropoutLimit {
  static constexpr unsigned kTops = 0x80008000u;
  unsigned rest;  ///< the limit without its top bit, in both halves
  unsigned tops;  ///< that bit, inverted

  /// 65536, which keeps everything, has the top bit and 0x8000 besides.
  constexpr explicit DropoutLimit(unsigned limit)
      : rest((limit >= 0x8000u ? limit - 0x8000u : limit) * 0x10001u),
        tops(limit >= 0x8000u ? 0 : kTops) {}

  /// Bits 15 and 31 say whether the lower and the upper number are kept; the others are anything.
  constexpr unsigned keeps(unsigned word) const {
    const unsigned rest_is_large = (word | kTops) - rest;
    return ~((word & rest_is_large) | (word & tops) | (rest_is_large & tops));
  }
};

constexpr bool dropout_keeps(const DropoutWords& words, unsigned limit, int query, int key) {
  return dropout_numbers(words, query, key).of(query >> 3 & 1, key >> 3 & 1) < limit;
}

}  // namespace flashlab::device
