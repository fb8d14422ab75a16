// Attention's GPU kernels, their own text, on an emulated block: every branch of them against the
// oracle on a machine without a GPU. FLASHLAB_EMULATED=all takes all small cases instead of a
// selection; a part of names instead of `all` takes the cases whose names have it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>

#include "attention_emulated.h"

namespace flashlab::testing {
namespace {

using cases::Case;

struct Selection {
  const char* name;
  const char* implementation;
  Pass pass;
  DType dtype;
  std::vector<const char*> cases;  ///< names behind the type's
  bool copy_engine = false;        ///< of a kernel that also runs without
  friend void PrintTo(const Selection& each, std::ostream* out) { *out << each.name; }
};

const char* asked() {
  return std::getenv("FLASHLAB_EMULATED");
}

std::vector<Case> cases_of(const Selection& selection) {
  std::vector<Case> out;
  const std::string prefix = std::string(to_string(selection.dtype)) + "-";
  const std::string_view part = asked() == nullptr ? "" : asked();
  std::size_t found = 0;
  std::vector<Case> list = cases::conformance_cases(selection.dtype);
  if (part != "all") {
    const std::vector<Case> pairs = cases::pair_cases(64, selection.dtype);
    list.insert(list.end(), pairs.begin(), pairs.end());
  }
  for (const Case& each : list) {
    const bool named = std::any_of(selection.cases.begin(), selection.cases.end(),
                                   [&](const char* name) { return each.name == prefix + name; });
    found += named ? 1 : 0;
    const bool wanted = part == "all" || each.name.find(part) != std::string::npos;
    if (asked() != nullptr ? wanted : named) out.push_back(each);
  }
  EXPECT_EQ(found, selection.cases.size()) << "a case has another name now";
  return out;
}

class AttentionEmulated : public ::testing::TestWithParam<Selection> {};

TEST_P(AttentionEmulated, KernelsAreTheOracle) {
  const Selection& selection = GetParam();
  const std::vector<Case> list = cases_of(selection);
  emulated::Kernels kernels;
  use_gpu({.copy_engine = selection.copy_engine, .kernels = &kernels});
  const Context context = emulated_context();
  kernels.build(kernels_of(context, list, selection.implementation, {selection.pass}));
  lab::CheckOptions options;
  options.passes = {selection.pass};
  options.trap_reads_past_end = true;
  int ran = 0;
  for (const Case& each : list) {
    options.memory = emulated_memory();
    // Backward adds in an order of its own unless it is deterministic: one call says as much.
    options.repeat = selection.pass == Pass::kForward || each.deterministic;
    const auto truth = lab::CaseTruth::create(each, options);
    ASSERT_TRUE(truth.ok()) << each.name << ": " << truth.status().message();
    const auto report = lab::check_case(context, *truth, selection.implementation, options);
    EXPECT_FALSE(report.failed()) << report.failure();
    ran += report.status == lab::RunStatus::kOk ? 1 : 0;
    if (asked() != nullptr && report.status == lab::RunStatus::kOk) {
      fmt::print("{} {}: {:.2f} s\n", selection.name, report.problem.name, report.seconds);
    }
  }
  EXPECT_GE(ran, asked() != nullptr ? 1 : static_cast<int>(list.size()));
}

constexpr Pass kForward = Pass::kForward, kBackward = Pass::kBackward;

// Rows are repaired; a diagonal, a group, two slabs of features; tails of tiles.
Selection hopper_rung(const char* name, const char* implementation, DType dtype) {
  return {name, implementation, kForward, dtype, {"growing-full", "group-of-8"}};
}

// Rows and keys at either end see nothing, and windows that are empty everywhere.
Selection beside_the_diagonal(const char* name, const char* implementation, Pass pass,
                              DType dtype) {
  return {name,
          implementation,
          pass,
          dtype,
          {"window-before-wide-heads", "window-behind", "window-behind-bottom-right",
           "window-causal-before", "window-crossed", "window-beyond", "ragged-window-beside"}};
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionEmulated,
    ::testing::Values(
        Selection{"sm90_forward",
                  "sm90",
                  kForward,
                  DType::kBf16,
                  {"fill-1-causal", "additive-mask-own-type", "bool-mask-form-1", "growing-full",
                   "softcap-mask", "alibi-unequal", "alibi-softcap", "window-both", "group-of-8",
                   "dropout-window", "dropout-state", "empty-rows-bottom-right"}},
        Selection{"sm90_forward_fp16",
                  "sm90",
                  kForward,
                  DType::kFp16,
                  {"additive-mask-own-type", "growing-causal"}},
        Selection{
            "sm90_backward",
            "sm90",
            kBackward,
            DType::kBf16,
            {"unseen-keys-top-left", "group-of-8", "empty-rows-bottom-right", "window-wide-heads",
             "fill-3", "fill-4-causal", "head-dim-72", "head-dims-72-and-112"}},
        Selection{"sm90_backward_fp16", "sm90", kBackward, DType::kFp16, {"fill-1-causal"}},
        Selection{"sm90_backward_features",
                  "sm90",
                  kBackward,
                  DType::kBf16,
                  {"dropout-half", "dropout-state", "alibi-both-sides", "alibi-dropout"}},
        Selection{"sm90_backward_shifted",
                  "sm90",
                  kBackward,
                  DType::kBf16,
                  {"pair-dropout-grouped-shifted-d64"}},
        Selection{"sm80_backward_shifted",
                  "sm80",
                  kBackward,
                  DType::kBf16,
                  {"pair-dropout-additive-mask-shifted-d64"}},
        Selection{"fp32_backward_shifted",
                  "sm80",
                  kBackward,
                  DType::kFp32,
                  {"pair-dropout-additive-mask-shifted-d64"}},
        Selection{"sm90_backward_wide",
                  "sm90",
                  kBackward,
                  DType::kBf16,
                  {"large-heads-group", "large-heads-empty-rows", "large-heads-unseen-keys",
                   "large-heads-special", "large-heads-accumulate", "window-large-heads"}},
        Selection{
            "sm90_backward_wide_fp16", "sm90", kBackward, DType::kFp16, {"large-heads-causal"}},
        Selection{"sm80_forward",
                  "sm80",
                  kForward,
                  DType::kBf16,
                  {"fill-1-causal", "additive-mask-own-type", "growing-full", "dropout-mask"}},
        Selection{"sm80_forward_fp16", "sm80", kForward, DType::kFp16, {"features-unequal"}},
        Selection{"sm80_forward_chunks",
                  "sm80",
                  kForward,
                  DType::kBf16,
                  {"chunk-causal", "chunk-fewer-keys", "chunk-window", "chunk-both-sides"}},
        Selection{"sm80_forward_cached",
                  "sm80",
                  kForward,
                  DType::kBf16,
                  {"cache-padded-indexed", "cache-all", "cache-prefill", "pages-padded-of-3",
                   "pages-window-beside", "pages-chunk", "pages-bool-mask", "pages-additive-mask",
                   "pages-all"}},
        Selection{"sm80_forward_cached_fp16", "sm80", kForward, DType::kFp16, {"pages-dropout"}},
        Selection{"sm80_backward", "sm80", kBackward, DType::kBf16, {"features-unequal"}},
        Selection{"sm80_backward_chunks",
                  "sm80",
                  kBackward,
                  DType::kBf16,
                  {"chunk-causal", "chunk-fewer-keys", "chunk-window", "chunk-both-sides",
                   "chunk-additive-mask", "chunk-of-one", "ragged-chunk", "ragged-chunk-causal"}},
        Selection{"sm80_backward_fp16", "sm80", kBackward, DType::kFp16, {"dropout-window"}},
        Selection{"sm80_forward_ragged",
                  "sm80",
                  kForward,
                  DType::kBf16,
                  {"ragged-unused", "ragged-causal", "ragged-decode", "ragged-bool-mask-4"}},
        Selection{"sm80_backward_ragged",
                  "sm80",
                  kBackward,
                  DType::kBf16,
                  {"ragged-causal-unused", "ragged-alibi", "pair-deterministic-ragged-normal-d64"}},
        Selection{"sm80_forward_sinks",
                  "sm80",
                  kForward,
                  DType::kBf16,
                  {"sinks-empty-rows", "sinks-one-query", "sinks-no-key", "ragged-sinks"}},
        Selection{"sm80_backward_sinks",
                  "sm80",
                  kBackward,
                  DType::kBf16,
                  {"sinks-dropout", "ragged-sinks"}},
        Selection{"sm90_forward_sinks",
                  "sm90",
                  kForward,
                  DType::kBf16,
                  {"sinks-causal", "sinks-additive-mask"}},
        Selection{"sm90_forward_ragged",
                  "sm90",
                  kForward,
                  DType::kBf16,
                  {"ragged-causal-unused", "ragged-causal", "ragged-decode", "ragged-bool-mask-4",
                   "ragged-alibi", "ragged-sinks", "pair-grouped-ragged-normal-d64"}},
        Selection{
            "sm90_forward_cached",
            "sm90",
            kForward,
            DType::kBf16,
            {"cache-prefill", "cache-prefill-window", "pages-prefill-of-8", "pages-prefill-of-192",
             "pages-alibi", "pages-one-pool", "pages-speculative", "pages-window-beside"}},
        Selection{"sm90_forward_cached_fp16", "sm90", kForward, DType::kFp16, {"pages-softcap"}},
        Selection{
            "decode",
            "decode",
            kForward,
            DType::kBf16,
            {"sinks-one-query", "window-few-queries", "deterministic-one-query", "alibi-decode",
             "group-of-64", "cache-decode", "cache-indexed", "pages-speculative",
             "pages-padded-of-3", "pages-some-queries", "cache-window-beside", "cache-chunk",
             "pages-bool-mask", "cache-mask-padded", "cache-mask-sixteen"}},
        Selection{"decode_fp16", "decode", kForward, DType::kFp16, {"pages-softcap"}},
        Selection{
            "decode_boxes",
            "decode",
            kForward,
            DType::kBf16,
            {"group-of-64", "cache-decode", "cache-indexed", "cache-padded", "pages-decode-of-64",
             "pages-speculative", "pages-heads-first", "pages-padded-of-16", "pages-some-queries",
             "pages-chunk-decode", "pages-bool-mask", "pages-mask-decode", "cache-mask-sixteen"},
            true},
        Selection{
            "fp32_forward_sinks", "sm80", kForward, DType::kFp32, {"sinks-one-query", "sinks"}},
        Selection{"fp32_backward_sinks", "sm80", kBackward, DType::kFp32, {"sinks-dropout"}},
        Selection{"sm90_backward_ragged",
                  "sm90",
                  kBackward,
                  DType::kBf16,
                  {"ragged-causal-unused", "ragged-alibi", "ragged-dropout-state", "ragged-window",
                   "ragged-decode"}},
        Selection{"sm90_backward_sinks", "sm90", kBackward, DType::kBf16, {"sinks"}},
        Selection{"fp32_forward", "sm80", kForward, DType::kFp32, {"features-unequal"}},
        Selection{"fp32_forward_ragged",
                  "sm80",
                  kForward,
                  DType::kFp32,
                  {"ragged-unused", "ragged-causal", "ragged-decode", "ragged-bool-mask-4",
                   "ragged-sinks"}},
        Selection{"fp32_forward_cached",
                  "sm80",
                  kForward,
                  DType::kFp32,
                  {"cache-padded-indexed", "cache-prefill", "pages-padded-of-3",
                   "pages-window-beside", "pages-all"}},
        Selection{"fp32_forward_chunks",
                  "sm80",
                  kForward,
                  DType::kFp32,
                  {"chunk-causal", "chunk-fewer-keys", "chunk-window", "chunk-both-sides",
                   "ragged-chunk-causal", "pages-chunk"}},
        Selection{"fp32_backward_chunks",
                  "sm80",
                  kBackward,
                  DType::kFp32,
                  {"chunk-causal", "chunk-fewer-keys", "chunk-window", "chunk-both-sides",
                   "chunk-additive-mask", "chunk-of-one", "ragged-chunk", "ragged-chunk-causal"}},
        Selection{"fp32_backward", "sm80", kBackward, DType::kFp32, {"features-unequal"}},
        Selection{"fp32_backward_ragged",
                  "sm80",
                  kBackward,
                  DType::kFp32,
                  {"ragged-causal-unused", "ragged-sinks", "pair-deterministic-ragged-normal-d64"}},
        beside_the_diagonal("sm80_forward_beside", "sm80", kForward, DType::kBf16),
        beside_the_diagonal("sm80_backward_beside", "sm80", kBackward, DType::kBf16),
        beside_the_diagonal("sm90_forward_beside", "sm90", kForward, DType::kBf16),
        beside_the_diagonal("sm90_backward_beside", "sm90", kBackward, DType::kBf16),
        beside_the_diagonal("fp32_forward_beside", "sm80", kForward, DType::kFp32),
        beside_the_diagonal("fp32_backward_beside", "sm80", kBackward, DType::kFp32),
        Selection{"fa1_mma", "fa1-mma", kForward, DType::kFp16, {"fill-1-causal"}},
        Selection{"fa2_mma", "fa2-mma", kForward, DType::kFp16, {"fill-1-causal"}},
        Selection{"fa2_mma_backward", "fa2-mma", kBackward, DType::kFp16, {"fill-1-causal"}},
        hopper_rung("fa2_tma", "fa2-tma", DType::kBf16),
        hopper_rung("fa2_wgmma", "fa2-wgmma", DType::kFp16),
        hopper_rung("fa3", "fa3", DType::kBf16),
        hopper_rung("fa3_turns", "fa3-turns", DType::kFp16),
        hopper_rung("fa3_frozen", "fa3-frozen", DType::kFp16)),
    [](const auto& info) { return info.param.name; });

// Head dims above 128, dS of a few tiles at a time: heads in parts, keys of a head in parts, of
// which the last ones see fewer queries.
TEST(AttentionEmulatedParts, OfTheWideBackwardAreTheOracle) {
  constexpr std::int64_t kTileBytes = 64 * 64 * 2;
  Case problem;
  problem.name = "parts";
  problem.dtype = DType::kBf16;
  problem.batch = 3;
  problem.heads_q = 2;
  problem.heads_k = 1;
  problem.seqlen_q = 130;
  problem.seqlen_k = 320;
  problem.head_dim = problem.head_dim_v = 136;
  problem.causal = Causal::kTopLeft;
  problem.deterministic = true;
  problem.sinks = true;
  const std::int64_t of_keys = 2 * 3 * kTileBytes;  // 64 keys, 3 tiles of queries of two heads
  const std::pair<std::int64_t, std::size_t> parts[] = {
      {15 * of_keys, 1}, {10 * of_keys, 2}, {5 * of_keys, 3}, {2 * of_keys, 9}, {of_keys, 15}};
  emulated::Kernels kernels;
  lab::CheckOptions options;
  options.passes = {Pass::kBackward};
  options.repeat = true;
  options.memory = emulated_memory();
  const auto truth = lab::CaseTruth::create(problem, options);
  ASSERT_TRUE(truth.ok()) << truth.status().message();
  for (const auto& [bytes, count] : parts) {
    use_gpu({.kernels = &kernels, .scores_bytes = bytes});
    const Context context = emulated_context();
    EXPECT_EQ(kernels_of(context, {problem}, "sm90", {Pass::kBackward}).size(), 2 + 2 * count);
    const auto report = lab::check_case(context, *truth, "sm90", options);
    EXPECT_TRUE(report.passed()) << bytes << " bytes: " << report.failure();
  }
}

/// One head of fp32 rows whose own key has nearly all the weight: with dO = 1 dv is 1, but for what
/// backward's scores and forward's LSE differ in.
class OwnKeys {
 public:
  static constexpr std::int64_t kKeys = 8, kDim = 64;
  using Rows = std::vector<float>;
  Rows q, k, v, o, lse, ones, dq, dk, dv;

  OwnKeys()
      : q(kKeys * kDim), k(q), v(q), o(q), lse(kKeys), ones(q.size(), 1.0f), dq(q), dk(q), dv(q) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> part(0.6f, 1.4f);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    for (std::size_t row = 0; row < kKeys; ++row) {
      const float* keys = &k[row * kDim];
      const float square = std::inner_product(keys, keys + kDim, keys, 0.0f);
      const float factor = 1500 * part(random) * std::sqrt(static_cast<float>(kDim)) / square;
      std::transform(keys, keys + kDim, &q[row * kDim], [&](float x) { return x * factor; });
    }
  }
  static Tensor rows(Rows& data) {
    return tensor(data.data(), {1, kKeys, 1, kDim}, DType::kFp32, {DeviceKind::kCuda, 0});
  }
  static Tensor scalars(Rows& data) {
    return tensor(data.data(), {1, 1, kKeys}, DType::kFp32, {DeviceKind::kCuda, 0});
  }
};

template <class Tensors>
void run_emulated(const Context& context, const Tensors& tensors,
                  Status (*pass)(const Context&, Stream, const Plan&, const Tensors&, Workspace),
                  Options options = {}) {
  if (options.implementation.empty()) options.implementation = "sm80";
  const auto made = plan(context, describe(tensors, options));
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_TRUE(prepare(context, *made).ok());
  const auto memory = emulated_memory();
  const auto workspace = memory->allocate(std::max<std::size_t>(made->workspace_bytes(), 1));
  ASSERT_TRUE(workspace.ok());
  const Status done = pass(context, {}, *made, tensors, {*workspace, made->workspace_bytes()});
  EXPECT_TRUE(done.ok()) << done.message();
  memory->release(*workspace);
}

// Forward's guarded path holds every bit of a few keys' scores: so must backward's, or P is off by
// several units in the last place of LSE.
TEST(AttentionEmulatedFewKeys, BackwardMeetsForwardsScores) {
  OwnKeys x;
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  ForwardTensors forward_call{
      .q = x.rows(x.q), .k = x.rows(x.k), .v = x.rows(x.v), .o = x.rows(x.o)};
  forward_call.lse = x.scalars(x.lse);
  run_emulated<ForwardTensors>(context, forward_call, &forward);
  const BackwardTensors backward_call{.q = x.rows(x.q),
                                      .k = x.rows(x.k),
                                      .v = x.rows(x.v),
                                      .o = x.rows(x.o),
                                      .lse = x.scalars(x.lse),
                                      .d_o = x.rows(x.ones),
                                      .dq = x.rows(x.dq),
                                      .dk = x.rows(x.dk),
                                      .dv = x.rows(x.dv)};
  run_emulated<BackwardTensors>(context, backward_call, &backward);
  for (std::size_t row = 0; row < OwnKeys::kKeys; ++row) {
    const float ulp = std::nextafter(x.lse[row], 1e30f) - x.lse[row];
    EXPECT_NEAR(x.dv[row * OwnKeys::kDim], 1.0f, 1.25f * ulp) << "LSE " << x.lse[row];
  }
}

/// Tensors of a ragged call of bf16 or fp32, each before a page that cannot be read.
class RaggedTensors {
 public:
  static constexpr std::int64_t kRows = 150, kDim = 64;
  explicit RaggedTensors(const std::vector<std::int32_t>& offsets, DType dtype = DType::kBf16,
                         std::int64_t dim = kDim)
      : dtype_(dtype), dim_(dim) {
    q = rows(), k = rows(), v = rows(), o = rows(), d_o = rows(), dq = rows(), dk = rows();
    dv = rows();
    lse = tensor(allocate(kRows * 4), {1, kRows}, DType::kFp32, kDevice);
    const auto count = static_cast<std::int64_t>(offsets.size());
    cu_seqlens = tensor(allocate(offsets.size() * 4), {count}, DType::kInt32, kDevice);
    std::copy(offsets.begin(), offsets.end(), static_cast<std::int32_t*>(cu_seqlens.data));
  }
  RaggedTensors(const RaggedTensors&) = delete;
  RaggedTensors& operator=(const RaggedTensors&) = delete;
  ~RaggedTensors() {
    for (void* data : allocated_) memory_->release(data);
  }
  Tensor q, k, v, o, d_o, dq, dk, dv, lse, cu_seqlens;

  /// Queries, keys and values from 1/2 to 2, of both signs.
  void draw() {
    std::mt19937 random(3);
    for (const Tensor* t : {&q, &k, &v}) {
      auto* bits = bits_of(*t);
      for (std::int64_t i = 0; i < kRows * kDim; ++i) {
        bits[i] = static_cast<std::uint16_t>(0x3f00u + random() % 256 + random() % 2 * 0x8000u);
      }
    }
  }
  static std::uint16_t* bits_of(const Tensor& t) { return static_cast<std::uint16_t*>(t.data); }

 private:
  static constexpr Device kDevice{DeviceKind::kCuda, 0};
  Tensor rows() {
    const std::size_t bytes = dtype_ == DType::kFp32 ? 4 : 2;
    return tensor(allocate(kRows * dim_ * bytes), {kRows, 1, dim_}, dtype_, kDevice);
  }
  void* allocate(std::size_t bytes) {
    const auto data = memory_->allocate(bytes);
    EXPECT_TRUE(data.ok());
    std::memset(*data, 0, bytes);
    allocated_.push_back(*data);
    return *data;
  }
  DType dtype_;
  std::int64_t dim_;
  std::shared_ptr<lab::DeviceMemory> memory_ = emulated_memory();
  std::vector<void*> allocated_;
};

// Offsets that decrease or leave the tensor are clamped: nothing outside is read or written, and
// where sequences share tiles nobody waits for a turn that does not come.
TEST(AttentionEmulatedOffsets, ThatAreWrongEndAndStayInside) {
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  const std::vector<std::int32_t> all[] = {{0, 130, 0, 130},   {150, 0, 150, 0},
                                           {-7, 1000, 20, 40}, {90, 149, 3, 150},
                                           {70, 10, 80, 5},    {150, 150, 150, 150}};
  struct Call {
    DType dtype;
    const char* implementation;
    std::int64_t dim = 64;
  };
  const Call calls[] = {{DType::kBf16, "sm80"},
                        {DType::kBf16, "sm90"},
                        {DType::kBf16, "sm90", 128},
                        {DType::kFp32, "sm80"}};
  for (std::size_t i = 0; i < std::size(all) * std::size(calls); ++i) {
    const std::vector<std::int32_t>& offsets = all[i / std::size(calls)];
    const auto& [dtype, implementation, dim] = calls[i % std::size(calls)];
    SCOPED_TRACE(
        fmt::format("{} {} {} {}", to_string(dtype), implementation, dim, fmt::join(offsets, " ")));
    const RaggedTensors x(offsets, dtype, dim);
    ForwardTensors forward_call{.q = x.q, .k = x.k, .v = x.v, .o = x.o};
    forward_call.lse = x.lse;
    forward_call.cu_seqlens_q = forward_call.cu_seqlens_k = x.cu_seqlens;
    run_emulated<ForwardTensors>(context, forward_call, &forward,
                                 {.implementation = implementation});
    BackwardTensors backward_call{.q = x.q,
                                  .k = x.k,
                                  .v = x.v,
                                  .o = x.o,
                                  .lse = x.lse,
                                  .d_o = x.d_o,
                                  .dq = x.dq,
                                  .dk = x.dk,
                                  .dv = x.dv};
    backward_call.cu_seqlens_q = backward_call.cu_seqlens_k = x.cu_seqlens;
    run_emulated<BackwardTensors>(context, backward_call, &backward,
                                  {.deterministic = implementation == std::string_view("sm80"),
                                   .implementation = implementation});
  }
}

// A hint chooses the kernel of few rows, and whatever it says the results are those without one.
TEST(AttentionEmulatedHints, ChangeNoResult) {
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  const auto results = [&](std::optional<std::int64_t> hint) {
    RaggedTensors x({0, 70, 71, 150});
    x.draw();
    ForwardTensors call{.q = x.q, .k = x.k, .v = x.v, .o = x.o};
    call.lse = x.lse;
    call.cu_seqlens_q = call.cu_seqlens_k = x.cu_seqlens;
    Options options;
    options.max_seqlen_q = hint;
    run_emulated<ForwardTensors>(context, call, &forward, options);
    const auto* lse = static_cast<const float*>(x.lse.data);
    return std::vector<float>(lse, lse + RaggedTensors::kRows);
  };
  const std::vector<float> without = results({}), wrong = results(1), right = results(79);
  for (std::size_t row = 0; row < without.size(); ++row) {
    EXPECT_TRUE(std::isfinite(without[row])) << row;
    EXPECT_NEAR(wrong[row], without[row], 1e-4) << row;
    EXPECT_EQ(right[row], without[row]) << row;
  }
}

// Entries of a batch of which a part is used are sequences: what they get is what the same rows get
// that lie behind each other, and nothing that is not used, NaN here, comes near.
TEST(AttentionEmulatedBatch, OfUsedRowsIsAPackedOne) {
  constexpr std::int64_t kEntries = 3, kLength = RaggedTensors::kRows / kEntries;
  constexpr Device kDevice{DeviceKind::kCuda, 0};
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  std::vector<std::int32_t> used = {50, 0, 33};
  const auto results = [&](const char* implementation, bool packed) {
    RaggedTensors x({0, 50, 100, 150});
    x.draw();
    for (const Tensor* t : {&x.q, &x.k, &x.v}) {
      for (std::size_t n = 0; n < used.size(); ++n) {
        auto* entry = x.bits_of(*t) + static_cast<std::int64_t>(n) * kLength * x.kDim;
        std::fill(entry + used[n] * x.kDim, entry + kLength * x.kDim, std::uint16_t{0x7fc0});
      }
    }
    for (const Tensor* t : {&x.o, &x.dq, &x.dk, &x.dv}) {
      std::fill(x.bits_of(*t), x.bits_of(*t) + x.kRows * x.kDim, std::uint16_t{0x7fc0});
    }
    const auto rows = [&](const Tensor& t) {
      if (packed) return t;
      return tensor(t.data, {kEntries, kLength, 1, x.kDim}, DType::kBf16, kDevice);
    };
    ForwardTensors call{.q = rows(x.q), .k = rows(x.k), .v = rows(x.v), .o = rows(x.o)};
    call.lse = packed ? x.lse : tensor(x.lse.data, {kEntries, 1, kLength}, DType::kFp32, kDevice);
    if (packed) call.cu_seqlens_q = call.cu_seqlens_k = x.cu_seqlens;
    call.seqused_q = call.seqused_k =
        tensor(used.data(), {kEntries}, DType::kInt32, {DeviceKind::kCuda, 0});
    Options options{.causal = Causal::kTopLeft};
    options.implementation = implementation;
    run_emulated<ForwardTensors>(context, call, &forward, options);
    BackwardTensors gradients{.q = call.q,
                              .k = call.k,
                              .v = call.v,
                              .o = call.o,
                              .lse = *call.lse,
                              .d_o = call.v,
                              .dq = rows(x.dq),
                              .dk = rows(x.dk),
                              .dv = rows(x.dv)};
    gradients.cu_seqlens_q = gradients.cu_seqlens_k = call.cu_seqlens_q;
    gradients.seqused_q = gradients.seqused_k = call.seqused_q;
    run_emulated<BackwardTensors>(context, gradients, &backward, options);
    const auto* lse = static_cast<const float*>(x.lse.data);
    std::vector<float> out(lse, lse + x.kRows);
    for (const Tensor* t : {&x.o, &x.dq, &x.dk, &x.dv}) {
      for (std::int64_t i = 0; i < x.kRows * x.kDim; ++i) {
        out.push_back(std::bit_cast<float>(std::uint32_t{x.bits_of(*t)[i]} << 16));
      }
    }
    return out;
  };
  for (const char* implementation : {"sm80", "sm90"}) {
    const auto packed = results(implementation, true);
    const auto batched = results(implementation, false);
    for (std::size_t i = 0; i < packed.size(); ++i) {
      if (i < RaggedTensors::kRows && i % kLength >= std::size_t(used[i / kLength])) {
        ASSERT_EQ(batched[i], -INFINITY) << implementation << " LSE " << i;
        ASSERT_EQ(packed[i], -INFINITY) << implementation << " LSE " << i;
      } else {
        const float tolerance = 0.01f + 0.02f * std::abs(packed[i]);
        ASSERT_NEAR(batched[i], packed[i], tolerance) << implementation << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace flashlab::testing
