// Everything about a call that can be judged without an implementation, in one place and before
// anything is allocated, launched or written.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "api/capacity.h"
#include "api/problem.h"
#include "api/tensor_rules.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {
namespace {

std::string divisors_remedy(std::int64_t heads_q) {
  std::string text = "use ";
  int listed = 0;
  for (std::int64_t d = 1; d <= heads_q && listed < 12; ++d) {
    if (heads_q % d == 0) text += fmt::format("{}{}", listed++ ? ", " : "", d);
  }
  return text + " key heads";
}

// The tensors that a pass has to have, each of its rank, with strides that make sense.
void check_structures(TensorRules& check, Problem& p, const SequenceSource& source) {
  for (const TensorRow& row : kTensors) {
    if (row.access(p.pass) == Access::kNone) continue;
    if (TensorSpec* spec = row.problem.get(p)) {
      check.structure(row.name, *spec, rule_for(row.shape, source));
    } else if (row.required(p.pass)) {
      check.fail(row.name, "nothing", "a tensor",
                 p.pass == Pass::kBackward ? "backward needs it" : "forward needs it");
    }
  }
}

// A hint at the longest sequence.
void check_longest(TensorRules& check, const char* name, const std::optional<std::int64_t>& given,
                   bool has_lengths, const char* lengths) {
  if (!given || (has_lengths && *given >= 0)) return;
  const std::string argument = fmt::format("options.{}", name);
  if (has_lengths) {
    check.fail(argument, fmt::format("{}", *given), "a length >= 0",
               "leave it empty where it is not known: it is a hint");
  } else {
    check.fail(argument, fmt::format("{}", *given), fmt::format("nothing without {}", lengths),
               "tensors of equal lengths say their length themselves");
  }
}

// Keys in a cache: what cannot be meant together.
void check_cache(TensorRules& check, const Problem& p) {
  const std::pair<const char*, bool> given[] = {{"cache_batch_idx", p.cache_batch_idx.has_value()},
                                                {"leftpad_k", p.leftpad_k.has_value()},
                                                {"block_table", p.block_table.has_value()}};
  for (const auto& [name, is_given] : given) {
    if (is_given && p.pass == Pass::kBackward) {
      check.fail(name, "given to backward", "nothing: caches have no gradients",
                 "gather the keys and values, and use cu_seqlens_k");
    }
    if (is_given && p.cu_seqlens_k) {
      check.fail(name, "given beside cu_seqlens_k", "keys in a cache, or ragged keys",
                 "give the lengths of a cache as seqused_k");
    }
  }
  if (!p.block_table) return;
  if (p.cache_batch_idx) {
    check.fail("cache_batch_idx", "given beside block_table", "entries of a cache, or pages",
               "choose the rows of block_table instead");
  }
  if (!p.seqused_k) {
    check.fail("seqused_k", "nothing", "the number of keys of each sequence",
               "a table of pages does not say where a sequence ends");
  }
  if (p.k.rank == 4 && p.k.shape[1] == 0) {
    check.fail("k.shape[1]", "0", "a page size >= 1",
               "with block_table k is [pages, page_size, "
               "heads_k, head_dim]");
  }
}

// Every size has one tensor that says it: the first of the table with that extent.
Extents sizes_of(TensorRules& check, const Problem& p, const SequenceSource& source) {
  Extents sizes;
  if (!check.ok()) return sizes;
  std::array<bool, kExtents> known{};
  for (const TensorRow& row : kTensors) {
    const TensorSpec* spec = row.problem.get(p);
    if (spec == nullptr || row.access(p.pass) == Access::kNone || row.shape.broadcasts) continue;
    const ShapeRule rule = rule_for(row.shape, source);
    for (int i = 0; i < rule.rank; ++i) {
      const Extent extent = rule.extents[static_cast<std::size_t>(i)];
      bool& seen = known[static_cast<std::size_t>(extent)];
      if (!seen) sizes[extent] = spec->shape[i];
      seen = true;
    }
  }
  if ((source.ragged_q || source.ragged_k) && sizes[Extent::kBatchPlusOne] < 1) {
    check.fail(source.ragged_q ? "cu_seqlens_q.shape[0]" : "cu_seqlens_k.shape[0]", "0",
               "batch + 1 offsets", "the first is 0, the last the number of tokens");
  }
  if (source.ragged_q) sizes[Extent::kBatch] = sizes[Extent::kBatchPlusOne] - 1;
  sizes[Extent::kBatchPlusOne] = sizes[Extent::kBatch] + 1;
  sizes[Extent::kTwo] = 2;
  check_longest(check, "max_seqlen_q", p.options.max_seqlen_q, p.cu_seqlens_q || p.seqused_q,
                "cu_seqlens_q");
  check_longest(check, "max_seqlen_k", p.options.max_seqlen_k, p.cu_seqlens_k || p.seqused_k,
                "cu_seqlens_k");
  // Of ragged rows only a mask has an extent of one sequence's positions, and the call knows these.
  if (source.ragged_q && p.mask) sizes[Extent::kSeqlenQ] = p.mask->shape[2];
  if (source.ragged_k && p.mask) sizes[Extent::kSeqlenK] = p.mask->shape[3];
  if (source.paged_k && !source.ragged_k &&
      __builtin_mul_overflow(sizes[Extent::kPagesPerSequence], sizes[Extent::kPageSize],
                             &sizes[Extent::kSeqlenK])) {
    check.fail("block_table.shape[1]", fmt::format("{}", sizes[Extent::kPagesPerSequence]),
               "sequences of less than 2^63 keys", "use fewer pages");
  }
  return sizes;
}

void check_sizes(TensorRules& check, const Problem& p, const Extents& sizes) {
  const auto last = [](const char* name, const TensorSpec& spec) {
    return fmt::format("{}.shape[{}]", name, spec.rank - 1);
  };
  if (sizes[Extent::kHeadDim] < 1) {
    check.fail(last("q", p.q), fmt::format("{}", sizes[Extent::kHeadDim]), "a head dimension >= 1",
               "attention without features has no scores");
  }
  if (sizes[Extent::kHeadDimV] < 1) {
    check.fail(last("v", p.v), fmt::format("{}", sizes[Extent::kHeadDimV]), "a head dimension >= 1",
               "");
  }
  const std::int64_t heads_q = sizes[Extent::kHeadsQ], heads_k = sizes[Extent::kHeadsK];
  if (heads_q > 0 && (heads_k == 0 || heads_q % heads_k != 0)) {
    check.fail(fmt::format("k.shape[{}]", p.k.rank - 2), fmt::format("{} key heads", heads_k),
               fmt::format("a divisor of the {} query heads", heads_q), divisors_remedy(heads_q));
  }
}

const char* dtype_remedy(const TensorRow& row) {
  switch (row.dtype) {
    case DTypeRule::kInput:
      return "convert the inputs";
    case DTypeRule::kAsQ:
      return "q, k and v have one dtype";
    case DTypeRule::kAsQOrFp32:
      return row.role == TensorRole::kO ? "o has the inputs' dtype or fp32"
                                        : "gradients have the inputs' dtype or fp32";
    case DTypeRule::kStatistic:
      return "lse is fp32 (fp64 allowed for fp64 inputs)";
    case DTypeRule::kAsLse:
      return "d_lse has the dtype of lse";
    case DTypeRule::kVisible:
      return "bool: true is visible; floating: added to the scaled score";
    default:
      return "convert it";
  }
}

void check_tensor(TensorRules& check, const Problem& p, const TensorRow& row,
                  const SequenceSource& source, const Extents& sizes) {
  const TensorSpec* spec = row.problem.get(p);
  if (spec == nullptr || row.access(p.pass) == Access::kNone) return;
  check.shape(row.name, *spec, rule_for(row.shape, source), sizes);
  const DType lse = p.lse ? p.lse->dtype : DType::kFp32;
  check.dtype(row.name, *spec, allowed_dtypes(row.dtype, p.q.dtype, lse), dtype_remedy(row));
  check.device(row.name, *spec, p.q.device, "where q is");
  if (row.access(p.pass) == Access::kWrite) check.output(row.name, *spec);
}

// What planning knows of the lengths of queries and keys: those of every sequence, or the most that
// one can have.
struct Lengths {
  std::int64_t q = 0, k = 0;
  bool known = true;
  bool equal() const { return known && q == k; }
  std::string text() const {
    return known ? fmt::format("seqlen_q {} and seqlen_k {}", q, k) : "sequences of any lengths";
  }
  std::string reason() const {
    return known ? "because the lengths differ" : "because lengths may differ";
  }
};

Result<Causal> resolve_causal(Causal causal, const Lengths& lengths) {
  if (causal != Causal::kCausal) return causal;
  if (lengths.equal()) return Causal::kTopLeft;
  return Status::invalid(
      {"options.causal", "causal with " + lengths.text(), "an alignment, " + lengths.reason(),
       "use Causal::kTopLeft (query i sees keys 0..i) or Causal::kBottomRight (the last query sees "
       "every key)"});
}

// The alignment of a window or of chunks; an error names both choices where it is open.
Result<Alignment> resolve_alignment(const Options& options, const Lengths& lengths) {
  const Alignment given = options.window ? options.window->alignment : Alignment::kOfCausal;
  const bool equal = lengths.equal();
  if (options.causal == Causal::kNone) {
    if (given != Alignment::kOfCausal) return equal ? Alignment::kTopLeft : given;
    if (equal) return Alignment::kTopLeft;
    return Status::invalid(
        {"options.window.alignment", "none with " + lengths.text(),
         "an alignment, " + lengths.reason(),
         "use Alignment::kTopLeft (around key i of query i) or Alignment::kBottomRight (around "
         "key i + seqlen_k - seqlen_q, as flash-attn)"});
  }
  const Alignment causal =
      options.causal == Causal::kBottomRight ? Alignment::kBottomRight : Alignment::kTopLeft;
  if (given == Alignment::kOfCausal || given == causal || equal) return causal;
  return Status::invalid({"options.window.alignment", "another one than that of options.causal",
                          "one diagonal for both", "leave it at Alignment::kOfCausal"});
}

// A window whose alignment is resolved: what hides nothing is unbounded, and the right side is that
// of causal where this is narrower. The last query is furthest from the first key, the first query
// from the last key. What hides nothing at the largest lengths hides nothing at others.
void normalise_window(Window& window, bool causal, const Lengths& lengths) {
  const std::int64_t offset =
      window.alignment == Alignment::kBottomRight ? lengths.k - lengths.q : 0;
  if (causal) window.right = std::min<std::int64_t>(window.right.value_or(0), 0);
  if (window.left && *window.left >= lengths.q - 1 + offset) window.left.reset();
  if (window.right && *window.right >= lengths.k - 1 - offset && !causal) window.right.reset();
}

// Bounds of visible keys from causal, window and chunks, all normalised: a side that hides nothing
// is unbounded, a window that is only causal is causal, a window that hides nothing is none.
// Precondition: options.causal is resolved.
Status resolve_bounds(Options& options, const Lengths& lengths, MaskBounds& bounds) {
  bounds.bottom_right = options.causal == Causal::kBottomRight;
  bounds.chunk = options.attention_chunk.value_or(0);
  if (!options.window && options.attention_chunk && options.causal == Causal::kNone) {
    options.window.emplace();  // says where chunks begin
  }
  if (!options.window) {
    if (options.causal != Causal::kNone) bounds.right = 0;
    return {};
  }
  Window& window = *options.window;
  auto alignment = resolve_alignment(options, lengths);
  if (!alignment.ok()) return alignment.status();
  window.alignment = *alignment;
  bounds.bottom_right = window.alignment == Alignment::kBottomRight;
  normalise_window(window, options.causal != Causal::kNone, lengths);
  if (window.right == 0) {
    options.causal = bounds.bottom_right ? Causal::kBottomRight : Causal::kTopLeft;
  }
  const auto bound = [](const std::optional<std::int64_t>& side) {
    constexpr std::int64_t kFar = MaskBounds::kUnbounded;
    return std::clamp(side.value_or(kFar), -kFar, kFar);
  };
  bounds.left = bound(window.left);
  bounds.right = bound(window.right);
  if (!window.left && window.right.value_or(0) == 0 && !options.attention_chunk) {
    options.window.reset();
  }
  return {};
}

// Kernels multiply in their sums' type.
double rounded_scale(double scale, DType dtype) {
  return dtype == DType::kFp64 ? scale : static_cast<double>(static_cast<float>(scale));
}

void check_options(TensorRules& check, const Options& options, DType dtype) {
  if (options.precision == Precision::kTf32 && dtype != DType::kFp32) {
    check.fail("options.precision", fmt::format("tf32 with {} tensors", to_string(dtype)),
               "ieee: tf32 is how fp32 tensors may be multiplied", "leave the precision away");
  }
  if (options.scale && !std::isfinite(rounded_scale(*options.scale, dtype))) {
    check.fail("options.scale", fmt::format("{}", *options.scale),
               dtype == DType::kFp64 ? "a finite number" : "a number that is finite in fp32",
               "leave it empty for 1/sqrt(head_dim)");
  }
  if (options.tiles.tile_q < 0) {
    check.fail("options.tiles.tile_q", fmt::format("{}", options.tiles.tile_q),
               "a tile of >= 1 queries, or 0 for the default", "");
  }
  if (options.tiles.tile_k < 0) {
    check.fail("options.tiles.tile_k", fmt::format("{}", options.tiles.tile_k),
               "a tile of >= 1 keys, or 0 for the default", "");
  }
  if (options.attention_chunk && *options.attention_chunk < 1) {
    check.fail("options.attention_chunk", fmt::format("{}", *options.attention_chunk),
               "a chunk of >= 1 keys", "leave it empty for none");
  }
  if (options.softcap && !(*options.softcap > 0 && std::isfinite(*options.softcap))) {
    check.fail("options.softcap", fmt::format("{}", *options.softcap), "a finite number > 0",
               "leave it empty for scores as they are");
  }
  if (options.dropout && !(*options.dropout >= 0 && *options.dropout < 1)) {
    check.fail("options.dropout", fmt::format("{}", *options.dropout), "a probability >= 0 and < 1",
               "leave it empty for none");
  }
}

void normalise_alignment(Problem& p) {
  // A CPU reads any address an element may have: a coarser class would only make plans differ. On
  // a GPU a layout may promise less than its base: rows of odd length are aligned to an element.
  for (const TensorRow& row : kTensors) {
    TensorSpec* spec = row.problem.get(p);
    if (spec == nullptr) continue;
    spec->alignment_bytes = spec->device.kind == DeviceKind::kCpu
                                ? static_cast<int>(size_of(spec->dtype))
                                : std::min(spec->alignment_bytes, alignment_of(nullptr, *spec));
  }
}

}  // namespace

double Geometry::visible_pairs() const noexcept {
  if (!bounds.bounded()) return static_cast<double>(seqlen_q) * static_cast<double>(seqlen_k);
  double pairs = 0;
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    pairs += static_cast<double>(std::max<std::int64_t>(0, end_key(i) - first_key(i)));
  }
  return pairs;
}

Result<Geometry> validate(const Problem& problem, Problem* normalised) {
  Problem p = problem;
  TensorRules check;
  const SequenceSource source = source_of(p);
  check_structures(check, p, source);
  check_cache(check, p);
  const Extents sizes = sizes_of(check, p, source);
  check_sizes(check, p, sizes);
  for (const TensorRow& row : kTensors) check_tensor(check, p, row, source, sizes);
  check_options(check, p.options, p.q.dtype);
  if (p.dropout_state && !p.options.dropout) {
    check.fail("dropout_state", "given without options.dropout", "a probability of dropping",
               "set options.dropout, or leave dropout_state out");
  }
  if (p.d_sinks && !p.sinks) {
    check.fail("d_sinks", "given without sinks", "the sinks that forward was given",
               "pass sinks, or leave d_sinks out");
  }
  if (!check.ok()) return check.status();

  Geometry g;
  g.batch = sizes[Extent::kBatch];
  g.has_lengths = has_lengths(p);
  g.ragged_q = source.ragged_q;
  g.seqlen_q = sizes[source.ragged_q ? Extent::kTotalQ : Extent::kSeqlenQ];
  if (source.paged_k) g.page_size = sizes[Extent::kPageSize];
  g.heads_q = sizes[Extent::kHeadsQ];
  g.head_dim = sizes[Extent::kHeadDim];
  g.seqlen_k = sizes[source.ragged_k ? Extent::kTotalK : Extent::kSeqlenK];
  g.heads_k = sizes[Extent::kHeadsK];
  g.head_dim_v = sizes[Extent::kHeadDimV];
  g.dtype = p.q.dtype;
  const double scale = 1.0 / std::sqrt(static_cast<double>(g.head_dim));
  g.scale = rounded_scale(p.options.scale.value_or(scale), g.dtype);
  const Lengths lengths{g.seqlen_q, g.seqlen_k, !g.has_lengths};
  auto causal = resolve_causal(p.options.causal, lengths);
  if (!causal.ok()) return causal.status();
  p.options.causal = *causal;
  if (Status s = resolve_bounds(p.options, lengths, g.bounds); !s.ok()) return s;

  if (p.options.dropout == 0.0f) p.options.dropout.reset();
  g.softcap = p.options.softcap.value_or(0.0f);
  g.dropout = p.options.dropout.value_or(0.0f);

  normalise_alignment(p);
  if (normalised != nullptr) *normalised = std::move(p);
  return g;
}

}  // namespace flashlab::internal
