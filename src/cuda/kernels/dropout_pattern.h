#pragma once

// Which probabilities dropout keeps: pure arithmetic, one text for host and device. No include
// here: device code has no library headers.
//
// What decides on a pair depends on seed, offset, batch, head, query and key alone, never on
// threads or tiles, so that forward, backward and every device agree. A head gets three words of
// Philox-4x32-10. Queries and keys that differ in their bits 3, 4 and 5 alone, eight by eight, are
// a group: all that a lane of mma.sync holds of 64 queries and 64 keys, whichever of them are the
// rows. A group draws 64 bits, one Philox-2x32-7, of which each byte gives seven. Its 64 pairs have
// the 64 sums (exclusive or) of one or three of these eight bytes. A sum of two of them is that of
// an even number of bytes, so any three pairs are independent; so are the eight keys of a query
// and the eight queries of a key. A pair is kept where its number is below a limit out of 128; so
// that the probability is right to 16 bits, the limit of a group's pairs is
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

/// A position without its bits 3, 4 and 5: those that share numbers.
constexpr unsigned dropout_group(int position) {
  const auto bits = static_cast<unsigned>(position);
  return (bits >> 6 << 3) | (bits & 7u);
}

/// The first of a group's seven rounds, as far as its queries go.
struct DropoutQueries {
  unsigned high, low;
};

constexpr DropoutQueries dropout_queries(const DropoutWords& words, int query) {
  const unsigned counter = words.query ^ dropout_group(query);
  return {dropout_high(0xD256D193u, counter) ^ words.key, 0xD256D193u * counter};
}

/// A byte of a draw: `places` further on in the own word of a pair or in the other one.
struct DropoutByte {
  bool other;
  unsigned places;
};

/// Two bytes that are added (exclusive or) to a pair's own: they may be the same or its own.
struct DropoutBytes {
  DropoutByte first, second;
};

/// By bit 5 of the query and bits 4 and 5 of the key. Of the arrangements of the 64 sums this has
/// independent rows and columns, and `first` differs between the queries in its word alone.
constexpr DropoutBytes dropout_bytes(int query, int key) {
  const bool far = (query & 32) != 0;
  switch (key >> 4 & 3) {
    case 0:
      return {{!far, 2}, {true, far ? 0u : 1u}};
    case 1:
      return {{far, 2}, {far, far ? 3u : 0u}};
    case 2:
      return {{!far, 3}, {false, far ? 1u : 2u}};
    default:
      return {{far, 3}, {!far, far ? 3u : 0u}};
  }
}

/// DropoutBytes of all four bytes of a word as selectors of permute_bytes(own, other), in 16 bits.
struct DropoutSelectors {
  unsigned first, second;
};

constexpr unsigned dropout_selector(const DropoutByte& byte) {
  return (0x32103210u >> 4 * byte.places & 0xFFFFu) + (byte.other ? 0x4444u : 0);
}

/// Of the four blocks of 16 keys, the first in the low bits.
consteval unsigned long long dropout_selectors_of_keys(int query, DropoutByte DropoutBytes::*byte) {
  unsigned long long out = 0;
  for (int key = 48; key >= 0; key -= 16) {
    out = out << 16 | dropout_selector(dropout_bytes(query, key).*byte);
  }
  return out;
}

constexpr DropoutSelectors dropout_selectors(int query, int key) {
  constexpr unsigned long long kFirst = dropout_selectors_of_keys(0, &DropoutBytes::first),
                               kNear = dropout_selectors_of_keys(0, &DropoutBytes::second),
                               kFar = dropout_selectors_of_keys(32, &DropoutBytes::second);
  const unsigned shift = static_cast<unsigned>(key) & 48u;
  const bool far = (query & 32) != 0;
  return {static_cast<unsigned>(kFirst >> shift) ^ (far ? 0x4444u : 0),
          static_cast<unsigned>((far ? kFar : kNear) >> shift)};
}

/// A group's draw: eight numbers of seven bits.
struct DropoutDraw {
  unsigned words[2];

  /// The sums of four pairs: a byte for each of 2 * (bit 3 of the query) + (that of the key).
  constexpr unsigned word(int query, int key) const {
    const bool upper = (query & 16) != 0;
    const unsigned own = upper ? words[1] : words[0], other = upper ? words[0] : words[1];
    const DropoutBytes bytes = dropout_bytes(query, key);
    return own ^ turned(bytes.first.other ? other : own, bytes.first.places) ^
           turned(bytes.second.other ? other : own, bytes.second.places);
  }
  /// The same where the positions are not known when compiled, by an instruction for any bytes.
  template <class Permute>
  constexpr unsigned word(bool upper, const DropoutSelectors& selectors,
                          const Permute& permute) const {
    // Selectors, not words, change places: those of a far and of an upper query are then the same.
    const unsigned places = upper ? 0x4444u : 0;
    return (upper ? words[1] : words[0]) ^ permute(words[0], words[1], selectors.first ^ places) ^
           permute(words[0], words[1], selectors.second ^ places);
  }
  static constexpr unsigned of(unsigned word, int query, int key) {
    return word >> ((query >> 3 & 1) * 16 + (key >> 3 & 1) * 8) & 0x7Fu;
  }

 private:
  static constexpr unsigned turned(unsigned word, unsigned places) {
    return places == 0 ? word : word >> 8 * places | word << (32 - 8 * places);
  }
};

/// `key`: words.key; `keys`: words.keys with dropout_group() of the keys in it.
constexpr DropoutDraw dropout_draw(unsigned key, const DropoutQueries& queries, unsigned keys) {
  unsigned c0 = queries.high ^ keys, c1 = queries.low;
  for (unsigned round = 1; round < 7; ++round) {
    const unsigned long long product = static_cast<unsigned long long>(0xD256D193u) * c0;
    c0 = static_cast<unsigned>(product >> 32) ^ c1 ^ (key + round * 0x9E3779B9u);
    c1 = static_cast<unsigned>(product);
  }
  return {{c0 & 0x7F7F7F7Fu, c1 & 0x7F7F7F7Fu}};
}

/// From the phase of 64 keys to that of the next ones.
constexpr unsigned kDropoutPhaseStep = 0x9E3779B9u;

/// Which of the two limits the 64 keys that `key` is one of have.
constexpr unsigned dropout_phase(const DropoutWords& words, const DropoutQueries& queries,
                                 int key) {
  return queries.low + words.keys + (static_cast<unsigned>(key) >> 6) * kDropoutPhaseStep;
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
  static constexpr unsigned dropped(unsigned word, unsigned addend) { return word + addend; }
};

constexpr bool dropout_keeps(const DropoutWords& words, const DropoutLimit& limit, int query,
                             int key) {
  const DropoutQueries queries = dropout_queries(words, query);
  const DropoutDraw draw = dropout_draw(words.key, queries, words.keys ^ dropout_group(key));
  return DropoutDraw::of(draw.word(query, key), query, key) <
         limit.of(dropout_phase(words, queries, key));
}

}  // namespace flashlab::device
