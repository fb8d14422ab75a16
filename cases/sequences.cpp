// Attention sinks and chunks of keys, alone and with every feature that meets them.

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

}  // namespace

void add_sequence_cases(std::vector<Case>& list, DType dtype) {
  Variations to(list, dtype);
  add_chunks(to);
  add_sinks(to);
}

}  // namespace flashlab::cases
