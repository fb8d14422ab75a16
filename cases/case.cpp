// What a case counts and is called.

#include "case.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace flashlab::cases {
namespace {

// How a window writes a side without a bound.
constexpr std::string_view kAllKeys = "all";

const char* causal_name(Causal causal) {
  switch (causal) {
    case Causal::kNone:
      return "none";
    case Causal::kCausal:
    case Causal::kTopLeft:
      return "causal-top-left";
    case Causal::kBottomRight:
      return "causal-bottom-right";
  }
  return "none";
}

// Query i sees the keys from i + left to i + right; empty: no bound on that side.
struct Bounds {
  std::optional<double> left, right;
  bool crossed() const { return left && right && *right < *left; }
};

double diagonal_of(const Case& c) {
  const bool bottom_right = c.causal == Causal::kBottomRight ||
                            (c.window && c.window->alignment == Alignment::kBottomRight);
  return bottom_right ? static_cast<double>(c.seqlen_k - c.seqlen_q) : 0.0;
}

Bounds bounds_of(const Case& c) {
  const double diagonal = diagonal_of(c);
  Bounds out;
  if (c.causal != Causal::kNone) out.right = diagonal;
  if (!c.window) return out;
  if (c.window->left) out.left = diagonal - static_cast<double>(*c.window->left);
  if (c.window->right) {
    const double right = diagonal + static_cast<double>(*c.window->right);
    out.right = std::min(out.right.value_or(right), right);
  }
  return out;
}

// Keys from the first query's first to the last query's last.
double keys_in_window(const Case& c) {
  const auto keys = static_cast<double>(c.seqlen_k);
  const Bounds bounds = bounds_of(c);
  const double first = std::clamp(bounds.left.value_or(0), 0.0, keys);
  const double last_query = static_cast<double>(c.seqlen_q) - 1;
  const double end = bounds.right ? std::clamp(last_query + *bounds.right + 1, 0.0, keys) : keys;
  return std::max(end - first, 0.0);
}

// Empty: neither a number nor kAllKeys, which is an empty bound.
std::optional<std::optional<std::int64_t>> parse_bound(std::string_view text) {
  if (text == kAllKeys) return std::optional<std::int64_t>();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// Sum over rows i of clamp(first + i + 1, 0, keys): the row's visible keys grow by one from
// `first + 1` at row 0, are 0 before that and `keys` once they reach it.
double causal_pairs(double rows, double keys, double first) {
  const double empty = std::clamp(-first, 0.0, rows);              // rows that see nothing
  const double full_from = std::clamp(keys - first, empty, rows);  // rows from here see every key
  const double growing = full_from - empty;
  const double smallest = first + empty + 1;
  return growing * smallest + growing * (growing - 1) / 2 + (rows - full_from) * keys;
}

// Row by row: chunks are short lists of causal ones.
double pairs_in_chunks(const Case& c, const Bounds& bounds) {
  const auto size = static_cast<double>(*c.chunk), keys = static_cast<double>(c.seqlen_k);
  const double shift = diagonal_of(c);
  double pairs = 0;
  for (std::int64_t i = 0; i < c.seqlen_q; ++i) {
    const auto row = static_cast<double>(i);
    const double begin = std::floor((row + shift) / size) * size;
    const double first = std::max({begin, 0.0, row + bounds.left.value_or(-row)});
    const double end = std::min({begin + size, keys, row + bounds.right.value_or(keys) + 1});
    pairs += std::max(end - first, 0.0);
  }
  return pairs;
}

// Pages that hold keys of a sequence: [first, end) of its row of the table.
struct PagesUsed {
  std::int64_t first = 0, end = 0;
  std::int64_t count() const { return end - first; }
};

PagesUsed pages_used(const Cache& cache, const SequenceLengths& s) {
  if (s.k == 0) return {};
  const std::int64_t end = (s.leftpad + s.k + cache.page_size - 1) / cache.page_size;
  return {s.leftpad / cache.page_size, end};
}

// How many of a sequence's first pages are those of sequence 0.
std::int64_t pages_shared(const Case& c, std::size_t n) {
  if (!c.cache->shared || n % 2 == 0) return 0;
  return std::min(pages_used(*c.cache, c.sequences[n]).end,
                  pages_used(*c.cache, c.sequences[0]).end);
}

std::int64_t pages_in_all(const Case& c) {
  constexpr std::int64_t kSpare = 3;
  std::int64_t pages = kSpare;
  for (const SequenceLengths& s : c.sequences) pages += pages_used(*c.cache, s).count();
  return pages;
}

std::int64_t pages_per_sequence(const Cache& cache) {
  return (cache.capacity + cache.page_size - 1) / cache.page_size;
}

// Another order of [0, count): multiples of a step that has no factor with it.
std::int64_t reordered(std::int64_t n, std::int64_t count) {
  std::int64_t step = count * 5 / 8 + 1;
  while (std::gcd(step, count) != 1) ++step;
  return (n * step + 1) % count;
}

void set_cache_extents(const Case& c, Extents& sizes) {
  const Cache& cache = *c.cache;
  constexpr std::int64_t kSpareEntries = 2;
  sizes[Extent::kSeqlenK] = cache.capacity;
  sizes[Extent::kCacheEntries] = c.batch + kSpareEntries;
  if (cache.page_size == 0) return;
  sizes[Extent::kSeqlenK] = pages_per_sequence(cache) * cache.page_size;
  sizes[Extent::kPages] = pages_in_all(c);
  sizes[Extent::kPageSize] = cache.page_size;
  sizes[Extent::kPagesPerSequence] = pages_per_sequence(cache);
}

}  // namespace

std::int64_t Case::cache_entry(std::size_t sequence) const {
  if (!cache->indexed) return static_cast<std::int64_t>(sequence);
  // The last one has the entry of the first.
  const auto n = static_cast<std::int64_t>(sequence + 1 == sequences.size() ? 0 : sequence);
  return reordered(n, extents()[Extent::kCacheEntries]);
}

std::optional<std::int64_t> Case::cache_page(std::size_t sequence, std::int64_t index) const {
  const PagesUsed used = pages_used(*cache, sequences[sequence]);
  if (index < used.first || index >= used.end) return {};
  const PagesUsed of_first = pages_used(*cache, sequences[0]);
  std::int64_t number = index - of_first.first;  // in the order of sequences
  if (index >= pages_shared(*this, sequence) || index < of_first.first) {
    number = index - used.first;
    for (std::size_t n = 0; n < sequence; ++n) number += pages_used(*cache, sequences[n]).count();
  }
  return reordered(number, pages_in_all(*this));
}

std::int64_t Case::cache_row(std::size_t sequence, std::int64_t key) const {
  const std::int64_t row = sequences[sequence].leftpad + key;
  if (cache->page_size == 0) return cache_entry(sequence) * cache->capacity + row;
  return *cache_page(sequence, row / cache->page_size) * cache->page_size + row % cache->page_size;
}

void Case::set_sequences(std::vector<SequenceLengths> list) {
  sequences = std::move(list);
  batch = static_cast<std::int64_t>(sequences.size());
  seqlen_q = seqlen_k = 0;
  for (const SequenceLengths& s : sequences) {
    seqlen_q = std::max(seqlen_q, s.q);
    seqlen_k = std::max(seqlen_k, s.k);
  }
}

void Case::set_cache(std::int64_t page_size, std::int64_t capacity) {
  constexpr std::int64_t kMostCaches = std::int64_t{1} << 20;
  if (batch <= 0 || batch > kMostCaches) return;
  const SequenceLengths each{seqlen_q, seqlen_k};
  if (!ragged()) {
    set_sequences(std::vector<SequenceLengths>(static_cast<std::size_t>(batch), each));
  }
  const bool equal = std::all_of(sequences.begin(), sequences.end(),
                                 [&](const SequenceLengths& s) { return s.q == seqlen_q; });
  cache = Cache{
      .capacity = std::max(capacity, seqlen_k), .page_size = page_size, .dense_queries = equal};
}

Case Case::sequence(std::size_t index) const {
  Case one = *this;
  one.sequences.clear();
  one.batch = 1;
  one.seqlen_q = sequences[index].q;
  one.seqlen_k = sequences[index].k;
  return one;
}

double Case::visible_pairs() const {
  if (ragged()) {
    double pairs = 0;
    for (std::size_t n = 0; n < sequences.size(); ++n) pairs += sequence(n).visible_pairs();
    return pairs / static_cast<double>(batch);
  }
  const auto rows = static_cast<double>(seqlen_q), keys = static_cast<double>(seqlen_k);
  const Bounds bounds = bounds_of(*this);
  if (bounds.crossed()) return 0;
  if (chunk) return pairs_in_chunks(*this, bounds);
  // Ends less begins of the rows' ranges: a row's key i + right + 1 is never before its i - left.
  const double ends = bounds.right ? causal_pairs(rows, keys, *bounds.right) : rows * keys;
  return ends - (bounds.left ? causal_pairs(rows, keys, *bounds.left - 1) : 0);
}

double Case::flops(Pass pass) const {
  const double heads = static_cast<double>(batch) * static_cast<double>(heads_q);
  const auto d = static_cast<double>(head_dim), dv = static_cast<double>(head_dim_v);
  const double per_pair = pass == Pass::kForward ? d + dv : 3 * d + 2 * dv;
  return 2 * heads * visible_pairs() * per_pair;
}

SequenceSource Case::source() const {
  return {.ragged_q = ragged() && !(cache && cache->dense_queries),
          .ragged_k = ragged() && !cache,
          .paged_k = cache && cache->page_size > 0,
          .indexed_k = cache && cache->indexed};
}

Extents Case::extents() const {
  Extents sizes;
  sizes[Extent::kBatch] = batch;
  sizes[Extent::kSeqlenQ] = seqlen_q;
  sizes[Extent::kSeqlenK] = seqlen_k;
  sizes[Extent::kHeadsQ] = heads_q;
  sizes[Extent::kHeadsK] = heads_k;
  sizes[Extent::kHeadDim] = head_dim;
  sizes[Extent::kHeadDimV] = head_dim_v;
  sizes[Extent::kBatchPlusOne] = batch + 1;
  for (const SequenceLengths& s : sequences) {
    sizes[Extent::kTotalQ] += s.q + s.unused_q;
    sizes[Extent::kTotalK] += s.k + s.unused_k;
  }
  sizes[Extent::kTwo] = 2;
  if (cache) set_cache_extents(*this, sizes);
  return sizes;
}

bool Case::gives(TensorRole role) const {
  const auto has_unused = [this](std::int64_t SequenceLengths::*rows) {
    return std::any_of(sequences.begin(), sequences.end(),
                       [rows](const SequenceLengths& s) { return s.*rows > 0; });
  };
  switch (role) {
    case TensorRole::kMask:
      return mask != MaskKind::kNone;
    case TensorRole::kDLse:
      return lse_gradient;
    case TensorRole::kAlibiSlopes:
      return alibi;
    case TensorRole::kDropoutState:
      return dropout_state;
    case TensorRole::kSinks:
    case TensorRole::kDSinks:
      return sinks;
    case TensorRole::kCuSeqlensQ:
      return source().ragged_q;
    case TensorRole::kCuSeqlensK:
      return source().ragged_k;
    case TensorRole::kSeqUsedQ:
      return has_unused(&SequenceLengths::unused_q);
    case TensorRole::kSeqUsedK:
      return cache || has_unused(&SequenceLengths::unused_k);
    case TensorRole::kBlockTable:
      return source().paged_k;
    case TensorRole::kCacheBatchIdx:
      return source().indexed_k;
    case TensorRole::kLeftPadK:
      return has_unused(&SequenceLengths::leftpad);
    default:
      return row_of(role).served_by != ServedBy::kNone;
  }
}

DType Case::dtype_of(TensorRole role) const {
  const TensorRow& row = row_of(role);
  const DType statistic = dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32;
  if (role == TensorRole::kMask) return mask == MaskKind::kBool ? DType::kBool : DType::kFp32;
  if (row.dtype == DTypeRule::kIndex) return seed % 2 == 0 ? DType::kInt64 : DType::kInt32;
  const bool result =
      row.forward.access() == Access::kWrite || row.backward.access() == Access::kWrite;
  if (row.dtype == DTypeRule::kAsQOrFp32 && result && fp32_outputs) return DType::kFp32;
  return *allowed_dtypes(row.dtype == DTypeRule::kInput ? DTypeRule::kAsQ : row.dtype, dtype,
                         statistic)
              .begin();
}

double Case::ideal_bytes(Pass pass) const {
  double sum = 0;
  for (const TensorRow& row : kTensors) {
    if (row.access(pass) == Access::kNone || !gives(row.role)) continue;
    auto bytes = static_cast<double>(size_of(dtype_of(row.role)));
    const ShapeRule shape = rule_for(row.shape, source());
    if (cache && row.shape.extents[1] == Extent::kSeqlenK) {  // the keys that there are
      for (const SequenceLengths& s : sequences) {
        sum += bytes * static_cast<double>(s.k * heads_k * extents()[row.shape.extents[3]]);
      }
      continue;
    }
    for (int i = 0; i < shape.rank; ++i) {
      const Extent extent = shape.extents[static_cast<std::size_t>(i)];
      // One mask for all batches and heads.
      const bool shared = extent == Extent::kBatch || extent == Extent::kHeadsQ;
      if (row.shape.broadcasts && shared) continue;
      const bool read_keys = extent == Extent::kSeqlenK && row.access(pass) == Access::kRead;
      bytes *= read_keys && window ? keys_in_window(*this) : static_cast<double>(extents()[extent]);
    }
    const bool added = row.access(pass) == Access::kWrite && pass == Pass::kBackward &&
                       gradient_mode == GradientMode::kAccumulate;
    sum += added ? 2 * bytes : bytes;
  }
  return sum;
}

std::string Case::mask_name() const {
  std::string name = causal_name(causal);
  if (mask == MaskKind::kBool) name += "+bool";
  if (mask == MaskKind::kAdditive) name += "+additive";
  return name;
}

std::string Case::features() const {
  std::string text;
  if (window) text += " window " + to_string(*window);
  if (chunk) text += fmt::format(" chunk {}", *chunk);
  if (softcap) text += fmt::format(" softcap {}", *softcap);
  if (alibi) text += " alibi";
  if (dropout > 0) text += fmt::format(" dropout {}", dropout);
  if (sinks) text += " sinks";
  if (dropout_state) text += " dropout-state";
  return text;
}

std::string Case::describe() const {
  std::string text = fmt::format("{} b{} h{}/{} s{}x{} d{}/{} {}", to_string(dtype), batch, heads_q,
                                 heads_k, seqlen_q, seqlen_k, head_dim, head_dim_v, mask_name());
  text += features();
  if (scale) text += fmt::format(" scale {}", *scale);
  if (precision == Precision::kTf32) text += " tf32";
  if (lse_gradient) text += " dlse";
  if (fp32_outputs) text += " fp32-outputs";
  if (gradient_mode == GradientMode::kAccumulate) text += " accumulate";
  if (deterministic) text += " deterministic";
  if (source().ragged_q || source().ragged_k) {
    const Extents sizes = extents();
    text += fmt::format(" ragged {}x{}", sizes[Extent::kTotalQ], sizes[Extent::kTotalK]);
    if (!lengths.empty()) text += " " + lengths;
  }
  if (!lengths_k.empty()) text += " keys " + lengths_k;
  if (cache) {
    text += cache->page_size > 0 ? fmt::format(" pages of {}", cache->page_size)
                                 : fmt::format(" cache of {}", cache->capacity);
    if (cache->indexed) text += " indexed";
    if (cache->dense_queries) text += fmt::format(" {} queries", seqlen_q);
  }
  if (layout == Layout::kHeadsFirst) text += " heads-first";
  if (layout == Layout::kPackedQkv) text += " packed-qkv";
  if (layout == Layout::kPaddedRows) text += " padded-rows";
  if (fill == Fill::kLargeScores) text += " large-scores";
  if (fill == Fill::kMixedScales) text += " mixed-scales";
  if (fill == Fill::kSubnormal) text += " subnormal";
  if (fill == Fill::kSpecial) text += " special";
  if (fill == Fill::kEqual) text += " equal";
  if (fill == Fill::kGrowing) text += " growing";
  if (fill == Fill::kShifted) text += " shifted";
  if (fill == Fill::kEmptyRows) text += " empty-rows";
  return text;
}

DropoutSeed Case::dropout_seed() const {
  const std::uint64_t pattern = dropout_pattern.value_or(seed);
  return {pattern * 0x9E3779B97F4A7C15u, pattern + 0x100000000u};
}

Options Case::options() const {
  Options out;
  out.scale = scale;
  out.causal = causal;
  out.window = window;
  out.attention_chunk = chunk;
  out.softcap = softcap;
  if (dropout > 0) out.dropout = dropout;
  out.precision = precision;
  out.gradient_mode = gradient_mode;
  out.deterministic = deterministic;
  return out;
}

std::string to_string(const Window& window) {
  const auto side = [](const std::optional<std::int64_t>& keys) {
    return keys ? fmt::format("{}", *keys) : std::string(kAllKeys);
  };
  std::string text = fmt::format("{},{}", side(window.left), side(window.right));
  if (window.alignment == Alignment::kTopLeft) text += ",top-left";
  if (window.alignment == Alignment::kBottomRight) text += ",bottom-right";
  return text;
}

std::optional<Window> parse_window(std::string_view text) {
  const auto take = [&text] {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
  };
  const auto left = parse_bound(take()), right = parse_bound(take());
  if (!left || !right) return {};
  Window out{*left, *right, Alignment::kOfCausal};
  if (text == "top-left") out.alignment = Alignment::kTopLeft;
  if (text == "bottom-right") out.alignment = Alignment::kBottomRight;
  if (!text.empty() && out.alignment == Alignment::kOfCausal) return {};
  return out;
}

}  // namespace flashlab::cases
