// Text into tokens: byte pairs learned and read, shards of token files, and what cannot be used.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "train/data/bpe.h"
#include "train/data/files.h"
#include "train/data/shipped_text.h"
#include "train/data/text.h"
#include "train/run/train_config.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  const Result<std::string> text = read_file(std::string(FLASHLAB_GOLDENS) + "/" + name);
  EXPECT_TRUE(text.ok()) << name;
  return text.ok() ? *text : std::string();
}

std::string decoded(const BytePairs& pairs, const std::vector<std::int32_t>& tokens) {
  std::string out;
  for (const std::int32_t token : tokens) out += pairs.bytes(token);
  return out;
}

// Made by tests/goldens/make_tokenizer_goldens.py with Hugging Face's own library.
TEST(TrainTokenizer, ReadsHuggingFacesFilesAsItsLibraryDoes) {
  for (const std::string name : {"gpt2", "llama3", "qwen2"}) {
    const Result<BytePairs> pairs =
        BytePairs::from_json(golden("tokenizer_" + name + ".json"), name);
    ASSERT_TRUE(pairs.ok()) << pairs.status().message();
    EXPECT_EQ(pairs->vocabulary(), 331);
    const auto texts = nlohmann::json::parse(golden("tokenizer_" + name + "_texts.json"));
    ASSERT_GT(texts.size(), 10u);
    for (const auto& each : texts) {
      const std::string text = each["text"].get<std::string>();
      const auto expected = each["tokens"].get<std::vector<std::int32_t>>();
      const std::vector<std::int32_t> tokens = pairs->encode(text);
      EXPECT_EQ(tokens, expected) << name << ": " << text;
      EXPECT_EQ(decoded(*pairs, tokens), text);
    }
  }
}

TEST(TrainTokenizer, BytesThatAreNoTextSurvive) {
  const Result<BytePairs> pairs = BytePairs::from_json(golden("tokenizer_llama3.json"), "x");
  ASSERT_TRUE(pairs.ok());
  std::string bytes;
  for (int i = 0; i < 4096; ++i) bytes += static_cast<char>(i * 37 + i / 256);
  EXPECT_EQ(decoded(*pairs, pairs->encode(bytes)), bytes);
}

TEST(TrainTokenizer, LearnsTheMostFrequentPairs) {
  // "ab" comes four times, then "abc" and "xy" twice.
  const Result<BytePairs> pairs = BytePairs::learn("abc abd xy abc xy abd", 260);
  ASSERT_TRUE(pairs.ok());
  EXPECT_EQ(pairs->bytes(256), "ab");
  EXPECT_EQ(pairs->vocabulary(), 260);
  EXPECT_EQ(BytePairs::learn("abcdefg", 1000)->vocabulary(), 256) << "no pair comes twice";
  EXPECT_FALSE(BytePairs::learn("abc", 255).ok());
  const std::string_view text = shipped_text().substr(0, 200'000);
  const Result<BytePairs> learned = BytePairs::learn(text, 600);
  ASSERT_TRUE(learned.ok());
  EXPECT_EQ(learned->vocabulary(), 600);
  const std::vector<std::int32_t> tokens = learned->encode(text);
  EXPECT_EQ(decoded(*learned, tokens), text);
  EXPECT_LT(tokens.size() * 2, text.size()) << "600 tokens halve a text at least";
  EXPECT_EQ(BytePairs::learn(text, 600)->to_json(), learned->to_json());
  // What is written is read back as the same tokenizer.
  const Result<BytePairs> again = BytePairs::from_json(learned->to_json(), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->encode(text), tokens);
}

// Surrogates, overlong forms, beyond U+10FFFF, a cut character, a lone byte: none is a character,
// and a writer of JSON would throw at each.
TEST(TrainTokenizer, BytesThatAreNoUtf8AreNamedByTheirPlace) {
  const Result<Tokenizer> known = Tokenizer::characters_of("ab\xC3\xA9");
  ASSERT_TRUE(known.ok());
  for (const std::string bad : {"\xED\xA0\x80", "\xE0\x80\xAF", "\xF0\x80\x80\xAF",
                                "\xF4\x90\x80\x80", "\xC0\x80", "\xE2\x82", "\xFF"}) {
    const std::string text = "ab\xC3\xA9" + bad + "b";
    for (const Status& status :
         {Tokenizer::characters_of(text).status(), known->encode(text).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("a byte at 4 that is no UTF-8"), std::string::npos)
          << status.message();
    }
    TrainConfig config;
    config.text = {"fine.txt", bad + ".txt"};
    EXPECT_NE(validate(config).message().find("a byte at 0 that is no UTF-8"), std::string::npos)
        << validate(config).message();
    EXPECT_TRUE(validate(config).message().starts_with("text: ")) << validate(config).message();
    config.text.clear();
    config.tokens = {bad + ".bin"};
    EXPECT_TRUE(validate(config).message().starts_with("tokens: ")) << validate(config).message();
  }
  EXPECT_TRUE(Tokenizer::characters_of("\xED\x9F\xBF\xF4\x8F\xBF\xBF").ok());
}

// The definition, word by word: every pair counted anew before each merge.
std::vector<std::string> learned_by_counting(std::string_view text, std::size_t merges) {
  std::vector<std::vector<int>> words;
  const Result<BytePairs> none = BytePairs::learn("", 256);
  split_words(text, {}, [&](std::string_view word) {
    words.emplace_back();
    for (const std::int32_t token : none->encode(word)) words.back().push_back(token);
  });
  std::vector<std::string> tokens;
  for (int i = 0; i < 256; ++i) tokens.push_back(none->bytes(i));
  std::vector<std::string> out;
  while (out.size() < merges) {
    std::map<std::pair<int, int>, int> counts;
    for (const auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) ++counts[{word[i], word[i + 1]}];
    }
    const auto best = std::max_element(counts.begin(), counts.end(), [](auto& a, auto& b) {
      return a.second < b.second;  // of equal ones the first: the one of smaller tokens
    });
    if (best == counts.end() || best->second < 2) break;
    const auto [left, right] = best->first;
    const int token = static_cast<int>(tokens.size());
    tokens.push_back(tokens[static_cast<std::size_t>(left)] +
                     tokens[static_cast<std::size_t>(right)]);
    out.push_back(tokens.back());
    for (auto& word : words) {
      for (std::size_t i = 0; i + 1 < word.size(); ++i) {
        if (word[i] != left || word[i + 1] != right) continue;
        word[i] = token;
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return out;
}

std::string letters(std::size_t count, unsigned alphabet, unsigned seed) {
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out += static_cast<char>('a' + (seed >> 16) % alphabet);
  }
  return out;
}

TEST(TrainTokenizer, LearnsAndMergesAsTheDefinitionSays) {
  std::vector<std::string> texts = {std::string(97, 'a'), "aaaa aaa aaaaa aa aaaa", "ababababa"};
  for (unsigned seed = 0; seed < 12; ++seed) {
    texts.push_back(letters(400, 2 + seed % 4, seed));  // one word
    std::string words;
    for (unsigned i = 0; i < 60; ++i) words += letters(1 + i % 11, 3, seed * 100 + i) + ' ';
    texts.push_back(words);
  }
  for (const std::string& text : texts) {
    const std::vector<std::string> expected = learned_by_counting(text, 80);
    const Result<BytePairs> pairs = BytePairs::learn(text, 256 + 80);
    ASSERT_TRUE(pairs.ok());
    ASSERT_EQ(pairs->vocabulary(), 256 + static_cast<std::int64_t>(expected.size())) << text;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(pairs->bytes(static_cast<std::int32_t>(256 + i)), expected[i]) << text;
    }
    EXPECT_EQ(decoded(*pairs, pairs->encode(text)), text);
  }
}

// A word of n letters costs n log n: with n^2 this test does not end.
TEST(TrainTokenizer, OneLongWord) {
  const std::string word = letters(500'000, 26, 1);
  const Result<BytePairs> pairs = BytePairs::learn(word, 1000);
  ASSERT_TRUE(pairs.ok());
  EXPECT_EQ(pairs->vocabulary(), 1000);
  EXPECT_EQ(decoded(*pairs, pairs->encode(word)), word);
}

TEST(TrainTokenizer, AStopEndsTheWork) {
  const std::string word = letters(1000, 4, 1);
  std::atomic<bool> stop = true;
  EXPECT_EQ(BytePairs::learn(word, 400, &stop)->vocabulary(), 256);
  const Result<BytePairs> pairs = BytePairs::learn(word, 400);
  EXPECT_TRUE(pairs->encode(word, &stop).empty());
}

TEST(TrainTokenizer, OtherKindsAndDamagedFilesAreRefused) {
  const std::string good = golden("tokenizer_gpt2.json");
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    std::string text = good;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const Result<BytePairs> read = BytePairs::from_json(text, "t.json");
    ASSERT_FALSE(read.ok()) << to;
    EXPECT_NE(read.status().message().find(words), std::string::npos) << read.status().message();
  };
  refused("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type");
  refused("\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "normalizer");
  refused("\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback");
  refused("\"dropout\":null", "\"dropout\":0.1", "model.dropout");
  refused("\"type\":\"ByteLevel\"", "\"type\":\"Metaspace\"", "pre_tokenizer");
  refused("\"!\":0", "\"!\":\"x\"", "model.vocab");
  refused("\"!\":0,", "", "no token for the byte 0x21");
  refused("\"merges\":[", "\"merges\":[[\"zz\",\"q\"],", "model.merges");
  refused("\"content\":", "\"contents\":", "added_tokens");
  EXPECT_FALSE(BytePairs::from_json("{", "t.json").ok());
  EXPECT_FALSE(BytePairs::from_json("{\"model\": 3}", "t.json").ok());
  EXPECT_FALSE(BytePairs::from_json("{\"model\": {\"type\": 4}}", "t.json").ok());
  for (std::size_t size = 0; size < good.size(); size += 97) {
    EXPECT_FALSE(BytePairs::from_json(good.substr(0, size), "t.json").ok()) << size;
  }
}

class TrainText : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("flashlab-text-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string shard(const char* name, std::int32_t first, std::int32_t count,
                    std::int64_t vocabulary = 50257) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < count; ++i) tokens.push_back((first + i) % 50257);
    const fs::path path = folder_ / name;
    EXPECT_TRUE(write_token_file(path, tokens, vocabulary).ok());
    return path.string();
  }

  std::string refusal(const TextOptions& options) {
    const Result<RunText> text = prepare_text(folder_, options);
    return text.ok() ? "nothing" : text.status().message();
  }

  fs::path folder_;
};

TEST_F(TrainText, ShardsAreOneText) {
  TextOptions options;
  options.tokens = {shard("a.bin", 0, 100), shard("b.bin", 100, 50), shard("c.bin", 150, 50)};
  options.context = 8;
  const Result<RunText> text = prepare_text(folder_, options);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->tokenizer.vocabulary(), 50257);
  EXPECT_EQ(text->training.size(), 180);
  EXPECT_EQ(text->validation.size(), 20);
  for (std::int32_t i = 0; i < 180; ++i) ASSERT_EQ(text->training[i], i);
  EXPECT_EQ(text->validation[0], 180);
  std::int32_t tokens[8], targets[8];
  read_window(text->training, 96, 8, tokens, targets);
  EXPECT_EQ(tokens[0], 96);
  EXPECT_EQ(targets[7], 104);
  const Result<RunText> again = open_text(folder_, options);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->training.size(), 180);
  EXPECT_EQ(again->tokenizer.decode({1, 22}), "1 22 ");
  EXPECT_EQ(*again->tokenizer.encode("1 22 "), (std::vector<std::int32_t>{1, 22}));
  EXPECT_FALSE(again->tokenizer.encode("50257").ok());
  EXPECT_FALSE(again->tokenizer.encode("ROMEO").ok());
}

TEST_F(TrainText, ShardsOfTwoTokenizersAreRefused) {
  const std::string narrow = shard("narrow.bin", 0, 2000);
  const std::string wide = (folder_ / "wide.bin").string();
  const std::vector<std::int32_t> tokens(2000, 100000);
  ASSERT_TRUE(write_token_file(wide, tokens, 128256).ok());
  TextOptions options;
  options.context = 8;
  options.tokens = {narrow, wide};
  EXPECT_NE(refusal(options).find("2 bytes a token in " + narrow + ", 4 in " + wide),
            std::string::npos)
      << refusal(options);
  options.tokens = {wide, narrow};
  EXPECT_NE(refusal(options).find("4 bytes a token in"), std::string::npos) << refusal(options);
}

TEST_F(TrainText, EveryShardHasTokensOfTheVocabularyThatIsUsed) {
  const std::string high = (folder_ / "high.bin").string();
  ASSERT_TRUE(write_token_file(high, std::vector<std::int32_t>(100, 60000), 65536).ok());
  TextOptions options;
  options.context = 8;
  options.tokens = {shard("low.bin", 0, 2000), high};
  EXPECT_NE(refusal(options).find("token 60000 at 0"), std::string::npos) << refusal(options);
}

TEST_F(TrainText, WhatCannotBeUsedIsSaid) {
  TextOptions options;
  options.context = 64;
  options.tokens = {shard("short.bin", 0, 60)};
  EXPECT_NE(refusal(options).find("more than the context's 64"), std::string::npos);
  options.tokens = {shard("a.bin", 0, 5000)};
  options.vocabulary = 4000;
  EXPECT_NE(refusal(options).find("token 4000 at 4000"), std::string::npos) << refusal(options);
  options.vocabulary = 0;
  options.tokenizer = std::string(FLASHLAB_GOLDENS) + "/tokenizer_gpt2.json";
  EXPECT_NE(refusal(options).find("token 331 at 331"), std::string::npos) << refusal(options);
  options.tokens = {"/no/such/file.bin"};
  EXPECT_NE(refusal(options).find("/no/such/file.bin"), std::string::npos);
  std::ofstream(folder_ / "text.bin") << std::string(3000, 'x');
  options.tokens = {(folder_ / "text.bin").string()};
  EXPECT_NE(refusal(options).find("20240520 version 1"), std::string::npos) << refusal(options);
  fs::resize_file(folder_ / "a.bin", 5000);
  options.tokens = {(folder_ / "a.bin").string()};
  EXPECT_NE(refusal(options).find("5000 bytes for 5000 tokens"), std::string::npos);
  options = {};
  options.context = 64;
  options.tokenizer = "/no/such/tokenizer.json";
  EXPECT_NE(refusal(options).find("/no/such/tokenizer.json"), std::string::npos);
  EXPECT_NE(check_tokenizer("llama.model").message().find("SentencePiece"), std::string::npos);
  EXPECT_NE(check_tokenizer("words").message().find("character, bpe"), std::string::npos);
  EXPECT_TRUE(check_tokenizer("mine/tokenizer.json").ok());
}

TEST_F(TrainText, AStopLeavesNoTokens) {
  const std::atomic<bool> stop = true;
  for (const char* tokenizer : {"bpe", "character"}) {
    TextOptions options;
    options.tokenizer = tokenizer;
    options.context = 64;
    options.stop = &stop;
    const Result<RunText> text = prepare_text(folder_, options);
    ASSERT_FALSE(text.ok());
    EXPECT_NE(text.status().message().find("a stop"), std::string::npos) << text.status().message();
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(TrainText, BytePairsOfAText) {
  TextOptions options;
  options.tokenizer = "bpe";
  options.vocabulary = 400;
  options.context = 64;
  const Result<RunText> text = prepare_text(folder_, options);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->tokenizer.describe(), "400 byte pairs");
  EXPECT_LT(text->training.size(), 700'000);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < 200; ++i) tokens.push_back(text->training[i]);
  EXPECT_EQ(text->tokenizer.decode(tokens),
            shipped_text().substr(0, text->tokenizer.decode(tokens).size()));
}

}  // namespace
}  // namespace flashlab::train
