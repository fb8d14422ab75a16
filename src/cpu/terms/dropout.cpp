#include "cpu/terms/dropout.h"

#include <algorithm>

#include "cuda/kernels/dropout_pattern.h"

namespace flashlab::internal {
namespace {

// Calls use(n, kept) for the keys from `key` on.
template <class Use>
void for_each_key(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
                  std::int64_t key, std::int64_t count, const Use& use) {
  const device::DropoutWords words = device::dropout_words(
      mask.seed, mask.offset,
      static_cast<std::uint64_t>(mask.first_head + batch * mask.heads_q + head));
  const int query = static_cast<int>(i);
  const device::DropoutQueries queries = device::dropout_queries(words, query);
  const std::int64_t end = key + count;
  // Sixteen keys of 64 share a draw.
  for (std::int64_t first = key / 64 * 64; first < end; first += 64) {
    std::uint8_t numbers[64];
    const unsigned phase = device::dropout_phase(queries, static_cast<int>(first));
    for (int n = 0; n < 8; n += 2) {
      const int of_group = static_cast<int>(first) + n;
      const unsigned keys = words.keys ^ device::dropout_group(of_group);
      const auto draw = device::dropout_draw(words.key, queries, keys);
      const unsigned own = draw.number(query, of_group, phase);
      for (int bits = 0; bits < 16; ++bits) {
        const int more = (bits & 1) | (bits >> 1) * 8;
        const unsigned added = device::DropoutDraw::sum(draw.keys & device::dropout_bytes(more));
        numbers[n + more] = static_cast<std::uint8_t>(own ^ added);
      }
    }
    const unsigned bound = device::dropout_bound(mask.limit, phase);
    const std::int64_t to = std::min(first + 64, end);
    for (std::int64_t j = std::max(first, key); j < to; ++j) {
      use(j - key, numbers[j - first] < bound);
    }
  }
}

template <class Real>
void drop_keys(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
               std::int64_t key, std::int64_t count, Real* row) {
  if (!mask.active()) return;
  for_each_key(mask, batch, head, i, key, count, [row](std::int64_t n, bool kept) {
    if (!kept) row[n] = 0;
  });
}

}  // namespace

DropoutMask dropout_mask(const Geometry& geometry, const DropoutSeed& seed) {
  DropoutMask mask;
  mask.limit = device::dropout_limit(static_cast<double>(geometry.dropout));
  mask.scale = 1.0 / (1.0 - static_cast<double>(geometry.dropout));
  mask.seed = seed.seed;
  mask.offset = seed.offset;
  mask.heads_q = geometry.heads_q;
  return mask;
}

void dropout_row(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
                 std::int64_t key, std::int64_t count, float* keep) {
  for_each_key(mask, batch, head, i, key, count,
               [keep](std::int64_t n, bool kept) { keep[n] = kept ? 1.0f : 0.0f; });
}

void drop(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
          std::int64_t key, std::int64_t count, float* row) {
  drop_keys(mask, batch, head, i, key, count, row);
}

void drop(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
          std::int64_t key, std::int64_t count, double* row) {
  drop_keys(mask, batch, head, i, key, count, row);
}

}  // namespace flashlab::internal
