#include "train/weights/hugging_face.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/json.h"

namespace flashlab::train {
namespace {

using Json = nlohmann::ordered_json;

/// A key whose value decides what is computed, the values that are computed here, and what the
/// library takes where it is missing.
struct Fixed {
  const char* key;
  std::vector<Json> values;
  Json missing;
};

struct Size {
  const char* key;
  std::int64_t ModelConfig::*field;
};

/// Names here and there, "*" for a layer's number.
struct Renamed {
  std::string_view here, there;
  bool halves = false;
};

struct Architecture {
  Family family;
  const char* type;        ///< "model_type"
  const char* class_name;  ///< of its head for text
  const char* prefix;      ///< of all tensors but the head's, as the library writes them
  std::vector<Size> sizes;
  const char* epsilon;
  std::vector<Fixed> fixed;
  std::vector<Renamed> names;  ///< none: the same ones
  bool tied;
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kAll = {
      {.family = Family::kGpt2,
       .type = "gpt2",
       .class_name = "GPT2LMHeadModel",
       .prefix = "transformer.",
       .sizes = {{"vocab_size", &ModelConfig::vocabulary},
                 {"n_positions", &ModelConfig::context},
                 {"n_embd", &ModelConfig::width},
                 {"n_layer", &ModelConfig::layers},
                 {"n_head", &ModelConfig::heads}},
       .epsilon = "layer_norm_epsilon",
       .fixed = {{"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new"},
                 {"scale_attn_weights", {true}, true},
                 {"scale_attn_by_inverse_layer_idx", {false}, false},
                 {"add_cross_attention", {false}, false},
                 {"tie_word_embeddings", {true}, true},
                 {"quantization_config", {nullptr}, nullptr}},
       .names = {},
       .tied = true},
      {.family = Family::kCourse,
       .type = "llama",
       .class_name = "LlamaForCausalLM",
       .prefix = "model.",
       .sizes = {{"vocab_size", &ModelConfig::vocabulary},
                 {"max_position_embeddings", &ModelConfig::context},
                 {"hidden_size", &ModelConfig::width},
                 {"intermediate_size", &ModelConfig::hidden},
                 {"num_hidden_layers", &ModelConfig::layers},
                 {"num_attention_heads", &ModelConfig::heads}},
       .epsilon = "rms_norm_eps",
       .fixed = {{"hidden_act", {"silu"}, "silu"},
                 {"attention_bias", {false}, false},
                 {"mlp_bias", {false}, false},
                 {"tie_word_embeddings", {false}, false},
                 {"rope_scaling", {nullptr}, nullptr},
                 {"quantization_config", {nullptr}, nullptr}},
       .names = {{"token_embeddings.weight", "embed_tokens.weight"},
                 {"layers.*.ln1.weight", "layers.*.input_layernorm.weight"},
                 {"layers.*.attn.q_proj.weight", "layers.*.self_attn.q_proj.weight", true},
                 {"layers.*.attn.k_proj.weight", "layers.*.self_attn.k_proj.weight", true},
                 {"layers.*.attn.v_proj.weight", "layers.*.self_attn.v_proj.weight"},
                 {"layers.*.attn.output_proj.weight", "layers.*.self_attn.o_proj.weight"},
                 {"layers.*.ln2.weight", "layers.*.post_attention_layernorm.weight"},
                 {"layers.*.ffn.w1.weight", "layers.*.mlp.gate_proj.weight"},
                 {"layers.*.ffn.w2.weight", "layers.*.mlp.down_proj.weight"},
                 {"layers.*.ffn.w3.weight", "layers.*.mlp.up_proj.weight"},
                 {"ln_final.weight", "norm.weight"}},
       .tied = false}};
  return kAll;
}

const Architecture& architecture_of(const ModelConfig& model) {
  for (const Architecture& each : architectures()) {
    if (each.family == model.family) return each;
  }
  return architectures().front();
}

// The digits that stand for "*", or nothing where the name is none of the pattern's.
std::optional<std::string_view> match(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) {
    return name == pattern ? std::optional(std::string_view()) : std::nullopt;
  }
  const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) ||
      !name.ends_with(after)) {
    return std::nullopt;
  }
  name.remove_prefix(before.size());
  name.remove_suffix(after.size());
  return name.find_first_not_of("0123456789") == name.npos ? std::optional(name) : std::nullopt;
}

std::string with(std::string_view pattern, std::string_view digits) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return std::string(pattern);
  return fmt::format("{}{}{}", pattern.substr(0, star), digits, pattern.substr(star + 1));
}

constexpr std::string_view kHead = "lm_head.weight";

Status refused(std::string_view source, std::string_view key, const Json* got,
               std::string expected) {
  return Status::invalid({fmt::format("{}: {}", source, key),
                          got ? base::json_text(*got).substr(0, 80) : "nothing",
                          std::move(expected), ""});
}

// A whole number, or nothing: then `failed` says why.
std::optional<std::int64_t> whole_of(const Json& json, const char* key, std::string_view source,
                                     Status& failed) {
  const auto at = json.find(key);
  if (at != json.end() && at->is_number_integer()) return at->get<std::int64_t>();
  failed = refused(source, key, at == json.end() ? nullptr : &*at, "a whole number");
  return std::nullopt;
}

Status check_fixed(const Architecture& architecture, const Json& json, std::string_view source) {
  for (const Fixed& fixed : architecture.fixed) {
    const auto at = json.find(fixed.key);
    const Json& value = at == json.end() ? fixed.missing : *at;
    bool computed = false;
    for (const Json& known : fixed.values) computed = computed || value == known;
    if (computed) continue;
    std::vector<std::string> words;
    for (const Json& known : fixed.values) words.push_back(base::json_text(known));
    return refused(source, fixed.key, &value,
                   fmt::format("{}: this version computes nothing else of {}",
                               fmt::join(words, " or "), architecture.type));
  }
  return {};
}

Status read_gpt2(const Json& json, std::string_view source, ModelConfig& out) {
  const auto inner = json.find("n_inner");
  out.hidden = 4 * out.width;
  if (inner == json.end() || inner->is_null()) return {};
  if (!inner->is_number_integer()) {
    return refused(source, "n_inner", &*inner, "a whole number or null");
  }
  out.hidden = inner->get<std::int64_t>();
  return {};
}

// transformers 4 has "rope_theta", 5 has it in "rope_parameters".
Status read_llama(const Json& json, std::string_view source, ModelConfig& out) {
  const auto keys = json.find("num_key_value_heads");
  if (keys != json.end() && !keys->is_null() && *keys != out.heads) {
    return refused(
        source, "num_key_value_heads", &*keys,
        fmt::format("{}, as many as heads: this version groups none in training", out.heads));
  }
  const auto dim = json.find("head_dim");
  if (dim != json.end() && !dim->is_null() && out.heads > 0 && *dim != out.width / out.heads) {
    return refused(source, "head_dim", &*dim,
                   fmt::format("{}: hidden_size in equal parts", out.width / out.heads));
  }
  const auto rope = json.find("rope_parameters");
  const Json& holder = rope != json.end() && rope->is_object() ? *rope : json;
  const auto type = holder.find("rope_type");
  if (type != holder.end() && *type != "default") {
    return refused(source, "rope_parameters: rope_type", &*type, "\"default\"");
  }
  const auto theta = holder.find("rope_theta");
  if (theta == holder.end()) return {};
  if (!theta->is_number()) return refused(source, "rope_theta", &*theta, "a number");
  out.rope_theta = theta->get<double>();
  return {};
}

}  // namespace

FilePart file_part(Layout layout, const ModelConfig& model, const ParameterPart& part) {
  FilePart out = {.name = part.name, .transposed = part.transposed};
  if (part.name == "wpe.weight") out.rows = Rows::kPositions;
  for (const char* table : {"wte.weight", "token_embeddings.weight", "lm_head.weight"}) {
    if (part.name == table) out.rows = Rows::kVocabulary;
  }
  if (layout == Layout::kLlmc) out.transposed = false;
  if (layout != Layout::kHuggingFace) return out;
  for (const Renamed& renamed : architecture_of(model).names) {
    const auto digits = match(renamed.here, part.name);
    if (!digits) continue;
    out.name = with(renamed.there, *digits);
    if (renamed.halves) out.halves_of = model.head_dim();
    break;
  }
  return out;
}

std::string bare_name(Layout layout, std::string_view name) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"_orig_mod.", "module.", "transformer.",
                                                         "model."};
  bool found = layout == Layout::kHuggingFace;
  while (found) {
    found = false;
    for (const std::string_view prefix : kPrefixes) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      found = true;
    }
  }
  return std::string(name);
}

std::string full_name(const ModelConfig& model, const std::string& bare) {
  // GPT-2's own files have no prefix, and the library reads them so.
  const Architecture& architecture = architecture_of(model);
  return architecture.tied || bare == kHead ? bare : architecture.prefix + bare;
}

bool is_buffer(std::string_view bare) {
  return match("h.*.attn.bias", bare) || match("h.*.attn.masked_bias", bare) ||
         match("layers.*.self_attn.rotary_emb.inv_freq", bare) || bare == "rotary_emb.inv_freq";
}

std::optional<std::string> tied_to(const ModelConfig& model, std::string_view bare) {
  if (!architecture_of(model).tied || bare != kHead) return std::nullopt;
  return "wte.weight";
}

Result<ModelConfig> read_hugging_face_config(std::string_view text, std::string_view source) {
  const Json json = base::read_json<Json>(text);
  if (!json.is_object()) {
    return Status::invalid({std::string(source), json.is_discarded() ? "no JSON" : "no object",
                            "a config.json of Hugging Face", ""});
  }
  const Architecture* found = nullptr;
  std::vector<std::string> known;
  const auto type = json.find("model_type");
  for (const Architecture& each : architectures()) {
    if (type != json.end() && *type == each.type) found = &each;
    known.push_back(each.type);
  }
  if (!found) {
    return refused(source, "model_type", type == json.end() ? nullptr : &*type,
                   fmt::format("one of {}", fmt::join(known, ", ")));
  }
  ModelConfig out;
  out.family = found->family;
  Status failed;
  for (const Size& size : found->sizes) {
    const auto value = whole_of(json, size.key, source, failed);
    if (!value) return failed;
    out.*size.field = *value;
  }
  const auto epsilon = json.find(found->epsilon);
  if (epsilon == json.end() || !epsilon->is_number()) {
    return refused(source, found->epsilon, epsilon == json.end() ? nullptr : &*epsilon, "a number");
  }
  out.norm_epsilon = epsilon->get<double>();
  if (Status s = check_fixed(*found, json, source); !s.ok()) return s;
  const Status rest =
      found->family == Family::kGpt2 ? read_gpt2(json, source, out) : read_llama(json, source, out);
  if (!rest.ok()) return rest;
  if (Status s = validate(out); !s.ok()) {
    ErrorDetail detail = s.detail();
    detail.argument = fmt::format("{}: {}", source, detail.argument);
    return Status::invalid(std::move(detail));
  }
  return out;
}

namespace {

std::string config_json(const ModelConfig& model, Element element,
                        std::optional<std::int32_t> end_of_text) {
  const Architecture& architecture = architecture_of(model);
  Json out;
  out["architectures"] = {architecture.class_name};
  out["model_type"] = architecture.type;
  constexpr std::array<const char*, 4> kTypes = {"float64", "float32", "float16", "bfloat16"};
  out["dtype"] = kTypes[static_cast<std::size_t>(element)];
  for (const Size& size : architecture.sizes) out[size.key] = model.*size.field;
  out[architecture.epsilon] = model.norm_epsilon;
  for (const Fixed& fixed : architecture.fixed) {
    if (!fixed.missing.is_null()) out[fixed.key] = fixed.missing;
  }
  if (model.family == Family::kGpt2) {
    out["n_inner"] = model.hidden;
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) out[key] = model.dropout;
  } else {
    out["num_key_value_heads"] = model.heads;
    out["head_dim"] = model.head_dim();
    out["rope_parameters"] = {{"rope_theta", model.rope_theta}, {"rope_type", "default"}};
    // transformers 4 reads it here.
    out["rope_theta"] = model.rope_theta;
  }
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    out[key] = end_of_text ? Json(*end_of_text) : Json(nullptr);
  }
  return base::json_text(out, 2) + "\n";
}

}  // namespace

std::map<std::string, std::string> hugging_face_files(const ModelConfig& model, Element element,
                                                      const Tokenizer& tokenizer) {
  const auto end = tokenizer.end_of_text();
  std::map<std::string, std::string> out = {{"config.json", config_json(model, element, end)}};
  const auto json = tokenizer.to_hugging_face();
  if (!json) return out;
  out["tokenizer.json"] = *json;
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", model.context},
                 {"clean_up_tokenization_spaces", false}};
  if (end) config["bos_token"] = config["eos_token"] = "<|endoftext|>";
  out["tokenizer_config.json"] = base::json_text(config, 2) + "\n";
  return out;
}

}  // namespace flashlab::train
