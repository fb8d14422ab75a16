// Text, tokens, configuration, weights in files.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>

#include "train/data/files.h"
#include "train/data/text.h"
#include "train/run/checkpoint.h"
#include "train/run/parameter_files.h"
#include "train/run/parity.h"
#include "train/run/train_config.h"
#include "train/weights/safetensors.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

class TrainFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("train_files_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST(TrainTokenizer, CharactersAreCodePointsInOrder) {
  const Result<Tokenizer> made = Tokenizer::characters_of("bäca");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->vocabulary(), 4);
  EXPECT_EQ(*made->encode("abcä"), (std::vector<std::int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(made->decode({3, 0}), "äa");
  const std::string refused = made->encode("abx").status().message();
  EXPECT_NE(refused.find("\"x\" at byte 2"), std::string::npos) << refused;
  const Result<Tokenizer> again = Tokenizer::from_json(made->to_json(), "t.json");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again->encode("cä"), *made->encode("cä"));
}

TEST(TrainTokenizer, BadUtf8IsRefusedAndBytesTakeAnything) {
  for (const char* text : {"\xff", "a\xc3", "\xc0\x80", "\xe2\x82"}) {
    EXPECT_FALSE(Tokenizer::characters_of(text).ok()) << text;
    const Tokenizer bytes = Tokenizer::bytes();
    EXPECT_EQ(bytes.decode(*bytes.encode(text)), text);
  }
  EXPECT_FALSE(Tokenizer::characters_of("").ok());
  for (const char* json :
       {"", "[]", "{}", R"({"kind":"character"})", R"({"kind":"character","characters":[1]})",
        R"({"kind":"character","characters":["ab"]})"}) {
    EXPECT_FALSE(Tokenizer::from_json(json, "t.json").ok()) << json;
  }
}

TEST_F(TrainFiles, TokensKeepTheFormatOfLlmC) {
  const std::vector<std::int32_t> tokens = {5, 0, 65535, 7};
  ASSERT_TRUE(write_token_file(folder_ / "narrow.bin", tokens, 65536).ok());
  const std::string bytes = *read_file(folder_ / "narrow.bin");
  ASSERT_EQ(bytes.size(), 1024u + 8u);
  std::int32_t header[3];
  std::memcpy(header, bytes.data(), sizeof header);
  EXPECT_EQ(header[0], 20240520);
  EXPECT_EQ(header[1], 1);
  EXPECT_EQ(header[2], 4);
  ASSERT_TRUE(write_token_file(folder_ / "wide.bin", tokens, 100000).ok());
  for (const char* name : {"narrow.bin", "wide.bin"}) {
    const Result<TokenFile> file = TokenFile::open(folder_ / name);
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ((*file)[static_cast<std::int64_t>(i)], tokens[i]);
    }
    const std::string refused = file->check(100).message();
    EXPECT_NE(refused.find("token 65535 at 2"), std::string::npos) << refused;
  }
  ASSERT_TRUE(write_file(folder_ / "cut.bin", bytes.substr(0, 1030)).ok());
  EXPECT_FALSE(TokenFile::open(folder_ / "cut.bin").ok());
  ASSERT_TRUE(write_file(folder_ / "none.bin", std::string(2000, 'x')).ok());
  EXPECT_FALSE(TokenFile::open(folder_ / "none.bin").ok());
}

TEST_F(TrainFiles, TheShippedTextIsSplitAtItsEnd) {
  const Result<RunText> text = prepare_text(folder_, {.context = 64});
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->tokenizer.vocabulary(), 65);
  EXPECT_EQ(text->training.size() + text->validation.size(), 1'115'394);
  EXPECT_EQ(text->validation.size(), 111'540);
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t start = window_start(text->validation, 64, 1, i, 3);
    EXPECT_GE(start, 0);
    EXPECT_LE(start + 64, text->validation.size() - 1);
  }
}

TEST_F(TrainFiles, WeightsComeBackUnderTheirPublishedNames) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    const TestStep a = TestStep::make(small_model(family), {.batch = 1});
    const std::filesystem::path file = folder_ / to_string(family);
    ASSERT_TRUE(save_weights(file, *a.parameters).ok());
    const StoredTensors tensors = *read_safetensors(file);
    const bool gpt2 = family == Family::kGpt2;
    const std::string name = gpt2 ? "h.1.attn.c_attn.weight" : "layers.1.attn.k_proj.weight";
    ASSERT_TRUE(tensors.contains(name));
    EXPECT_EQ(tensors.at(name).shape,
              gpt2 ? (std::vector<std::int64_t>{8, 24}) : (std::vector<std::int64_t>{8, 8}));
    const TestStep b = TestStep::make(small_model(family), {.batch = 1});
    b.parameters->initialize(99);
    EXPECT_NE(b.loss(), a.loss());
    ASSERT_TRUE(load_weights(file, *b.parameters).ok());
    // The step above has moved a's weights: a third model reads the same file.
    const TestStep c = TestStep::make(small_model(family), {.batch = 1});
    EXPECT_EQ(b.loss(), c.loss());
  }
}

TEST_F(TrainFiles, AnotherModelsWeightsAreRefusedUntouched) {
  const TestStep a = TestStep::make(small_model(), {.batch = 1});
  ModelConfig other = small_model();
  other.layers = 1;
  const TestStep b = TestStep::make(other, {.batch = 1});
  ASSERT_TRUE(save_weights(folder_ / "a", *a.parameters).ok());
  ASSERT_TRUE(save_weights(folder_ / "b", *b.parameters).ok());
  EXPECT_NE(load_weights(folder_ / "b", *a.parameters).message().find("no tensor layers.1"),
            std::string::npos);
  EXPECT_NE(load_weights(folder_ / "a", *b.parameters).message().find("tensors, expected"),
            std::string::npos);
}

TEST_F(TrainFiles, ACheckpointHasTheBytesOfWeightsAlone) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    const TestStep step = TestStep::make(small_model(family), {.batch = 1});
    ASSERT_TRUE(save_checkpoint(folder_, {1, small_model(family)}, *step.parameters).ok());
    ASSERT_TRUE(save_weights(folder_ / "weights", *step.parameters).ok());
    EXPECT_EQ(*read_file(folder_ / "step-1" / "model.safetensors"),
              *read_file(folder_ / "weights"));
    const std::filesystem::path nowhere = folder_ / "weights" / "below-a-file";
    EXPECT_EQ(save_checkpoint(nowhere, {2, small_model(family)}, *step.parameters).code(),
              StatusCode::kIoError);
    std::filesystem::remove_all(folder_ / "step-1");
  }
}

TEST_F(TrainFiles, AFullDiskLeavesTheLastCheckpoint) {
  const TestStep step = TestStep::make(small_model(), {.batch = 1});
  ASSERT_TRUE(save_checkpoint(folder_, {1, small_model()}, *step.parameters).ok());
  // A limit on the size of files stands for the disk: a write in the middle of a file fails.
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status failed = save_checkpoint(folder_, {2, small_model()}, *step.parameters);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(failed.code(), StatusCode::kIoError) << failed.message();
  EXPECT_EQ(find_checkpoint(folder_)->filename(), "step-1");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "saving-step-2"));
  EXPECT_TRUE(load_weights(folder_ / "step-1" / "model.safetensors", *step.parameters).ok());
}

TEST_F(TrainFiles, AWeightThatIsNoNumberIsRefused) {
  for (const Precision precision : {Precision::kFp64, Precision::kFp32, Precision::kPureBf16}) {
    const TestStep step = TestStep::make(small_model(), {.batch = 1, .precision = precision});
    const std::filesystem::path file = folder_ / "model.safetensors";
    StoredTensors tensors = stored(*step.parameters, step.parameters->values());
    std::string& bytes = tensors.begin()->second.bytes;
    bytes[bytes.size() - 1] = '\x7f';
    bytes[bytes.size() - 2] = '\xff';
    ASSERT_TRUE(write_safetensors(file, tensors).ok());
    const std::string message = load_weights(file, *step.parameters).message();
    EXPECT_NE(message.find(tensors.begin()->first + ": got NaN or infinity"), std::string::npos)
        << message;
  }
}

// The header is read by the reader of attention's inputs: what it asks of offsets holds here, too.
TEST_F(TrainFiles, TensorsThatOverlapAreRefused) {
  const std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})";
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += header + "123456";
  ASSERT_TRUE(write_file(folder_ / "x", bytes).ok());
  const std::string message = read_safetensors(folder_ / "x").status().message();
  EXPECT_NE(message.find("tensor \"b\": got a begin at byte 2"), std::string::npos) << message;
  EXPECT_NE(message.find("the file is damaged, or no checkpoint"), std::string::npos) << message;
}

// Weights and losses of tests/goldens/make_train_goldens.py, which shares nothing with src/train.
TEST(TrainGolden, EveryTokensLossIsTheOtherImplementations) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    for (const char* attention : {"", "naive"}) {
      const std::string stem = std::string(FLASHLAB_GOLDENS) + "/train_" + to_string(family);
      const TestStep step = TestStep::make(small_model(family), {.batch = 3,
                                                                 .mode = StepMode::kForward,
                                                                 .precision = Precision::kFp64,
                                                                 .attention = attention});
      const Status loaded = load_weights(stem + "_weights.safetensors", *step.parameters);
      ASSERT_TRUE(loaded.ok()) << loaded.message();
      const Result<StoredTensors> batch = read_safetensors(stem + "_batch.safetensors");
      ASSERT_TRUE(batch.ok()) << batch.status().message();
      const auto numbers = [&](const char* name) {
        const std::string& bytes = batch->at(name).bytes;
        std::vector<double> out(bytes.size() / sizeof(double));
        std::memcpy(out.data(), bytes.data(), bytes.size());
        return out;
      };
      const std::vector<double> tokens = numbers("tokens"), targets = numbers("targets"),
                                losses = numbers("losses");
      ASSERT_EQ(losses.size(), 18u);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        step.executor->tokens()[i] = static_cast<std::int32_t>(tokens[i]);
        step.executor->targets()[i] = static_cast<std::int32_t>(targets[i]);
      }
      step.loss();
      const auto* ours = static_cast<double*>(step.executor->data(step.executor->plan().losses));
      for (std::size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(ours[i], losses[i], 1e-12) << to_string(family) << " token " << i;
      }
    }
  }
}

// Beyond GELU's saturation nothing passes, however negative its input is.
TEST(TrainLoss, IsTheSameForEveryBiasThatClosesAGelu) {
  ModelConfig model = small_model(Family::kGpt2);
  model.layers = 1;
  std::vector<double> losses;
  for (const float bias : {-13.0f, -14.0f, -100.0f, -1e30f}) {
    const TestStep step = TestStep::make(model, {.batch = 2});
    int closed = 0;
    for (const Parameter& each : step.executor->plan().parameters) {
      const bool weight = each.name == "h.0.mlp.c_fc.weight";
      if (!weight && each.name != "h.0.mlp.c_fc.bias") continue;
      auto* values = reinterpret_cast<float*>(step.parameters->values()) + each.offset;
      std::fill_n(values, each.elements, weight ? 0.0f : bias);
      ++closed;
    }
    EXPECT_EQ(closed, 2);
    losses.push_back(step.loss());
  }
  EXPECT_TRUE(std::isfinite(losses.front()));
  EXPECT_EQ(losses, std::vector<double>(losses.size(), losses.front()));
}

TEST(TrainConfiguration, TheEffectiveOneIsReadBack) {
  TrainConfig config;
  config.model = small_model();
  config.steps = 7;
  config.learning_rate = 0.25;
  config.optimizer.convention = AdamWConvention::kCs336;
  config.checkpoint = "2/1";
  config.schedule = Schedule::kWsd;
  config.optimizer.sgd = config.keep_best = true;
  config.changes = {{3, "steps", "4", "7"}};
  config.text = {"a.txt", "b.txt"};
  const Result<TrainConfig> read = parse_train_config(config.to_json(), "c.json", {});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->to_json(), config.to_json());
  const std::pair<const char*, const char*> kBad[] = {
      {R"({"stepps": 1})", "did you mean steps?"},
      {R"({"steps": 0})", "at least 1"},
      {R"({"steps": "many"})", "a whole number"},
      {R"({"optimizer": "adam"})", "\"adamw\" or \"sgd\""},
      {R"({"adamw_convention": "jax"})", "\"torch\" or \"cs336\""},
      {R"({"schedule": "cosin"})", "did you mean cosine?"},
      {R"({"changes": [1]})", "a list of changes"},
      {R"({"precision": "fp12"})", "did you mean"},
      {R"({"model": {"width": 10, "heads": 3}})", "a divisor of the width"},
      {R"({"checkpoint": "x"})", "groups of 4 layers"},
      {R"({"minimum_learning_rate": 1})", "0 to"},
      {"nothing", "no JSON"}};
  for (const auto& [json, part] : kBad) {
    const Status bad = parse_train_config(json, "c.json", TrainConfig()).status();
    EXPECT_NE(bad.message().find(part), std::string::npos) << bad.message();
  }
}

TEST(TrainConfiguration, TheLearningRateWarmsUpAndFalls) {
  TrainConfig config;
  config.steps = 100;
  config.warmup_steps = 10;
  config.learning_rate = 1;
  config.minimum_learning_rate = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 1);
  EXPECT_NEAR(learning_rate(config, 55), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(config, 100), 0.1);
}

// The convention of a file of earlier versions stands where the optimizer's name is now.
TEST(TrainConfiguration, AConventionOfEarlierFilesIsRead) {
  const auto read = parse_train_config(R"({"optimizer": "cs336"})", "c.json", {});
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->optimizer.convention, AdamWConvention::kCs336);
  EXPECT_FALSE(read->optimizer.sgd);
  EXPECT_TRUE(read->optimizer.decay_vectors);
}

// First step, end of the warm-up, the step behind it, last step: llm.c's, nanoGPT's and the
// course's formulas by hand.
TEST(TrainConfiguration, EachScheduleBeginsAndEndsAsItSays) {
  TrainConfig config;
  config.steps = 100;
  config.warmup_steps = 10;
  config.learning_rate = 1;
  config.minimum_learning_rate = 0.1;
  const double last = 0.1 + 0.45 * (1 + std::cos(std::numbers::pi * 89 / 90));
  const struct {
    Schedule schedule;
    double first, warm, next, last;
  } kRows[] = {{Schedule::kCosine, 0.1, 1, 1, last},
               {Schedule::kCourse, 0, 0.9, 1, last},
               {Schedule::kNanoGpt, 1.0 / 11, 10.0 / 11, 1, last},
               {Schedule::kLinear, 0.1, 1, 1 - 0.9 / 90, 0.1},
               {Schedule::kConstant, 0.1, 1, 1, 1},
               {Schedule::kWsd, 0.1, 1, 1, 0.1}};
  for (const auto& row : kRows) {
    config.schedule = row.schedule;
    SCOPED_TRACE(schedule_names()[static_cast<std::size_t>(row.schedule)]);
    EXPECT_NEAR(learning_rate(config, 0), row.first, 1e-15);
    EXPECT_NEAR(learning_rate(config, 9), row.warm, 1e-15);
    EXPECT_NEAR(learning_rate(config, 10), row.next, 1e-15);
    EXPECT_NEAR(learning_rate(config, 99), row.last, 1e-15);
  }
  config.schedule = Schedule::kWsd;
  EXPECT_DOUBLE_EQ(learning_rate(config, 79), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 80), 1 - 0.9 / 20);
  config.decay_steps = 4;
  EXPECT_DOUBLE_EQ(learning_rate(config, 95), 1);
  config.schedule = Schedule::kCourse;
  config.decay_until = 50;
  EXPECT_DOUBLE_EQ(learning_rate(config, 50), 0.1);
  EXPECT_GT(learning_rate(config, 49), 0.1);
}

std::filesystem::path parity_record(Family family) {
  return std::string(FLASHLAB_GOLDENS) + "/parity/" + to_string(family) + ".json";
}

// Records of bench/peers/train_parity.py: PyTorch's losses, gradients and ten AdamW steps.
TEST(TrainParity, StepsAreThoseOfPyTorch) {
  const Result<Context> context = Context::create({.threads = 2});
  ASSERT_TRUE(context.ok());
  for (const Family family : all_families()) {
    for (const Precision precision : {Precision::kFp64, Precision::kFp32, Precision::kBf16}) {
      const Result<ParityReport> report = check_parity(*context, parity_record(family), precision);
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_GT(report->rows.size(), precision == Precision::kBf16 ? 1u : 40u);
      for (const ParityRow& row : report->rows) {
        EXPECT_TRUE(row.ok()) << report->title << ": " << row.what << " " << row.error << " > "
                              << row.allowed;
      }
    }
  }
}

TEST_F(TrainFiles, ARecordOfAnotherRunIsWrong) {
  const Result<Context> context = Context::create({.threads = 2});
  ASSERT_TRUE(context.ok());
  const std::filesystem::path record = folder_ / "record.json";
  const struct {
    Family family;
    const char *from, *to;
  } kChanges[] = {{Family::kCourse, "\"beta2\": 0.95", "\"beta2\": 0.951"},
                  {Family::kCourse, "\"max_norm\": 1.0", "\"max_norm\": 0.9"},
                  {Family::kCourse, "\"heads\": 2", "\"heads\": 1"},
                  {Family::kLlama, "\"original\": 128", "\"original\": 127"},
                  {Family::kLlama, "\"low\": 1.0", "\"low\": 1.1"},
                  {Family::kMistral, "\"window\": 3", "\"window\": 4"},
                  {Family::kGemma2, "\"window_every\": 2", "\"window_every\": 1"},
                  {Family::kGemma2, "\"score_size\": 9.0", "\"score_size\": 0"},
                  {Family::kGemma2, "\"attention_softcap\": 2.0", "\"attention_softcap\": 0"},
                  {Family::kGemma2, "\"logits_softcap\": 3.0", "\"logits_softcap\": 0"}};
  for (const auto& [family, from, to] : kChanges) {
    std::filesystem::path tensors = parity_record(family), copy = record;
    std::filesystem::copy_file(tensors.replace_extension(".safetensors"),
                               copy.replace_extension(".safetensors"),
                               std::filesystem::copy_options::overwrite_existing);
    std::string changed = *read_file(parity_record(family));
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    ASSERT_TRUE(write_file(record, changed.replace(at, std::strlen(from), to)).ok());
    const Result<ParityReport> report = check_parity(*context, record, Precision::kFp64);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_FALSE(report->ok()) << to;
    EXPECT_GT(report->worst().error, report->worst().allowed);
  }
  ASSERT_TRUE(write_file(record, "{\"model\": 3}").ok());
  EXPECT_FALSE(check_parity(*context, record, Precision::kFp64).ok());
  EXPECT_FALSE(check_parity(*context, parity_record(Family::kCourse), Precision::kFp16).ok());
}

}  // namespace
}  // namespace flashlab::train
