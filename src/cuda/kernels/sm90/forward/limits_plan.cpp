#include "cuda/kernels/sm90/forward/limits_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cuda/kernels/sm90/forward/order_plan.h"
#include "cuda/kernels/tile/bounded.h"
#include "cuda/launch/planning.h"
#include "cuda/launch/tensor_map.h"

namespace flashlab::cuda::sm90_forward {
namespace {

using internal::Geometry;

constexpr int kMaxHeadDim = 256, kMaxMaskedHeadDim = 192, kMaxUnpairedHeadDim = 128;
constexpr int kWideMaskHeadDim = 64;
constexpr std::int64_t kPartRows = 8;  // of a page: rows after which the swizzle repeats
// MEASURED (H200, 2026-11-23, kernels/sm90/README.md): sm80's smaller tiles are faster for fewer
// rows of a head or packed group. Few queries before few keys are not measured: they stay with
// sm80.
constexpr std::int64_t kMinRows = 32, kFewQueries = 64, kManyKeys = 1024;
constexpr std::int64_t kMinRaggedQueries = 10;  // of a sequence, the mean
// MEASURED (H200, 2026-11-28, kernels/sm90/NOTES.md; 32 / 8 heads of 128, pages of 64): as fast as
// 'decode' with about so many tiles of 64 rows. Rows of one tile 'decode' serves at the speed of
// memory, however many sequences there are.
constexpr std::int64_t kCachedTiles = 128;
constexpr std::int64_t kFewQueriesOfLengths = 16;  // what 'decode' takes without a cache

// Softcap, ALiBi, mask tensors and dropout: work on scores or probabilities of every block.
int count_score_terms(const Problem& problem, const Geometry& g) {
  return (g.softcap > 0) + problem.alibi_slopes.has_value() + problem.mask.has_value() +
         (g.dropout > 0);
}

bool has_wide_mask(const Problem& problem, const Geometry& g) {
  return takes_wide_mask(problem, g) && form_of(problem, g) == CallForm::kPairs;
}

// A part of a page begins at a multiple of 8 rows of its step's tile: there the swizzle repeats.
Status check_pages(const Problem& problem, const Geometry& g) {
  const auto refuse = [](const char* what, std::string got, std::string expected) {
    return Status::unsupported(
        {what, std::move(got), std::move(expected), "name no implementation, or 'decode'"});
  };
  if (!problem.block_table) return {};
  if (g.page_size % kPartRows != 0) {
    return refuse("page size of implementation 'sm90'", fmt::format("{}", g.page_size),
                  fmt::format("a multiple of {}", kPartRows));
  }
  if (problem.leftpad_k) {
    return refuse("leftpad_k of implementation 'sm90'", "given with pages", "caches without pages");
  }
  // Of one page a stride is never used, and reads 0.
  if (problem.block_table->shape[1] > 1 && problem.block_table->strides[1] != 1) {
    return refuse("strides[1] of block_table for implementation 'sm90'",
                  fmt::format("{}", problem.block_table->strides[1]), "1");
  }
  return {};
}

// Whether two elements of a mask can be read at once, as sm80 does, but not eight.
bool has_mask_of_pairs_alone(const Problem& problem, const Geometry& g) {
  return problem.mask && takes_wide_mask(problem, g) && !has_wide_mask(problem, g) &&
         call_form(problem) == CallForm::kPairs && problem.mask->shape[3] % 2 == 0 &&
         row_alignment_bytes(*problem.mask) >= 4;
}

// Of caches: those whose tiles keep most multiprocessors at work. 'decode' shares out keys, in
// tiles of 64 rows. What it lacks is served here, and a deterministic choice looks at what a
// sequence has alone.
Status check_worth_of_cache(const Problem& problem, const Geometry& g) {
  const std::int64_t sequences = std::max<std::int64_t>(g.batch, 1);
  const std::int64_t queries = g.ragged_q ? g.seqlen_q / sequences : g.seqlen_q;
  // 'decode' has no dropout, and masks of few queries that have an element for every key.
  const bool mask_of_decode =
      queries <= kFewQueriesOfLengths && call_form(problem) != CallForm::kGeneral;
  if (g.dropout > 0 || (problem.mask && !mask_of_decode)) return {};
  const bool sure = problem.options.deterministic;
  const std::int64_t rows = queries * g.group();
  const std::int64_t tiles =
      (sure ? 1 : sequences) * g.heads_k * divide_up(rows, std::int64_t{kWarpgroupRows});
  if (rows > kWarpgroupRows && tiles >= kCachedTiles && !(sure && g.ragged_q)) return {};
  return unsupported(
      "queries before a cache for 'sm90'",
      fmt::format("{} of a sequence, {} tiles of {} rows", queries, tiles, kWarpgroupRows),
      sure ? fmt::format("queries that are not ragged, in {} tiles of one sequence", kCachedTiles)
           : fmt::format("more than {} rows of a group's heads, {} tiles", kWarpgroupRows,
                         kCachedTiles));
}

}  // namespace

Status unsupported(const char* what, std::string got, std::string expected) {
  return Status::unsupported(
      {what, std::move(got), std::move(expected), "name no implementation, or 'sm80'"});
}

bool takes_wide_mask(const Problem& problem, const Geometry& g) {
  return problem.mask && g.head_dim_v <= kWideMaskHeadDim && size_of(problem.mask->dtype) == 2;
}

CallForm form_of(const Problem& problem, const Geometry& g) {
  if (!problem.mask) return CallForm::kPairs;
  const bool wide = takes_wide_mask(problem, g);
  const bool aligned = !wide || row_alignment_bytes(*problem.mask) == kRowAlignment;
  const bool whole = problem.mask->shape[3] % (wide ? 8 : 2) == 0;
  return call_form(problem) == CallForm::kPairs && aligned && whole ? CallForm::kPairs
                                                                    : CallForm::kGeneral;
}

bool has_many_score_terms(const Problem& problem, const Geometry& g) {
  const bool wide_mask = problem.mask && (problem.mask->dtype == DType::kFp32 ||
                                          form_of(problem, g) != CallForm::kPairs);
  const bool large = problem.mask && g.head_dim > 128;
  return wide_mask || large || count_score_terms(problem, g) > 1;
}

bool has_score_terms(const Problem& problem, const Geometry& g) {
  return g.softcap > 0 || problem.mask || count_score_terms(problem, g) > 1 ||
         (g.dropout > 0 && g.has_lengths) || (problem.alibi_slopes && packed_heads(problem, g) > 1);
}

Status check(const Problem& problem, const Geometry& g) {
  if (Status s = check_pages(problem, g); !s.ok()) return s;
  for (const std::int64_t dim : {g.head_dim, g.head_dim_v}) {
    if (dim % 8 != 0 || dim > kMaxHeadDim) {
      return unsupported("head_dim of implementation 'sm90'", fmt::format("{}", dim),
                         fmt::format("a multiple of 8 up to {}", kMaxHeadDim));
    }
  }
  if (std::max(g.seqlen_q, g.seqlen_k) > kMaxLength || std::min(g.seqlen_q, g.seqlen_k) < 1) {
    return unsupported("sequence length of implementation 'sm90'",
                       fmt::format("{} and {}", g.seqlen_q, g.seqlen_k),
                       fmt::format("1 to {}", kMaxLength));
  }
  // Slopes and additive masks are divided by it.
  const float least_scale = problem.alibi_slopes || problem.mask ? 1e-10f : 1e-30f;
  if (!(g.scale > least_scale)) {
    return unsupported("scale of implementation 'sm90'", fmt::format("{}", g.scale), "positive");
  }
  // O has 128 of a thread's registers there: such masks would spill.
  const bool window = g.bounds.left < g.bounds.kUnbounded;
  const bool pairs = form_of(problem, g) == CallForm::kPairs;
  const bool wide = window || (problem.mask && problem.mask->dtype == DType::kFp32);
  if (problem.mask &&
      ((g.head_dim_v > kMaxUnpairedHeadDim && !pairs) ||
       (g.head_dim_v > kMaxUnpairedHeadDim && g.dropout > 0) ||
       (g.head_dim_v > kMaxMaskedHeadDim && (wide || count_score_terms(problem, g) > 1)))) {
    return unsupported("mask of implementation 'sm90'",
                       fmt::format("head_dim {} of v", g.head_dim_v),
                       fmt::format("up to {}, {} with dropout or where elements of a mask are not "
                                   "read in pairs; beyond only 16-bit or bool without window, "
                                   "softcap, ALiBi",
                                   kMaxMaskedHeadDim, kMaxUnpairedHeadDim));
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (describable(*spec)) continue;
    return unsupported("rows of implementation 'sm90'",
                       fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                       "strides and addresses that are positive multiples of 16 bytes");
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (!g.has_lengths || boundable(*spec)) continue;
    return unsupported("rows of sequences of implementation 'sm90'",
                       fmt::format("{} {}", name, to_string(*spec)),
                       fmt::format("at most {} rows, {} bytes apart, and entries of a batch that "
                                   "are whole rows apart",
                                   device::kBoundedRows, kMaxBoundedRowBytes));
  }
  if (row_alignment_bytes(problem.o) < kRowAlignment) {
    return unsupported("rows of implementation 'sm90'",
                       fmt::format("o aligned to {} bytes", row_alignment_bytes(problem.o)),
                       "strides and addresses that are multiples of 16 bytes");
  }
  return {};
}

Status check_worth(const Problem& problem, const Geometry& g) {
  if (!problem.options.implementation.empty()) return {};
  // Key lengths alone, too: with few queries 'decode' shares out keys whatever there are.
  const bool few_of_lengths = problem.seqused_k && !problem.cu_seqlens_k && !g.ragged_q &&
                              g.seqlen_q <= kFewQueriesOfLengths;
  if (has_cache(problem) || few_of_lengths) return check_worth_of_cache(problem, g);
  // MEASURED (H200, 2026-11-24, 2 x 8 heads, 2046 keys, d 64, bf16): 127.7 us element by element,
  // sm80 109.7; causal 90.3 and 79.2.
  if (has_mask_of_pairs_alone(problem, g)) {
    return unsupported("rows of the mask for 'sm90'",
                       fmt::format("{} keys aligned to {} bytes", problem.mask->shape[3],
                                   row_alignment_bytes(*problem.mask)),
                       "multiples of 8 keys and 16 bytes");
  }
  const auto [queries, keys] = usual_lengths(problem, g);
  if (queries > kFewQueries) return {};
  // MEASURED (H200, 2026-11-28, 8192 sequences of 34 and of 10 tokens, 12 heads of 128): 1.74 and
  // 1.72 ms, sm80 3.41 and 2.71. Few queries before many keys are not measured.
  const bool few_of_few = queries >= kMinRaggedQueries && keys < kManyKeys;
  if (g.has_lengths && (queries >= kMinRows || few_of_few)) return {};
  if (queries * packed_heads(problem, g) >= kMinRows && keys >= kManyKeys) return {};
  return unsupported(
      "queries for 'sm90'", fmt::format("{} of {} keys", queries, keys),
      fmt::format("more than {}, or, with {} keys, {} rows of a head or of a group's heads",
                  kFewQueries, kManyKeys, kMinRows));
}

}  // namespace flashlab::cuda::sm90_forward
