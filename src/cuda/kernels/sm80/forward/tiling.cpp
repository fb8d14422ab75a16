// How the 16-bit forward kernel cuts a problem: the tilings by head dim and kind of call, and what
// shared memory they take.

#include <algorithm>

#include "cuda/kernels/sm80/forward/plan.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {
namespace {

// k16 steps of Q kept in registers: by the tiling of head dims 80 to 128, by masked ones up to 256.
constexpr int kFewQuerySteps = 2, kSomeQuerySteps = 8;
constexpr int kWindowQuerySteps = 3;  // of windows at head dims to 64
constexpr int kMinTilesPerSplit = 4, kMinKeysPerSplit = 64;
constexpr int kMaxSplits = 256;
constexpr int kReservedSharedBytes = 1024;  // per block, by the system

// What a device holds of a tiling: its blocks per multiprocessor, at most those it is made for.
int resident_blocks(const ForwardTiling& t, const ForwardNeeds& needs, int shared_limit) {
  const int bytes = shared_bytes(t, needs.head_dim, needs.head_dim_v);
  return bytes > shared_limit ? 0 : forward_resident_blocks(t, bytes, shared_limit);
}

// clang-format off
//                                       warp  tile piece       min   query
//                                 warps rows  k    k    stages blocks steps
constexpr ForwardTiling
    kMaskedBounded              {   4,   16,   64,  32,   2,     3},
    kMaskedUnbounded            {   4,   32,   64,  16,   2,     2},
    kMaskedTwoBlocks            {   4,   32,   64,  16,   2,     2,     4},
    kMaskedTwoWideBlocks        {   4,   32,   16,  16,   4,     2,     0},
    kMaskedWidePieces           {   8,   16,   64,  32,   2,     1},
    kMaskedLarge                {   8,   16,   32,  32,   3,     1,     kSomeQuerySteps},
    kMaskedLargeInLittleMemory  {   8,   16,   16,  16,   4,     1},
    kFeatures                   {   4,   32,   64,  32,   2,     2},
    kFeaturesTwoBlocks          {   4,   32,   32,  32,   3,     2,     0},
    kFeaturesOneBlock           {   8,   32,   32,  16,   2,     1,     0},
    kFeaturesLarge              {   8,   16,   32,  32,   4,     1,     4},
    kManyFeaturesLarge          {   8,   16,   32,  16,   4,     1,     kSomeQuerySteps},
    kFewRowsTiling              {   4,   16,   32,  32,   4,     2},
    kFewRowsLarge               {   4,   16,   16,  16,   4,     2},
    kPlain                      {   4,   32,   64,  64,   2,     2},
    kPlainTwoBlocks             {   4,   32,   32,  32,   3,     2,     kFewQuerySteps},
    kPlainOneBlock              {   8,   32,   32,  16,   2,     1},
    kPlainLarge                 {   8,   16,   32,  32,   4,     1,     14};
// clang-format on

// Where scores are masked by a tensor. MEASURED (H200, 2026-11-21, kernels/sm80/forward/NOTES.md):
// 32 rows per warp read K and V half as often; where rows are bounded a step waits longer for its
// mask than for its matrices, and 16 rows per warp with pieces of 32 keys are faster.
ForwardTiling masked_tiling(const ForwardNeeds& needs, int held, int shared_limit) {
  if (held <= 96) return needs.bounded ? kMaskedBounded : kMaskedUnbounded;
  if (held <= 192) {
    if (held > 144 && needs.bounded) return kMaskedWidePieces;
    const ForwardTiling& two_blocks = held <= 144 ? kMaskedTwoBlocks : kMaskedTwoWideBlocks;
    return resident_blocks(two_blocks, needs, shared_limit) > 1 ? two_blocks : kMaskedWidePieces;
  }
  const bool fits = resident_blocks(kMaskedLarge, needs, shared_limit) > 0;
  return fits ? kMaskedLarge : kMaskedLargeInLittleMemory;
}

// Softcap, ALiBi and dropout need registers: pieces are smaller or Q lies in shared memory, and the
// steady loop stays. The sizes are the largest without spills (NVRTC 13.0, sm_80 to sm_120).
ForwardTiling feature_tiling(const ForwardNeeds& needs, int held, int shared_limit) {
  const bool many = needs.features > 1;
  if (held > 192) return many ? kManyFeaturesLarge : kFeaturesLarge;
  ForwardTiling t = held <= 96 ? kFeatures : kFeaturesTwoBlocks;
  if (many || (held > 96 && needs.window)) t.piece_k = 16;
  if (held <= 96) return t;
  return resident_blocks(t, needs, shared_limit) > 1 ? t : kFeaturesOneBlock;
}

// Few rows, or split keys. One query and 64 share the tiling: warps without rows copy for the
// others. MEASURED (H200, 2026-11-24, kernels/sm80/forward/NOTES.md).
ForwardTiling few_rows_tiling(int held) {
  ForwardTiling t = held <= 192 ? kFewRowsTiling : kFewRowsLarge;
  if (held <= 96) t.min_blocks = 3;
  return t;
}

// Registers per thread: O and Q take dim_v + dim / 2 with 32 rows per warp, half with 16; scores
// and probabilities of a piece take about as many as it has keys.
ForwardTiling fastest_tiling(const ForwardNeeds& needs, int held, int shared_limit) {
  if (needs.few_rows) return few_rows_tiling(held);
  if (needs.transformed) return masked_tiling(needs, held, shared_limit);
  if (needs.features > 0) return feature_tiling(needs, held, shared_limit);
  if (held > 192) return kPlainLarge;
  // A window's edges need registers: two operands of Q, or half a piece.
  if (held <= 128) {
    ForwardTiling t = kPlain;
    if (held > 96) t.piece_k = 32;
    if (needs.window) t.query_steps = kWindowQuerySteps;
    return t;
  }
  // MEASURED at head dim 128 (H200, 2026-11-21): pieces of 32 keys with most of Q in shared memory
  // are 7 % faster than pieces of 16, because more products of a step do not wait for each other.
  // Where one block of them fits (made so), one of eight warps and pieces of 16 is 20 to 25 %
  // faster.
  const bool two_blocks = resident_blocks(kPlainTwoBlocks, needs, shared_limit) > 1;
  ForwardTiling t = two_blocks ? kPlainTwoBlocks : kPlainOneBlock;
  if (needs.window) {
    t.piece_k = 16;
    t.query_steps = kFewQuerySteps;
  }
  return t;
}

}  // namespace

int forward_resident_blocks(const ForwardTiling& t, int bytes, int shared_limit) {
  // A multiprocessor has what it grants one block and that block's reserve.
  const int fit = (shared_limit + kReservedSharedBytes) / (bytes + kReservedSharedBytes);
  return std::clamp(fit, 1, t.min_blocks);
}

ForwardTiling choose_forward_tiling(const ForwardNeeds& needs, int shared_limit) {
  const int held = divide_up(needs.head_dim_v, 16) * 16 + divide_up(needs.head_dim, 16) * 8;
  ForwardTiling t = fastest_tiling(needs, held, shared_limit);
  if (needs.transformed || (needs.features > 0 && needs.few_rows)) {
    t.steady_loop = false;
    if (held > 288) t.query_steps = std::min(t.query_steps, kSomeQuerySteps);
  }
  // Elements on their way from row to tile need the registers of Q.
  if (needs.by_element) {
    t.query_steps = 0;
    if (needs.few_rows) t.steady_loop = false;
    if (needs.transformed || needs.features > 0) t.piece_k = 16;
  }
  const auto fits = [&] {
    return shared_bytes(t, needs.head_dim, needs.head_dim_v) <= shared_limit;
  };
  if (!fits()) {
    t.tile_k = std::min(t.tile_k, 32);
    t.piece_k = std::min(t.piece_k, t.tile_k);
  }
  while (!fits() && t.stages > 2) --t.stages;
  while (!fits() && t.warps > 1) t.warps /= 2;
  return t;
}

int choose_key_splits(std::int64_t blocks, std::int64_t capacity, std::int64_t seqlen_k,
                      int tile_k) {
  const std::int64_t least = std::max(kMinTilesPerSplit * tile_k, kMinKeysPerSplit);
  const std::int64_t splits = std::min(
      {capacity / std::max<std::int64_t>(blocks, 1), seqlen_k / least, std::int64_t{kMaxSplits}});
  return static_cast<int>(std::max<std::int64_t>(splits, 1));
}

}  // namespace flashlab::cuda
