// The list of pairs: every two features of attention at once, with every fill, at two head dims.

#include <fmt/format.h>

#include <array>
#include <cstddef>

#include "case.h"

namespace flashlab::cases {
namespace {

enum Feature : std::size_t {
  kCausal,
  kWindow,
  kSoftcap,
  kAlibi,
  kDropout,
  kBoolMask,
  kAdditiveMask,
  kGroupedHeads,
  kDLse,
  kDeterministic,
  kUnequalLengths,
  kUnequalHeadDims,
  kSinks,
  kRagged,
  kPaged,
  kFeatures
};
constexpr std::array<const char*, kFeatures> kNames = {
    "causal",          "window",        "softcap", "alibi",  "dropout",
    "bool-mask",       "additive-mask", "grouped", "dlse",   "deterministic",
    "unequal-lengths", "unequal-dims",  "sinks",   "ragged", "paged"};

struct Filled {
  Fill fill;
  const char* name;
};
constexpr std::array<Filled, 4> kFills = {{{Fill::kNormal, "normal"},
                                           {Fill::kLargeScores, "large-scores"},
                                           {Fill::kShifted, "shifted"},
                                           {Fill::kEmptyRows, "empty-rows"}}};

/// One case: its two features, and `n`, which chooses among what a feature leaves open.
struct Pair {
  Feature first, second;
  std::uint64_t n;
  bool has(Feature feature) const { return first == feature || second == feature; }
};

// Two and three tiles, one more or one less.
void set_lengths(Case& c, const Pair& pair, std::int64_t tile) {
  const std::int64_t beside = pair.n % 2 == 0 ? 1 : -1;
  const std::int64_t few = 2 * tile + beside, many = 3 * tile - beside;
  c.seqlen_q = c.seqlen_k = pair.n / 2 % 2 == 0 ? few : many;
  if (!pair.has(kUnequalLengths)) return;
  c.seqlen_q = pair.n / 2 % 2 == 0 ? few : many;
  c.seqlen_k = pair.n / 2 % 2 == 0 ? many : few;
}

void set_features(Case& c, const Pair& pair, std::int64_t tile) {
  const bool last_keys = pair.n / 4 % 2 == 1;  // the diagonal ends in the last key
  if (pair.has(kCausal)) c.causal = last_keys ? Causal::kBottomRight : Causal::kTopLeft;
  if (pair.has(kWindow)) {
    // Narrower than two tiles and no whole tile wide; the diagonal is causal's where there is one.
    std::optional<std::int64_t> right;
    if (!pair.has(kCausal) && pair.n % 3 != 0) right = tile / 4 + 1;
    const Alignment own = last_keys ? Alignment::kBottomRight : Alignment::kTopLeft;
    c.window = Window{tile + 5, right, pair.has(kCausal) ? Alignment::kOfCausal : own};
  }
  if (pair.has(kSoftcap)) c.softcap = 20.0f;
  c.alibi = pair.has(kAlibi);
  if (pair.has(kDropout)) c.dropout = 0.17f;
  if (pair.has(kBoolMask)) c.mask = MaskKind::kBool;
  if (pair.has(kAdditiveMask)) c.mask = MaskKind::kAdditive;
  if (pair.has(kGroupedHeads)) {
    c.heads_q = 4;
    c.heads_k = 2;
  }
  c.lse_gradient = pair.has(kDLse);
  c.deterministic = pair.has(kDeterministic);
  c.sinks = pair.has(kSinks);
  if (pair.has(kUnequalHeadDims)) c.head_dim_v = c.head_dim == 64 ? 128 : 64;
}

// What a fill asks of the features.
void set_fill(Case& c, Fill fill, std::int64_t tile) {
  c.fill = fill;
  // An additive mask shifts what the softcap has left. Else the scores are shifted, and a cap far
  // beyond them leaves them so.
  const bool by_scores = fill == Fill::kShifted && c.mask != MaskKind::kAdditive;
  if (by_scores && c.softcap) c.softcap = 4000.0f;
  // A mask has the empty rows. Else they are the first ones of more queries than keys.
  if (fill != Fill::kEmptyRows || c.mask != MaskKind::kNone) return;
  c.seqlen_q = 3 * tile + (c.seqlen_q % 2 == 0 ? 1 : -1);
  c.seqlen_k = 2 * tile - 1;
  if (c.window && c.causal == Causal::kNone) {
    c.window->alignment = Alignment::kBottomRight;
    if (!c.window->right) c.window->right = tile / 4 + 1;
  } else {
    c.causal = Causal::kBottomRight;
  }
}

// Beside the case's own lengths: others, none on either side, one, and rows of no sequence.
void set_sequences(Case& c, std::int64_t tile) {
  c.set_sequences(
      {{c.seqlen_q, c.seqlen_k, 0, 3}, {0, 5}, {tile + 1, tile - 1, 2, 0}, {3, 0}, {1, tile}});
}

// The seed says how a mask lies (six forms, fp32 or the tensors' type) and where it hides.
std::uint64_t seed_of(const Case& c, std::uint64_t n) {
  constexpr std::array<std::uint64_t, 4> kFormsWithRows = {0, 1, 3, 5};
  const std::uint64_t form =
      c.fill == Fill::kEmptyRows ? kFormsWithRows[n % kFormsWithRows.size()] : n % 6;
  return 12 * n + 6 * (n / 2 % 2) + form;
}

// Keys of a cache in pages of 16 or 3, with queries of any number beside them or of one: other
// lengths, none, and, but for half of those in pages of 16, padding before the first key.
void set_pages(Case& c, const Pair& pair, std::int64_t tile) {
  const bool ragged = pair.has(kRagged);
  const std::int64_t q = c.seqlen_q, k = c.seqlen_k, few = ragged ? 1 : q, none = ragged ? 0 : q;
  const std::int64_t padding = pair.n % 8 == 4 || pair.n % 8 == 6 ? 0 : 5;
  c.set_sequences({{q, k, 0, 0, padding}, {few, tile + 1}, {q, 0}, {few, tile - 1}, {none, tile}});
  Cache cache{.capacity = 3 * tile + 30, .dense_queries = !ragged};
  cache.page_size = pair.n % 2 == 0 ? 16 : 3;
  cache.shared = pair.n % 4 < 2;
  c.cache = cache;
}

Case pair_case(const Pair& pair, const Filled& filled, DType dtype, std::int64_t dim,
               std::int64_t tile) {
  Case c;
  c.name = fmt::format("{}-pair-{}-{}-{}-d{}", to_string(dtype), kNames[pair.first],
                       kNames[pair.second], filled.name, dim);
  c.dtype = dtype;
  c.batch = 1;
  c.heads_q = c.heads_k = 1;
  c.head_dim = c.head_dim_v = dim;
  set_lengths(c, pair, tile);
  set_features(c, pair, tile);
  set_fill(c, filled.fill, tile);
  if (pair.has(kPaged)) {
    set_pages(c, pair, tile);
  } else if (pair.has(kRagged)) {
    set_sequences(c, tile);
  }
  c.seed = seed_of(c, pair.n);
  return c;
}

}  // namespace

std::vector<Case> pair_cases(std::int64_t tile, std::optional<DType> dtype) {
  std::vector<Case> list;
  std::uint64_t n = 0, with_sinks = 1000000, ragged = 2000000, paged = 3000000;
  for (const DType type : {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64}) {
    for (const Filled& filled : kFills) {
      for (const std::int64_t dim : {64, 128}) {
        for (std::size_t a = 0; a < kFeatures; ++a) {
          for (std::size_t b = a + 1; b < kFeatures; ++b) {
            // A number seeds its case. Pairs with sinks, ragged and paged ones have ranges of their
            // own: the values of the other cases do not depend on them.
            std::uint64_t& number = b == kPaged    ? paged
                                    : b == kRagged ? ragged
                                    : b == kSinks  ? with_sinks
                                                   : n;
            const Pair pair{static_cast<Feature>(a), static_cast<Feature>(b), number};
            if (pair.has(kBoolMask) && pair.has(kAdditiveMask)) continue;  // a call has one
            if (pair.has(kDLse) && pair.has(kPaged)) continue;             // has no backward
            ++number;
            if (dtype && *dtype != type) continue;
            list.push_back(pair_case(pair, filled, type, dim, tile));
          }
        }
      }
    }
  }
  return list;
}

}  // namespace flashlab::cases
