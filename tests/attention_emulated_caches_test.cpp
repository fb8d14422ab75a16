// Kernels of caches on an emulated block, and who takes which of them: faults of their order are
// seen, and entries of a table and lengths that only the device knows poison their own sequence
// alone.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attention_emulated_faults.h"

namespace flashlab::testing {
namespace {

using cases::Case;

// Parts of 4,096 keys, more steps than a ring has places, rows of two warps.
Case decoded() {
  Case out;
  out.name = "decoded";
  out.batch = 1;
  out.heads_q = 12;
  out.heads_k = 2;
  out.seqlen_q = 4;
  out.seqlen_k = 9000;
  out.head_dim = out.head_dim_v = 64;
  out.dtype = DType::kBf16;
  out.deterministic = true;
  return out;
}

// The same with rows that are joined one by one.
Case one_query_decoded() {
  Case out = decoded();
  out.name = "one query decoded";
  out.seqlen_q = 1;
  return out;
}

TEST(AttentionEmulatedCaches, FaultsOfTheDecodeKernelAreSeen) {
  constexpr const char* kMain = "decode/kernel.cu";
  constexpr const char* kProducer = "decode/producer.h";
  constexpr const char* kResults = "decode/results.h";
  expect_all_are_seen(
      "decode", Pass::kForward,
      {{"steps are not waited for", {{kMain, "ring.wait_full();", ""}}, true, &decoded},
       {"places are filled before they are free",
        {{kProducer, "ring.wait_empty();", ""}},
        false,
        &decoded},
       {"the teams' sums are read before they are there",
        {{kResults, "    meet_teams<Config>();\n  }\n}\n", "  }\n}\n"}},
        false,
        &decoded},
       {"parts are joined before the last one is there",
        {{kResults, "before == segment.parts - 1", "before == segment.parts - 2"}},
        true,
        &decoded},
       {"a part is joined twice",
        {{kResults, "smaller(first + i, last)", "smaller(first + (i == 1 ? 0 : i), last)"}},
        true,
        &one_query_decoded},
       {"a part of many rows is joined twice",
        {{kResults, "parts[part] + at", "parts[part == 1 ? 0 : part] + at"}},
        true,
        &decoded}});
}

// More copies of 8 rows than a warp looks up at a time, more steps than a ring has places, two
// tiles of queries.
Case paged() {
  Case out = decoded();
  out.name = "paged";
  out.heads_q = 2;
  out.heads_k = 1;
  out.set_sequences({{.q = 200, .k = 600}, {.q = 5, .k = 90}});
  out.cache = cases::Cache{.capacity = 640, .page_size = 8};
  out.causal = Causal::kBottomRight;
  return out;
}
// In entries by index, behind padding.
Case padded() {
  Case out = paged();
  out.name = "padded";
  out.set_sequences({{.q = 70, .k = 200, .leftpad = 9}, {.q = 5, .k = 90}});
  out.cache = cases::Cache{.capacity = 256, .indexed = true};
  return out;
}

TEST(AttentionEmulatedCaches, FaultsOfHoppersCopiesAreSeen) {
  constexpr const char* kKeys = "sm90/forward/cached_keys.h";
  expect_all_are_seen(
      "sm90", Pass::kForward,
      {{"pages of the next parts are used early",
        {{kKeys, "rows = row_of(task, part, next);", "rows = row_of(task, part + 1, next);"}},
        true,
        &paged},
       {"parts behind the first 32 have the pages of these",
        {{kKeys, "next = page_of(task, part + 32);", "next = page_of(task, part);"}},
        true,
        &paged},
       {"a part does not end with its sequence",
        {{kKeys, "clamp_key(keys, 1 << args.part_log2)", "1 << args.part_log2"}},
        true,
        &paged},
       {"entries that no key lies in are looked at",
        {{kKeys, "(end - 1) / cache.page_size", "end / cache.page_size"}},
        false,
        &paged},
       {"keys begin with the padding",
        {{kKeys, "static_cast<int>(keys.padding + keys.entry * args.ragged.between_k)",
          "static_cast<int>(keys.entry * args.ragged.between_k)"}},
        true,
        &padded},
       {"values come from the entry of the sequence's number",
        {{kKeys, "static_cast<int>(keys.padding + keys.entry * args.ragged.between_v)",
          "static_cast<int>(keys.padding + task.batch * args.ragged.between_v)"}},
        false,
        &padded}});
}

// The decode kernel whose keys the copy engine copies.
constexpr const char* kDecodeBoxes = "decode_boxes";
constexpr const char* kPortableFp32 = "sm80_fp32";

// A tensor of these numbers, or of fp32 or bf16 numbers from 1/2 to 2.
Tensor filled(lab::DeviceMemory& memory, std::mt19937& random, DType dtype,
              std::initializer_list<std::int64_t> shape, const void* from = nullptr) {
  Tensor out{nullptr, contiguous_spec(dtype, shape, {DeviceKind::kCuda, 0})};
  const auto bytes = static_cast<std::size_t>(out.spec.elements() * size_of(dtype));
  out.data = *memory.allocate(bytes);
  if (from != nullptr) {
    std::memcpy(out.data, from, bytes);
  } else if (dtype == DType::kFp32) {
    auto* numbers = static_cast<float*>(out.data);
    for (std::int64_t i = 0; i < out.spec.elements(); ++i) {
      numbers[i] = 0.5f + static_cast<float>(random() % 256) / 256;
    }
  } else if (dtype == DType::kBf16) {
    auto* numbers = static_cast<std::uint16_t*>(out.data);
    for (std::int64_t i = 0; i < out.spec.elements(); ++i) {
      numbers[i] = static_cast<std::uint16_t>(0x3f00 + random() % 0x100);
    }
  }
  return out;
}

// Two sequences of one query, in pages of 16 keys.
class Pages {
 public:
  static constexpr std::int64_t kPages = 9, kPageSize = 16, kHeads = 2, kDim = 64;
  std::vector<int> table{3, 0, 8, 7, 1, 5};  // [2, 3]
  std::vector<int> lengths{40, 33};
  std::optional<Window> window;
  std::string said;  ///< by the call

  // O [2, 1, heads, dim], as numbers.
  std::vector<float> run(emulated::Kernels& kernels, const std::string& implementation) {
    const bool boxes = implementation == kDecodeBoxes;
    use_gpu({.copy_engine = boxes, .kernels = &kernels});
    const Context context = emulated_context();
    const auto memory = emulated_memory();
    std::mt19937 random(1);
    const bool fp32 = implementation == kPortableFp32;
    const DType type = fp32 ? DType::kFp32 : DType::kBf16;
    const auto numbers = [&](std::initializer_list<std::int64_t> shape) {
      return filled(*memory, random, type, shape);
    };
    ForwardTensors tensors;
    tensors.q = numbers({2, 1, kHeads, kDim});
    tensors.k = numbers({kPages, kPageSize, kHeads, kDim});
    tensors.v = numbers({kPages, kPageSize, kHeads, kDim});
    tensors.block_table = filled(*memory, random, DType::kInt32, {2, 3}, table.data());
    tensors.seqused_k = filled(*memory, random, DType::kInt32, {2}, lengths.data());
    tensors.o = filled(*memory, random, DType::kFp32, {2, 1, kHeads, kDim});
    Options options;
    options.implementation = boxes ? "decode" : fp32 ? "sm80" : implementation;
    options.window = window;
    const auto made = plan(context, describe(tensors, options));
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return {};
    EXPECT_TRUE(prepare(context, *made).ok());
    const std::size_t bytes = workspace_bytes(*made);
    const Workspace workspace{bytes > 0 ? *memory->allocate(bytes) : nullptr, bytes};
    const Status status = forward(context, {}, *made, tensors, workspace);
    said = status.message();
    const auto* o = static_cast<const float*>(tensors.o.data);
    return {o, o + 2 * kHeads * kDim};
  }
};

// Whether all of sequence n is NaN, and the other is what it is in a call without the fault.
void expect_poisoned(std::size_t n, const std::vector<float>& got,
                     const std::vector<float>& right) {
  constexpr std::size_t kEach = Pages::kHeads * Pages::kDim;
  ASSERT_EQ(got.size(), 2 * kEach);
  for (std::size_t i = 0; i < 2 * kEach; ++i) {
    if (i / kEach == n) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      EXPECT_EQ(got[i], right[i]) << i;
    }
  }
}

class AttentionEmulatedPages : public ::testing::TestWithParam<std::string> {};

TEST_P(AttentionEmulatedPages, WrongEntriesAndLengthsPoisonTheirSequenceAlone) {
  emulated::Kernels kernels;
  const std::vector<float> right = Pages().run(kernels, GetParam());
  for (const float value : right) EXPECT_TRUE(std::isfinite(value));
  for (const int entry : {-1, 9, 1 << 30, -(1 << 30)}) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}}) {
      Pages pages;
      pages.table[3 * n + 1] = entry;
      expect_poisoned(n, pages.run(kernels, GetParam()), right);
    }
  }
  for (const int length : {-1, 49, 1 << 30}) {
    Pages pages;
    pages.lengths[1] = length;
    expect_poisoned(1, pages.run(kernels, GetParam()), right);
  }
  // An entry that no key lies in is not read.
  Pages pages;
  pages.lengths[1] = 32;
  const std::vector<float> shorter = pages.run(kernels, GetParam());
  pages.table[5] = 1 << 30;
  EXPECT_EQ(pages.run(kernels, GetParam()), shorter);
}

// Nor is a page outside read that only keys before a window lie in: sm80 looks up rows, which are
// not read there; the others look up blocks of keys, of which the query sees others.
TEST_P(AttentionEmulatedPages, WrongPagesBeforeAWindowStayInTheirSequence) {
  emulated::Kernels kernels;
  Pages pages;
  pages.window = Window{2, 0, Alignment::kBottomRight};
  const std::vector<float> right = pages.run(kernels, GetParam());
  for (const int entry : {-1, 9, 1 << 30}) {
    pages.table[0] = entry;
    const std::vector<float> got = pages.run(kernels, GetParam());
    if (GetParam() == "sm80" || GetParam() == kPortableFp32) {
      EXPECT_EQ(got, right);
    } else {
      expect_poisoned(0, got, right);
    }
  }
}

// The error of a call whose lengths are read back first.
void expect_refused(emulated::Kernels& kernels, Pages pages, const std::string& implementation,
                    const char* where, const char* value) {
  pages.run(kernels, implementation);
  EXPECT_NE(pages.said.find(where), std::string::npos) << pages.said;
  EXPECT_NE(pages.said.find(value), std::string::npos) << pages.said;
}

TEST_P(AttentionEmulatedPages, LengthsAreReadBackWhereAsked) {
  emulated::Kernels kernels;
  const std::vector<float> right = Pages().run(kernels, GetParam());
  ASSERT_EQ(setenv("FLASHLAB_CHECK_SEQUENCES", "1", 1), 0);
  Pages good;
  EXPECT_EQ(good.run(kernels, GetParam()), right);
  EXPECT_EQ(good.said, "ok");
  Pages page;
  page.table[4] = 9;
  expect_refused(kernels, page, GetParam(), "block_table[1, 1]", "got 9");
  Pages length;
  length.lengths[1] = 49;
  expect_refused(kernels, length, GetParam(), "seqused_k[1]", "got 49");
  ASSERT_EQ(setenv("FLASHLAB_CHECK_SEQUENCES", "0", 1), 0);
  page.run(kernels, GetParam());
  EXPECT_EQ(page.said, "ok");
  unsetenv("FLASHLAB_CHECK_SEQUENCES");
}

// A mask of two queries, before sequences of one and of three.
TEST(AttentionEmulatedCaches, ASequenceLongerThanItsMaskIsNaN) {
  constexpr std::int64_t kRows = 4, kDim = 64, kKeys = 48;
  for (const bool boxes : {false, true}) {
    emulated::Kernels kernels;
    use_gpu({.copy_engine = boxes, .kernels = &kernels});
    const Context context = emulated_context();
    const auto memory = emulated_memory();
    std::mt19937 random(1);
    const std::vector<int> lengths{40, 33}, offsets{0, 1, kRows};
    const std::vector<unsigned char> all(2 * kKeys, 1);
    ForwardTensors tensors;
    tensors.q = filled(*memory, random, DType::kBf16, {kRows, 2, kDim});
    tensors.k = filled(*memory, random, DType::kBf16, {2, kKeys, 1, kDim});
    tensors.v = filled(*memory, random, DType::kBf16, {2, kKeys, 1, kDim});
    tensors.seqused_k = filled(*memory, random, DType::kInt32, {2}, lengths.data());
    tensors.cu_seqlens_q = filled(*memory, random, DType::kInt32, {3}, offsets.data());
    tensors.mask = filled(*memory, random, DType::kBool, {1, 1, 2, kKeys}, all.data());
    tensors.o = filled(*memory, random, DType::kFp32, {kRows, 2, kDim});
    const auto made = plan(context, describe(tensors, {.implementation = "decode"}));
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_TRUE(prepare(context, *made).ok());
    const std::size_t bytes = workspace_bytes(*made);
    const Workspace workspace{*memory->allocate(bytes), bytes};
    ASSERT_TRUE(forward(context, {}, *made, tensors, workspace).ok());
    const auto* o = static_cast<const float*>(tensors.o.data);
    for (std::int64_t i = 0; i < kRows * 2 * kDim; ++i) {
      EXPECT_EQ(std::isnan(o[i]), i >= 2 * kDim) << i;
    }
  }
}

// Where each part of a tile has a place of its own, offsets that decrease may claim more places
// than there are: nothing outside of the workspace is written, and the next call is right.
TEST(AttentionEmulatedCaches, DecreasingOffsetsStayInsideTheWorkspace) {
  constexpr std::int64_t kBatch = 7, kRows = 640, kPages = 257, kDim = 64;
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  const auto memory = emulated_memory();
  std::mt19937 random(1);
  std::vector<int> table(kBatch * kPages);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int>(i % kPages);
  const std::vector<int> lengths{1, 1, 1, 1, 1, 1, 4100}, right{0, 0, 0, 0, 0, 0, 0, 2},
      decreasing{0, kRows, 0, kRows, 0, kRows, 0, kRows};
  ForwardTensors tensors;
  tensors.q = filled(*memory, random, DType::kBf16, {kRows, 1, kDim});
  tensors.k = filled(*memory, random, DType::kBf16, {kPages, 16, 1, kDim});
  tensors.v = filled(*memory, random, DType::kBf16, {kPages, 16, 1, kDim});
  tensors.block_table = filled(*memory, random, DType::kInt32, {kBatch, kPages}, table.data());
  tensors.seqused_k = filled(*memory, random, DType::kInt32, {kBatch}, lengths.data());
  const Tensor given = filled(*memory, random, DType::kInt32, {kBatch + 1}, right.data());
  tensors.cu_seqlens_q = given;
  tensors.o = filled(*memory, random, DType::kFp32, {kRows, 1, kDim});
  const auto made =
      plan(context, describe(tensors, {.deterministic = true, .implementation = "decode"}));
  ASSERT_TRUE(made.ok()) << made.status().message();
  ASSERT_TRUE(prepare(context, *made).ok());
  const std::size_t bytes = workspace_bytes(*made);
  const Workspace workspace{*memory->allocate(bytes), bytes};
  const auto results = [&](const std::vector<int>& offsets) {
    std::memcpy(given.data, offsets.data(), offsets.size() * sizeof(int));
    const Status status = forward(context, {}, *made, tensors, workspace);
    EXPECT_TRUE(status.ok()) << status.message();
    const auto* o = static_cast<const float*>(tensors.o.data);
    return std::vector<float>(o, o + 2 * kDim);
  };
  const std::vector<float> first = results(right);
  for (const float value : first) EXPECT_TRUE(std::isfinite(value) && value > 0) << value;
  results(decreasing);
  EXPECT_EQ(results(right), first);
}

// No two features are refused together: fp64 is of CPUs, Hopper's kernels are of 16-bit types, and
// its backward takes no mask and no order of dQ's sums, with or without another feature.
TEST(AttentionEmulatedPairs, AreRefusedForATypeOrOneFeature) {
  use_gpu({});
  const Context context = emulated_context();
  for (const Case& each : cases::pair_cases(128)) {
    const bool half = each.dtype == DType::kFp16 || each.dtype == DType::kBf16;
    const bool plain = each.mask == cases::MaskKind::kNone && !each.deterministic;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const auto taken_by = [&](const char* implementation) {
        return plan(context, lab::problem_of(each, pass, implementation, context.device())).ok();
      };
      // Caches have no gradients. Pages of sm90 are multiples of 8 keys, without padding.
      const bool portable = each.dtype == DType::kFp32 || half;
      const bool forward_of_cache = !each.cache || pass == Pass::kForward;
      EXPECT_EQ(taken_by("sm80"), portable && forward_of_cache) << each.name;
      const bool odd =
          each.cache && (each.cache->page_size % 8 != 0 || each.sequences[0].leftpad > 0);
      const bool cached = each.cache && (pass == Pass::kBackward || odd);
      EXPECT_EQ(taken_by("sm90"), !cached && half && (pass == Pass::kForward || plain))
          << each.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionEmulatedPages,
                         ::testing::Values("decode", kDecodeBoxes, "sm90", "sm80", kPortableFp32),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace flashlab::testing
