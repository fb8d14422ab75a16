#include "train/weights/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
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
  std::vector<Renamed> names{};  ///< none: the same ones
  bool tied = false;             ///< where the file says nothing
  bool only_written = false;     ///< another entry reads the type
};

const std::vector<Size>& usual_sizes() {
  static const std::vector<Size> kSizes = {{"vocab_size", &ModelConfig::vocabulary},
                                           {"max_position_embeddings", &ModelConfig::context},
                                           {"hidden_size", &ModelConfig::width},
                                           {"intermediate_size", &ModelConfig::hidden},
                                           {"num_hidden_layers", &ModelConfig::layers},
                                           {"num_attention_heads", &ModelConfig::heads}};
  return kSizes;
}

Architecture halves_of(Family family, const char* type, const char* class_name,
                       std::vector<Fixed> fixed, bool tied = false) {
  fixed.push_back({"quantization_config", {nullptr}, nullptr});
  return {.family = family,
          .type = type,
          .class_name = class_name,
          .prefix = "model.",
          .sizes = usual_sizes(),
          .epsilon = "rms_norm_eps",
          .fixed = std::move(fixed),
          .tied = tied};
}

std::vector<Architecture> make_architectures() {
  const Fixed silu = {"hidden_act", {"silu"}, "silu"};
  const Fixed no_bias = {"attention_bias", {false}, false};
  const Fixed no_mlp_bias = {"mlp_bias", {false}, false};
  std::vector<Architecture> out = {
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
       .tied = true},
      halves_of(Family::kLlama, "llama", "LlamaForCausalLM", {silu, no_bias, no_mlp_bias}),
      halves_of(Family::kMistral, "mistral", "MistralForCausalLM", {silu}),
      halves_of(Family::kQwen2, "qwen2", "Qwen2ForCausalLM", {silu}),
      halves_of(Family::kQwen3, "qwen3", "Qwen3ForCausalLM", {silu, no_bias}),
      halves_of(Family::kGemma2, "gemma2", "Gemma2ForCausalLM",
                {{"hidden_activation", {"gelu_pytorch_tanh"}, "gelu_pytorch_tanh"}, no_bias},
                true)};
  Architecture course =
      halves_of(Family::kCourse, "llama", "LlamaForCausalLM", {silu, no_bias, no_mlp_bias});
  course.only_written = true;
  course.names = {{"token_embeddings.weight", "embed_tokens.weight"},
                  {"layers.*.ln1.weight", "layers.*.input_layernorm.weight"},
                  {"layers.*.attn.q_proj.weight", "layers.*.self_attn.q_proj.weight", true},
                  {"layers.*.attn.k_proj.weight", "layers.*.self_attn.k_proj.weight", true},
                  {"layers.*.attn.v_proj.weight", "layers.*.self_attn.v_proj.weight"},
                  {"layers.*.attn.output_proj.weight", "layers.*.self_attn.o_proj.weight"},
                  {"layers.*.ln2.weight", "layers.*.post_attention_layernorm.weight"},
                  {"layers.*.ffn.w1.weight", "layers.*.mlp.gate_proj.weight"},
                  {"layers.*.ffn.w2.weight", "layers.*.mlp.down_proj.weight"},
                  {"layers.*.ffn.w3.weight", "layers.*.mlp.up_proj.weight"},
                  {"ln_final.weight", "norm.weight"}};
  out.push_back(std::move(course));
  return out;
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> kAll = make_architectures();
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

// A number above 0, or nothing where it is missing or null.
Status read_real(const Json& json, const char* key, std::string_view source, double& out) {
  const auto at = json.find(key);
  if (at == json.end() || at->is_null()) return {};
  if (!at->is_number()) return refused(source, key, &*at, "a number or null");
  out = at->get<double>();
  return {};
}

Status read_count(const Json& json, const char* key, std::string_view source, std::int64_t& out) {
  const auto at = json.find(key);
  if (at == json.end() || at->is_null()) return {};
  if (!at->is_number_integer()) return refused(source, key, &*at, "a whole number or null");
  out = at->get<std::int64_t>();
  return {};
}

// transformers 4 has "rope_theta" and "rope_scaling", 5 has both in "rope_parameters".
Status read_rope(const Json& json, std::string_view source, ModelConfig& out) {
  const auto rope = json.find("rope_parameters");
  const bool together = rope != json.end() && rope->is_object();
  if (Status s = read_real(together ? *rope : json, "rope_theta", source, out.rope_theta);
      !s.ok()) {
    return s;
  }
  const auto old = json.find("rope_scaling");
  const bool scaled = together || (old != json.end() && old->is_object());
  if (!scaled) {
    if (old == json.end() || old->is_null()) return {};
    return refused(source, "rope_scaling", &*old, "an object or null");
  }
  const Json& scaling = together ? *rope : *old;
  const std::string where = together ? "rope_parameters" : "rope_scaling";
  auto type = scaling.find("rope_type");
  if (type == scaling.end()) type = scaling.find("type");
  if (type == scaling.end() || *type == "default") return {};
  if (*type != "llama3") {
    return refused(source, where + ": rope_type", &*type, "\"default\" or \"llama3\"");
  }
  const std::pair<const char*, double*> reals[] = {{"factor", &out.rope_scaling.factor},
                                                   {"low_freq_factor", &out.rope_scaling.low},
                                                   {"high_freq_factor", &out.rope_scaling.high}};
  for (const auto& [key, number] : reals) {
    if (Status s = read_real(scaling, key, source, *number); !s.ok()) return s;
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  out.rope_scaling.original = out.context;
  return read_count(scaling, kOriginal, source, out.rope_scaling.original);
}

// Which layers have a window: those that "layer_types" names, else as the library has it.
Status read_windows(const Json& json, std::string_view source, ModelConfig& out) {
  if (out.family == Family::kLlama) return {};
  const auto used = json.find("use_sliding_window");
  const bool qwen = out.family == Family::kQwen2 || out.family == Family::kQwen3;
  std::int64_t window = out.family == Family::kMistral || out.family == Family::kGemma2 ? 4096 : 0;
  const auto named = json.find("sliding_window");
  if (named != json.end() && named->is_null()) window = 0;
  if (Status s = read_count(json, "sliding_window", source, window); !s.ok()) return s;
  if (qwen && (used == json.end() || *used != true)) window = 0;
  out.window_every = out.family == Family::kGemma2 ? 2 : 1;
  std::vector<bool> slides(static_cast<std::size_t>(out.layers));
  std::int64_t full = qwen ? 28 : 0;
  if (Status s = read_count(json, "max_window_layers", source, full); !s.ok()) return s;
  for (std::size_t i = 0; i < slides.size(); ++i) {
    const auto layer = static_cast<std::int64_t>(i);
    slides[i] = qwen ? layer >= full : layer % out.window_every == 0;
  }
  const auto types = json.find("layer_types");
  if (types != json.end() && types->is_array()) {
    if (types->size() != slides.size()) {
      return refused(source, "layer_types", &*types, fmt::format("{} of them", slides.size()));
    }
    for (std::size_t i = 0; i < slides.size(); ++i) {
      slides[i] = (*types)[i] == "sliding_attention";
      if (slides[i] || (*types)[i] == "full_attention") continue;
      return refused(source, "layer_types", &(*types)[i],
                     "\"full_attention\" or \"sliding_attention\"");
    }
  }
  const auto first = std::ranges::find(slides, true);
  if (window == 0 || first == slides.end()) {
    out.window_every = 1;
    return {};
  }
  out.window = window;
  const auto next = std::find(first + 1, slides.end(), true);
  out.window_every = next == slides.end() ? out.layers : next - first;
  for (std::size_t i = 0; i < slides.size(); ++i) {
    const bool expected = static_cast<std::int64_t>(i) % out.window_every == 0;
    if (slides[i] == expected) continue;
    return refused(source, types == json.end() ? "max_window_layers" : "layer_types",
                   types == json.end() ? nullptr : &*types,
                   "windows in every n-th layer from the first one on");
  }
  return {};
}

Status read_halves(const Json& json, std::string_view source, ModelConfig& out) {
  const auto tied = json.find("tie_word_embeddings");
  out.tied = architecture_of(out).tied;
  if (tied != json.end() && !tied->is_boolean()) {
    return refused(source, "tie_word_embeddings", &*tied, "true or false");
  }
  if (tied != json.end()) out.tied = tied->get<bool>();
  Status failed = read_count(json, "num_key_value_heads", source, out.key_heads);
  if (failed.ok()) failed = read_count(json, "head_dim", source, out.head_size);
  if (!failed.ok()) return failed;
  // The library's own defaults of these are a model's: nobody means them without a word.
  if (out.family != Family::kLlama && !json.contains("num_key_value_heads")) {
    return refused(source, "num_key_value_heads", nullptr, "a whole number or null");
  }
  const bool own_dim = out.family == Family::kQwen3 || out.family == Family::kGemma2;
  if (own_dim && !json.contains("head_dim")) {
    return refused(source, "head_dim", nullptr, "a whole number or null");
  }
  if (out.key_heads == out.heads) out.key_heads = 0;
  if (out.heads > 0 && out.head_size * out.heads == out.width) out.head_size = 0;
  if (Status s = read_rope(json, source, out); !s.ok()) return s;
  if (Status s = read_windows(json, source, out); !s.ok()) return s;
  if (out.family != Family::kGemma2) return {};
  const std::pair<const char*, double*> reals[] = {
      {"query_pre_attn_scalar", &out.score_size},
      {"attn_logit_softcapping", &out.attention_softcap},
      {"final_logit_softcapping", &out.logits_softcap}};
  for (const auto& [key, number] : reals) {
    if (!json.contains(key)) return refused(source, key, nullptr, "a number or null");
    if (Status s = read_real(json, key, source, *number); !s.ok()) return s;
  }
  if (out.heads > 0 && out.score_size == static_cast<double>(out.head_dim())) out.score_size = 0;
  return {};
}

}  // namespace

FilePart file_part(Layout layout, const ModelConfig& model, const ParameterPart& part) {
  FilePart out = {.name = part.name, .transposed = part.transposed};
  if (part.name == "wpe.weight") out.rows = Rows::kPositions;
  for (const char* table :
       {"wte.weight", "token_embeddings.weight", "model.embed_tokens.weight", "lm_head.weight"}) {
    if (part.name == table) out.rows = Rows::kVocabulary;
  }
  if (layout == Layout::kLlmc) out.transposed = false;
  if (layout != Layout::kHuggingFace) return out;
  out.name = bare_name(layout, part.name);
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
  const bool as_is = model.family == Family::kGpt2 || bare == kHead;
  return as_is ? bare : architecture.prefix + bare;
}

bool is_buffer(std::string_view bare) {
  return match("h.*.attn.bias", bare) || match("h.*.attn.masked_bias", bare) ||
         match("layers.*.self_attn.rotary_emb.inv_freq", bare) || bare == "rotary_emb.inv_freq";
}

std::optional<std::string> tied_to(const ModelConfig& model, std::string_view bare) {
  if (!model.ties_head() || bare != kHead) return std::nullopt;
  return model.family == Family::kGpt2 ? "wte.weight" : "embed_tokens.weight";
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
    if (each.only_written) continue;
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
  const Status rest = found->family == Family::kGpt2 ? read_gpt2(json, source, out)
                                                     : read_halves(json, source, out);
  if (!rest.ok()) return rest;
  if (Status s = validate(out); !s.ok()) {
    ErrorDetail detail = s.detail();
    detail.argument = fmt::format("{}: {}", source, detail.argument);
    return Status::invalid(std::move(detail));
  }
  return out;
}

namespace {

void write_halves(const ModelConfig& model, Json& out) {
  out["num_key_value_heads"] = model.keys();
  out["head_dim"] = model.head_dim();
  out["tie_word_embeddings"] = model.tied;
  Json rope = {{"rope_theta", model.rope_theta}, {"rope_type", "default"}};
  if (model.rope_scaling.factor != 1) {
    rope = {{"rope_theta", model.rope_theta},
            {"rope_type", "llama3"},
            {"factor", model.rope_scaling.factor},
            {"low_freq_factor", model.rope_scaling.low},
            {"high_freq_factor", model.rope_scaling.high},
            {"original_max_position_embeddings", model.rope_scaling.original}};
    // transformers 4 reads it here.
    out["rope_scaling"] = rope;
    out["rope_scaling"].erase("rope_theta");
  }
  out["rope_parameters"] = rope;
  // transformers 4 reads it here.
  out["rope_theta"] = model.rope_theta;
  if (model.family == Family::kCourse || model.family == Family::kLlama) return;
  out["sliding_window"] = model.window > 0 ? Json(model.window) : Json(nullptr);
  if (model.family == Family::kMistral) return;
  Json types = Json::array();
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    types.push_back(model.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  }
  out["layer_types"] = types;
  if (model.family != Family::kGemma2) {
    out["use_sliding_window"] = model.window > 0;
    out["max_window_layers"] = model.window > 0 ? 0 : model.layers;
    return;
  }
  const auto or_null = [](double cap) { return cap > 0 ? Json(cap) : Json(nullptr); };
  const double score =
      model.score_size > 0 ? model.score_size : static_cast<double>(model.head_dim());
  // transformers 5 takes no number with a point here.
  const auto whole = static_cast<std::int64_t>(score);
  const bool is_whole = static_cast<double>(whole) == score;
  out["query_pre_attn_scalar"] = is_whole ? Json(whole) : Json(score);
  // The library's default is token 0, whose embedding would not learn there.
  out["pad_token_id"] = nullptr;
  out["attn_logit_softcapping"] = or_null(model.attention_softcap);
  out["final_logit_softcapping"] = or_null(model.logits_softcap);
}

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
    write_halves(model, out);
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
