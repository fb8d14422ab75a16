#include "train/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "train/model/nearest.h"

namespace flashlab::train {
namespace {

ModelConfig course(std::string name, std::int64_t width, std::int64_t hidden, std::int64_t layers,
                   std::int64_t heads) {
  return {
      .name = std::move(name), .width = width, .hidden = hidden, .layers = layers, .heads = heads};
}

ModelConfig gpt2(std::string name, std::int64_t width, std::int64_t layers, std::int64_t heads) {
  return {.name = std::move(name),
          .family = Family::kGpt2,
          .vocabulary = 50257,
          .context = 1024,
          .width = width,
          .hidden = 4 * width,
          .layers = layers,
          .heads = heads};
}

ModelConfig halves(std::string name, Family family, std::int64_t width, std::int64_t hidden,
                   std::int64_t layers, std::int64_t heads, std::int64_t key_heads) {
  return {.name = std::move(name),
          .family = family,
          .width = width,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .key_heads = key_heads};
}

// Sizes as the models were published; contexts as their config.json have them.
void add_published(std::vector<ModelConfig>& out) {
  ModelConfig llama3 = halves("llama3-8B", Family::kLlama, 4096, 14336, 32, 32, 8);
  llama3.vocabulary = 128256;
  llama3.context = 8192;
  llama3.rope_theta = 5e5;
  out.push_back(llama3);
  ModelConfig llama32 = halves("llama3.2-1B", Family::kLlama, 2048, 8192, 16, 32, 8);
  llama32.vocabulary = 128256;
  llama32.context = 131072;
  llama32.rope_theta = 5e5;
  llama32.tied = true;
  llama32.rope_scaling = {.factor = 32, .low = 1, .high = 4, .original = 8192};
  out.push_back(llama32);
  ModelConfig qwen2 = halves("qwen2.5-0.5B", Family::kQwen2, 896, 4864, 24, 14, 2);
  qwen2.vocabulary = 151936;
  qwen2.context = 32768;
  qwen2.rope_theta = 1e6;
  qwen2.norm_epsilon = 1e-6;
  qwen2.tied = true;
  out.push_back(qwen2);
  ModelConfig qwen3 = halves("qwen3-0.6B", Family::kQwen3, 1024, 3072, 28, 16, 8);
  qwen3.vocabulary = 151936;
  qwen3.context = 40960;
  qwen3.rope_theta = 1e6;
  qwen3.norm_epsilon = 1e-6;
  qwen3.head_size = 128;
  qwen3.tied = true;
  out.push_back(qwen3);
  ModelConfig smollm2 = halves("smollm2-135M", Family::kLlama, 576, 1536, 30, 9, 3);
  smollm2.vocabulary = 49152;
  smollm2.context = 8192;
  smollm2.rope_theta = 1e5;
  smollm2.tied = true;
  out.push_back(smollm2);
  ModelConfig mistral = halves("mistral-7B-v0.1", Family::kMistral, 4096, 14336, 32, 32, 8);
  mistral.vocabulary = 32000;
  mistral.context = 32768;
  mistral.window = 4096;
  out.push_back(mistral);
  ModelConfig gemma2 = halves("gemma2-2B", Family::kGemma2, 2304, 9216, 26, 8, 4);
  gemma2.vocabulary = 256000;
  gemma2.context = 8192;
  gemma2.norm_epsilon = 1e-6;
  gemma2.head_size = 256;
  gemma2.tied = true;
  gemma2.window = 4096;
  gemma2.window_every = 2;
  gemma2.attention_softcap = 50;
  gemma2.logits_softcap = 30;
  out.push_back(gemma2);
}

std::vector<ModelConfig> make_named_models() {
  std::vector<ModelConfig> out;
  ModelConfig tiny = course("tiny", 128, 344, 4, 4);
  tiny.vocabulary = 256;
  tiny.context = 64;
  out.push_back(tiny);
  out.push_back(course("small", 768, 3072, 12, 12));
  out.push_back(course("medium", 1024, 4096, 24, 16));
  out.push_back(course("large", 1280, 5120, 36, 20));
  out.push_back(course("xl-2025", 1600, 6400, 48, 25));
  out.push_back(course("xl-2026", 2560, 10240, 32, 32));
  out.push_back(course("2.7B", 2560, 10240, 32, 32));
  out.push_back(course("10B", 4608, 12288, 50, 36));
  ModelConfig notebook = course("notebook", 512, 2048, 6, 8);
  notebook.vocabulary = 50000;
  notebook.context = 128;
  out.push_back(notebook);
  out.push_back(course("course-medium", 768, 3072, 6, 12));
  out.push_back(gpt2("gpt2", 768, 12, 12));
  out.push_back(gpt2("gpt2-medium", 1024, 24, 16));
  out.push_back(gpt2("gpt2-large", 1280, 36, 20));
  out.push_back(gpt2("gpt2-xl", 1600, 48, 25));
  add_published(out);
  return out;
}

struct SizeKey {
  const char* name;
  std::int64_t ModelConfig::*field;
  std::int64_t least = 1;
};
struct RealKey {
  const char* name;
  double ModelConfig::*field;
};
// Those that every file has, and those that it has where they are not the usual ones.
constexpr SizeKey kSizes[] = {
    {"vocabulary", &ModelConfig::vocabulary}, {"context", &ModelConfig::context},
    {"width", &ModelConfig::width},           {"hidden", &ModelConfig::hidden},
    {"layers", &ModelConfig::layers},         {"heads", &ModelConfig::heads}};
constexpr RealKey kReals[] = {{"dropout", &ModelConfig::dropout},
                              {"rope_theta", &ModelConfig::rope_theta},
                              {"norm_epsilon", &ModelConfig::norm_epsilon}};
constexpr SizeKey kMoreSizes[] = {{"key_heads", &ModelConfig::key_heads, 0},
                                  {"head_size", &ModelConfig::head_size, 0},
                                  {"window", &ModelConfig::window, 0},
                                  {"window_every", &ModelConfig::window_every}};
constexpr RealKey kMoreReals[] = {{"score_size", &ModelConfig::score_size},
                                  {"attention_softcap", &ModelConfig::attention_softcap},
                                  {"logits_softcap", &ModelConfig::logits_softcap}};
constexpr const char* kScaling = "rope_scaling";

std::vector<std::string> known_keys() {
  std::vector<std::string> out = {"model", "family"};
  for (const SizeKey& key : kSizes) out.push_back(key.name);
  for (const RealKey& key : kReals) out.push_back(key.name);
  for (const SizeKey& key : kMoreSizes) out.push_back(key.name);
  out.push_back("tied");
  for (const RealKey& key : kMoreReals) out.push_back(key.name);
  out.push_back(kScaling);
  return out;
}

Status bad_value(std::string_view source, const std::string& key, const nlohmann::json& got,
                 std::string expected) {
  return Status::invalid(
      {fmt::format("{}: {}", source, key), std::string(got.type_name()), std::move(expected), ""});
}

Status read_scaling(const nlohmann::json& value, std::string_view source, RopeScaling& out) {
  if (!value.is_object()) return bad_value(source, kScaling, value, "an object");
  const std::pair<const char*, double*> reals[] = {
      {"factor", &out.factor}, {"low", &out.low}, {"high", &out.high}};
  for (const auto& [key, number] : value.items()) {
    const std::string at = fmt::format("{}.{}", kScaling, key);
    if (key == "original") {
      if (!number.is_number_integer()) return bad_value(source, at, number, "a whole number");
      out.original = number.get<std::int64_t>();
      continue;
    }
    const auto found = std::ranges::find(reals, key, [](const auto& each) { return each.first; });
    if (found == std::end(reals)) {
      return unknown_name({fmt::format("{}: key", source),
                           at,
                           {"rope_scaling.factor", "rope_scaling.low", "rope_scaling.high",
                            "rope_scaling.original"}});
    }
    if (!number.is_number()) return bad_value(source, at, number, "a number");
    *found->second = number.get<double>();
  }
  return {};
}

Status read_field(const std::string& key, const nlohmann::json& value, std::string_view source,
                  ModelConfig& out) {
  for (const auto keys : {std::span<const SizeKey>(kSizes), std::span<const SizeKey>(kMoreSizes)}) {
    for (const SizeKey& size : keys) {
      if (key != size.name) continue;
      if (!value.is_number_integer()) return bad_value(source, key, value, "a whole number");
      out.*size.field = value.get<std::int64_t>();
      return {};
    }
  }
  for (const auto keys : {std::span<const RealKey>(kReals), std::span<const RealKey>(kMoreReals)}) {
    for (const RealKey& real : keys) {
      if (key != real.name) continue;
      if (!value.is_number()) return bad_value(source, key, value, "a number");
      out.*real.field = value.get<double>();
      return {};
    }
  }
  if (key == "model") return {};
  if (key == "tied") {
    if (!value.is_boolean()) return bad_value(source, key, value, "true or false");
    out.tied = value.get<bool>();
    return {};
  }
  if (key == kScaling) return read_scaling(value, source, out.rope_scaling);
  if (key == "family") {
    std::vector<std::string> words;
    for (const Family family : all_families()) {
      if (value == to_string(family)) {
        out.family = family;
        return {};
      }
      words.push_back(fmt::format("\"{}\"", to_string(family)));
    }
    const std::string last = words.back();
    words.pop_back();
    return bad_value(source, key, value, fmt::format("{} or {}", fmt::join(words, ", "), last));
  }
  return unknown_name({fmt::format("{}: key", source), key, known_keys()});
}

}  // namespace

namespace {

struct FamilyRow {
  const char* name;
  FamilyTraits traits;
};
const FamilyRow& row_of(Family family) noexcept {
  static const FamilyRow kRows[] = {{"course", {.positions = PositionKind::kRopePairs}},
                                    {"gpt2",
                                     {.positions = PositionKind::kLearned,
                                      .mlp = MlpKind::kGelu,
                                      .layer_norm = true,
                                      .biases = true,
                                      .qkv_biases = true}},
                                    {"llama", {}},
                                    {"mistral", {}},
                                    {"qwen2", {.qkv_biases = true}},
                                    {"qwen3", {.qk_norm = true}},
                                    {"gemma2",
                                     {.mlp = MlpKind::kGeGlu,
                                      .one_plus_weight = true,
                                      .norm_after = true,
                                      .scaled_embedding = true}}};
  return kRows[static_cast<std::size_t>(family)];
}

}  // namespace

const char* to_string(Family family) noexcept {
  return row_of(family).name;
}

const FamilyTraits& traits_of(Family family) noexcept {
  return row_of(family).traits;
}

std::span<const Family> all_families() {
  using enum Family;
  static constexpr Family kAll[] = {kCourse, kGpt2, kLlama, kMistral, kQwen2, kQwen3, kGemma2};
  return kAll;
}

std::string ModelConfig::to_json() const {
  static const ModelConfig kUsual;
  nlohmann::ordered_json out;
  out["family"] = to_string(family);
  for (const SizeKey& key : kSizes) out[key.name] = this->*key.field;
  for (const RealKey& key : kReals) out[key.name] = this->*key.field;
  for (const SizeKey& key : kMoreSizes) {
    if (this->*key.field != kUsual.*key.field) out[key.name] = this->*key.field;
  }
  if (tied) out["tied"] = tied;
  for (const RealKey& key : kMoreReals) {
    if (this->*key.field != kUsual.*key.field) out[key.name] = this->*key.field;
  }
  if (rope_scaling != kUsual.rope_scaling) {
    out[kScaling] = {{"factor", rope_scaling.factor},
                     {"low", rope_scaling.low},
                     {"high", rope_scaling.high},
                     {"original", rope_scaling.original}};
  }
  return base::json_text(out);
}

std::span<const ModelConfig> named_models() {
  static const std::vector<ModelConfig> kModels = make_named_models();
  return kModels;
}

Result<ModelConfig> find_model(std::string_view name) {
  std::vector<std::string> names;
  for (const ModelConfig& model : named_models()) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  if (name == "xl") {
    return Status::invalid({"size", "xl",
                            "xl-2025 (1600 wide, 48 layers) or xl-2026 (2560 wide, "
                            "32 layers)",
                            "the course's editions mean different models by xl: name one"});
  }
  return unknown_name({"size", std::string(name), names});
}

std::vector<std::string> model_keys() {
  return known_keys();
}

Result<ModelConfig> parse_model(std::string_view json, std::string_view source) {
  const auto parsed = base::read_json(json);
  if (!parsed.is_object()) {
    return Status::invalid({std::string(source), parsed.is_discarded() ? "no JSON" : "no object",
                            "a JSON object such as {\"width\": 768, \"layers\": 12}", ""});
  }
  ModelConfig out;
  if (const auto base = parsed.find("model"); base != parsed.end()) {
    if (!base->is_string()) return bad_value(source, "model", *base, "a name such as \"small\"");
    Result<ModelConfig> named = find_model(base->get<std::string>());
    if (!named.ok()) return named.status();
    out = *named;
  }
  for (const auto& [key, value] : parsed.items()) {
    if (Status s = read_field(key, value, source, out); !s.ok()) return s;
  }
  if (Status s = validate(out); !s.ok()) return s;
  return out;
}

namespace {

Status check_heads(const ModelConfig& model) {
  if (model.head_size == 0 && model.width % model.heads != 0) {
    return Status::invalid({"heads", fmt::format("{}", model.heads),
                            fmt::format("a divisor of the width {}", model.width),
                            "every head takes an equal part of the width"});
  }
  if (model.heads % model.keys() != 0) {
    return Status::invalid({"key_heads", fmt::format("{}", model.keys()),
                            fmt::format("a divisor of the {} heads", model.heads),
                            "every head of k and v serves equally many of q"});
  }
  const FamilyTraits& traits = traits_of(model.family);
  if (traits.has_rope() && model.head_dim() % 2 != 0) {
    return Status::invalid({"heads", fmt::format("{}", model.heads),
                            fmt::format("an even number of elements a head; {} / {} is {}",
                                        model.width, model.heads, model.head_dim()),
                            "RoPE turns pairs of elements"});
  }
  constexpr std::int64_t kMostHead = 1024;
  if (model.head_size > kMostHead) {
    return Status::invalid({"head_size", fmt::format("{}", model.head_size),
                            fmt::format("0 (width / heads) to {}", kMostHead), ""});
  }
  return {};
}

// What other programs have no key for in a family, and what its names have no place for.
Status check_family(const ModelConfig& model) {
  using enum Family;
  const bool own = model.family == kCourse || model.family == kGpt2;
  const bool every = model.family == kQwen2 || model.family == kQwen3 || model.family == kGemma2;
  const bool capped = model.family == kGemma2;
  const struct {
    const char* name;
    bool there, fits;
    const char* families;
  } kOnly[] = {{"key_heads", model.key_heads != 0, !own, "llama, mistral, qwen2, qwen3 and gemma2"},
               {"head_size", model.head_size != 0, !own, "llama, mistral, qwen2, qwen3 and gemma2"},
               {"tied", model.tied, !own, "llama, mistral, qwen2, qwen3 and gemma2"},
               {"rope_scaling", model.rope_scaling != RopeScaling{}, !own,
                "llama, mistral, qwen2, qwen3 and gemma2"},
               {"window", model.window != 0, every || model.family == kMistral,
                "mistral, qwen2, qwen3 and gemma2"},
               {"window_every", model.window_every != 1, every, "qwen2, qwen3 and gemma2"},
               {"score_size", model.score_size != 0, capped, "gemma2"},
               {"attention_softcap", model.attention_softcap != 0, capped, "gemma2"},
               {"logits_softcap", model.logits_softcap != 0, capped, "gemma2"}};
  for (const auto& only : kOnly) {
    if (!only.there || only.fits) continue;
    return Status::invalid({only.name, fmt::format("{} has it", to_string(model.family)),
                            fmt::format("a model of {}", only.families), "another \"family\""});
  }
  return {};
}

Status check_reals(const ModelConfig& model) {
  if (!(model.dropout >= 0 && model.dropout < 1)) {
    return Status::invalid({"dropout", fmt::format("{}", model.dropout), "0 to below 1", ""});
  }
  const struct {
    const char* name;
    double value;
    bool or_zero;
  } kAbove[] = {{"rope_theta", model.rope_theta, false},
                {"norm_epsilon", model.norm_epsilon, false},
                {"score_size", model.score_size, true},
                {"attention_softcap", model.attention_softcap, true},
                {"logits_softcap", model.logits_softcap, true},
                {"rope_scaling.factor", model.rope_scaling.factor, false},
                {"rope_scaling.low", model.rope_scaling.low, false},
                {"rope_scaling.high", model.rope_scaling.high, false},
                {"rope_scaling.original", static_cast<double>(model.rope_scaling.original), false}};
  for (const auto& each : kAbove) {
    const bool fits = each.value > 0 || (each.or_zero && each.value == 0);
    if (fits && std::isfinite(each.value)) continue;
    return Status::invalid({each.name, fmt::format("{}", each.value),
                            each.or_zero ? "0 (none) or above" : "above 0", ""});
  }
  if (model.rope_scaling.factor != 1 && model.rope_scaling.high <= model.rope_scaling.low) {
    return Status::invalid({"rope_scaling.high", fmt::format("{}", model.rope_scaling.high),
                            fmt::format("above low, {}", model.rope_scaling.low), ""});
  }
  return {};
}

}  // namespace

Status validate(const ModelConfig& model) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  for (const auto keys : {std::span<const SizeKey>(kSizes), std::span<const SizeKey>(kMoreSizes)}) {
    for (const SizeKey& key : keys) {
      const std::int64_t value = model.*key.field;
      if (value >= key.least && value < kMost) continue;
      return Status::invalid(
          {key.name, fmt::format("{}", value), fmt::format("{} to 2^31 - 1", key.least), ""});
    }
  }
  if (model.layers > kMostLayers) {
    return Status::invalid({"layers", fmt::format("{}", model.layers),
                            fmt::format("at most {}", kMostLayers),
                            "a step is a list of every layer's operations"});
  }
  if (Status s = check_heads(model); !s.ok()) return s;
  if (Status s = check_reals(model); !s.ok()) return s;
  return check_family(model);
}

std::int64_t parameter_count(const ModelConfig& m) {
  const FamilyTraits& t = traits_of(m.family);
  const std::int64_t qkv = m.q_width() + 2 * m.kv_width();
  const std::int64_t attention = m.width * (qkv + m.q_width()) + (t.qkv_biases ? qkv : 0) +
                                 (t.biases ? m.width : 0) + (t.qk_norm ? 2 * m.head_dim() : 0);
  const std::int64_t mlp =
      (t.gated() ? 3 : 2) * m.width * m.hidden + (t.biases ? m.hidden + m.width : 0);
  const std::int64_t norm = m.width * (t.layer_norm ? 2 : 1);
  const std::int64_t positions = t.has_rope() ? 0 : m.context * m.width;
  const std::int64_t tables = (m.ties_head() ? 1 : 2) * m.vocabulary * m.width + positions;
  return m.layers * (attention + mlp + (t.norm_after ? 4 : 2) * norm) + tables + norm;
}

}  // namespace flashlab::train
