#include "train/run/train_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/utf8.h"
#include "train/data/text.h"
#include "train/model/nearest.h"
#include "train/plan/recompute.h"

namespace flashlab::train {
namespace {

using Json = nlohmann::ordered_json;

struct WholeKey {
  const char* name;
  std::int64_t TrainConfig::*field;
  std::int64_t least;
};
constexpr WholeKey kWholeKeys[] = {{"steps", &TrainConfig::steps, 1},
                                   {"batch", &TrainConfig::batch, 1},
                                   {"accumulate", &TrainConfig::accumulate, 1},
                                   {"shares", &TrainConfig::shares, 1},
                                   {"warmup_steps", &TrainConfig::warmup_steps, 0},
                                   {"decay_until", &TrainConfig::decay_until, 0},
                                   {"decay_steps", &TrainConfig::decay_steps, 0},
                                   {"evaluate_every", &TrainConfig::evaluate_every, 0},
                                   {"evaluate_batches", &TrainConfig::evaluate_batches, 1},
                                   {"patience", &TrainConfig::patience, 0},
                                   {"save_every", &TrainConfig::save_every, 0},
                                   {"sample_every", &TrainConfig::sample_every, 0},
                                   {"sample_tokens", &TrainConfig::sample_tokens, 0},
                                   {"keep", &TrainConfig::keep, 0},
                                   {"max_skipped", &TrainConfig::max_skipped, 1},
                                   {"vocabulary", &TrainConfig::vocabulary, 0},
                                   {"end_of_text", &TrainConfig::end_of_text, -1}};

struct RealKey {
  const char* name;
  double TrainConfig::*field;
  double OptimizerOptions::*optimizer_field;
};
constexpr RealKey kRealKeys[] = {
    {"validation_fraction", &TrainConfig::validation_fraction, nullptr},
    {"learning_rate", &TrainConfig::learning_rate, nullptr},
    {"minimum_learning_rate", &TrainConfig::minimum_learning_rate, nullptr},
    {"weight_decay", nullptr, &OptimizerOptions::weight_decay},
    {"momentum", nullptr, &OptimizerOptions::momentum},
    {"beta1", nullptr, &OptimizerOptions::beta1},
    {"beta2", nullptr, &OptimizerOptions::beta2},
    {"epsilon", nullptr, &OptimizerOptions::epsilon},
    {"max_norm", nullptr, &OptimizerOptions::max_norm}};

struct ListKey {
  const char* name;
  std::vector<std::string> TrainConfig::*field;
};
constexpr ListKey kListKeys[] = {{"text", &TrainConfig::text},
                                 {"tokens", &TrainConfig::tokens},
                                 {"validation_text", &TrainConfig::validation_text},
                                 {"validation_tokens", &TrainConfig::validation_tokens},
                                 {"freeze", &TrainConfig::freeze}};

struct SwitchKey {
  const char* name;
  bool TrainConfig::*field;
};
constexpr SwitchKey kSwitchKeys[] = {{"documents", &TrainConfig::documents},
                                     {"deterministic", &TrainConfig::deterministic},
                                     {"keep_best", &TrainConfig::keep_best},
                                     {"tensorboard", &TrainConfig::tensorboard}};

constexpr const char* kWords[] = {
    "init",         "tokenizer", "precision", "loss_scale", "attention",    "operators",
    "checkpoint",   "seed",      "optimizer", "schedule",   "changes",      "adamw_convention",
    "reduce_every", "wire",      "order",     "text_field", "tokens_format"};

std::vector<std::string> known_keys() {
  std::vector<std::string> out = {"model"};
  for (const ListKey& key : kListKeys) out.emplace_back(key.name);
  for (const char* key : kWords) out.emplace_back(key);
  for (const SwitchKey& key : kSwitchKeys) out.emplace_back(key.name);
  for (const WholeKey& key : kWholeKeys) out.emplace_back(key.name);
  for (const RealKey& key : kRealKeys) out.emplace_back(key.name);
  return out;
}

Status bad(std::string_view source, const std::string& key, const Json& got, std::string expected) {
  return Status::invalid({fmt::format("{}: {}", source, key), base::json_text(got).substr(0, 60),
                          std::move(expected), ""});
}

void set_convention(AdamWConvention convention, TrainConfig& out) {
  out.optimizer.convention = convention;
  out.optimizer.decay_vectors = convention == AdamWConvention::kCs336;
}

// What to_json writes: who edits it edits the record of what was changed.
Status read_changes(const Json& value, std::string_view source, TrainConfig& out) {
  const auto text = [](const Json& change, const char* key) {
    return change.contains(key) ? base::json_text(change[key]) : std::string();
  };
  out.changes.clear();
  for (const Json& change : value) {
    const bool whole = change.is_object() && change.contains("step") && change.contains("key") &&
                       change["step"].is_number_integer() && change["key"].is_string();
    if (!whole) return bad(source, "changes", value, "a list of changes with step, key, from, to");
    out.changes.push_back({change["step"].get<std::int64_t>(), change["key"].get<std::string>(),
                           text(change, "from"), text(change, "to")});
  }
  return {};
}

template <class Choice>
Status read_choice(const std::string& key, const std::string& word,
                   const std::vector<std::string>& names, std::string_view source, Choice& out) {
  const auto at = std::ranges::find(names, word);
  if (at == names.end()) return unknown_name({fmt::format("{}: {}", source, key), word, names});
  out = static_cast<Choice>(at - names.begin());
  return {};
}

Status read_optimizer(const std::string& word, std::string_view source, TrainConfig& out) {
  if (word == "adamw" || word == "sgd") {
    out.optimizer.sgd = word == "sgd";
    return {};
  }
  // Files of earlier versions have the convention here.
  if (word == "torch" || word == "cs336") {
    set_convention(word == "torch" ? AdamWConvention::kTorch : AdamWConvention::kCs336, out);
    return {};
  }
  return bad(source, "optimizer", word, "\"adamw\" or \"sgd\"");
}

Status read_words(const std::string& key, const Json& value, std::string_view source,
                  TrainConfig& out) {
  for (const ListKey& list : kListKeys) {
    if (key != list.name) continue;
    const char* expected = key == "freeze" ? "a list of patterns" : "a list of file names";
    if (!value.is_array()) return bad(source, key, value, expected);
    std::vector<std::string>& files = out.*list.field;
    files.clear();
    for (const Json& file : value) {
      if (!file.is_string()) return bad(source, key, value, expected);
      files.push_back(file.get<std::string>());
    }
    return {};
  }
  if (key == "seed") {
    if (!value.is_number_unsigned()) return bad(source, key, value, "a whole number");
    out.seed = value.get<std::uint64_t>();
    return {};
  }
  for (const SwitchKey& one : kSwitchKeys) {
    if (key != one.name) continue;
    if (!value.is_boolean()) return bad(source, key, value, "true or false");
    out.*one.field = value.get<bool>();
    return {};
  }
  if (key == "changes") {
    if (!value.is_array()) return bad(source, key, value, "a list");
    return read_changes(value, source, out);
  }
  if (!value.is_string()) return bad(source, key, value, "a word");
  const std::string word = value.get<std::string>();
  if (key == "init") {
    out.init = word;
  } else if (key == "attention") {
    out.attention = word;
  } else if (key == "loss_scale") {
    out.loss_scale = word;
  } else if (key == "operators") {
    if (word != "fused" && word != "unfused") {
      return bad(source, key, value, "\"fused\" or \"unfused\"");
    }
    out.operators = word;
  } else if (key == "reduce_every") {
    if (word != "step" && word != "micro-batch") {
      return bad(source, key, value, "\"step\" or \"micro-batch\"");
    }
    out.reduce_every = word;
  } else if (key == "wire") {
    if (word != "fp32" && word != "bf16") return bad(source, key, value, "\"fp32\" or \"bf16\"");
    out.wire = word;
  } else if (key == "checkpoint") {
    out.checkpoint = word;
  } else if (key == "tokenizer") {
    out.tokenizer = word;
  } else if (key == "precision") {
    const auto precision = parse_precision(word);
    if (!precision)
      return unknown_name({fmt::format("{}: precision", source), word, precision_names()});
    out.precision = *precision;
  } else if (key == "optimizer") {
    return read_optimizer(word, source, out);
  } else if (key == "schedule") {
    return read_choice(key, word, schedule_names(), source, out.schedule);
  } else if (key == "order") {
    return read_choice(key, word, window_order_names(), source, out.order);
  } else if (key == "tokens_format") {
    return read_choice(key, word, token_format_names(), source, out.tokens_format);
  } else if (key == "text_field") {
    out.text_field = word;
  } else if (word == "torch" || word == "cs336") {
    set_convention(word == "torch" ? AdamWConvention::kTorch : AdamWConvention::kCs336, out);
  } else {
    return bad(source, key, value, "\"torch\" or \"cs336\": where AdamW's epsilon stands");
  }
  return {};
}

Status read_key(const std::string& key, const Json& value, std::string_view source,
                TrainConfig& out) {
  for (const WholeKey& whole : kWholeKeys) {
    if (key != whole.name) continue;
    if (!value.is_number_integer()) return bad(source, key, value, "a whole number");
    out.*whole.field = value.get<std::int64_t>();
    return {};
  }
  for (const RealKey& real : kRealKeys) {
    if (key != real.name) continue;
    if (!value.is_number()) return bad(source, key, value, "a number");
    (real.field ? out.*real.field : out.optimizer.*real.optimizer_field) = value.get<double>();
    return {};
  }
  if (key == "model") {
    const std::string text =
        value.is_string() ? base::json_text(Json{{"model", value}}) : base::json_text(value);
    Result<ModelConfig> model = parse_model(text, fmt::format("{}: model", source));
    if (!model.ok()) return model.status();
    out.model = *model;
    return {};
  }
  for (const std::string& word : known_keys()) {
    if (key == word) return read_words(key, value, source, out);
  }
  return unknown_name({fmt::format("{}: key", source), key, run_config_keys()});
}

}  // namespace

std::vector<std::string> run_config_keys() {
  std::vector<std::string> out = known_keys(), others = model_keys();
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

std::vector<std::string> schedule_names() {
  return {"cosine", "linear", "constant", "wsd", "course", "nanogpt"};
}

bool set_loss_scale(const std::string& word, StepOptions& out) {
  if (word == "dynamic" || word == "none") {
    out.loss_scaling = word == "none" ? LossScaling::kNone : LossScaling::kDynamic;
    return true;
  }
  double value = 0;
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (word.empty() || stop != end || error != std::errc() || !(value >= 1 && value <= 0x1p40)) {
    return false;
  }
  out.loss_scaling = LossScaling::kStatic;
  out.loss_scale = value;
  return true;
}

StepOptions TrainConfig::step_options() const {
  StepOptions out;
  out.batch = batch;
  out.accumulate = accumulate;
  out.shares = shares;
  out.reduce_each_micro_batch = reduce_every == "micro-batch";
  out.deterministic = deterministic;
  out.precision = precision;
  out.attention = attention;
  set_loss_scale(loss_scale, out);
  out.fused = operators == "fused";
  out.optimizer = optimizer;
  out.freeze = freeze;
  if (!checkpoint.empty()) out.checkpoint = *parse_checkpoint(checkpoint, model.layers);
  out.seed = seed;
  out.documents = documents;
  out.end_of_text = static_cast<std::int32_t>(std::max<std::int64_t>(end_of_text, 0));
  return out;
}

std::string TrainConfig::to_json() const {
  Json out;
  out["model"] = base::read_json<Json>(model.to_json());
  if (!init.empty()) out["init"] = init;
  for (const ListKey& list : kListKeys) out[list.name] = this->*list.field;
  out["tokenizer"] = tokenizer;
  out["precision"] = to_string(precision);
  out["loss_scale"] = loss_scale;
  out["attention"] = attention;
  out["operators"] = operators;
  out["checkpoint"] = checkpoint;
  out["seed"] = seed;
  out["reduce_every"] = reduce_every;
  out["wire"] = wire;
  for (const SwitchKey& key : kSwitchKeys) out[key.name] = this->*key.field;
  out["optimizer"] = optimizer.sgd ? "sgd" : "adamw";
  out["adamw_convention"] = optimizer.convention == AdamWConvention::kTorch ? "torch" : "cs336";
  out["schedule"] = schedule_names()[static_cast<std::size_t>(schedule)];
  out["order"] = window_order_names()[static_cast<std::size_t>(order)];
  out["tokens_format"] = token_format_names()[static_cast<std::size_t>(tokens_format)];
  out["text_field"] = text_field;
  for (const WholeKey& key : kWholeKeys) out[key.name] = this->*key.field;
  for (const RealKey& key : kRealKeys) {
    out[key.name] = key.field ? this->*key.field : optimizer.*key.optimizer_field;
  }
  for (const ConfigChange& change : changes) {
    out["changes"].push_back({{"step", change.step},
                              {"key", change.key},
                              {"from", base::read_json<Json>(change.from)},
                              {"to", base::read_json<Json>(change.to)}});
  }
  return base::json_text(out, 1) + "\n";
}

Result<TrainConfig> parse_train_config(std::string_view json, std::string_view source,
                                       const TrainConfig& base) {
  const Json parsed = base::read_json<Json>(json);
  if (!parsed.is_object()) {
    return Status::invalid({std::string(source), parsed.is_discarded() ? "no JSON" : "no object",
                            "a JSON object such as {\"steps\": 2000}", ""});
  }
  TrainConfig out = base;
  Json all = parsed, model = Json::object();
  const std::vector<std::string> own = known_keys();
  for (const std::string& key : model_keys()) {
    if (!parsed.contains(key) || std::ranges::find(own, key) != own.end()) continue;
    model[key] = parsed[key];
    all.erase(key);
  }
  if (!model.empty()) {
    if (all.contains("model") && all["model"].is_object()) model.update(all["model"]);
    if (all.contains("model") && all["model"].is_string()) model["model"] = all["model"];
    all["model"] = std::move(model);
  }
  for (const auto& [key, value] : all.items()) {
    if (Status s = read_key(key, value, source, out); !s.ok()) return s;
  }
  if (Status s = validate(out); !s.ok()) return s;
  return out;
}

Status validate(const TrainConfig& config) {
  if (Status s = validate(config.model); !s.ok()) return s;
  StepOptions scaled;
  if (!set_loss_scale(config.loss_scale, scaled)) {
    return Status::invalid({"loss_scale", fmt::format("\"{}\"", config.loss_scale),
                            "dynamic, none, or a number of at least 1", "65536 is usual"});
  }
  if (Status s = check_tokenizer(config.tokenizer); !s.ok()) return s;
  // config.json carries these names: a resumed run finds the same files.
  std::vector<std::pair<const char*, std::string>> names = {{"tokenizer", config.tokenizer},
                                                            {"init", config.init}};
  for (const ListKey& list : kListKeys) {
    for (const std::string& name : config.*list.field) names.emplace_back(list.name, name);
  }
  for (const auto& [argument, name] : names) {
    if (const auto at = base::find_no_utf8(name)) {
      return Status::invalid(
          {argument, fmt::format("the file name \"{}\": a byte at {} that is no UTF-8", name, *at),
           "UTF-8", "rename the file, or give a link to it"});
    }
  }
  if (!config.text.empty() && !config.tokens.empty()) {
    return Status::invalid({"tokens", "text and token files", "one of them", ""});
  }
  if (!config.text_field.empty() && (config.text.empty() || !config.tokens.empty())) {
    return Status::invalid({"text_field", config.text_field, "files of JSON lines as text",
                            "--text data.jsonl --text-field text"});
  }
  if (config.tokens_format != TokenFormat::kLlmc && config.tokens.empty()) {
    return Status::invalid({"tokens_format", "a format without token files", "--tokens FILE", ""});
  }
  for (const auto& [argument, names] :
       {std::pair{"tokens", &config.tokens}, std::pair{"text", &config.text}}) {
    const auto files = weighted_files(*names);
    if (files.ok()) continue;
    ErrorDetail detail = files.status().detail();
    detail.argument = fmt::format("{} {}", argument, detail.argument);
    return Status::invalid(std::move(detail));
  }
  const bool text_beside_tokens = !config.tokens.empty() && !config.validation_text.empty();
  if (text_beside_tokens || (config.tokens.empty() && !config.validation_tokens.empty())) {
    return Status::invalid(
        {text_beside_tokens ? "validation_text" : "validation_tokens",
         text_beside_tokens ? "text beside token files" : "token files beside text",
         "validation of the same kind", ""});
  }
  if (config.patience > 0 && config.evaluate_every == 0) {
    return Status::invalid({"patience", fmt::format("{}", config.patience),
                            "looks at the validation text between steps", "--evaluate-every 250"});
  }
  const bool learned = config.tokenizer == "bpe" || config.tokenizer == "character";
  if (!config.init.empty() && config.tokens.empty() && learned) {
    return Status::invalid({"tokenizer", config.tokenizer + ", which learns words of its own",
                            "the words that the weights of init know",
                            "--tokenizer FILE: the tokenizer.json that belongs to them"});
  }
  if (!config.checkpoint.empty()) {
    const auto groups = parse_checkpoint(config.checkpoint, config.model.layers);
    if (!groups.ok()) return groups.status();
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const WholeKey& key : kWholeKeys) {
    const std::int64_t value = config.*key.field;
    if (value < key.least || value > kMost) {
      return Status::invalid(
          {key.name, fmt::format("{}", value), fmt::format("at least {}", key.least), ""});
    }
  }
  const auto within = [](const char* name, double value, double low, double high) {
    if (value >= low && value <= high) return Status();
    return Status::invalid(
        {name, fmt::format("{}", value), fmt::format("{} to {}", low, high), ""});
  };
  const OptimizerOptions& o = config.optimizer;
  for (const Status& s :
       {within("validation_fraction", config.validation_fraction, 0.001, 0.5),
        within("learning_rate", config.learning_rate, 0, 100),
        within("minimum_learning_rate", config.minimum_learning_rate, 0, config.learning_rate),
        within("beta1", o.beta1, 0, 0.999999), within("momentum", o.momentum, 0, 0.999999),
        within("beta2", o.beta2, 0, 0.999999), within("weight_decay", o.weight_decay, 0, 100),
        within("max_norm", o.max_norm, 0, 1e9), within("epsilon", o.epsilon, 1e-30, 1)}) {
    if (!s.ok()) return s;
  }
  return {};
}

namespace {

// A line down to the minimum: `done` steps of `length`, the one that is asked for among them.
double on_line(const TrainConfig& config, std::int64_t done, std::int64_t length) {
  if (done <= 0) return config.learning_rate;
  if (done >= length) return config.minimum_learning_rate;
  const double part = static_cast<double>(done) / static_cast<double>(length);
  return config.learning_rate + part * (config.minimum_learning_rate - config.learning_rate);
}

}  // namespace

double learning_rate(const TrainConfig& config, std::int64_t step) {
  const Schedule schedule = config.schedule;
  if (step < config.warmup_steps) {
    // The first step learns too, but the course's does not; nanoGPT's last one is below the
    // maximum.
    const std::int64_t steps = config.warmup_steps + (schedule == Schedule::kNanoGpt ? 1 : 0);
    return config.learning_rate *
           static_cast<double>(step + (schedule == Schedule::kCourse ? 0 : 1)) /
           static_cast<double>(steps);
  }
  if (schedule == Schedule::kConstant) return config.learning_rate;
  const std::int64_t end = config.decay_until > 0 ? config.decay_until : config.steps;
  if (schedule == Schedule::kLinear) {
    return on_line(config, step + 1 - config.warmup_steps, end - config.warmup_steps);
  }
  if (schedule == Schedule::kWsd) {
    const std::int64_t down = config.decay_steps > 0 ? config.decay_steps : (end + 4) / 5;
    return on_line(config, step + 1 - (end - down), down);
  }
  const std::int64_t length = end - config.warmup_steps;
  if (step >= end || length <= 0) return config.minimum_learning_rate;
  const double part = static_cast<double>(step - config.warmup_steps) / static_cast<double>(length);
  return config.minimum_learning_rate + 0.5 * (1 + std::cos(3.14159265358979323846 * part)) *
                                            (config.learning_rate - config.minimum_learning_rate);
}

}  // namespace flashlab::train
