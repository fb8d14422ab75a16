// `evaluate`: how well a model foretells texts, or chooses endings.

#include "train/run/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/outputs.h"
#include "cli/run_flags.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "train/data/files.h"
#include "train/data/token_file.h"

namespace flashlab::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kBatch = 8;

struct FileScore {
  std::string file;
  train::TextScore score;
  std::int64_t bytes = 0;  ///< of the text that was scored; 0: not known
};

/// One evaluation with what it reads and tells.
class Evaluation {
 public:
  explicit Evaluation(const Arguments& arguments)
      : arguments_(arguments),
        files_(model_files("--checkpoint", arguments.value("--checkpoint").value_or(""))),
        tokenizer_(tokenizer_of(arguments, files_)),
        context_(make_context(arguments)) {}

  int run() {
    read_windows();
    quiet_ = arguments_.value("--json") == "-";
    train::StepOptions options;
    options.batch = whole(arguments_, "--batch", kBatch, 1, kMaxSize);
    options.precision = precision_of(arguments_, train::Precision::kFp32);
    options.context = windows_.window;
    auto evaluator = train::Evaluator::create(
        context_, files_, options,
        [&](const train::StepPlan& plan) { return admit_step(context_, plan); });
    if (!evaluator.ok()) fail(evaluator.status());
    evaluator_ = std::move(*evaluator);
    say_head(train::to_string(options.precision));
    if (arguments_.has("--choices")) {
      for (const std::string& file : arguments_.list("--choices")) choose(file, options.batch);
    } else {
      score_all();
    }
    bar_.clear();
    if (const auto path = arguments_.value("--json")) write_json(*path, json_);
    return interrupted() ? kExitInterrupted : kExitOk;
  }

 private:
  void read_windows() {
    const int kinds =
        arguments_.has("--text") + arguments_.has("--tokens") + arguments_.has("--choices");
    if (kinds != 1) fail_usage("evaluate needs one of --text, --tokens and --choices");
    for (const char* flag : {"--window", "--stride"}) {
      if (arguments_.has("--choices") && arguments_.has(flag)) {
        fail_usage(
            fmt::format("{} has no effect on --choices, whose texts are whole, or leave it "
                        "out",
                        flag));
      }
    }
    if (arguments_.has("--tokens-format") && !arguments_.has("--tokens")) {
      fail_usage("--tokens-format has no effect without --tokens, or leave it out");
    }
    const std::int64_t context = files_.model.context;
    windows_.window = whole(arguments_, "--window", context, 1, context);
    windows_.stride = whole(arguments_, "--stride", windows_.window, 1, windows_.window);
  }

  void say(const std::string& line) {
    bar_.clear();
    if (!quiet_) print_line(line);
  }

  void say_head(const char* precision) {
    const train::ModelConfig& model = files_.model;
    say(fmt::format("{} · {} layers, width {}, {} heads, {:.2f} M parameters · {} · {} · {}",
                    files_.path.string(), model.layers, model.width, model.heads,
                    static_cast<double>(parameter_count(model)) * 1e-6, tokenizer_.describe(),
                    device_words(context_), precision));
    json_["schema"] = "flashlab.evaluate/1";
    json_["checkpoint"] = files_.path.string();
    json_["precision"] = precision;
    json_["files"] = Json::array();
  }

  bool show(std::int64_t done, std::int64_t all, const std::string& what) {
    bar_.show(static_cast<double>(done), static_cast<double>(all), what);
    return !interrupted();
  }

  FileScore score(const std::string& file, const train::TokenSource& source) {
    FileScore out = {file, {}, 0};
    if (source.size < 2) {
      fail_usage(fmt::format("{} holds {} tokens; a loss takes at least 2", file, source.size));
    }
    const auto result = evaluator_->text(
        source, windows_, [&](std::int64_t done) { return show(done, source.size, file); });
    if (!result.ok()) fail(result.status());
    out.score = *result;
    return out;
  }

  FileScore score_text(const std::string& file) {
    const Result<std::string> text = train::read_file(file);
    if (!text.ok()) fail_usage("--text " + text.status().message());
    const Result<std::vector<std::int32_t>> tokens = tokenizer_.encode(*text, &interrupted());
    if (!tokens.ok()) fail_usage(fmt::format("--text {}: {}", file, tokens.status().message()));
    if (interrupted()) throw Failure{kExitInterrupted, "interrupted before the text was tokens"};
    const auto at = [&](std::int64_t i) { return (*tokens)[static_cast<std::size_t>(i)]; };
    FileScore out = score(file, {std::ssize(*tokens), at});
    if (tokenizer_.kind() != train::Tokenizer::Kind::kNumber) out.bytes = bytes_of(out.score, at);
    return out;
  }

  FileScore score_tokens(const std::string& file) {
    train::TokenFormat format = train::TokenFormat::kLlmc;
    read_choice(arguments_, "--tokens-format", train::token_format_names(), format);
    const Result<train::TokenFile> tokens = train::TokenFile::open(file, format);
    if (!tokens.ok()) fail_usage("--tokens " + tokens.status().message());
    if (const Status s = tokens->check(files_.model.vocabulary); !s.ok()) {
      fail_usage("--tokens " + s.message());
    }
    const auto at = [&](std::int64_t i) { return (*tokens)[i]; };
    FileScore out = score(file, {tokens->size(), at});
    if (tokenizer_.kind() != train::Tokenizer::Kind::kNumber) out.bytes = bytes_of(out.score, at);
    return out;
  }

  // Bytes of the scored tokens: all but the first, up to where it was ended.
  template <class At>
  std::int64_t bytes_of(const train::TextScore& score, const At& at) const {
    std::int64_t out = 0;
    for (std::int64_t i = 1; i <= score.tokens; ++i) {
      if (at(i) >= tokenizer_.vocabulary()) continue;
      out += std::ssize(tokenizer_.decode({at(i)}));
    }
    return out;
  }

  void tell(const FileScore& of) {
    const double loss = of.score.nats / static_cast<double>(of.score.tokens);
    const double bits = of.score.nats / std::log(2.0) / static_cast<double>(of.bytes);
    say(fmt::format("{}  loss {:.6f} · perplexity {:.4f}{} · {} tokens scored{}",
                    base::pad_right(of.file, 24), loss, std::exp(loss),
                    of.bytes > 0 ? fmt::format(" · {:.6f} bits a byte", bits) : "", of.score.tokens,
                    of.bytes > 0 ? fmt::format(", {} bytes", of.bytes) : ""));
    Json json = {{"file", of.file},
                 {"tokens", of.score.tokens},
                 {"loss", loss},
                 {"perplexity", std::exp(loss)}};
    if (of.bytes > 0) {
      json["bytes"] = of.bytes;
      json["bits_per_byte"] = bits;
    }
    json_["files"].push_back(std::move(json));
  }

  void score_all() {
    const bool text = arguments_.has("--text");
    json_["window"] = windows_.window;
    json_["stride"] = windows_.stride;
    say(fmt::format("windows of {} tokens, every {}; the first token of a file is not scored",
                    windows_.window, windows_.stride));
    const std::vector<std::string> files = arguments_.list(text ? "--text" : "--tokens");
    FileScore all = {"all", {}, 0};
    for (const std::string& file : files) {
      if (interrupted()) break;
      const FileScore one = text ? score_text(file) : score_tokens(file);
      tell(one);
      all.score.tokens += one.score.tokens;
      all.score.nats += one.score.nats;
      all.bytes += one.bytes;
    }
    if (files.size() > 1) tell(all);
  }

  void choose(const std::string& file, std::int64_t batch) {
    const Result<std::vector<train::Choice>> choices = train::read_choices(file);
    if (!choices.ok()) fail_usage("--choices " + choices.status().message());
    const std::int64_t all = std::ssize(*choices);
    const auto score = score_choices(*evaluator_, tokenizer_, *choices, batch,
                                     [&](std::int64_t done) { return show(done, all, file); });
    if (!score.ok()) fail(score.status());
    const auto items = static_cast<double>(score->items);
    const double accuracy = static_cast<double>(score->likeliest) / items;
    const double normalized = static_cast<double>(score->normalized) / items;
    say(fmt::format("{}  accuracy {:.4f} · by characters {:.4f} · {} questions, {} tokens scored",
                    base::pad_right(file, 24), accuracy, normalized, score->items, score->tokens));
    json_["files"].push_back({{"file", file},
                              {"questions", score->items},
                              {"tokens", score->tokens},
                              {"accuracy", accuracy},
                              {"accuracy_by_characters", normalized}});
  }

  const Arguments& arguments_;
  train::ModelFiles files_;
  train::Tokenizer tokenizer_;
  Context context_;
  train::WindowOptions windows_;
  std::unique_ptr<train::Evaluator> evaluator_;
  ProgressLine bar_;
  bool quiet_ = false;
  Json json_;
};

}  // namespace

int run_evaluate(const Arguments& arguments) {
  if (!arguments.has("--checkpoint")) fail_usage("evaluate needs --checkpoint PATH");
  return Evaluation(arguments).run();
}

}  // namespace flashlab::cli
