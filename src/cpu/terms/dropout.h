#pragma once

// Dropout on a CPU: which probabilities of a row stay. The pattern itself is
// cuda/kernels/dropout_pattern.h, which GPU kernels read, too.

#include <cstdint>

#include "api/problem.h"

namespace flashlab::internal {

/// Of one call. Plain data: kernels of every instruction set carry it.
struct DropoutMask {
  std::uint32_t limit = 65536;  ///< the probability that a pair is kept, in 65536ths
  double scale = 1;             ///< 1 / (1 - p)
  std::uint64_t seed = 0, offset = 0;
  std::int64_t heads_q = 0;
  std::int64_t first_head = 0;  ///< of the pattern: a sequence's heads come after those before it

  bool active() const { return limit < 65536; }
};

/// What the pattern of a call is drawn by.
template <class Tensors>
DropoutSeed dropout_seed_of(const Tensors& tensors) {
  if (!tensors.dropout_state) return tensors.dropout_seed;
  const auto* state = static_cast<const std::uint64_t*>(tensors.dropout_state->data);
  return {state[0], state[1]};
}

DropoutMask dropout_mask(const Geometry& geometry, const DropoutSeed& seed);

/// A third word of dropout_state, which only one sequence of a list has, is the first head.
template <class Tensors>
DropoutMask dropout_mask_of(const Geometry& geometry, const Tensors& tensors) {
  DropoutMask mask = dropout_mask(geometry, dropout_seed_of(tensors));
  if (tensors.dropout_state && tensors.dropout_state->spec.shape[0] > 2) {
    mask.first_head = static_cast<const std::int64_t*>(tensors.dropout_state->data)[2];
  }
  return mask;
}

/// keep[n] = 1 or 0 for query i and key `key + n`, n in [0, count).
void dropout_row(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
                 std::int64_t key, std::int64_t count, float* keep);

/// row[n] = 0 where the pair of query i and key `key + n` is dropped.
void drop(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
          std::int64_t key, std::int64_t count, float* row);
void drop(const DropoutMask& mask, std::int64_t batch, std::int64_t head, std::int64_t i,
          std::int64_t key, std::int64_t count, double* row);

}  // namespace flashlab::internal
