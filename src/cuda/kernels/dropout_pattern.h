#pragma once

// Which probabilities dropout keeps: pure arithmetic, one text for host and device. No include
// here: device code has no library headers.
//
// What decides on a pair depends on seed, offset, batch, head, query and key alone, never on
// threads or tiles, so that forward, backward and every device agree. A head gets three words of
// Philox-4x32-10. Eight pairs, (i, i + 8, i + 16, i + 24) x (j, j + 8), share the 64 bits of one
// Philox-2x32-7, 7 of 8 bits each: what a lane of mma.sync holds of 32 queries and 16 keys,
// whichever of them are the rows. A pair is kept where its number is below a limit out of 128; so
// that the probability is right to 16 bits, the limit of the pairs of four queries and 32 keys is
// one of the two whole numbers beside it, by a third word. Source: Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3".

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

/// A position without its bits 3 and 4: those that share a query's numbers.
constexpr unsigned dropout_query_group(int position) {
  const auto bits = static_cast<unsigned>(position);
  return (bits >> 5 << 3) | (bits & 7u);
}

/// A position without its bit 3.
constexpr unsigned dropout_key_group(int position) {
  const auto bits = static_cast<unsigned>(position);
  return (bits >> 4 << 3) | (bits & 7u);
}

/// The first of a group's seven rounds, as far as its queries go.
struct DropoutQueries {
  unsigned high, low;
};

constexpr DropoutQueries dropout_queries(const DropoutWords& words, int query) {
  const unsigned counter = words.query ^ dropout_query_group(query);
  return {dropout_high(0xD256D193u, counter) ^ words.key, 0xD256D193u * counter};
}

/// The numbers of a group.
struct DropoutNumbers {
  unsigned words[2];  ///< by bit 4 of the query; a byte for each of 2 * (its bit 3) + (the key's)

  constexpr unsigned of(int query, int key) const {
    const unsigned word = (query >> 4 & 1) != 0 ? words[1] : words[0];
    return word >> ((query >> 3 & 1) * 16 + (key >> 3 & 1) * 8) & 0x7Fu;
  }
};

/// `key`: words.key; `keys`: words.keys with dropout_key_group() in it.
constexpr DropoutNumbers dropout_numbers(unsigned key, const DropoutQueries& queries,
                                         unsigned keys) {
  unsigned c0 = queries.high ^ keys, c1 = queries.low;
  for (unsigned round = 1; round < 7; ++round) {
    const unsigned long long product = static_cast<unsigned long long>(0xD256D193u) * c0;
    c0 = static_cast<unsigned>(product >> 32) ^ c1 ^ (key + round * 0x9E3779B9u);
    c1 = static_cast<unsigned>(product);
  }
  return {{c0, c1}};
}

/// From the phase of 32 keys to that of the next ones.
constexpr unsigned kDropoutPhaseStep = 0x9E3779B9u;

/// Which of the two limits the 32 keys that `key` is one of have.
constexpr unsigned dropout_phase(const DropoutWords& words, const DropoutQueries& queries,
                                 int key) {
  return queries.low + words.keys + (static_cast<unsigned>(key) >> 5) * kDropoutPhaseStep;
}

/// The probability that a pair is kept, in 65536ths: 65536 (1 - p), rounded.
constexpr unsigned dropout_limit(double probability) {
  return static_cast<unsigned>(65536.0 * (1.0 - probability) + 0.5);
}

/// The limit of a number in 128ths: the next whole one above or, below a phase, one less.
struct DropoutLimit {
  unsigned above;  ///< 0 to 128
  unsigned phase;

  constexpr explicit DropoutLimit(unsigned limit)
      : above((limit + 511) / 512), phase((above * 512 - limit) << 23) {}

  constexpr unsigned of(unsigned at_phase) const { return above - (at_phase < phase ? 1 : 0); }

  /// What added to a number has the top bit of its byte set where the pair is dropped, in all four
  /// bytes of a word.
  constexpr unsigned addend(unsigned at_phase) const {
    const unsigned least = (128 - above) * 0x01010101u;
    return at_phase < phase ? least + 0x01010101u : least;
  }
  /// Top bits of bytes: of the dropped pairs. The others are anything.
  static constexpr unsigned dropped(unsigned word, unsigned addend) {
    return (word & 0x7F7F7F7Fu) + addend;
  }
};

constexpr bool dropout_keeps(const DropoutWords& words, const DropoutLimit& limit, int query,
                             int key) {
  const DropoutQueries queries = dropout_queries(words, query);
  return dropout_numbers(words.key, queries, words.keys ^ dropout_key_group(key)).of(query, key) <
         limit.of(dropout_phase(words, queries, key));
}

}  // namespace flashlab::device
