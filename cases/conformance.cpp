// The conformance list: named regressions, a seeded covering of pairs of features, a few long ones.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "case.h"
#include "sequences.h"

namespace flashlab::cases {
namespace {

// splitmix64: the list is the same on every machine and with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }

 private:
  std::uint64_t state_;
};

// Tile edges of kernels with tiles of 1..256 rows, and primes that fit no tile.
constexpr std::array<std::int64_t, 30> kLengths = {
    1,  2,   3,   5,   6,   7,   13,  31,  47,  48,  49,  63,  64,  65,  67,
    97, 101, 113, 127, 128, 129, 151, 191, 192, 193, 211, 239, 255, 256, 257};

struct HeadDims {
  std::int64_t qk, v;
};
constexpr std::array<HeadDims, 17> kHeadDims = {{{1, 1},
                                                 {3, 3},
                                                 {8, 8},
                                                 {16, 16},
                                                 {31, 31},
                                                 {40, 40},
                                                 {64, 64},
                                                 {80, 80},
                                                 {96, 96},
                                                 {128, 128},
                                                 {160, 160},
                                                 {256, 256},
                                                 {64, 128},
                                                 {192, 128},
                                                 {17, 5},
                                                 {3, 72},
                                                 {128, 64}}};

struct Heads {
  std::int64_t q, k;
};
constexpr std::array<Heads, 7> kHeads = {{{1, 1}, {2, 2}, {3, 3}, {4, 2}, {6, 2}, {4, 1}, {8, 1}}};

constexpr std::array<Causal, 3> kCausals = {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight};

// Chances are set by repetition: features that loosen the bound or replace the data (large scores)
// must not hide what plain data would show.
constexpr std::array<Fill, 9> kFills = {Fill::kNormal,    Fill::kNormal,      Fill::kNormal,
                                        Fill::kNormal,    Fill::kLargeScores, Fill::kMixedScales,
                                        Fill::kSubnormal, Fill::kSpecial,     Fill::kEqual};
constexpr std::array<Layout, 4> kLayouts = {Layout::kContiguous, Layout::kHeadsFirst,
                                            Layout::kPackedQkv, Layout::kPaddedRows};
constexpr std::array<MaskKind, 5> kMasks = {MaskKind::kNone, MaskKind::kNone, MaskKind::kNone,
                                            MaskKind::kBool, MaskKind::kAdditive};
const std::array<std::optional<float>, 7> kScales = {std::nullopt, std::nullopt, std::nullopt, 0.0f,
                                                     -0.3f,        1.0f,         2.5f};

// One value per feature: indices into the tables above.
enum Factor : std::size_t {
  kSeqlenQ,
  kSeqlenK,
  kHeadDim,
  kHeadCount,
  kBatch,
  kCausalKind,
  kMask,
  kScale,
  kLayout,
  kFill,
  kLseGradient,
  kFp32Outputs,
  kAccumulate,
  kDeterministic,
  kFactors
};
using Choice = std::array<std::size_t, kFactors>;
constexpr Choice kLevels = {kLengths.size(),
                            kLengths.size(),
                            kHeadDims.size(),
                            kHeads.size(),
                            3,
                            kCausals.size(),
                            kMasks.size(),
                            7,
                            kLayouts.size(),
                            kFills.size(),
                            2,
                            2,
                            2,
                            3};

Case from_choice(const Choice& choice, DType dtype) {
  Case out;
  out.dtype = dtype;
  out.seqlen_q = kLengths[choice[kSeqlenQ]];
  out.seqlen_k = kLengths[choice[kSeqlenK]];
  out.layout = kLayouts[choice[kLayout]];
  // One buffer for q, k and v needs equal lengths.
  if (out.layout == Layout::kPackedQkv) out.seqlen_k = out.seqlen_q;
  out.head_dim = kHeadDims[choice[kHeadDim]].qk;
  out.head_dim_v = kHeadDims[choice[kHeadDim]].v;
  out.heads_q = kHeads[choice[kHeadCount]].q;
  out.heads_k = kHeads[choice[kHeadCount]].k;
  out.batch = static_cast<std::int64_t>(choice[kBatch]) + 1;
  out.causal = kCausals[choice[kCausalKind]];
  out.mask = kMasks[choice[kMask]];
  out.scale = kScales[choice[kScale]];
  out.fill = kFills[choice[kFill]];
  out.lse_gradient = choice[kLseGradient] == 1;
  out.fp32_outputs = choice[kFp32Outputs] == 1 && (dtype == DType::kFp16 || dtype == DType::kBf16);
  out.gradient_mode =
      choice[kAccumulate] == 1 ? GradientMode::kAccumulate : GradientMode::kOverwrite;
  out.deterministic = choice[kDeterministic] == 1;
  // With a product or two per score the naive formula's rounding coincides with that of the LSE and
  // cancels: where scores are large that leaves a yardstick of zero.
  const bool large = out.fill == Fill::kMixedScales || out.fill == Fill::kLargeScores;
  if (large && out.head_dim < 8) out.fill = Fill::kNormal;
  // Scores of hundreds times a scale of 2.5, or 0 times infinity, test the data and not the kernel.
  if (out.fill != Fill::kNormal && out.fill != Fill::kEqual) out.scale.reset();
  return out;
}

// Multiply-adds of a forward pass: what a case costs the reference, which cannot be hurried.
double cost(const Case& c) {
  return c.flops(Pass::kForward) / 2;
}

// Two (factor, level)s, packed into an index.
constexpr std::size_t kLevelLimit = 32;
constexpr std::size_t kSide = kFactors * kLevelLimit;

void for_each_pair(const Choice& choice, auto&& use) {
  for (std::size_t a = 0; a < kFactors; ++a) {
    for (std::size_t b = a + 1; b < kFactors; ++b) {
      use((a * kLevelLimit + choice[a]) * kSide + b * kLevelLimit + choice[b]);
    }
  }
}

// Greedy covering: of some random candidates the one that meets most pairs of features not yet met.
// A candidate is skipped while the list so far has cost more than its share, so that the sum stays
// near count x 4e6 multiply-adds.
void add_covering(std::vector<Case>& list, DType dtype, std::size_t count, std::uint64_t seed) {
  constexpr double kMeanCost = 4e6;
  constexpr int kCandidates = 48;
  Random random(seed);
  std::vector<std::uint8_t> seen(kSide * kSide, 0);
  double spent = 0;
  for (std::size_t n = 0; n < count; ++n) {
    Choice best{};
    int best_new = -1;
    const double allowed = kMeanCost * static_cast<double>(n + 4) - spent;
    for (int c = 0; c < kCandidates; ++c) {
      Choice choice{};
      for (std::size_t f = 0; f < kFactors; ++f) choice[f] = random.below(kLevels[f]);
      // Every length in turn: 11 has no divisor in common with their number.
      static_assert(kLengths.size() == 30);
      choice[kSeqlenQ] = n * 11 % kLengths.size();
      if (cost(from_choice(choice, dtype)) > allowed) continue;
      int fresh = 0;
      for_each_pair(choice, [&](std::size_t pair) { fresh += seen[pair] == 0; });
      if (fresh > best_new) {
        best_new = fresh;
        best = choice;
      }
    }
    if (best_new < 0) continue;  // every candidate costs too much just now
    for_each_pair(best, [&](std::size_t pair) { seen[pair] = 1; });
    Case problem = from_choice(best, dtype);
    problem.seed = seed + n;
    problem.name = fmt::format("{}-{:03}", to_string(dtype), n);
    spent += cost(problem);
    list.push_back(std::move(problem));
  }
}

Case sized(const char* name, DType dtype, std::int64_t batch, Heads heads, std::int64_t seqlen_q,
           std::int64_t seqlen_k, HeadDims dims, Causal causal = Causal::kNone) {
  Case out;
  out.name = fmt::format("{}-{}", to_string(dtype), name);
  out.dtype = dtype;
  out.batch = batch;
  out.heads_q = heads.q;
  out.heads_k = heads.k;
  out.seqlen_q = seqlen_q;
  out.seqlen_k = seqlen_k;
  out.head_dim = dims.qk;
  out.head_dim_v = dims.v;
  out.causal = causal;
  return out;
}

// What must never break again, each for its reason.
void add_named(std::vector<Case>& list, DType t) {
  const Causal top = Causal::kTopLeft, bottom = Causal::kBottomRight;
  auto add = [&](Case problem) { list.push_back(std::move(problem)); };
  auto with = [&](Case problem, auto&& change) {
    change(problem);
    list.push_back(std::move(problem));
  };

  // Nothing to write, and rows without keys.
  add(sized("no-batch", t, 0, {2, 2}, 5, 7, {16, 16}));
  add(sized("no-heads", t, 2, {0, 0}, 5, 7, {16, 16}));
  add(sized("no-queries", t, 2, {2, 2}, 0, 7, {16, 16}));
  add(sized("no-keys", t, 2, {4, 2}, 7, 0, {16, 24}));
  with(sized("no-keys-accumulate", t, 1, {2, 2}, 65, 0, {64, 64}),
       [](Case& c) { c.gradient_mode = GradientMode::kAccumulate; });
  add(sized("one-by-one", t, 1, {1, 1}, 1, 1, {1, 1}));
  add(sized("one-query", t, 2, {4, 4}, 1, 257, {64, 64}));
  add(sized("one-key", t, 1, {2, 2}, 129, 1, {64, 64}));
  add(sized("empty-rows-bottom-right", t, 1, {2, 1}, 193, 65, {64, 64}, bottom));
  add(sized("all-rows-but-one-empty", t, 1, {1, 1}, 257, 1, {31, 31}, bottom));
  add(sized("unseen-keys-top-left", t, 1, {2, 2}, 65, 255, {64, 64}, top));
  add(sized("decode-bottom-right", t, 2, {4, 1}, 3, 255, {128, 128}, bottom));

  // Few queries of many heads that share keys: more rows of a group than one tile has.
  add(sized("group-of-8", t, 1, {8, 1}, 70, 301, {128, 128}, bottom));
  add(sized("group-of-64", t, 1, {64, 1}, 5, 130, {64, 64}));
  with(sized("group-of-4-masked", t, 2, {8, 2}, 33, 130, {128, 128}), [](Case& c) {
    c.mask = MaskKind::kBool;
    c.alibi = true;
  });

  // Equal lengths with a bare causal; the mask and causal together; a mask over empty rows.
  with(sized("bare-causal", t, 1, {2, 2}, 127, 127, {64, 64}),
       [](Case& c) { c.causal = Causal::kCausal; });
  for (std::uint64_t form = 0; form < 6; ++form) {  // the six ways a mask broadcasts
    for (MaskKind kind : {MaskKind::kBool, MaskKind::kAdditive}) {
      const char* mask = kind == MaskKind::kBool ? "bool" : "additive";
      const std::string name = fmt::format("{}-mask-form-{}", mask, form);
      with(sized(name.c_str(), t, 2, {4, 2}, 67, 97, {40, 40}, form % 2 ? top : Causal::kNone),
           [&](Case& c) {
             c.mask = kind;
             c.seed = form;
             c.lse_gradient = form % 3 == 0;
           });
    }
  }
  if (t == DType::kFp16 || t == DType::kBf16) {
    // Masks of 16 bits have other code, and blocks of them that hide nothing.
    with(sized("additive-mask-own-type", t, 1, {1, 1}, 64, 136, {16, 16}), [](Case& c) {
      c.mask = MaskKind::kAdditive;
      c.seed = 6;
    });
  }
  with(sized("masked-empty-rows", t, 1, {2, 2}, 130, 66, {64, 64}, bottom),
       [](Case& c) { c.mask = MaskKind::kBool; });

  // Data: every fill where several key blocks meet, with and without causal.
  for (Fill fill :
       {Fill::kLargeScores, Fill::kMixedScales, Fill::kSubnormal, Fill::kSpecial, Fill::kEqual}) {
    for (Causal causal : {Causal::kNone, top}) {
      const std::string name =
          fmt::format("fill-{}{}", static_cast<int>(fill), causal == top ? "-causal" : "");
      with(sized(name.c_str(), t, 1, {4, 2}, 193, 193, {64, 64}, causal), [&](Case& c) {
        c.fill = fill;
        c.lse_gradient = causal == top;
      });
    }
  }
  // In fp32 the gradient of a key that has all the weight is what cancels, in naive and kernel
  // alike.
  for (Causal causal : {Causal::kNone, top}) {
    if (t != DType::kFp16 && t != DType::kBf16) continue;
    with(sized(causal == top ? "growing-causal" : "growing-full", t, 1, {1, 1}, 705, 705, {64, 64},
               causal),
         [](Case& c) { c.fill = Fill::kGrowing; });
  }
  with(sized("special-masked", t, 2, {2, 2}, 129, 130, {64, 64}), [](Case& c) {
    c.fill = Fill::kSpecial;
    c.mask = MaskKind::kBool;
  });

  // Head dims at vector edges that the covering leaves out, and large ones.
  for (std::int64_t d :
       {2, 4, 5, 7, 15, 24, 32, 33, 48, 63, 65, 72, 127, 129, 192, 257, 320, 512}) {
    with(sized(fmt::format("head-dim-{}", d).c_str(), t, 1, {2, 2}, 51, 70, {d, d},
               d % 3 == 0 ? bottom : Causal::kNone),
         [&](Case& c) { c.seed = static_cast<std::uint64_t>(d); });
  }
  add(sized("head-dims-72-and-112", t, 1, {2, 1}, 90, 150, {72, 112}, bottom));
  with(sized("padded-gqa-accumulate", t, 2, {6, 2}, 101, 64, {64, 40}, top), [](Case& c) {
    c.layout = Layout::kPaddedRows;
    c.gradient_mode = GradientMode::kAccumulate;
    c.lse_gradient = true;
  });
  with(sized("deterministic-uneven", t, 3, {3, 1}, 151, 257, {64, 64}, bottom), [](Case& c) {
    c.deterministic = true;
    c.lse_gradient = true;
  });
  with(sized("deterministic-one-query", t, 1, {2, 2}, 1, 1531, {64, 64}),
       [](Case& c) { c.deterministic = true; });
}

// Head dims above 128 have kernels of their own: several tiles of queries and keys, groups, keys
// and queries without partner, rows without keys, head dims between.
void add_large_heads(std::vector<Case>& list, DType t) {
  if (t != DType::kFp16 && t != DType::kBf16) return;
  const Causal top = Causal::kTopLeft, bottom = Causal::kBottomRight;
  list.push_back(sized("large-heads-full", t, 1, {1, 1}, 70, 130, {256, 256}));
  list.push_back(sized("large-heads-causal", t, 1, {1, 1}, 130, 130, {256, 256}, top));
  list.push_back(sized("large-heads-group", t, 1, {2, 1}, 70, 130, {256, 256}, bottom));
  list.push_back(sized("large-heads-empty-rows", t, 1, {2, 1}, 193, 65, {192, 128}, bottom));
  list.push_back(sized("large-heads-unseen-keys", t, 1, {1, 1}, 65, 255, {160, 232}, top));
  Case special = sized("large-heads-special", t, 1, {1, 1}, 98, 98, {256, 256}, top);
  special.fill = Fill::kSpecial;
  special.lse_gradient = true;
  list.push_back(special);
  Case added = sized("large-heads-accumulate", t, 1, {1, 1}, 66, 70, {256, 256});
  added.gradient_mode = GradientMode::kAccumulate;
  added.deterministic = added.lse_gradient = true;
  list.push_back(added);
}

Window window(std::optional<std::int64_t> left, std::optional<std::int64_t> right,
              Alignment alignment = Alignment::kOfCausal) {
  return {left, right, alignment};
}

// Windows: each side, both alignments, with causal, wider and narrower than tiles, rows without a
// key, keys without a query, and keys split among blocks.
void add_windows(std::vector<Case>& list, DType t) {
  const Causal top = Causal::kTopLeft, bottom = Causal::kBottomRight, none = Causal::kNone;
  const auto tl = Alignment::kTopLeft, br = Alignment::kBottomRight;
  struct Form {
    const char* name;
    std::int64_t seqlen_q, seqlen_k;
    HeadDims dims;
    Causal causal;
    Window window;
  };
  const Form forms[] = {
      {"left", 257, 257, {64, 64}, none, window(31, {})},
      {"right", 257, 257, {64, 64}, none, window({}, 47)},
      {"both", 300, 300, {64, 64}, none, window(40, 17)},
      {"own-key", 130, 130, {64, 64}, none, window(0, 0)},
      {"causal", 385, 385, {64, 64}, top, window(100, {})},
      {"causal-wide", 193, 193, {64, 64}, top, window(500, 5)},
      {"wide-heads", 200, 200, {128, 128}, top, window(63, 0)},
      {"large-heads", 150, 150, {192, 256}, none, window(33, 20)},
      {"odd-heads", 131, 131, {17, 5}, none, window(9, 30)},
      {"bottom-right", 129, 301, {64, 64}, none, window(64, 3, br)},
      {"top-left", 129, 301, {64, 64}, none, window(64, 3, tl)},
      {"causal-bottom-right", 100, 333, {64, 64}, bottom, window(50, {})},
      {"empty-rows", 301, 129, {64, 64}, none, window(20, 10, br)},
      {"empty-rows-top-left", 301, 129, {64, 64}, none, window(20, 10, tl)},
      {"few-queries", 3, 1500, {64, 64}, none, window(700, {}, br)},
      {"one-query", 1, 777, {128, 128}, bottom, window(300, {})},
      {"few-keys", 700, 5, {64, 64}, none, window(2, 1, tl)},
      {"before", 150, 150, {64, 64}, none, window(90, -7)},
      {"before-wide-heads", 129, 301, {128, 128}, none, window({}, -65, br)},
      {"behind", 150, 150, {64, 64}, none, window(-40, 120)},
      {"behind-bottom-right", 201, 129, {64, 64}, none, window(-3, {}, br)},
      {"causal-before", 130, 130, {64, 64}, top, window(100, -1)},
      {"crossed", 65, 130, {64, 64}, none, window(-9, 5, br)},
      // Further than 32 bits of steps of 32 or 64 keys.
      {"beyond", 65, 130, {64, 64}, none, window(std::int64_t{-3} << 36, {}, br)},
  };
  for (const Form& form : forms) {
    const std::string name = fmt::format("window-{}", form.name);
    Case c =
        sized(name.c_str(), t, 1, {4, 2}, form.seqlen_q, form.seqlen_k, form.dims, form.causal);
    c.window = form.window;
    list.push_back(c);
    if (form.window.left == 40 || form.window.left == 50 || form.window.left == -40) {
      c.name += "-deterministic";
      c.deterministic = c.lse_gradient = true;
      list.push_back(c);
      c.name = fmt::format("{}-{}-mask", to_string(t), name);
      c.mask = form.window.left == 40 ? MaskKind::kBool : MaskKind::kAdditive;
      c.batch = 2;
      list.push_back(c);
    }
  }
}

// Softcap, ALiBi and dropout: each alone, with what else touches a score, and all at once.
void add_score_features(std::vector<Case>& list, DType t) {
  const Causal top = Causal::kTopLeft, bottom = Causal::kBottomRight, none = Causal::kNone;
  const auto cap = [](Case& c) { c.softcap = 20.0f; };
  const auto slopes = [](Case& c) { c.alibi = true; };
  const auto drop = [](Case& c) { c.dropout = 0.17f; };
  const auto add = [&](const char* name, Case c, auto&&... changes) {
    c.name = fmt::format("{}-{}", to_string(t), name);
    (changes(c), ...);
    list.push_back(std::move(c));
  };
  const Case plain = sized("", t, 2, {4, 2}, 150, 150, {64, 64}, top);
  const Case longer = sized("", t, 1, {2, 1}, 129, 333, {64, 64}, bottom);
  const Case wide = sized("", t, 1, {2, 2}, 97, 200, {128, 128}, none);
  const Case odd = sized("", t, 1, {3, 1}, 67, 101, {31, 31}, none);
  const Case large = sized("", t, 1, {2, 2}, 80, 130, {192, 256}, top);
  const Case decode = sized("", t, 2, {4, 1}, 3, 777, {128, 128}, bottom);
  const Case both = sized("", t, 1, {1, 1}, 140, 200, {64, 64}, none);  // whole blocks ahead, too
  const auto mask = [](Case& c) { c.mask = MaskKind::kAdditive; };
  const auto hidden = [](Case& c) { c.mask = MaskKind::kBool; };
  const auto sure = [](Case& c) { c.deterministic = c.lse_gradient = true; };
  const auto added = [](Case& c) { c.gradient_mode = GradientMode::kAccumulate; };
  const auto batches = [](Case& c) { c.seed = 3; };  // slopes of every batch entry
  const auto dim_128 = [](Case& c) { c.head_dim = c.head_dim_v = 128; };
  const auto all = [&](Case& c) {
    cap(c);
    slopes(c);
    drop(c);
  };

  add("softcap", plain, cap);
  add("softcap-small", plain, [](Case& c) { c.softcap = 0.5f; });
  add("softcap-large", plain, [](Case& c) { c.softcap = 1000.0f; });
  add("softcap-negative-scale", odd, cap, [](Case& c) { c.scale = -0.7f; });
  add("softcap-large-scores", wide, cap, [](Case& c) { c.fill = Fill::kLargeScores; });
  add("softcap-mask", wide, cap, mask);
  add("softcap-decode", decode, cap);
  add("softcap-large-heads", large, cap, sure);
  add("alibi", plain, slopes);
  add("alibi-per-batch", plain, slopes, batches);
  add("alibi-unequal", longer, slopes, sure);
  add("alibi-both-sides", wide, slopes, added);
  add("alibi-softcap", both, slopes, cap);
  add("alibi-mask", odd, slopes, hidden);
  add("alibi-decode", decode, slopes);
  add("alibi-window", longer, slopes, [](Case& c) { c.window = Window{.left = 70}; });
  add("alibi-causal-128", plain, slopes, dim_128, [](Case& c) { c.batch = 1; });
  add("alibi-softcap-window-128", longer, slopes, cap, dim_128,
      [](Case& c) { c.window = Window{.left = 150}; });
  add("dropout", plain, drop);
  add("dropout-half", wide, [](Case& c) { c.dropout = 0.5f; });
  add("dropout-most", odd, [](Case& c) { c.dropout = 0.95f; });
  add("dropout-unequal", longer, drop, sure);
  add("dropout-mask", wide, drop, hidden, added);
  add("dropout-decode", decode, drop);
  add("dropout-large-heads", large, drop);
  add("alibi-dropout", plain, slopes, drop, [](Case& c) { c.batch = 1; });
  add("dropout-window", longer, drop, [](Case& c) { c.window = Window{.left = 70}; });
  add("dropout-state", plain, drop, [](Case& c) {
    c.dropout_state = true;
    c.batch = 1;
    c.seqlen_q = c.seqlen_k = 90;
  });
  add("features", plain, all);
  add("features-unequal", longer, all, sure);
  add("features-mask", wide, all, mask);
  add("features-padded", odd, all, [](Case& c) { c.layout = Layout::kPaddedRows; });
  add("features-decode", decode, all, batches);
  if (t == DType::kFp16 || t == DType::kBf16) {
    add("features-fp32-outputs", wide, all, [](Case& c) { c.fp32_outputs = true; });
  }
}

// Lengths at which every path that depends on length is taken: many key blocks, split keys, several
// query tiles a thread. One head, because the reference pays for every pair.
void add_long(std::vector<Case>& list, DType t) {
  const Causal top = Causal::kTopLeft, bottom = Causal::kBottomRight;
  if (t == DType::kFp64) {
    list.push_back(sized("long", t, 1, {1, 1}, 701, 1009, {64, 64}, bottom));
    return;
  }
  list.push_back(sized("long-causal", t, 1, {1, 1}, 1787, 1787, {64, 64}, top));
  list.push_back(sized("long-few-queries", t, 1, {2, 1}, 17, 2000, {128, 128}, bottom));
  if (t == DType::kFp16) return;
  list.push_back(sized("long-many-queries", t, 1, {1, 1}, 2000, 301, {128, 128}));
  list.push_back(sized("long", t, 1, {1, 1}, 1500, 1531, {64, 64}));
}

}  // namespace

std::vector<Case> conformance_cases(std::optional<DType> dtype) {
  struct Share {
    DType dtype;
    std::size_t covering;
    std::uint64_t seed;
  };
  constexpr std::array<Share, 4> kShares = {{{DType::kFp32, 160, 1000},
                                             {DType::kBf16, 120, 2000},
                                             {DType::kFp16, 70, 3000},
                                             {DType::kFp64, 40, 4000}}};
  std::vector<Case> list;
  for (const Share& share : kShares) {
    if (dtype && *dtype != share.dtype) continue;
    add_named(list, share.dtype);
    add_large_heads(list, share.dtype);
    add_windows(list, share.dtype);
    add_sequence_cases(list, share.dtype);
    add_score_features(list, share.dtype);
    add_covering(list, share.dtype, share.covering, share.seed);
    add_long(list, share.dtype);
  }
  return list;
}

}  // namespace flashlab::cases
