// The list of cases, the presets and the sweeps: what they count, and what they must contain.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "case.h"

namespace flashlab::cases {
namespace {

// The definition, pair by pair.
double count_pairs(const Case& c) {
  double pairs = 0;
  for (std::int64_t i = 0; i < c.seqlen_q; ++i) {
    for (std::int64_t j = 0; j < c.seqlen_k; ++j) {
      bool visible = true;
      if (c.causal == Causal::kCausal || c.causal == Causal::kTopLeft) visible = j <= i;
      if (c.causal == Causal::kBottomRight) visible = j <= i + c.seqlen_k - c.seqlen_q;
      if (c.window) {
        const bool bottom_right =
            c.causal == Causal::kBottomRight || c.window->alignment == Alignment::kBottomRight;
        const std::int64_t distance = j - i - (bottom_right ? c.seqlen_k - c.seqlen_q : 0);
        visible &= !c.window->left || distance >= -*c.window->left;
        visible &= !c.window->right || distance <= *c.window->right;
      }
      if (c.chunk) {
        const bool bottom_right = c.causal == Causal::kBottomRight ||
                                  (c.window && c.window->alignment == Alignment::kBottomRight);
        const std::int64_t aligned = i + (bottom_right ? c.seqlen_k - c.seqlen_q : 0);
        std::int64_t begin = -100 * *c.chunk;
        while (begin + *c.chunk <= aligned) begin += *c.chunk;
        visible &= j >= begin && j < begin + *c.chunk;
      }
      pairs += visible;
    }
  }
  return pairs;
}

TEST(Cases, VisiblePairsAreThoseOfTheDefinition) {
  for (std::int64_t q : {0, 1, 2, 5, 9, 16}) {
    for (std::int64_t k : {0, 1, 3, 5, 8, 17}) {
      for (Causal causal :
           {Causal::kNone, Causal::kCausal, Causal::kTopLeft, Causal::kBottomRight}) {
        Case c;
        c.seqlen_q = q;
        c.seqlen_k = k;
        c.causal = causal;
        EXPECT_EQ(c.visible_pairs(), count_pairs(c)) << c.describe();
        using Bound = std::optional<std::int64_t>;
        for (const Bound left : {Bound(), Bound(-2), Bound(0), Bound(1), Bound(4), Bound(30)}) {
          for (const Bound right : {Bound(), Bound(-3), Bound(0), Bound(3), Bound(30)}) {
            for (const Bound chunk : {Bound(), Bound(3)}) {
              c.window = Window{left, right, Alignment::kOfCausal};
              c.chunk = chunk;
              EXPECT_EQ(c.visible_pairs(), count_pairs(c)) << c.describe();
              if (causal != Causal::kNone) continue;
              c.window->alignment = Alignment::kBottomRight;
              EXPECT_EQ(c.visible_pairs(), count_pairs(c)) << c.describe();
            }
          }
        }
      }
    }
  }
}

TEST(Cases, AWindowIsReadAsItIsWritten) {
  for (const char* text : {"128,0", "all,7,top-left", "-3,all,bottom-right"}) {
    const auto window = parse_window(text);
    ASSERT_TRUE(window.has_value()) << text;
    EXPECT_EQ(to_string(*window), text);
  }
  for (const char* text : {"", "1", "1,", ",1", "1,-", "1,2,3", "1,2,left", "1;2", "a,b"}) {
    EXPECT_FALSE(parse_window(text).has_value()) << text;
  }
}

TEST(Cases, OfAWindowOnlyItsKeysAreRead) {
  Case c;
  c.seqlen_q = 1;
  c.seqlen_k = 1000;
  c.causal = Causal::kBottomRight;
  const double all = c.ideal_bytes(Pass::kForward);
  c.window = Window{.left = 99};
  const double saved = 900.0 * static_cast<double>(c.batch * c.heads_k) * (64 + 64) * 4;
  EXPECT_EQ(c.ideal_bytes(Pass::kForward), all - saved);
}

TEST(Cases, FlopsFollowTheFormulas) {
  Case c;
  c.batch = 2;
  c.heads_q = 6;
  c.heads_k = 3;
  c.seqlen_q = 4;
  c.seqlen_k = 5;
  c.head_dim = 8;
  c.head_dim_v = 16;
  EXPECT_EQ(c.flops(Pass::kForward), 2.0 * 2 * 6 * 20 * (8 + 16));
  EXPECT_EQ(c.flops(Pass::kBackward), 2.0 * 2 * 6 * 20 * (3 * 8 + 2 * 16));
  c.causal = Causal::kTopLeft;
  EXPECT_EQ(c.flops(Pass::kForward), 2.0 * 2 * 6 * 10 * (8 + 16));
}

TEST(Cases, IdealBytesCountEveryTensorOnce) {
  Case c;
  c.batch = 1;
  c.heads_q = c.heads_k = 2;
  c.seqlen_q = c.seqlen_k = 10;
  c.head_dim = c.head_dim_v = 8;
  EXPECT_EQ(c.ideal_bytes(Pass::kForward), 4 * 160 * 4 + 20 * 4);
  EXPECT_EQ(c.ideal_bytes(Pass::kBackward), 8 * 160 * 4 + 20 * 4);
  c.dtype = DType::kBf16;
  EXPECT_EQ(c.ideal_bytes(Pass::kForward), 4 * 160 * 2 + 20 * 4);
}

TEST(Cases, NamesSayWhatTheyAre) {
  Case c;
  c.causal = Causal::kTopLeft;
  EXPECT_EQ(c.describe(), "fp32 b2 h8/8 s1024x1024 d64/64 causal-top-left");
  c.mask = MaskKind::kBool;
  EXPECT_EQ(c.mask_name(), "causal-top-left+bool");
  c.causal = Causal::kNone;
  c.mask = MaskKind::kAdditive;
  EXPECT_EQ(c.mask_name(), "none+additive");
  c.scale = -0.5f;
  c.gradient_mode = GradientMode::kAccumulate;
  c.deterministic = true;
  const Options options = c.options();
  EXPECT_EQ(options.scale, -0.5f);
  EXPECT_EQ(options.gradient_mode, GradientMode::kAccumulate);
  EXPECT_TRUE(options.deterministic);
}

class Conformance : public testing::Test {
 protected:
  template <class Test>
  void expect_one(const char* what, Test&& test) {
    EXPECT_TRUE(std::any_of(list.begin(), list.end(), test)) << what;
  }
  std::vector<Case> list = conformance_cases();
};

TEST_F(Conformance, NamesAreUniqueAndTheListIsTheSameEveryTime) {
  std::set<std::string> names;
  for (const Case& c : list) EXPECT_TRUE(names.insert(c.name).second) << c.name;
  const auto again = conformance_cases();
  ASSERT_EQ(again.size(), list.size());
  for (std::size_t n = 0; n < list.size(); ++n) {
    EXPECT_EQ(again[n].name, list[n].name);
    EXPECT_EQ(again[n].describe(), list[n].describe());
  }
}

TEST_F(Conformance, AFilterGivesThatTypeOnly) {
  std::size_t sum = 0;
  for (DType dtype : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}) {
    const auto part = conformance_cases(dtype);
    EXPECT_GE(part.size(), 50u);
    for (const Case& c : part) EXPECT_EQ(c.dtype, dtype);
    sum += part.size();
  }
  EXPECT_EQ(sum, list.size());
}

TEST_F(Conformance, EveryLengthHeadDimAndFeatureIsThereForEveryType) {
  for (DType dtype : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}) {
    list = conformance_cases(dtype);
    for (std::int64_t d : {1, 3, 8, 16, 31, 40, 64, 80, 96, 128, 160, 256}) {
      expect_one("head dim", [&](const Case& c) { return c.head_dim == d; });
    }
    for (std::int64_t s :
         {1, 2, 5, 6, 7, 47, 48, 49, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257}) {
      SCOPED_TRACE(s);
      expect_one("length", [&](const Case& c) { return c.seqlen_q == s || c.seqlen_k == s; });
    }
    for (Layout layout :
         {Layout::kContiguous, Layout::kHeadsFirst, Layout::kPackedQkv, Layout::kPaddedRows}) {
      expect_one("layout", [&](const Case& c) { return c.layout == layout; });
    }
    for (Fill fill : {Fill::kNormal, Fill::kLargeScores, Fill::kMixedScales, Fill::kSubnormal,
                      Fill::kSpecial, Fill::kEqual}) {
      expect_one("fill", [&](const Case& c) { return c.fill == fill; });
    }
    for (MaskKind mask : {MaskKind::kNone, MaskKind::kBool, MaskKind::kAdditive}) {
      for (std::uint64_t form = 0; form < 6; ++form) {
        expect_one("mask form", [&](const Case& c) {
          return mask == MaskKind::kNone || (c.mask == mask && c.seed % 6 == form);
        });
      }
    }
    for (float scale : {0.0f, -0.3f, 1.0f, 2.5f}) {
      expect_one("scale", [&](const Case& c) { return c.scale == scale; });
    }
    expect_one("no batch", [](const Case& c) { return c.batch == 0; });
    expect_one("no heads", [](const Case& c) { return c.heads_q == 0; });
    expect_one("no queries", [](const Case& c) { return c.seqlen_q == 0; });
    expect_one("no keys", [](const Case& c) { return c.seqlen_k == 0 && c.seqlen_q > 0; });
    expect_one("rows that see nothing", [](const Case& c) {
      return c.causal == Causal::kBottomRight && c.seqlen_q > c.seqlen_k && c.seqlen_k > 0;
    });
    expect_one("bottom right with more keys", [](const Case& c) {
      return c.causal == Causal::kBottomRight && c.seqlen_q < c.seqlen_k;
    });
    expect_one("top left with other lengths", [](const Case& c) {
      return c.causal == Causal::kTopLeft && c.seqlen_q < c.seqlen_k;
    });
    expect_one("multi-query", [](const Case& c) { return c.heads_k == 1 && c.heads_q > 1; });
    expect_one("grouped", [](const Case& c) { return c.heads_k > 1 && c.heads_q > c.heads_k; });
    expect_one("head dims differ", [](const Case& c) { return c.head_dim != c.head_dim_v; });
    expect_one("dLSE", [](const Case& c) { return c.lse_gradient; });
    expect_one("softcap", [](const Case& c) { return c.softcap.has_value(); });
    expect_one("ALiBi", [](const Case& c) { return c.alibi; });
    expect_one("dropout", [](const Case& c) { return c.dropout > 0; });
    expect_one("window", [](const Case& c) { return c.window.has_value(); });
    expect_one("window beside the diagonal", [](const Case& c) {
      return c.window && (c.window->left.value_or(0) < 0 || c.window->right.value_or(0) < 0);
    });
    expect_one("sinks", [](const Case& c) { return c.sinks; });
    expect_one("chunk", [](const Case& c) { return c.chunk.has_value(); });
    expect_one("ragged", [](const Case& c) { return c.ragged(); });
    expect_one("cache", [](const Case& c) { return c.cache && c.cache->page_size == 0; });
    expect_one("entries by index",
               [](const Case& c) { return c.gives(TensorRole::kCacheBatchIdx); });
    expect_one("left padding", [](const Case& c) { return c.gives(TensorRole::kLeftPadK); });
    for (std::int64_t size : {1, 3, 16, 64}) {
      expect_one("pages", [=](const Case& c) { return c.cache && c.cache->page_size == size; });
    }
    expect_one("shared pages", [](const Case& c) { return c.cache && c.cache->shared; });
    expect_one("rows of no sequence", [](const Case& c) { return c.gives(TensorRole::kSeqUsedK); });
    expect_one("deterministic", [](const Case& c) { return c.deterministic; });
    expect_one("accumulate",
               [](const Case& c) { return c.gradient_mode == GradientMode::kAccumulate; });
    expect_one("long", [](const Case& c) { return c.seqlen_k >= 1000; });
    if (dtype == DType::kFp16 || dtype == DType::kBf16) {
      expect_one("fp32 outputs", [](const Case& c) { return c.fp32_outputs; });
    }
  }
}

TEST_F(Conformance, CostsWhatTwoCoresDoInAMinute) {
  double multiply_adds = 0;
  for (const Case& c : list) multiply_adds += c.flops(Pass::kForward) / 2;
  EXPECT_LT(multiply_adds, 8.1e9);
}

int features_of(const Case& c) {
  return (c.causal != Causal::kNone) + c.window.has_value() + c.softcap.has_value() + c.alibi +
         (c.dropout > 0) + c.sinks + c.source().ragged_q + c.cache.has_value() +
         (c.mask != MaskKind::kNone) + (c.heads_q != c.heads_k) + c.lse_gradient + c.deterministic +
         (c.seqlen_q != c.seqlen_k) + (c.head_dim != c.head_dim_v);
}

// A mask hides rows; else the first query's last key lies before the first one.
bool has_empty_rows(const Case& c) {
  if (c.mask != MaskKind::kNone) return true;
  const bool causal = c.causal != Causal::kNone;
  const bool last_keys = causal ? c.causal == Causal::kBottomRight
                                : c.window && c.window->alignment == Alignment::kBottomRight;
  return last_keys && c.seqlen_k - c.seqlen_q + (causal ? 0 : c.window->right.value_or(0)) < 0;
}

TEST(Pairs, AreEveryTwoFeaturesWithEveryFillAtTwoHeadDims) {
  for (const std::int64_t tile : {64, 128}) {
    const std::vector<Case> list = pair_cases(tile);
    EXPECT_EQ(list.size(), 103u * 4 * 2 * 4);
    std::set<std::string> names;
    std::map<Fill, int> fills;
    for (const Case& c : list) {
      SCOPED_TRACE(c.name + ": " + c.describe());
      EXPECT_TRUE(names.insert(c.name).second);
      ++fills[c.fill];
      for (const std::int64_t length : {c.seqlen_q, c.seqlen_k}) {
        EXPECT_TRUE(std::abs(length - 2 * tile) == 1 || std::abs(length - 3 * tile) == 1);
      }
      // Rows without keys may need causal and more queries than keys.
      EXPECT_GE(features_of(c), 2);
      EXPECT_LE(features_of(c), c.fill == Fill::kEmptyRows ? 4 : 2);
      if (c.fill == Fill::kEmptyRows) EXPECT_TRUE(has_empty_rows(c));
    }
    for (const auto& [fill, count] : fills) EXPECT_EQ(count, 103 * 2 * 4);
    EXPECT_EQ(pair_cases(tile, DType::kBf16).size(), list.size() / 4);
    EXPECT_EQ(pair_cases(tile, DType::kBf16).front().describe(), list[824].describe());
  }
}

TEST(Lengths, MixesEndWithTheirTokensAndAreDrawnByTheSeed) {
  for (const std::string& mix : length_mixes()) {
    SCOPED_TRACE(mix);
    Case first, again, other;
    other.seed = 2;
    EXPECT_TRUE(set_lengths(first, mix));
    EXPECT_TRUE(set_lengths(again, mix + ":16384"));
    EXPECT_TRUE(set_lengths(other, mix));
    EXPECT_EQ(first.lengths, mix + ":16384");
    EXPECT_EQ(first.extents()[Extent::kTotalQ], 16384);
    EXPECT_EQ(first.batch, static_cast<std::int64_t>(first.sequences.size()));
    const auto lengths = [](const Case& c) {
      std::vector<std::int64_t> out;
      for (const SequenceLengths& s : c.sequences) out.push_back(s.k);
      return out;
    };
    EXPECT_EQ(lengths(first), lengths(again));
    const bool drawn = mix != "equal" && mix != "one-long";
    EXPECT_EQ(lengths(first) != lengths(other), drawn);
    for (std::int64_t length : lengths(first)) EXPECT_GE(length, 1);
    double pairs = 0;
    for (const SequenceLengths& s : first.sequences) pairs += static_cast<double>(s.q * s.k);
    EXPECT_DOUBLE_EQ(first.visible_pairs() * static_cast<double>(first.batch), pairs);
  }
  Case one;
  EXPECT_TRUE(set_lengths(one, "one-long:32768"));
  EXPECT_EQ(one.seqlen_q, 16384);
  EXPECT_EQ(one.sequences.size(), 65u);
  for (const char* wrong : {"", "long", "chat:", "chat:0", "chat:9x", "chat:-4"}) {
    Case none;
    EXPECT_FALSE(set_lengths(none, wrong)) << wrong;
    EXPECT_FALSE(none.ragged());
  }
}

TEST(Lengths, ListsSayEverySequence) {
  Case c;
  EXPECT_TRUE(set_lengths(c, "4k+3x1+2x0"));
  EXPECT_EQ(c.lengths, "4k+3x1+2x0");
  ASSERT_EQ(c.batch, 6);
  EXPECT_EQ(c.sequences[0].q, 4096);
  EXPECT_EQ(c.sequences[3].k, 1);
  EXPECT_EQ(c.sequences[5].q, 0);
  EXPECT_TRUE(set_key_lengths(c, "5x8k+7"));
  EXPECT_EQ(c.lengths_k, "5x8k+7");
  EXPECT_EQ(c.sequences[0].q, 4096);
  EXPECT_EQ(c.sequences[4].k, 8192);
  EXPECT_EQ(c.sequences[5].k, 7);
  EXPECT_EQ(c.seqlen_k, 8192);
  EXPECT_FALSE(set_key_lengths(c, "5x8k")) << "one is missing";
  Case huge;
  huge.batch = INT64_MAX;
  EXPECT_FALSE(set_key_lengths(huge, ""));
  EXPECT_FALSE(set_key_lengths(huge, "any"));
  EXPECT_EQ(c.seqlen_k, 8192);
  for (const char* wrong : {"x4", "4x", "4+", "+4", "0x4", "4x-1", "-4", "4x4x4", "4m", "2000000x1",
                            "2x33554433", "99999999999999999999"}) {
    Case none;
    EXPECT_FALSE(set_lengths(none, wrong)) << wrong;
    EXPECT_FALSE(none.ragged());
  }
}

TEST(Lengths, OfKeysAreDrawnForEachSequence) {
  Case dense, other;
  dense.batch = other.batch = 64;
  dense.seqlen_q = other.seqlen_q = 1;
  other.seed = 2;
  EXPECT_TRUE(set_key_lengths(dense, "any"));
  EXPECT_TRUE(set_key_lengths(other, "any"));
  dense.set_cache(64, 16384);
  EXPECT_EQ(dense.batch, 64);
  EXPECT_EQ(dense.cache->capacity, 16384);
  EXPECT_TRUE(dense.cache->dense_queries);
  std::int64_t shortest = 16384, longest = 0;
  for (const SequenceLengths& each : dense.sequences) {
    EXPECT_EQ(each.q, 1);
    shortest = std::min(shortest, each.k);
    longest = std::max(longest, each.k);
  }
  EXPECT_GE(shortest, 1);
  EXPECT_LT(shortest, 2048);
  EXPECT_GT(longest, 14336);
  EXPECT_LE(longest, 16384);
  EXPECT_NE(dense.sequences[0].k, other.sequences[0].k);
  set_lengths(other, "3+1");
  set_key_lengths(other, "9+9");
  other.set_cache(4);
  EXPECT_FALSE(other.cache->dense_queries);
  EXPECT_TRUE(other.source().ragged_q);
}

TEST(Sweeps, RatiosPointAtTheirCases) {
  int ratios = 0;
  for (const Sweep& sweep : sweeps()) {
    for (const Ratio& ratio : sweep.ratios) {
      ++ratios;
      ASSERT_LT(ratio.of, sweep.cases.size());
      double flops = 0;
      for (const std::size_t over : ratio.over) {
        ASSERT_LT(over, sweep.cases.size());
        EXPECT_NE(over, ratio.of);
        flops += sweep.cases[over].flops(Pass::kForward);
      }
      EXPECT_DOUBLE_EQ(sweep.cases[ratio.of].flops(Pass::kForward), flops) << ratio.what;
    }
  }
  EXPECT_EQ(ratios, 16);
}

TEST(Presets, AreTheKnownOnes) {
  struct Expected {
    const char* name;
    std::int64_t batch, seqlen, heads, head_dim;
    bool causal, forward_only;
  };
  const Expected expected[] = {{"gpt2-small", 8, 1024, 12, 64, true, false},
                               {"gpt3-large", 2, 2048, 96, 128, true, false},
                               {"bert-base", 16, 512, 12, 64, false, false},
                               {"bert-large", 8, 512, 16, 64, false, false},
                               {"long-8k", 1, 8192, 8, 64, false, false},
                               {"long-16k", 1, 16384, 8, 64, false, false},
                               {"batch-inference", 32, 512, 8, 64, false, true}};
  EXPECT_EQ(presets().size(), std::size(expected));
  for (const Expected& e : expected) {
    const auto preset = find_preset(e.name);
    ASSERT_TRUE(preset.has_value()) << e.name;
    const Case& c = preset->problem;
    EXPECT_EQ(c.name, e.name);
    EXPECT_EQ(c.batch, e.batch);
    EXPECT_EQ(c.seqlen_q, e.seqlen);
    EXPECT_EQ(c.seqlen_k, e.seqlen);
    EXPECT_EQ(c.heads_q, e.heads);
    EXPECT_EQ(c.heads_k, e.heads);
    EXPECT_EQ(c.head_dim, e.head_dim);
    EXPECT_EQ(c.head_dim_v, e.head_dim);
    EXPECT_EQ(c.causal != Causal::kNone, e.causal);
    EXPECT_EQ(preset->forward_only, e.forward_only);
    EXPECT_FALSE(preset->summary.empty());
  }
  EXPECT_FALSE(find_preset("gpt5").has_value());
}

TEST(Sweeps, AreTheKnownOnes) {
  std::vector<std::string> names;
  for (const Sweep& sweep : sweeps()) {
    names.push_back(sweep.name);
    EXPECT_FALSE(sweep.cases.empty());
    EXPECT_FALSE(sweep.passes.empty());
    std::set<std::string> unique;
    for (const Case& c : sweep.cases) EXPECT_TRUE(unique.insert(c.name).second) << c.name;
  }
  EXPECT_THAT(names, testing::ElementsAre("notebook", "handout", "papers", "course", "ragged",
                                          "equal", "decode", "mixed", "fa1-steps", "fa1-fa2"));
  EXPECT_FALSE(find_sweep("nothing").has_value());
}

TEST(Sweeps, HaveTheirSizes) {
  const Sweep notebook = *find_sweep("notebook");
  EXPECT_EQ(notebook.cases.size(), 4u * 5);
  for (const Case& c : notebook.cases) {
    EXPECT_EQ(c.batch, 8);
    EXPECT_EQ(c.heads_q, 1);
  }
  const Sweep handout = *find_sweep("handout");
  EXPECT_EQ(handout.cases.size(), 2u * 4 * 10);  // types, head dims, 128..65536
  for (const Case& c : handout.cases) {
    EXPECT_EQ(c.batch, 1);
    EXPECT_EQ(c.causal, Causal::kTopLeft);
  }
  const Sweep papers = *find_sweep("papers");
  EXPECT_EQ(papers.cases.size(), 2u * 3 * 6);
  for (const Case& c : papers.cases) {
    EXPECT_EQ(c.batch * c.seqlen_q, 16384);
    EXPECT_EQ(c.heads_q * c.head_dim, 2048);
  }
  const Sweep course = *find_sweep("course");
  EXPECT_EQ(course.cases.size(), 4u);
  for (const Case& c : course.cases) EXPECT_EQ(c.batch, 16);
  const Sweep ragged = *find_sweep("ragged");
  EXPECT_EQ(ragged.cases.size(), 3u * 2 * length_mixes().size());
  for (const Case& c : ragged.cases) {
    EXPECT_TRUE(c.ragged());
    std::int64_t tokens = 0;
    for (const SequenceLengths& each : c.sequences) tokens += each.q;
    EXPECT_EQ(tokens, kLengthTokens);
  }
  for (const char* name : {"fa1-steps", "fa1-fa2"}) {
    const Sweep sweep = *find_sweep(name);
    std::set<std::int64_t> dims;
    for (const Case& c : sweep.cases) {
      dims.insert(c.head_dim);
      EXPECT_EQ(c.scale, 1.0f);
    }
    EXPECT_EQ(*dims.begin(), 8);
  }
}

}  // namespace
}  // namespace flashlab::cases
