// Weights of other programs, read and written: names, prefixes, turned matrices, types, shards,
// llm.c's file, Llama's rows; and what does not fit, by name.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/narrow.h"
#include "train/data/files.h"
#include "train/run/checkpoint.h"
#include "train/run/evaluate.h"
#include "train/run/export_model.h"
#include "train_model.h"

namespace flashlab::train {
namespace {

ModelConfig model_of(Family family) {
  ModelConfig out = small_model(family);
  out.hidden = 4 * out.width;  // as llm.c's file has it
  return out;
}

const StepOptions kForward = {.batch = 2, .mode = StepMode::kForward};

class TrainWeights : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("train_weights_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A checkpoint of the small model with weights of one draw, and its loss.
  std::filesystem::path run_of(Family family, Precision precision = Precision::kFp32) {
    StepOptions options = kForward;
    options.precision = precision;
    loss_ = TestStep::make(model_of(family), options).loss();
    options.mode = StepMode::kFull;
    const TestStep step = TestStep::make(model_of(family), options);
    const std::filesystem::path run = folder_ / "run";
    EXPECT_TRUE(save_checkpoint(run, {1, model_of(family)}, *step.parameters).ok());
    return run;
  }

  // The loss with the weights that stand at `path`, which a model of any sizes takes.
  double loss_at(const std::filesystem::path& path, Precision precision = Precision::kFp32) {
    const Result<ModelFiles> files = open_model(path);
    EXPECT_TRUE(files.ok()) << files.status().message();
    if (!files.ok()) return NAN;
    StepOptions options = kForward;
    options.precision = precision;
    const TestStep step = TestStep::make(files->model, options);
    step.parameters->initialize(99);
    const Status taken = take_weights(*files, *step.parameters);
    EXPECT_TRUE(taken.ok()) << taken.message();
    return step.loss();
  }

  Status export_to(const std::filesystem::path& run, ExportOptions options,
                   const std::filesystem::path& path) {
    const Result<ModelFiles> files = open_model(run);
    if (!files.ok()) return files.status();
    return export_model(*files, Tokenizer::numbers(files->model.vocabulary), options, path);
  }

  // GPT-2 as `transformers` saves it: prefixes, a tied copy of the head, masks.
  std::filesystem::path hugging_face() {
    const std::filesystem::path folder = folder_ / "hf";
    EXPECT_TRUE(export_to(run_of(Family::kGpt2), {}, folder).ok());
    const StoredTensors bare = *read_safetensors(folder / "model.safetensors");
    StoredTensors tensors;
    for (const auto& [name, tensor] : bare) {
      tensors["transformer." + name] = tensor;
    }
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"];
    for (const char* layer : {"0", "1"}) {
      const std::string at = std::string("transformer.h.") + layer + ".attn.";
      tensors[at + "bias"] = {Element::kFp32, {1, 1, 6, 6}, std::string(4 * 36, '\0')};
      tensors[at + "masked_bias"] = {Element::kFp32, {}, std::string(4, '\0')};
    }
    tensors_ = tensors;
    EXPECT_TRUE(write_safetensors(folder / "model.safetensors", tensors).ok());
    return folder;
  }

  // What taking the tensors in tensors_ says.
  std::string refused(const std::filesystem::path& folder) {
    EXPECT_TRUE(write_safetensors(folder / "model.safetensors", tensors_).ok());
    const Result<ModelFiles> files = open_model(folder);
    if (!files.ok()) return files.status().message();
    const TestStep step = TestStep::make(files->model, kForward);
    return take_weights(*files, *step.parameters).message();
  }

  std::filesystem::path folder_;
  StoredTensors tensors_;
  double loss_ = 0;
};

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << (text) << "\nlacks " << (part)

TEST_F(TrainWeights, HuggingFacesNamesGiveTheSameLoss) {
  const std::filesystem::path folder = hugging_face();
  EXPECT_EQ(loss_at(folder), loss_);
  EXPECT_EQ(loss_at(folder / "model.safetensors"), loss_);
  EXPECT_EQ(loss_at(folder_ / "run"), loss_);
  EXPECT_EQ(loss_at(folder_ / "run" / "step-1"), loss_);
}

TEST_F(TrainWeights, AConfigurationOfTransformers4And5IsTheSameModel) {
  const ModelConfig model = model_of(Family::kGpt2);
  const char* sizes = R"("vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 2, )"
                      R"("n_head": 2, "n_inner": 32, "layer_norm_epsilon": 1e-5)";
  for (const char* more : {R"("n_ctx": 6, "torch_dtype": "float32", "attn_pdrop": 0.1)",
                           R"("dtype": "float32", "tie_word_embeddings": true)"}) {
    const auto read = read_hugging_face_config(
        std::string(R"({"model_type": "gpt2", )") + sizes + ", " + more + "}", "c");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->to_json(), model.to_json());
  }
  const std::string llama =
      R"({"model_type": "llama", "vocab_size": 11, "max_position_embeddings": 6, )"
      R"("hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 2, )"
      R"("num_attention_heads": 2, "rms_norm_eps": 1e-5, )";
  for (const char* more :
       {R"("rope_theta": 500.0, "rope_scaling": null, "head_dim": 4})",
        R"("rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}})"}) {
    const auto read = read_hugging_face_config(llama + more, "c");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->rope_theta, 500);
    EXPECT_EQ(read->family, Family::kLlama);
    EXPECT_EQ(read->head_size, 0);
  }
  const auto scaled = read_hugging_face_config(
      llama + R"("num_key_value_heads": 1, "tie_word_embeddings": true, "rope_theta": 7.0, )" +
          R"("rope_scaling": {"type": "llama3", "factor": 8.0, "high_freq_factor": 3.0, )" +
          R"("low_freq_factor": 1.0, "original_max_position_embeddings": 4}})",
      "c");
  ASSERT_TRUE(scaled.ok()) << scaled.status().message();
  EXPECT_TRUE(scaled->tied);
  EXPECT_EQ(scaled->keys(), 1);
  EXPECT_EQ(scaled->rope_scaling, (RopeScaling{.factor = 8, .low = 1, .high = 3, .original = 4}));
  const std::pair<std::string, const char*> refused[] = {
      {R"({"model_type": "bert"})",
       "model_type: got \"bert\", expected one of gpt2, llama, mistral, qwen2, "},
      {std::string(R"({"model_type": "gpt2", "vocab_size": 11})"), "n_positions: got nothing"},
      {std::string(R"({"model_type": "gpt2", "activation_function": "relu", )") + sizes + "}",
       "activation_function: got \"relu\""},
      {llama + R"("num_key_value_heads": 3})", "key_heads: got 3, expected a divisor of the 2"},
      {llama + R"("tie_word_embeddings": "no"})", "tie_word_embeddings: got \"no\""},
      {llama + R"("attention_bias": true})", "attention_bias: got true"},
      {llama + R"("rope_scaling": {"type": "linear"}})", "rope_scaling: rope_type: got \"linear\""},
      {llama + R"("rope_parameters": {"rope_type": "yarn", "rope_theta": 1}})", "rope_type"},
      {llama + R"("head_dim": 3})", "an even number of elements a head"}};
  for (const auto& [json, part] : refused) {
    EXPECT_HAS(read_hugging_face_config(json, "c").status().message(), part);
  }
}

TEST_F(TrainWeights, APublishedModelsConfigurationComesBack) {
  for (const ModelConfig& model : named_models()) {
    if (model.family == Family::kCourse) continue;
    const auto files = hugging_face_files(model, Element::kBf16, Tokenizer::numbers(5));
    const auto read = read_hugging_face_config(files.at("config.json"), "c");
    ASSERT_TRUE(read.ok()) << model.name << ": " << read.status().message();
    EXPECT_EQ(read->to_json(), model.to_json()) << model.name;
  }
}

// Three layers, of which the library gives a window to those that it names.
TEST_F(TrainWeights, WindowsAreThoseOfTheLibrarysLayers) {
  const std::string sizes =
      R"("vocab_size": 11, "max_position_embeddings": 64, "hidden_size": 8, )"
      R"("intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, )"
      R"("num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-5, )";
  const auto read = [&](const std::string& type, const char* more) {
    return read_hugging_face_config(R"({"model_type": ")" + type + "\", " + sizes + more + "}",
                                    "c");
  };
  const struct {
    const char *type, *more;
    std::int64_t window, every;
  } kFine[] = {
      {"mistral", R"("sliding_window": 7)", 7, 1},
      {"mistral", R"("sliding_window": null)", 0, 1},
      {"qwen2", R"("sliding_window": 7, "use_sliding_window": false)", 0, 1},
      {"qwen2", R"("sliding_window": 7, "use_sliding_window": true, "max_window_layers": 0)", 7, 1},
      {"qwen3",
       R"("sliding_window": 7, "use_sliding_window": true, "layer_types": )"
       R"(["sliding_attention", "full_attention", "sliding_attention"])",
       7, 2}};
  for (const auto& each : kFine) {
    const auto model = read(each.type, each.more);
    ASSERT_TRUE(model.ok()) << each.more << ": " << model.status().message();
    EXPECT_EQ(model->window, each.window) << each.more;
    EXPECT_EQ(model->window_every, each.every) << each.more;
  }
  EXPECT_HAS(read("qwen2", R"("sliding_window": 7, "use_sliding_window": true, )"
                           R"("max_window_layers": 1)")
                 .status()
                 .message(),
             "windows in every n-th layer from the first one on");
  EXPECT_HAS(read("qwen3", R"("layer_types": ["full_attention", "linear_attention", "x"])")
                 .status()
                 .message(),
             "layer_types: got \"linear_attention\"");
  EXPECT_HAS(read("gemma2", R"("sliding_window": 7)").status().message(),
             "query_pre_attn_scalar: got nothing");
}

TEST_F(TrainWeights, FilesOf16BitsAndOfMoreRowsAreTaken) {
  const std::filesystem::path folder = hugging_face();
  const double exact = loss_at(folder);
  for (const Element element : {Element::kBf16, Element::kFp16}) {
    StoredTensors narrow = tensors_;
    for (auto& [name, tensor] : narrow) {
      const std::size_t count = tensor.bytes.size() / sizeof(float);
      std::vector<float> wide(count);
      std::memcpy(wide.data(), tensor.bytes.data(), tensor.bytes.size());
      std::vector<std::uint16_t> half(count);
      element == Element::kBf16
          ? base::round_to_bf16(wide.data(), half.data(), static_cast<std::int64_t>(count))
          : base::round_to_fp16(wide.data(), half.data(), static_cast<std::int64_t>(count));
      tensor.element = element;
      tensor.bytes.assign(reinterpret_cast<const char*>(half.data()), 2 * count);
    }
    ASSERT_TRUE(write_safetensors(folder / "model.safetensors", narrow).ok());
    const double loss = loss_at(folder);
    EXPECT_NE(loss, exact);
    EXPECT_NEAR(loss, exact, 2e-2);
  }
  // Rows behind the last word, as a padded table has them.
  for (const char* name : {"transformer.wte.weight", "lm_head.weight"}) {
    tensors_[name].shape[0] = 16;
    tensors_[name].bytes.resize(16 * 8 * sizeof(float), '\x01');
  }
  ASSERT_TRUE(write_safetensors(folder / "model.safetensors", tensors_).ok());
  EXPECT_EQ(loss_at(folder), exact);
}

TEST_F(TrainWeights, AShorterContextTakesTheFirstPositions) {
  const std::filesystem::path folder = hugging_face();
  const Result<ModelFiles> files = open_model(folder);
  ModelConfig shorter = files->model;
  shorter.context = 4;
  const TestStep whole =
      TestStep::make(files->model, {.batch = 2, .context = 4, .mode = StepMode::kForward});
  const TestStep part = TestStep::make(shorter, kForward);
  ASSERT_TRUE(take_weights(*files, *whole.parameters).ok());
  ASSERT_TRUE(take_weights(*files, *part.parameters).ok());
  EXPECT_EQ(part.loss(), whole.loss());
}

TEST_F(TrainWeights, ShardsAreOneModelAndAnIndexIsBelieved) {
  const std::filesystem::path folder = hugging_face();
  StoredTensors parts[2];
  std::string map;
  for (auto& [name, tensor] : tensors_) {
    const int shard = name < "transformer.h.1" ? 0 : 1;
    map += (map.empty() ? "\"" : ", \"") + name + "\": \"model-" + std::to_string(shard) +
           ".safetensors\"";
    parts[shard][name] = tensor;
  }
  std::filesystem::remove(folder / "model.safetensors");
  const auto write_index = [&](const std::string& entries) {
    ASSERT_TRUE(write_file(folder / "model.safetensors.index.json",
                           R"({"metadata": {}, "weight_map": {)" + entries + "}}")
                    .ok());
  };
  write_index(map);
  ASSERT_TRUE(write_safetensors(folder / "model-0.safetensors", parts[0]).ok());
  EXPECT_HAS(open_model(folder).status().message(), "model-1.safetensors");
  ASSERT_TRUE(write_safetensors(folder / "model-1.safetensors", parts[1]).ok());
  EXPECT_EQ(loss_at(folder), loss_);
  write_index(map + R"(, "more.weight": "model-0.safetensors")");
  EXPECT_HAS(open_model(folder).status().message(), "more.weight, which model-0.safetensors");
  write_index(map.substr(map.find(',') + 2));
  EXPECT_HAS(open_model(folder).status().message(), "without a word");
  write_index(R"("a": "../x.safetensors")");
  EXPECT_HAS(open_model(folder).status().message(), "in the same folder");
}

TEST_F(TrainWeights, EverythingThatDoesNotFitIsListed) {
  const std::filesystem::path folder = hugging_face();
  const StoredTensors good = tensors_;
  tensors_.erase("transformer.ln_f.bias");
  tensors_["transformer.h.0.mlp.c_fc.weight"].shape = {32, 8};
  tensors_["transformer.h.7.ln_1.weight"] = tensors_["transformer.ln_f.weight"];
  const std::string message = refused(folder);
  EXPECT_HAS(message, "3 tensors that do not fit");
  EXPECT_HAS(message, "no ln_f.bias, expected [8]");
  EXPECT_HAS(message, "h.0.mlp.c_fc.weight F32 [32, 8], expected [8, 32]");
  EXPECT_HAS(message, "h.7.ln_1.weight F32 [8], which this model does not have");
  tensors_ = good;
  tensors_["lm_head.weight"].bytes[0] ^= 1;
  EXPECT_HAS(refused(folder), "lm_head.weight, which is not equal to wte.weight");
  tensors_ = good;
  tensors_["wpe.weight"] = good.at("transformer.wpe.weight");
  EXPECT_HAS(refused(folder), "wpe.weight twice");
  tensors_ = good;
  std::memcpy(tensors_["transformer.ln_f.bias"].bytes.data() + 4, "\0\0\xc0\x7f", 4);
  EXPECT_HAS(refused(folder), "ln_f.bias: got NaN or infinity");
}

TEST_F(TrainWeights, KindsThatAreNotReadComeWithTheLineThatConverts) {
  const std::filesystem::path folder = hugging_face();
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_HAS(open_model(folder).status().message(), "no weights");
  ASSERT_TRUE(write_file(folder / "pytorch_model.bin", std::string("PK\x03\x04", 4)).ok());
  for (const char* name : {"", "pytorch_model.bin"}) {
    const std::string message = open_model(folder / name).status().message();
    EXPECT_HAS(message, "pickled weights");
    EXPECT_HAS(message, "M.from_pretrained(d).save_pretrained(o)");
  }
  ASSERT_TRUE(write_file(folder_ / "m.gguf", "GGUF1234").ok());
  EXPECT_HAS(open_model(folder_ / "m.gguf").status().message(), "gguf_file='m.gguf'");
  ASSERT_TRUE(write_file(folder_ / "x", "something").ok());
  EXPECT_HAS(open_model(folder_ / "x").status().message(), "no weights");
  EXPECT_HAS(open_model(folder_).status().message(), "no checkpoint");
}

TEST_F(TrainWeights, LlmcsFileComesBack) {
  const std::filesystem::path run = run_of(Family::kGpt2), file = folder_ / "m.bin";
  ASSERT_TRUE(export_to(run, {ExportForm::kLlmc, Element::kFp32}, file).ok());
  EXPECT_EQ(loss_at(file), loss_);
  std::string bytes = *read_file(file);
  std::int32_t header[8];
  std::memcpy(header, bytes.data(), sizeof header);
  const std::int32_t expected[8] = {20240326, 3, 6, 11, 2, 2, 8, 128};
  EXPECT_EQ(std::memcmp(header, expected, sizeof header), 0);
  // 128 rows of the table, the positions, then all layers' norms; matrices as [outputs, inputs].
  const StoredTensors own = *read_safetensors(run / "step-1" / "model.safetensors");
  const auto number = [](const std::string& from, std::size_t at) {
    float out;
    std::memcpy(&out, from.data() + at * sizeof out, sizeof out);
    return out;
  };
  const std::size_t qkv = 256 + 128 * 8 + 6 * 8 + 2 * 2 * 8;
  const std::string& turned = own.at("h.0.attn.c_attn.weight").bytes;  // [8, 24]
  EXPECT_EQ(number(bytes, qkv + 5 * 8 + 3), number(turned, 3 * 24 + 5));
  ASSERT_TRUE(export_to(run, {ExportForm::kLlmc, Element::kBf16}, file).ok());
  EXPECT_NEAR(loss_at(file), loss_, 2e-2);
  EXPECT_HAS(export_to(run, {ExportForm::kLlmc, Element::kFp16}, file).message(), "fp32 or bf16");
  bytes[4] = 4;
  ASSERT_TRUE(write_file(file, bytes).ok());
  EXPECT_HAS(open_model(file).status().message(), "version 4");
  bytes[4] = 3;
  ASSERT_TRUE(write_file(file, bytes.substr(0, bytes.size() - 4)).ok());
  EXPECT_HAS(open_model(file).status().message(), "as its header says");
  bytes[4 * 5] = 3;
  ASSERT_TRUE(write_file(file, bytes).ok());
  EXPECT_HAS(open_model(file).status().message(), "a divisor of the width");
}

TEST_F(TrainWeights, TheCoursesModelIsLlamasWithHalvesForPairs) {
  const std::filesystem::path run = run_of(Family::kCourse), folder = folder_ / "llama";
  ASSERT_TRUE(export_to(run, {}, folder).ok());
  const StoredTensors own = *read_safetensors(run / "step-1" / "model.safetensors");
  const StoredTensors there = *read_safetensors(folder / "model.safetensors");
  const std::string& q = own.at("layers.1.attn.q_proj.weight").bytes;
  const std::string& halves = there.at("model.layers.1.self_attn.q_proj.weight").bytes;
  // Of a head of 4: rows 0, 1, 2, 3 here are 0, 2, 1, 3 there.
  const std::size_t row = 8 * sizeof(float);
  const std::size_t place[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (std::size_t r = 0; r < 8; ++r) {
    EXPECT_EQ(q.substr(r * row, row), halves.substr(place[r] * row, row)) << r;
  }
  EXPECT_EQ(own.at("layers.0.attn.v_proj.weight").bytes,
            there.at("model.layers.0.self_attn.v_proj.weight").bytes);
  EXPECT_EQ(own.at("layers.0.ffn.w3.weight").bytes,
            there.at("model.layers.0.mlp.up_proj.weight").bytes);
  EXPECT_TRUE(there.contains("lm_head.weight"));
  EXPECT_EQ(there.size(), own.size());
  // Read as Llama, whose products of q and k add in another order.
  EXPECT_NEAR(loss_at(folder), loss_, 1e-6);
  EXPECT_HAS(export_to(run, {}, folder).message(), "which holds something");
  EXPECT_HAS(export_to(run, {ExportForm::kLlmc, {}}, folder_ / "x").message(), "GPT-2");
  ASSERT_TRUE(export_to(run, {ExportForm::kSafetensors, {}}, folder_ / "one.safetensors").ok());
  EXPECT_EQ(*read_file(folder_ / "one.safetensors"),
            *read_file(run / "step-1" / "model.safetensors"));
}

TEST_F(TrainWeights, APrecisionTakesWeightsOfAnother) {
  run_of(Family::kGpt2, Precision::kFp64);
  EXPECT_EQ(loss_at(folder_ / "run", Precision::kFp64), loss_);
  EXPECT_NEAR(loss_at(folder_ / "run"), loss_, 1e-6);
}

// Every token but the first is scored once, each with what its window has before it.
TEST_F(TrainWeights, ATextIsScoredByWindows) {
  for (const Family family : {Family::kCourse, Family::kGpt2}) {
    const std::filesystem::path run = run_of(family);
    const Result<ModelFiles> files = open_model(run);
    Result<Context> context = Context::create({.threads = 2});
    const auto admits = [](const StepPlan&) { return Status(); };
    auto evaluator = Evaluator::create(*context, *files, {.batch = 3}, admits);
    ASSERT_TRUE(evaluator.ok()) << evaluator.status().message();
    std::vector<std::int32_t> text(21);
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::int32_t>(i * 7 % 11);
    const TokenSource source = {21, [&](std::int64_t i) { return text[std::size_t(i)]; }};
    for (const WindowOptions windows : {WindowOptions{6, 6}, {6, 2}, {4, 4}, {5, 1}}) {
      const auto score = (*evaluator)->text(source, windows, [](auto) { return true; });
      ASSERT_TRUE(score.ok()) << score.status().message();
      EXPECT_EQ(score->tokens, 20);
      // One row for each token, with just what it is given.
      double expected = 0;
      std::int64_t reached = 1;
      for (std::int64_t begin = 0; reached < 21; begin += windows.stride) {
        for (; reached < std::min<std::int64_t>(begin + windows.window + 1, 21); ++reached) {
          const std::vector<std::int32_t> row(text.begin() + begin, text.begin() + reached + 1);
          expected += (*(*evaluator)->score({{row, 1}}))[0];
        }
      }
      EXPECT_NEAR(score->nats, expected, 1e-5) << windows.window << " " << windows.stride;
    }
    EXPECT_HAS((*evaluator)->score({{{1, 2, 12}, 1}}).status().message(), "token 12");
    EXPECT_HAS((*evaluator)->score({{std::vector<std::int32_t>(9), 1}}).status().message(),
               "at most the model's 6");
    std::filesystem::remove_all(run);
  }
}

TEST_F(TrainWeights, ChoicesAreReadAsTheHarnessReadsThem) {
  const std::filesystem::path file = folder_ / "c.jsonl";
  const auto read = [&](const std::string& text) {
    EXPECT_TRUE(write_file(file, text).ok());
    return read_choices(file.string());
  };
  const auto choices = read(
      "{\"activity_label\": \"Surfing [x]\", \"ctx_a\": \"A man.  He\", \"ctx_b\": \"the MAN "
      "É\", \"endings\": [\" runs [step] on.\", \"sits [title] down\"], \"label\": \"1\"}\n\n");
  ASSERT_TRUE(choices.ok()) << choices.status().message();
  EXPECT_EQ(choices->at(0).context, "Surfing : A man. He The man é");
  EXPECT_EQ(choices->at(0).endings, (std::vector<std::string>{"runs on.", "sits. down"}));
  EXPECT_EQ(choices->at(0).right, 1u);
  EXPECT_HAS(read("{}\n").status().message(), "line 1: got no activity_label");
  EXPECT_HAS(read("\nx\n").status().message(), "line 2: got no JSON object");
  EXPECT_HAS(read("").status().message(), "a question a line");
  const std::string whole = R"({"activity_label": "", "ctx_a": "", "ctx_b": "", )";
  EXPECT_HAS(read(whole + R"("endings": ["a"], "label": 0})").status().message(), "no endings");
  EXPECT_HAS(read(whole + R"("endings": ["a", "b"], "label": 2})").status().message(), "label 2");
}

TEST(TrainTokenizerFiles, BytesAndCharactersComeBackFromHuggingFacesForm) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const Tokenizer bytes = Tokenizer::bytes();
  const Result<Tokenizer> bytes_again = Tokenizer::from_json(*bytes.to_hugging_face(), "t");
  ASSERT_TRUE(bytes_again.ok()) << bytes_again.status().message();
  EXPECT_EQ(*bytes_again->encode(all), *bytes.encode(all));
  EXPECT_EQ(bytes_again->decode(*bytes.encode(all)), all);
  const Tokenizer characters = *Tokenizer::characters_of("a b\nßö\"");
  const Result<Tokenizer> again = Tokenizer::from_json(*characters.to_hugging_face(), "t");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->kind(), Tokenizer::Kind::kCharacter);
  EXPECT_EQ(*again->encode("ö \nß"), *characters.encode("ö \nß"));
  EXPECT_FALSE(Tokenizer::numbers(5).to_hugging_face().has_value());
}

}  // namespace
}  // namespace flashlab::train
