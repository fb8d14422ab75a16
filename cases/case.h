#pragma once

// One attention problem as a person writes it down. One list of these drives the tests, `check`,
// `bench`, `compare` and the README's tables. Depends on include/ only.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/attention.h"
#include "flashlab/tensor_table.h"

namespace flashlab::cases {

enum class MaskKind : std::uint8_t { kNone, kBool, kAdditive };

/// How the tensors lie in memory.
enum class Layout : std::uint8_t {
  kContiguous,  ///< [B, S, H, D] row-major
  kHeadsFirst,  ///< memory order [B, H, S, D], seen as [B, S, H, D]
  kPackedQkv,   ///< q, k, v (and dq, dk, dv) are slices of one buffer, where shapes allow it
  kPaddedRows,  ///< rows 3 elements longer than head_dim: misaligned, padding filled with NaN
};

/// What the tensors hold.
enum class Fill : std::uint8_t {
  kNormal,       ///< N(0, 1), seeded: every measurement uses this
  kLargeScores,  ///< q and k scaled so that scores reach hundreds
  kMixedScales,  ///< rows of q and k at scales from 1e-6 to 1e3
  kSubnormal,    ///< some elements below the type's normal range
  kSpecial,      ///< some NaN and infinities at seeded places
  kEqual,        ///< all scores equal: a uniform softmax
  kGrowing,      ///< every 64 keys twice the scores of those before; the first key's far below all
  kShifted,      ///< a number near -1000 in every score: an additive mask's, else of q and k
  kEmptyRows,    ///< a mask hides a tile of queries and one query in four; rest as kNormal
};

/// Lengths of one sequence of a ragged case, and rows behind it that no sequence has: they hold
/// NaN.
struct SequenceLengths {
  std::int64_t q = 0, k = 0;
  std::int64_t unused_q = 0, unused_k = 0;
  std::int64_t leftpad = 0;  ///< of a cache: rows before the first key, which hold NaN, too
};

/// Where the keys and values of a case with sequences lie beside ragged rows. Rows that no sequence
/// has hold NaN, entries of a table that no key lies in are hostile.
struct Cache {
  std::int64_t capacity = 0;   ///< rows of an entry, or of a sequence's pages (rounded up)
  std::int64_t page_size = 0;  ///< 0: entries
  bool indexed = false;        ///< entries in another order, one chosen twice, some never
  bool shared = false;         ///< every second sequence begins with pages of the first one
  bool dense_queries = false;  ///< [batch, seqlen_q, ...]: q + unused_q is the same everywhere
};

struct Case {
  std::string name;  ///< unique; e.g. "gpt2-small" or generated from the shape
  std::int64_t batch = 2;
  std::int64_t heads_q = 8;
  std::int64_t heads_k = 8;
  std::int64_t seqlen_q = 1024;
  std::int64_t seqlen_k = 1024;
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  DType dtype = DType::kFp32;
  Causal causal = Causal::kNone;
  std::optional<Window> window;
  std::optional<std::int64_t> chunk;  ///< Options::attention_chunk
  MaskKind mask = MaskKind::kNone;
  std::optional<float> softcap;
  bool alibi = false;  ///< slopes of the ALiBi paper, [1, heads_q] or [batch, heads_q] by the seed
  float dropout = 0;   ///< probability
  std::optional<std::uint64_t> dropout_pattern;  ///< which pairs; empty: by the seed
  bool sinks = false;                            ///< attention sinks, and their gradients
  bool dropout_state = false;  ///< what dropout is drawn by is given as a tensor, not by value
  std::optional<float> scale;
  Precision precision = Precision::kIeee;
  bool lse_gradient = false;  ///< backward gets a dLSE
  bool fp32_outputs = false;  ///< o and gradients in fp32 views of a 16-bit problem
  GradientMode gradient_mode = GradientMode::kOverwrite;
  bool deterministic = false;
  Layout layout = Layout::kContiguous;
  Fill fill = Fill::kNormal;
  std::uint64_t seed = 1;
  /// Ragged where there are any; set by set_sequences.
  std::vector<SequenceLengths> sequences;
  std::string lengths;         ///< the mix and its tokens, where set_lengths has drawn them
  std::string lengths_k;       ///< of the keys, where set_key_lengths has given them others
  std::optional<Cache> cache;  ///< of keys and values; beside sequences, forward only

  bool ragged() const { return !sequences.empty(); }
  /// Calls with a cache have no gradients.
  bool has_backward() const { return !cache; }
  SequenceSource source() const;
  /// Rows [page or entry][row in it] of a cache as one number, of a sequence's key.
  std::int64_t cache_row(std::size_t sequence, std::int64_t key) const;
  /// Of a page that holds keys of a sequence, else nothing.
  std::optional<std::int64_t> cache_page(std::size_t sequence, std::int64_t index) const;
  /// The sequence's entry of a cache.
  std::int64_t cache_entry(std::size_t sequence) const;
  /// Makes it ragged: batch is their number, seqlen_q and seqlen_k the longest.
  void set_sequences(std::vector<SequenceLengths> list);
  /// Puts the keys and values of each sequence into a cache with room for so many, at least for the
  /// longest; page_size 0: contiguous. Queries become a dense tensor where all have as many.
  void set_cache(std::int64_t page_size, std::int64_t capacity = 0);
  /// One sequence as the dense case that it equals.
  Case sequence(std::size_t index) const;

  /// Its sizes by name, as the table of tensors asks for them.
  Extents extents() const;
  /// Whether its calls have this tensor.
  bool gives(TensorRole role) const;
  /// A mask's is fp32 here, where it adds.
  DType dtype_of(TensorRole role) const;

  /// Visible (query, key) pairs per head under causal and window, of a ragged case the mean of its
  /// sequences; a mask tensor is not counted.
  double visible_pairs() const;
  /// 2 B Hq pairs (D + Dv) forward, 2 B Hq pairs (3 D + 2 Dv) backward.
  double flops(Pass pass) const;
  /// Bytes that must be read and written once by an ideal kernel (inputs + outputs). With a window
  /// only the keys that some query sees are read.
  double ideal_bytes(Pass pass) const;
  /// "none", "causal-top-left", "causal-bottom-right", with "+bool" or "+additive" for a mask
  /// tensor.
  std::string mask_name() const;
  /// " window 128,0 softcap 30 alibi dropout 0.1": what changes scores or their visibility beyond
  /// causal, mask and scale; empty where nothing does.
  std::string features() const;
  /// "fp32 b2 h8/8 s1024x1024 d64/64 causal-top-left".
  std::string describe() const;
  /// What dropout is drawn by: both numbers beyond 32 bits.
  DropoutSeed dropout_seed() const;
  /// The Options that run this case.
  Options options() const;
};

/// "LEFT,RIGHT", each a number of either sign or "all", with ",top-left" or ",bottom-right" where
/// an alignment is given: "128,0,top-left".
std::string to_string(const Window& window);
std::optional<Window> parse_window(std::string_view text);

/// The conformance list: every combination that has ever been worth a test, small enough that the
/// whole list runs in about a minute on two cores. `dtype` empty: all.
std::vector<Case> conformance_cases(std::optional<DType> dtype = {});

/// The list of pairs: every two of {causal, window, softcap, ALiBi, dropout, boolean mask, additive
/// mask, grouped heads, dLSE, deterministic, unequal lengths, unequal head dims, sinks, ragged,
/// paged}, but the two masks and dLSE with pages, which have no gradients, with every fill of
/// {normal, large scores, shifted, empty rows}, at head dims 64 and 128, for every type. Lengths
/// are two and three tiles, one more or one less. Two features of a case may have a third that its
/// fill needs: rows without keys come from more queries than keys where no mask is.
std::vector<Case> pair_cases(std::int64_t tile, std::optional<DType> dtype = {});

/// Names of mixes of lengths: documents (log-normal, median 600, 16 to 8k), one-long (half of the
/// tokens in one sequence, beside 256s), chat (16 to 512), half (1 to 4k), equal (2k).
const std::vector<std::string>& length_mixes();

/// Makes a case ragged by "MIX" or "MIX:TOKENS", drawn by its seed, the last sequence ending with
/// the tokens, or by a list "8x2k+1000x0"; as many queries as keys. A mix is one of length_mixes or
/// "any" (1 to 16k). False where the text is neither, and nothing is changed.
bool set_lengths(Case& c, std::string_view text);
/// Gives the keys of each sequence, or of each batch entry, a length of their own, as the same
/// texts say; a list has as many. False as above.
bool set_key_lengths(Case& c, std::string_view text);
inline constexpr std::int64_t kLengthTokens = 16384, kMostLengthTokens = std::int64_t{1} << 26;

/// Presets by name (gpt2-small, gpt3-large, bert-base, bert-large, long-8k, long-16k,
/// batch-inference, ...); empty when the name is unknown. A preset fixes sizes, mask and pass.
struct Preset {
  Case problem;
  bool forward_only = false;
  std::string summary;
};
std::vector<Preset> presets();
std::optional<Preset> find_preset(std::string_view name);

/// The time of a sweep's case over that of others together: "ragged over dense".
struct Ratio {
  std::string what;
  std::size_t of = 0;
  std::vector<std::size_t> over;
};

/// Sweeps by name (notebook, handout, papers, course, fa1-steps, fa1-fa2, ...).
struct Sweep {
  std::string name;
  std::string summary;
  std::vector<Case> cases;
  std::vector<Pass> passes;
  std::vector<Ratio> ratios = {};
};
std::vector<Sweep> sweeps();
std::optional<Sweep> find_sweep(std::string_view name);

}  // namespace flashlab::cases
