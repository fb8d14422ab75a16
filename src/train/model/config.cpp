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
  return out;
}

const std::vector<std::string> kKeys = {"model",   "family",     "vocabulary",  "context",
                                        "width",   "hidden",     "layers",      "heads",
                                        "dropout", "rope_theta", "norm_epsilon"};

Status bad_value(std::string_view source, const std::string& key, const nlohmann::json& got,
                 std::string expected) {
  return Status::invalid(
      {fmt::format("{}: {}", source, key), std::string(got.type_name()), std::move(expected), ""});
}

Status read_field(const std::string& key, const nlohmann::json& value, std::string_view source,
                  ModelConfig& out) {
  const std::pair<const char*, std::int64_t*> sizes[] = {
      {"vocabulary", &out.vocabulary}, {"context", &out.context}, {"width", &out.width},
      {"hidden", &out.hidden},         {"layers", &out.layers},   {"heads", &out.heads}};
  for (const auto& [name, field] : sizes) {
    if (key != name) continue;
    if (!value.is_number_integer()) return bad_value(source, key, value, "a whole number");
    *field = value.get<std::int64_t>();
    return {};
  }
  const std::pair<const char*, double*> reals[] = {{"dropout", &out.dropout},
                                                   {"rope_theta", &out.rope_theta},
                                                   {"norm_epsilon", &out.norm_epsilon}};
  for (const auto& [name, field] : reals) {
    if (key != name) continue;
    if (!value.is_number()) return bad_value(source, key, value, "a number");
    *field = value.get<double>();
    return {};
  }
  if (key == "model") return {};
  if (key == "family") {
    if (value == "course" || value == "gpt2") {
      out.family = value == "gpt2" ? Family::kGpt2 : Family::kCourse;
      return {};
    }
    return bad_value(source, key, value, "\"course\" or \"gpt2\"");
  }
  return unknown_name({fmt::format("{}: key", source), key, kKeys});
}

}  // namespace

const char* to_string(Family family) noexcept {
  return family == Family::kGpt2 ? "gpt2" : "course";
}

std::string ModelConfig::to_json() const {
  nlohmann::ordered_json out;
  out["family"] = to_string(family);
  out["vocabulary"] = vocabulary;
  out["context"] = context;
  out["width"] = width;
  out["hidden"] = hidden;
  out["layers"] = layers;
  out["heads"] = heads;
  out["dropout"] = dropout;
  out["rope_theta"] = rope_theta;
  out["norm_epsilon"] = norm_epsilon;
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

Status validate(const ModelConfig& model) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"vocabulary", model.vocabulary}, {"context", model.context}, {"width", model.width},
      {"hidden", model.hidden},         {"layers", model.layers},   {"heads", model.heads}};
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value >= kMost) {
      return Status::invalid({name, fmt::format("{}", value), "1 to 2^31 - 1", ""});
    }
  }
  if (model.layers > kMostLayers) {
    return Status::invalid({"layers", fmt::format("{}", model.layers),
                            fmt::format("at most {}", kMostLayers),
                            "a step is a list of every layer's operations"});
  }
  if (model.width % model.heads != 0) {
    return Status::invalid({"heads", fmt::format("{}", model.heads),
                            fmt::format("a divisor of the width {}", model.width),
                            "every head takes an equal part of the width"});
  }
  if (model.family == Family::kCourse && model.head_dim() % 2 != 0) {
    return Status::invalid({"heads", fmt::format("{}", model.heads),
                            fmt::format("an even number of elements a head; {} / {} is {}",
                                        model.width, model.heads, model.head_dim()),
                            "RoPE turns pairs of elements"});
  }
  if (!(model.dropout >= 0 && model.dropout < 1)) {
    return Status::invalid({"dropout", fmt::format("{}", model.dropout), "0 to below 1", ""});
  }
  if (!(model.rope_theta > 0) || !std::isfinite(model.rope_theta)) {
    return Status::invalid({"rope_theta", fmt::format("{}", model.rope_theta), "above 0", ""});
  }
  if (!(model.norm_epsilon > 0) || !std::isfinite(model.norm_epsilon)) {
    return Status::invalid({"norm_epsilon", fmt::format("{}", model.norm_epsilon), "above 0", ""});
  }
  return {};
}

std::int64_t parameter_count(const ModelConfig& m) {
  const bool gpt2 = m.family == Family::kGpt2;
  const std::int64_t attention = 4 * m.width * m.width + (gpt2 ? 4 * m.width : 0);
  const std::int64_t mlp =
      gpt2 ? 2 * m.width * m.hidden + m.hidden + m.width : 3 * m.width * m.hidden;
  const std::int64_t norm = m.width * (gpt2 ? 2 : 1);
  const std::int64_t outside =
      m.vocabulary * m.width + (gpt2 ? m.context : m.vocabulary) * m.width + norm;
  return m.layers * (attention + mlp + 2 * norm) + outside;
}

}  // namespace flashlab::train
