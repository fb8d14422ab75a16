// Attention sinks, chunks of keys, ragged batches and caches, alone and with every feature that
// meets them.

#include "sequences.h"

#include <fmt/format.h>

#include <utility>

namespace flashlab::cases {
namespace {

// Appends changed copies of a case under names of their own.
class Variations {
 public:
  Variations(std::vector<Case>& list, DType dtype) : list_(list), dtype_(dtype) {}

  template <class... Changes>
  void add(const char* name, Case c, const Changes&... changes) {
    c.dtype = dtype_;
    c.name = fmt::format("{}-{}", to_string(dtype_), name);
    (changes(c), ...);
    list_.push_back(std::move(c));
  }

 private:
  std::vector<Case>& list_;
  DType dtype_;
};

Case small(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim) {
  Case c;
  c.batch = 1;
  c.heads_q = 2;
  c.heads_k = 1;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.head_dim = c.head_dim_v = head_dim;
  return c;
}

const auto kTopLeft = [](Case& c) { c.causal = Causal::kTopLeft; };
const auto kBottomRight = [](Case& c) { c.causal = Causal::kBottomRight; };
const auto kDropped = [](Case& c) { c.dropout = 0.17f; };
const auto kSloped = [](Case& c) { c.alibi = true; };
const auto kCapped = [](Case& c) { c.softcap = 20.0f; };
const auto kMasked = [](Case& c) { c.mask = MaskKind::kBool; };
const auto kAdded = [](Case& c) { c.mask = MaskKind::kAdditive; };
const auto kSure = [](Case& c) { c.deterministic = c.lse_gradient = true; };

auto chunk(std::int64_t keys) {
  return [keys](Case& c) { c.chunk = keys; };
}

// Chunks smaller and larger than tiles, aligned both ways, with rows and keys that nobody sees.
void add_chunks(Variations& to) {
  const auto window = [](Case& c) { c.window = Window{.left = 20}; };
  const auto both_sides = [](Case& c) { c.window = Window{30, 9, Alignment::kBottomRight}; };
  const auto last_keys = [](Case& c) { c.window = Window{.alignment = Alignment::kBottomRight}; };
  to.add("chunk", small(257, 257, 64), chunk(64));
  to.add("chunk-causal", small(300, 300, 64), chunk(97), kTopLeft, kSure);
  to.add("chunk-bottom-right", small(129, 301, 64), chunk(50), kBottomRight);
  to.add("chunk-fewer-keys", small(301, 129, 64), chunk(50), last_keys);
  to.add("chunk-of-one", small(65, 65, 31), chunk(1));
  to.add("chunk-window", small(193, 193, 128), chunk(77), window, kTopLeft);
  to.add("chunk-both-sides", small(130, 200, 64), chunk(33), both_sides, kDropped, kSloped, kSure);
  to.add("chunk-bool-mask", small(150, 150, 64), chunk(49), kMasked, kCapped);
  to.add("chunk-additive-mask", small(150, 150, 64), chunk(49), kAdded, kTopLeft, kSure);
}

// Sinks far and near, with rows that see no key, split keys and every feature.
void add_sinks(Variations& to) {
  const auto sinks = [](Case& c) { c.sinks = true; };
  const auto heads = [](Case& c) { c.heads_q = 8; };  // one of each kind
  const auto accumulate = [](Case& c) { c.gradient_mode = GradientMode::kAccumulate; };
  const auto window = [](Case& c) { c.window = Window{20, -3, Alignment::kBottomRight}; };
  const auto large = [](Case& c) { c.fill = Fill::kLargeScores; };
  const auto shifted = [](Case& c) { c.fill = Fill::kShifted; };
  const auto equal = [](Case& c) { c.fill = Fill::kEqual; };
  const auto empty = [](Case& c) { c.fill = Fill::kEmptyRows; };
  const auto negative = [](Case& c) { c.scale = -0.3f; };
  const auto two = [](Case& c) { c.batch = 2; };
  to.add("sinks", small(130, 130, 64), sinks, heads, two);
  to.add("sinks-causal", small(129, 191, 64), sinks, heads, kBottomRight, kSure);
  to.add("sinks-empty-rows", small(150, 70, 64), sinks, heads, kBottomRight, kSure);
  to.add("sinks-window", small(97, 130, 128), sinks, heads, window, accumulate);
  to.add("sinks-one-query", small(1, 777, 128), sinks, heads, kSure);
  to.add("sinks-no-key", small(5, 0, 64), sinks, heads, kSure);
  to.add("sinks-dropout", small(140, 140, 64), sinks, kDropped, kTopLeft, kSure);
  to.add("sinks-all", small(100, 140, 64), sinks, kDropped, kCapped, kSloped, kBottomRight, kSure);
  to.add("sinks-bool-mask", small(100, 140, 64), sinks, heads, kMasked, empty, kSure);
  to.add("sinks-additive-mask", small(100, 140, 64), sinks, heads, kAdded, empty, kSure);
  to.add("sinks-large", small(100, 140, 64), sinks, large, heads);
  to.add("sinks-shifted", small(100, 140, 64), sinks, shifted, heads);
  to.add("sinks-shifted-mask", small(100, 140, 64), sinks, shifted, heads, kAdded, kSure);
  to.add("sinks-equal", small(100, 140, 31), sinks, equal, negative, two);
  to.add("sinks-chunk", small(100, 140, 64), sinks, chunk(33), kTopLeft, accumulate, kSure);
}

// Ragged batches: lengths of 0, 1, primes and beside tiles on either side, rows of no sequence full
// of NaN, and everything that dense calls have.
void add_ragged(Variations& to) {
  const auto of = [](std::vector<SequenceLengths> list) {
    return [list = std::move(list)](Case& c) { c.set_sequences(list); };
  };
  const auto equal = of({{96, 96}, {96, 96}, {96, 96}});
  const auto lengths = of({{65, 65}, {1, 1}, {0, 0}, {127, 127}, {31, 31}, {64, 64}});
  const auto mixed = of({{65, 97}, {1, 130}, {0, 7}, {5, 0}, {0, 0}, {97, 31}, {63, 64}});
  const auto unused =
      of({{50, 71, 3, 0}, {0, 0, 2, 2}, {17, 17, 0, 5}, {1, 40, 1, 1}, {83, 33, 7, 9}});
  const auto decode = of({{1, 300}, {1, 1}, {1, 77}, {1, 0}, {1, 513}});
  const auto one = of({{150, 150}});
  const auto no_query = of({{0, 40}, {0, 9}});
  const auto no_key = of({{30, 0}, {5, 0}});
  const auto long_one = of({{300, 300}, {3, 3}, {17, 17}});
  const Case c = small(1, 1, 64);
  const auto layout = [](Layout which) { return [which](Case& x) { x.layout = which; }; };
  const auto heads = [](Case& x) { x.heads_q = 6, x.heads_k = 2; };
  const auto dims = [](Case& x) { x.head_dim = 31, x.head_dim_v = 77; };
  const auto large = [](Case& x) { x.head_dim = x.head_dim_v = 128; };
  const auto sinks = [](Case& x) { x.sinks = true; };
  const auto accumulate = [](Case& x) { x.gradient_mode = GradientMode::kAccumulate; };
  const auto window = [](Case& x) { x.window = Window{20, 9, Alignment::kBottomRight}; };
  const auto top_window = [](Case& x) { x.window = Window{40, -2, Alignment::kTopLeft}; };
  const auto from_left = [](Case& x) { x.window = Window{.left = 33}; };
  const auto chunks = [](Case& x) { x.window = Window{.alignment = Alignment::kBottomRight}; };
  const auto special = [](Case& x) { x.fill = Fill::kSpecial; };
  const auto shifted = [](Case& x) { x.fill = Fill::kShifted; };
  const auto empty = [](Case& x) { x.fill = Fill::kEmptyRows; };
  const auto state = [](Case& x) { x.dropout_state = true; };
  const auto fp32_outputs = [](Case& x) { x.fp32_outputs = x.dtype != DType::kFp64; };
  const auto seed = [](std::uint64_t n) { return [n](Case& x) { x.seed = n; }; };
  to.add("ragged-equal", c, equal);
  to.add("ragged", c, mixed, heads, kSure);
  to.add("ragged-unused", c, unused, dims, kSure);
  to.add("ragged-one", c, one, kTopLeft);
  to.add("ragged-decode", c, decode, large, heads, kBottomRight);
  to.add("ragged-no-query", c, no_query, sinks);
  to.add("ragged-no-key", c, no_key, sinks, kSure);
  to.add("ragged-long-one", c, long_one, large, kTopLeft);
  to.add("ragged-causal", c, mixed, kBottomRight, kSure);
  to.add("ragged-causal-unused", c, unused, kTopLeft, accumulate, large);
  to.add("ragged-window", c, mixed, window, heads);
  to.add("ragged-window-beside", c, unused, top_window);
  to.add("ragged-window-causal", c, lengths, from_left, kBottomRight, kSure);
  to.add("ragged-chunk", c, mixed, chunks, chunk(19), seed(2));
  to.add("ragged-chunk-causal", c, unused, chunk(37), kBottomRight, kSure);
  to.add("ragged-softcap", c, mixed, kCapped, kSure);
  to.add("ragged-alibi", c, mixed, kSloped, kBottomRight, heads);
  to.add("ragged-alibi-shared", c, unused, kSloped, seed(2));
  for (std::uint64_t form = 0; form < 6; ++form) {
    const auto name = fmt::format("ragged-{}-mask-{}", form % 2 == 0 ? "bool" : "additive", form);
    const auto kind = [form](Case& x) {
      x.mask = form % 2 == 0 ? MaskKind::kBool : MaskKind::kAdditive;
    };
    to.add(name.c_str(), c, form < 3 ? mixed : unused, kind, seed(form), kSure);
  }
  to.add("ragged-mask-empty", c, mixed, kMasked, empty, sinks);
  to.add("ragged-shifted-mask", c, unused, kAdded, shifted, kSure);
  to.add("ragged-sinks", c, mixed, sinks, heads, kSure);
  to.add("ragged-sinks-unused", c, unused, sinks, accumulate, kBottomRight);
  to.add("ragged-dropout", c, mixed, kDropped, heads, kSure);
  to.add("ragged-dropout-state", c, unused, kDropped, state);
  to.add("ragged-heads-first", c, unused, layout(Layout::kHeadsFirst), heads);
  to.add("ragged-packed", c, lengths, layout(Layout::kPackedQkv), kTopLeft);
  to.add("ragged-padded-rows", c, unused, layout(Layout::kPaddedRows), kSure);
  to.add("ragged-fp32-outputs", c, mixed, fp32_outputs, kTopLeft);
  to.add("ragged-special", c, unused, special, kBottomRight);
  to.add("ragged-all", c, unused, kDropped, kCapped, kSloped, kAdded, sinks, window, kSure);
}

// Keys and values in caches, contiguous and paged: decoding with one query and several, chunks of
// prefill; pages of any size, in any order and shared, padding, entries by index.
void add_caches(Variations& to) {
  const auto of = [](std::vector<SequenceLengths> list) {
    return [list = std::move(list)](Case& c) { c.set_sequences(list); };
  };
  const auto in = [](Cache cache) { return [cache](Case& c) { c.cache = cache; }; };
  const auto paged = [](std::int64_t size) {
    return Cache{.capacity = 320, .page_size = size, .dense_queries = true};
  };
  const Cache whole{.capacity = 300, .dense_queries = true};
  Cache indexed = whole, ragged = paged(16), shared = paged(16);
  indexed.indexed = true;
  Cache of_entries = indexed;
  of_entries.dense_queries = false;
  ragged.dense_queries = false;
  shared.shared = true;
  const auto decode = of({{1, 300}, {1, 0}, {1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 127}});
  const auto speculative = of({{4, 290}, {4, 0}, {4, 4}, {4, 3}, {4, 129}});
  const auto sixteen = of({{16, 257}, {16, 16}, {16, 5}});
  const auto padded = of({{2, 100, 0, 0, 3}, {2, 80, 0, 0, 64}, {2, 0, 0, 0, 17}, {2, 9, 0, 0, 0}});
  const auto prefill = of({{65, 65}, {64, 193}, {0, 40}, {1, 300}, {5, 0}, {97, 97}, {130, 30}});
  const auto padded_prefill = of({{65, 120, 0, 0, 7}, {0, 9, 0, 0, 1}, {66, 30, 0, 0, 40}});
  const auto short_prefill = of({{33, 97}, {3, 20}});
  const auto long_keys = of({{40, 150}, {1, 300}, {0, 40}});
  const auto some_queries = of({{3, 70, 1, 0}, {0, 12, 4, 0}, {4, 128, 0, 0}});
  const auto heads = [](Case& c) { c.heads_q = 6, c.heads_k = 2; };
  const auto one_head = [](Case& c) { c.heads_q = 5, c.heads_k = 1; };
  const auto dims = [](Case& c) { c.head_dim = 31, c.head_dim_v = 77; };
  const auto large = [](Case& c) { c.head_dim = c.head_dim_v = 128; };
  const auto largest = [](Case& c) { c.head_dim = c.head_dim_v = 256; };
  const auto sinks = [](Case& c) { c.sinks = true; };
  const auto window = [](Case& c) { c.window = Window{20, 9, Alignment::kBottomRight}; };
  const auto from_left = [](Case& c) { c.window = Window{.left = 33}; };
  const auto behind = [](Case& c) { c.window = Window{-3, 40, Alignment::kBottomRight}; };
  const auto layout = [](Layout which) { return [which](Case& c) { c.layout = which; }; };
  const auto seed = [](std::uint64_t n) { return [n](Case& c) { c.seed = n; }; };
  const auto fp32_outputs = [](Case& c) { c.fp32_outputs = c.dtype != DType::kFp64; };
  const auto sure = [](Case& c) { c.deterministic = true; };
  const Case c = small(1, 1, 64);
  to.add("cache-decode", c, decode, in(whole), heads, sure);
  to.add("cache-speculative", c, speculative, in(whole), kBottomRight, large);
  to.add("cache-indexed", c, decode, in(indexed), one_head, seed(2));
  to.add("cache-padded", c, padded, in(whole), kBottomRight, kSloped);
  to.add("cache-padded-indexed", c, padded, in(indexed), dims, sure);
  to.add("cache-window", c, sixteen, in(whole), from_left, kBottomRight, heads);
  to.add("cache-window-beside", c, sixteen, in(whole), behind, heads);
  to.add("cache-chunk", c, sixteen, in(indexed), chunk(50), kBottomRight, heads, sure);
  to.add("cache-all", c, sixteen, in(indexed), kDropped, kCapped, kSloped, sinks, window, heads);
  to.add("cache-prefill", c, padded_prefill, in(of_entries), kBottomRight, sure);
  to.add("cache-prefill-window", c, padded_prefill, in(of_entries), window);
  to.add("cache-prefill-alibi", c, padded_prefill, in(of_entries), kSloped, kBottomRight);
  for (const std::int64_t size : {8, 40, 192}) {  // many copies a step, and pages of several steps
    to.add(fmt::format("pages-prefill-of-{}", size).c_str(), c, long_keys,
           in({.capacity = 300, .page_size = size}), kBottomRight);
  }
  to.add("pages-prefill-large-heads", c, short_prefill, in(ragged), largest, kBottomRight);
  for (const std::int64_t size : {1, 3, 16, 64, 100}) {
    const auto name = [size](const char* what) {
      return fmt::format("pages-{}-of-{}", what, size);
    };
    to.add(name("decode").c_str(), c, decode, in(paged(size)), heads, seed(1 + size % 2));
    to.add(name("prefill").c_str(), c, prefill, in({.capacity = 300, .page_size = size}),
           kBottomRight, large, sure);
    to.add(name("padded").c_str(), c, padded, in(paged(size)), kBottomRight, kSloped);
  }
  to.add("pages-speculative", c, speculative, in(paged(16)), kBottomRight, large, heads);
  to.add("pages-sixteen", c, sixteen, in(paged(3)), kTopLeft, one_head);
  to.add("pages-shared", c, sixteen, in(shared), kBottomRight, sure);
  to.add("pages-shared-decode", c, decode, in(shared), dims);
  to.add("pages-some-queries", c, some_queries, in(paged(16)), kBottomRight, heads);
  to.add("pages-one-pool", c, prefill, in(ragged), layout(Layout::kPackedQkv), heads);
  to.add("pages-heads-first", c, speculative, in(paged(16)), layout(Layout::kHeadsFirst), heads);
  to.add("pages-padded-rows", c, prefill, in(ragged), layout(Layout::kPaddedRows), sure);
  to.add("pages-window", c, prefill, in(ragged), window, heads);
  to.add("pages-window-beside", c, prefill, in(ragged), behind);
  to.add("pages-chunk", c, prefill, in(ragged), chunk(19), kBottomRight);
  to.add("pages-chunk-decode", c, decode, in(paged(16)), chunk(70), kBottomRight, heads, sinks);
  to.add("pages-softcap", c, speculative, in(paged(16)), kCapped, kTopLeft);
  to.add("pages-alibi", c, prefill, in(ragged), kSloped, kBottomRight, seed(2));
  to.add("pages-sinks", c, decode, in(paged(16)), sinks, heads);
  to.add("pages-dropout", c, prefill, in(ragged), kDropped, sure);
  to.add("pages-bool-mask", c, speculative, in(paged(16)), kMasked, seed(2), heads);
  to.add("pages-mask-decode", c, decode, in(paged(16)), kAdded, seed(3), heads, sinks);
  to.add("cache-mask-padded", c, padded, in(whole), kAdded, kBottomRight, kCapped, seed(1));
  to.add("cache-mask-sixteen", c, sixteen, in(indexed), kMasked, large, heads, sure);
  to.add("pages-additive-mask", c, prefill, in(ragged), kAdded, seed(5));
  to.add("pages-fp32-outputs", c, decode, in(paged(3)), fp32_outputs, large);
  to.add("pages-all", c, prefill, in(ragged), kDropped, kCapped, kSloped, kAdded, sinks, window);
}

}  // namespace

void add_sequence_cases(std::vector<Case>& list, DType dtype) {
  Variations to(list, dtype);
  add_chunks(to);
  add_sinks(to);
  add_ragged(to);
  add_caches(to);
}

}  // namespace flashlab::cases
