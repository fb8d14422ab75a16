// What a run reads and in which order: windows, sources, formats, tokens of threads, settings.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/toml.h"
#include "train/data/encode_text.h"
#include "train/data/files.h"
#include "train/data/shipped_text.h"
#include "train/data/text.h"
#include "train/data/windows.h"

namespace flashlab::train {
namespace {

namespace fs = std::filesystem;

class TrainData : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("train_data_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Tokens `first`, `first` + 1, ...
  std::string shard(const std::string& name, std::int32_t first, std::int32_t count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = first + i;
    EXPECT_TRUE(write_token_file(folder_ / name, tokens, 50257).ok());
    return (folder_ / name).string();
  }
  std::string written(const std::string& name, std::string_view text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  Tokens opened(const std::string& path) {
    std::vector<TokenFile> files;
    Result<TokenFile> file = TokenFile::open(path);
    EXPECT_TRUE(file.ok());
    files.push_back(std::move(*file));
    return Tokens(std::move(files));
  }
  std::string refusal(const TextOptions& options) {
    const Result<RunText> text = prepare_text(folder_, options);
    return text.ok() ? "nothing" : text.status().message();
  }

  fs::path folder_;
};

TEST_F(TrainData, APermutationHasEachPlaceOnce) {
  for (const std::int64_t count : {1, 2, 3, 16, 17, 1000, 4097}) {
    std::set<std::int64_t> seen;
    std::int64_t fixed = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = permuted(i, count, 7, 3);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, count);
      seen.insert(at);
      fixed += at == i;
    }
    EXPECT_EQ(std::ssize(seen), count);
    if (count >= 1000) {
      EXPECT_LT(fixed, 12) << "a shuffled order has about one";
    }
  }
  EXPECT_NE(permuted(5, 1000, 7, 3), permuted(5, 1000, 7, 4)) << "each epoch has its own";
  EXPECT_LT(permuted(4, std::int64_t{1} << 40, 1, 1), std::int64_t{1} << 40);
}

TEST_F(TrainData, AnEpochTakesEachWindowOnce) {
  const Tokens text = opened(shard("a.bin", 0, 10 * 8 + 5));
  const Windows windows({{text, 1}}, 8, 1337, WindowOrder::kEpochs);
  // Batches of 4 windows: 10 windows of an epoch end in the middle of a step.
  std::vector<std::int64_t> starts;
  for (std::int64_t step = 0; step < 100; ++step) {
    for (std::int64_t i = 0; i < 4; ++i) {
      const Windows::Place place = windows.of(step, i, 4);
      ASSERT_LE(place.start + 8, place.text->size() - 1) << "the last target is inside";
      starts.push_back(place.start);
    }
  }
  for (const auto& [first, last] : {std::pair{0, 10}, std::pair{10, 20}}) {
    std::set<std::int64_t> cut;
    for (int i = first; i < last; ++i) cut.insert(starts[static_cast<std::size_t>(i)] / 8);
    EXPECT_EQ(cut.size(), 10u);
  }
  EXPECT_FALSE(std::equal(starts.begin(), starts.begin() + 10, starts.begin() + 10));
  EXPECT_DOUBLE_EQ(windows.epochs(0, 25), 2.5);
}

TEST_F(TrainData, OneSourceAtRandomHasTheWindowsThatRunsAlwaysHad) {
  const Tokens text = opened(shard("a.bin", 0, 1000));
  const Windows windows({{text, 1}}, 16, 3, WindowOrder::kRandom);
  for (std::int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(windows.of(step, 2, 4).start, window_start(text, 16, 3, step, 2));
  }
}

TEST_F(TrainData, SourcesHaveTheirShares) {
  for (const WindowOrder order : {WindowOrder::kRandom, WindowOrder::kEpochs}) {
    const Windows windows({{opened(shard("a.bin", 0, 500)), 0.5},
                           {opened(shard("b.bin", 1000, 500)), 0.2},
                           {opened(shard("c.bin", 2000, 500)), 0.3}},
                          8, 1, order);
    std::map<std::int32_t, int> taken;
    std::set<std::int64_t> of_a;
    for (std::int64_t i = 0; i < 65536; ++i) {
      const Windows::Place place = windows.of(i / 4, i % 4, 4);
      const std::int32_t source = (*place.text)[0] / 1000;
      ++taken[source];
      if (source == 0 && of_a.size() < 62) of_a.insert(place.start / 8);
    }
    EXPECT_EQ(taken[0], 32768);
    EXPECT_EQ(taken[1], 13107);
    EXPECT_EQ(taken[2], 19661);
    EXPECT_EQ(of_a.size(), 62u);
  }
}

TEST_F(TrainData, WeightsAreShares) {
  const std::string a = shard("a.bin", 0, 400), b = shard("b.bin", 1000, 200);
  TextOptions options;
  options.context = 8;
  options.tokens = {a + ":3", b + ":1"};
  const Result<RunText> text = prepare_text(folder_, options);
  ASSERT_TRUE(text.ok()) << text.status().message();
  ASSERT_EQ(text->sources.size(), 2u);
  EXPECT_DOUBLE_EQ(text->sources[0].weight, 0.75);
  EXPECT_EQ(text->sources[0].tokens.size(), 360);
  EXPECT_EQ(text->sources[1].tokens[0], 1000);
  // The end of each is looked at.
  EXPECT_EQ(text->validation.size(), 60);
  EXPECT_EQ(text->validation[0], 360);
  EXPECT_EQ(text->validation[40], 1180);
  options.tokens = {a + ":3", b};
  EXPECT_NE(refusal(options).find("b.bin: got no weight beside"), std::string::npos)
      << refusal(options);
  options.tokens = {a + ":0", b + ":1"};
  EXPECT_NE(refusal(options).find("a weight of 0"), std::string::npos) << refusal(options);
  // Texts likewise, each with a file of its own.
  options.tokens.clear();
  options.files = {written("a.txt", std::string(300, 'x')) + ":1",
                   written("b.txt", std::string(100, 'y')) + ":1"};
  const Result<RunText> texts = prepare_text(folder_, options);
  ASSERT_TRUE(texts.ok()) << texts.status().message();
  EXPECT_EQ(texts->sources[1].tokens.size(), 90);
  EXPECT_EQ(open_text(folder_, options)->sources[1].tokens[0], 1);
}

TEST_F(TrainData, FilesWithoutAHeaderAreRead) {
  std::string bytes;
  for (int i = 0; i < 200; ++i) {
    bytes += static_cast<char>(i);
    bytes += '\0';
  }
  TextOptions options;
  options.context = 8;
  options.tokens = {written("train.bin", bytes)};
  EXPECT_NE(refusal(options).find("--tokens-format uint16"), std::string::npos);
  options.format = TokenFormat::kUint16;
  EXPECT_NE(refusal(options).find("--vocabulary N"), std::string::npos) << refusal(options);
  options.vocabulary = 200;
  const Result<RunText> text = prepare_text(folder_, options);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->training[179], 179);
  options.format = TokenFormat::kUint32;
  EXPECT_NE(refusal(options).find("token 65536 at 0"), std::string::npos) << refusal(options);
  options.tokens = {written("odd.bin", "abc")};
  EXPECT_NE(refusal(options).find("3 bytes"), std::string::npos);
}

// A sparse file: 5 GB that take no place.
TEST_F(TrainData, MoreTokensThanAnInt32Counts) {
  const std::int64_t count = (std::int64_t{1} << 31) + 10;
  const fs::path path = folder_ / "long.bin";
  {
    std::int32_t header[256] = {20240520, 1, -1};
    std::memcpy(header + 4, &count, sizeof count);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(header), sizeof header);
  }
  std::error_code error;
  fs::resize_file(path, 1024 + 2 * static_cast<std::uintmax_t>(count), error);
  if (error) GTEST_SKIP() << "skipped: no file of 4 GB here: " << error.message();
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-2, std::ios::end);
    file.put(7);
  }
  const Result<TokenFile> file = TokenFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->size(), count);
  EXPECT_EQ((*file)[count - 1], 7);
  EXPECT_EQ((*file)[count - 2], 0);
  fs::resize_file(path, 1024 + 2 * static_cast<std::uintmax_t>(count) - 2);
  EXPECT_FALSE(TokenFile::open(path).ok());
}

TEST_F(TrainData, ThreadsGiveTheTokensOfOne) {
  std::string text(shipped_text().substr(0, 900'000));
  for (int i = 0; i < 4; ++i) text += text.substr(0, 600'000);
  const Tokenizer pairs =
      Tokenizer::byte_pairs(*BytePairs::learn(shipped_text().substr(0, 200'000), 600));
  std::string numbers;
  for (int i = 0; i < 400'000; ++i) numbers += std::to_string(i % 50'000) + ' ';
  for (const Tokenizer& tokenizer : {pairs, Tokenizer::bytes(), Tokenizer::numbers(50'000),
                                     *Tokenizer::characters_of(shipped_text())}) {
    if (tokenizer.kind() == Tokenizer::Kind::kNumber) text.swap(numbers);
    const auto alone = tokenizer.encode(text), together = encode_text(tokenizer, text, 3);
    ASSERT_TRUE(alone.ok() && together.ok());
    EXPECT_EQ(*together, *alone) << tokenizer.describe();
    const TokenizeOptions options = {.files = {written("text.txt", text)}, .threads = 2};
    const auto outcome = tokenize_files(tokenizer, options, folder_ / "text.bin");
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    const Result<TokenFile> file = TokenFile::open(folder_ / "text.bin");
    ASSERT_EQ(file->size(), std::ssize(*alone));
    bool same = true;
    for (std::int64_t i = 0; i < file->size(); ++i) {
      same = same && (*file)[i] == (*alone)[static_cast<std::size_t>(i)];
    }
    EXPECT_TRUE(same) << tokenizer.describe();
    if (tokenizer.kind() == Tokenizer::Kind::kNumber) text.swap(numbers);
  }
  // A text without a place to cut is one piece.
  const std::string word(3'000'000, 'a');
  EXPECT_EQ(*encode_text(pairs, word, 3), *pairs.encode(word));
}

TEST_F(TrainData, LinesOfJsonAreDocuments) {
  const std::string file = written("a.jsonl", R"({"text": "one\nline", "n": 1})"
                                              "\n\n"
                                              R"({"text": "two"})"
                                              "\n");
  const auto documents = documents_of(*read_file(file), "text", "a.jsonl");
  ASSERT_TRUE(documents.ok()) << documents.status().message();
  EXPECT_EQ(*documents, (std::vector<std::string>{"one\nline", "two"}));
  const std::pair<const char*, const char*> kBad[] = {
      {"{\"text\": \"a\"}\n{\"txt\": \"b\"}",
       "x, line 2: got no text \"text\", expected one of txt"},
      {"{\"text\": \"\"}", "x, line 1: got an empty document"},
      {"text", "x, line 1: got no JSON object"}};
  for (const auto& [lines, part] : kBad) {
    const Status bad = documents_of(lines, "text", "x").status();
    EXPECT_NE(bad.message().find(part), std::string::npos) << bad.message();
  }
  const auto outcome =
      tokenize_files(Tokenizer::bytes(), {.files = {file}, .field = "text"}, folder_ / "a.bin");
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->documents, 2);
  const Tokens tokens = opened((folder_ / "a.bin").string());
  std::string text;
  for (std::int64_t i = 0; i < tokens.size(); ++i) text += static_cast<char>(tokens[i]);
  EXPECT_EQ(text, "one\nline\ntwo\n");
}

// Lines are read some tens of megabytes at a time.
TEST_F(TrainData, ALineIsNamedByItsPlaceInTheFile) {
  const std::string line = R"({"text": ")" + std::string(20 << 20, 'a') + "\"}\n";
  const std::string file = written("a.jsonl", line + line + "{\"text\": 1}\n");
  const auto outcome =
      tokenize_files(Tokenizer::bytes(), {.files = {file}, .field = "text"}, folder_ / "a.bin");
  EXPECT_NE(outcome.status().message().find("a.jsonl, line 3"), std::string::npos)
      << outcome.status().message();
}

TEST(Toml, SaysWhatJsonSays) {
  const base::Toml read = base::read_toml(R"(# a run
steps = 5_000
learning_rate = 3e-4   # the maximum
precision = 'bf16'
"text" = ["a.txt", "b\u00e4.txt",
          "c.txt",]
documents = true
mask = 0xff
[model]
width = 64
rope_scaling = { factor = 32, low = 1.0 }
[model.more]
words = """
two
lines"""
[[runs]]
name = "a"
[[runs]]
name = "b"
)");
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.json, nlohmann::ordered_json::parse(R"({"steps": 5000, "learning_rate": 3e-4,
      "precision": "bf16", "text": ["a.txt", "bä.txt", "c.txt"], "documents": true, "mask": 255,
      "model": {"width": 64, "rope_scaling": {"factor": 32, "low": 1.0},
                "more": {"words": "two\nlines"}}, "runs": [{"name": "a"}, {"name": "b"}]})"));
  const std::pair<const char*, const char*> kBad[] = {
      {"steps = 1\nsteps = 2", "line 2: \"steps\" once"},
      {"a = 1\nb = ", "line 2: a value for \"b\""},
      {"day = 2026-11-28", "not 2026-11-28"},
      {"a = \"x\ny\"", "line 1: the string's end"},
      {"a = [1, 2", "in the list of \"a\""},
      {"[a\nb = 1", "line 1: a ] behind"},
      {"a = 1 b = 2", "line 1: the end of the line"},
      {"a = 1\na.b = 2", "line 2: no other value for \"a\""},
      {"a = inf", "not inf"},
      {"= 1", "line 1: a key"},
      {"a = \"\\q\"", "one of"}};
  for (const auto& [text, part] : kBad) {
    const std::string error = base::read_toml(text).error;
    EXPECT_NE(error.find(part), std::string::npos) << text << ": " << error;
  }
  EXPECT_FALSE(base::read_toml("a = " + std::string(100'000, '[')).error.empty());
}

}  // namespace
}  // namespace flashlab::train
