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
  kShiftedLeft = 9,         ///< the left bound lies one key too far
  kShiftedDistance = 10,    ///< ALiBi's distances are one key too large, to the right
  kOtherPairs = 11,         ///< dropout drops the pairs of the next head
  kUnscaledKeep = 12,       ///< what dropout keeps is not multiplied by 1 / (1 - p)
  kMissingSlope = 13,       ///< backward: dS lacks softcap's derivative
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

/// The left bound.
template <class Config, class Bound>
constexpr Bound left(Bound bound) {
  return asked<Config>(Mutation::kShiftedLeft) ? bound + 1 : bound;
}

/// A key's distance for ALiBi.
template <class Config>
constexpr int distance(int keys) {
  return asked<Config>(Mutation::kShiftedDistance) ? keys + 1 : keys;
}

/// The head whose pairs dropout draws.
template <class Config>
constexpr int drawn_head(int head) {
  return asked<Config>(Mutation::kOtherPairs) ? head + 1 : head;
}

/// The factor of what dropout keeps.
template <class Config>
constexpr float keep_scale(float factor) {
  return asked<Config>(Mutation::kUnscaledKeep) ? 1.0f : factor;
}

/// Softcap's derivative.
template <class Config>
constexpr float slope(float derivative) {
  return asked<Config>(Mutation::kMissingSlope) ? 1.0f : derivative;
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
