#include "reference/scores.h"

#include <cstring>

namespace flashlab::reference {
namespace {

struct Product {
  std::uint32_t high, low;
};

Product multiply(std::uint32_t a, std::uint32_t b) {
  const std::uint64_t product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

// Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
std::array<std::uint32_t, 4> philox_4x32_10(std::array<std::uint32_t, 4> counter,
                                            std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const Product a = multiply(0xD2511F53u, counter[0]), b = multiply(0xCD9E8D57u, counter[2]);
    counter = {b.high ^ counter[1] ^ key[0], b.low, a.high ^ counter[3] ^ key[1], a.low};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

std::array<std::uint32_t, 2> philox_2x32_7(std::array<std::uint32_t, 2> counter,
                                           std::uint32_t key) {
  for (int round = 0; round < 7; ++round) {
    const Product a = multiply(0xD256D193u, counter[0]);
    counter = {a.high ^ counter[1] ^ key, a.low};
    key += 0x9E3779B9u;
  }
  return counter;
}

// Positions that differ in bits 0, 3, 4, 5 and 6 alone share a group.
std::uint32_t group_of(std::int64_t position) {
  return static_cast<std::uint32_t>(position / 128 * 4 + position / 2 % 4);
}

// The number that a word of a draw has for a position: the sum (exclusive or) of a byte for each of
// the position's bits 0, 4, 5 and 3 that is set, in this order.
std::uint32_t sum_of_bytes(std::uint32_t word, std::int64_t position) {
  std::uint32_t out = 0;
  for (const std::int64_t bit : {1, 16, 32, 8}) {
    if (position / bit % 2 == 1) out ^= word % 256;
    word /= 256;
  }
  return out;
}

// The number of pairs with none of these bits: a weighted sum of bytes, in which the top bits of
// seven of them are the digits.
std::uint32_t origin_of(const std::array<std::uint32_t, 2>& bits) {
  std::uint32_t sum = 0;
  for (std::uint32_t byte = 0; byte < 7; ++byte) {
    sum += (bits[byte / 4] >> (8 * (byte % 4))) % 256 * (2u << byte);
  }
  return sum / 256;
}

std::uint32_t low_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
std::uint32_t high_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

ScoreRule::ScoreRule(const Sizes& sizes, const Options& options,
                     const std::optional<ConstTensor>& slopes)
    : sizes_(sizes), cap_(options.softcap), slopes_(slopes) {}

ScoreRule::Row ScoreRule::row(std::int64_t b, std::int64_t h, std::int64_t i) const {
  Row out;
  if (!slopes_) return out;
  const TensorSpec& spec = slopes_->spec;
  const std::int64_t index =
      (spec.shape[0] > 1 ? b * spec.strides[0] : 0) + (spec.shape[1] > 1 ? h * spec.strides[1] : 0);
  out.slope = load(slopes_->data, spec.dtype, index);
  out.aligned_key = i + sizes_.seqlen_k - sizes_.seqlen_q;
  return out;
}

DropoutRule::DropoutRule(const Sizes& sizes, const Options& options, const DropoutSeed& seed)
    : heads_q_(sizes.heads_q), seed_(seed) {
  if (!options.dropout) return;
  const double kept = 1.0 - static_cast<double>(*options.dropout);
  limit_ = static_cast<std::uint32_t>(std::lround(65536.0 * kept));
  scale_ = 1.0 / kept;
}

DropoutSeed DropoutRule::seed_of(const DropoutSeed& values,
                                 const std::optional<ConstTensor>& state) {
  if (!state) return values;
  DropoutSeed out;
  std::memcpy(&out.seed, state->data, 8);
  std::memcpy(&out.offset, static_cast<const char*>(state->data) + 8, 8);
  return out;
}

std::int64_t DropoutRule::first_head_of(const std::optional<ConstTensor>& state) {
  std::int64_t head = 0;
  if (state && state->spec.shape[0] > 2) {
    std::memcpy(&head, static_cast<const char*>(state->data) + 16, 8);
  }
  return head;
}

std::array<std::uint32_t, 4> DropoutRule::head_words(std::int64_t b, std::int64_t h) const {
  const auto head = static_cast<std::uint64_t>(first_head_ + b * heads_q_ + h);
  return philox_4x32_10(
      {low_word(head), high_word(head), low_word(seed_.offset), high_word(seed_.offset)},
      {low_word(seed_.seed), high_word(seed_.seed)});
}

bool DropoutRule::keeps(const std::array<std::uint32_t, 4>& words, std::int64_t i,
                        std::int64_t j) const {
  const std::uint32_t query = words[1] ^ group_of(i);
  const auto bits = philox_2x32_7({query, words[2] ^ group_of(j)}, words[0]);
  // Goes around with the blocks of 128 keys, evenly: a fraction of 512ths, and two numbers.
  const std::uint32_t turn =
      multiply(0xD256D193u, query).low + static_cast<std::uint32_t>(j / 128) * 0x9E3779B9u;
  std::uint32_t number = origin_of(bits) ^ sum_of_bytes(bits[0], i) ^ sum_of_bytes(bits[1], j);
  if (i / 64 % 2 == 1) number ^= turn / 0x100u;
  if (j / 64 % 2 == 1) number ^= turn / 0x10000u;
  return number % 128 < (limit_ + turn / 0x800000u) / 512;
}

bool DropoutRule::keeps(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
  return !active() || keeps(head_words(b, h), i, j);
}

void DropoutRule::row(std::int64_t b, std::int64_t h, std::int64_t i,
                      const std::vector<std::int64_t>& keys,
                      std::vector<std::uint8_t>& kept) const {
  kept.assign(keys.size(), 1);
  if (!active()) return;
  const std::array<std::uint32_t, 4> words = head_words(b, h);
  for (std::size_t n = 0; n < keys.size(); ++n) kept[n] = keeps(words, i, keys[n]) ? 1 : 0;
}

}  // namespace flashlab::reference
