#pragma once

// Which probabilities dropout keeps: pure arithmetic, one text for host and device. No include
// here: device code has no library headers.
//
// What decides on a pair depends on seed, offset, batch, head, query and key alone, never on
// threads or tiles, so that forward, backward and every device agree. A head gets three words of
// Philox-4x32-10. Queries that differ in their bits 0, 3, 4, 5 and 6 alone and keys that do, 32 by
// 32, are a group: of 128 queries and 128 keys what two lanes of mma.sync hold, whichever of them
// are the rows. A group has eleven numbers of seven bits: an origin and one for each of those bits.
// A pair's is the sum (exclusive or) of the origin and of those of the bits that are set in its
// positions, so any three pairs of a group are independent; four are not where each of the bits is
// set in an even number of them. Nine numbers are the bits of one Philox-2x32-7; those of bit 6 go
// around with the keys, evenly. A pair is kept where its number is below a limit out of 128; so
// that the probability is right to 16 bits, a group's limit is one of the two whole numbers beside
// it, which go around, too. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
// 3".

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

/// A position without its bits 0, 3, 4, 5 and 6: those that share numbers.
constexpr unsigned dropout_group(int position) {
  const auto bits = static_cast<unsigned>(position);
  return (bits >> 7 << 2) | (bits >> 1 & 3u);
}

/// The first of a group's seven rounds, as far as its queries go.
struct DropoutQueries {
  unsigned high, low;
};

/// Of query `query` + `behind`: no bit is set in both.
constexpr DropoutQueries dropout_queries(const DropoutWords& words, int query, int behind = 0) {
  const unsigned counter = words.query ^ dropout_group(query) ^ dropout_group(behind);
  const unsigned long long product = static_cast<unsigned long long>(0xD256D193u) * counter;
  return {static_cast<unsigned>(product >> 32) ^ words.key, static_cast<unsigned>(product)};
}

/// Which bytes of its word a position's number is the sum of, and which bits of them count: bytes 0
/// to 3 belong to its bits 0, 4, 5 and 3.
constexpr unsigned dropout_bytes(int position) {
  const auto bits = static_cast<unsigned>(position);
  return ((bits & 1u) | (bits >> 4 & 1u) << 8 | (bits >> 5 & 1u) << 16 | (bits >> 3 & 1u) << 24) *
         0x7Fu;
}

/// Arithmetic of a word's four bytes, as device code has it as instructions.
struct DropoutArithmetic {
  /// sum + the products of the bytes of a and b.
  static constexpr unsigned dot(unsigned a, unsigned b, unsigned sum) {
    for (int shift = 0; shift < 32; shift += 8) {
      sum += (a >> shift & 0xFFu) * (b >> shift & 0xFFu);
    }
    return sum;
  }
};

/// A group's draw: a word for its queries and one for its keys.
struct DropoutDraw {
  unsigned queries, keys;

  /// Bits 8 to 14 are the origin: the top bits of seven bytes decide on them, whatever the other
  /// bits are. No bit is set above bit 15.
  template <class Arithmetic>
  constexpr unsigned origin(const Arithmetic& arithmetic) const {
    return arithmetic.dot(keys, 0x00804020u, arithmetic.dot(queries, 0x10080402u, 0));
  }
  /// Of a word's four bytes, as the origin in their low seven bits.
  static constexpr unsigned sum(unsigned bytes) {
    const unsigned halves = bytes ^ bytes >> 16;
    return (halves ^ halves >> 8) & 0x7Fu;
  }
  constexpr unsigned number(int query, int key, unsigned phase) const {
    const unsigned bytes = (queries & dropout_bytes(query)) ^ (keys & dropout_bytes(key));
    const unsigned far = ((query & 64) != 0 ? phase >> 8 : 0) ^ ((key & 64) != 0 ? phase >> 16 : 0);
    return sum(bytes) ^ ((origin(DropoutArithmetic{}) >> 8 ^ far) & 0x7Fu);
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
  return {c0, c1};
}

/// Of a group: decides which of two limits it has, and has the numbers of bit 6 of its queries,
/// bits 8 to 14, and of its keys, bits 16 to 22.
constexpr unsigned dropout_phase(const DropoutQueries& queries, int key) {
  return queries.low + (static_cast<unsigned>(key) >> 7) * 0x9E3779B9u;
}

/// The probability that a pair is kept, in 65536ths: 65536 (1 - p), rounded.
constexpr unsigned dropout_limit(double probability) {
  return static_cast<unsigned>(65536.0 * (1.0 - probability) + 0.5);
}

/// What numbers are below where the pair is kept, 0 to 128: the next whole number below 1 - p in
/// 128ths, or above, whose share of the phases is what lies between.
constexpr unsigned dropout_bound(unsigned limit, unsigned phase) {
  return (limit + (phase >> 23)) >> 9;
}

/// What added to a number in 16 bits gives a negative one where the pair is dropped and, where it
/// is kept, one above every finite bf16 and fp16; in both halves of a word.
constexpr unsigned dropout_addend(unsigned limit, unsigned phase) {
  return 0x80008000u - dropout_bound(limit, phase) * 0x10001u;
}

/// `limit`: dropout_limit().
constexpr bool dropout_keeps(const DropoutWords& words, unsigned limit, int query, int key) {
  const DropoutQueries queries = dropout_queries(words, query);
  const DropoutDraw draw = dropout_draw(words.key, queries, words.keys ^ dropout_group(key));
  const unsigned phase = dropout_phase(queries, key);
  return draw.number(query, key, phase) < dropout_bound(limit, phase);
}

}  // namespace flashlab::device
