#pragma once

// Deliberate faults for the tests that prove the checks can fail. A release is compiled without
// FLASHLAB_MUTATION, so every `if (kMutation == ...)` in the kernels vanishes from it.

namespace flashlab::internal::simd {

enum class Mutation : int {
  kNone = 0,
  kWrongScale = 1,      ///< scores are scaled by 1.01 times what was asked
  kShiftedMask = 2,     ///< the causal or window boundary lies one key too far right
  kDroppedTile = 3,     ///< the second key block of every row strip is not visited
  kStaleMaximum = 4,    ///< a growing row maximum does not rescale what was summed before
  kUnmaskedTail = 5,    ///< padding keys beyond seqlen_k take part with score 0
  kWrongHead = 6,       ///< grouped heads read the first query head of their group
  kIgnoredMask = 7,     ///< a mask tensor is not applied
  kWrongLse = 8,        ///< LSE is written in base 2
  kMissingDelta = 20,   ///< backward: delta is taken as 0
  kMissingDlse = 21,    ///< backward: dLSE is not subtracted
  kUnscaledDq = 22,     ///< backward: dq lacks the scale
  kUnscaledDk = 23,     ///< backward: dk lacks the scale
  kDroppedBlock = 24,   ///< backward: the second key block is not visited
  kSingleHeadDkv = 25,  ///< backward: dk, dv count only the first query head of a group
  kSingleLse = 26,      ///< backward: LSE's second number is not subtracted where dropout draws
};

#ifdef FLASHLAB_MUTATION
/// Defined and chosen by a test, before its first call: one program has all faults.
extern Mutation kMutation;
#else
inline constexpr Mutation kMutation = Mutation::kNone;
#endif

}  // namespace flashlab::internal::simd
