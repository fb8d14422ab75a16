#pragma once

// Deliberate faults, for the test that proves the checks can fail (tests/cuda_mutation_test.cpp):
// each function here gives back its argument unless the Config asks for its fault. No planner
// prints kMutation, so in every kernel that ships they cost nothing.

namespace flashlab::device {

enum class Mutation : int {
  kNone = 0,
  kWrongScale = 1,          ///< scores are 5 % larger than they should be
  kShiftedMask = 2,         ///< the right bound lies one key too far
  kDroppedTile = 3,         ///< a block leaves out one of the tiles it walks over
  kUnmaskedTail = 4,        ///< eight keys beyond seqlen_k take part, with score 0
  kStaleSums = 5,           ///< sums are not rescaled to a new reference (merge: parts' weights)
  kMissingDelta = 6,        ///< backward: delta lacks rowsum(dO * O)
  kMissingLseGradient = 7,  ///< backward: delta lacks dLSE
  kUnscaledGradQ = 8,       ///< backward: dq lacks the scale
};

namespace mutation {

template <class Config>
constexpr bool asked(Mutation fault) {
  if constexpr (requires { Config::kMutation; }) {
    return Config::kMutation == static_cast<int>(fault);
  } else {
    return false;
  }
}

/// A factor of scores.
template <class Config>
constexpr float scale(float factor) {
  return asked<Config>(Mutation::kWrongScale) ? 1.05f * factor : factor;
}

/// The right bound.
template <class Config, class Bound>
constexpr Bound right(Bound bound) {
  return asked<Config>(Mutation::kShiftedMask) ? bound + 1 : bound;
}

/// Number of tiles, or index of the last one.
template <class Config>
constexpr int last_tile(int tiles) {
  return asked<Config>(Mutation::kDroppedTile) && tiles > 0 ? tiles - 1 : tiles;
}

/// Where a walk over tiles of `size` rows begins.
template <class Config>
constexpr int first_row(int row, int size) {
  return asked<Config>(Mutation::kDroppedTile) ? row + size : row;
}

/// The number of keys.
template <class Config>
constexpr int keys(int seqlen_k) {
  return asked<Config>(Mutation::kUnmaskedTail) ? seqlen_k + 8 : seqlen_k;
}

/// What sums relative to an old reference are multiplied by.
template <class Config>
constexpr float rescale(float factor) {
  return asked<Config>(Mutation::kStaleSums) ? 1.0f : factor;
}

/// delta = rowsum(dO * O) - dLSE.
template <class Config, class Value>
constexpr Value delta(Value products, Value lse_gradient) {
  if (asked<Config>(Mutation::kMissingDelta)) return -lse_gradient;
  return asked<Config>(Mutation::kMissingLseGradient) ? products : products - lse_gradient;
}

/// The scale of dq.
template <class Config>
constexpr float grad_q_scale(float factor) {
  return asked<Config>(Mutation::kUnscaledGradQ) ? 1.0f : factor;
}

}  // namespace mutation
}  // namespace flashlab::device
