#include "train/layers/names.h"

#include <fmt/format.h>

namespace flashlab::train {

ModelNames names_of(Family family) {
  switch (family) {
    case Family::kCourse:
      return {"token_embeddings.weight", "ln_final", "lm_head.weight"};
    case Family::kGpt2:
      return {"wte.weight", "ln_f", "wte.weight"};
    default:
      return {"model.embed_tokens.weight", "model.norm", "lm_head.weight"};
  }
}

BlockNames names_of(Family family, int layer) {
  if (family == Family::kGpt2) {
    const std::string at = fmt::format("h.{}.", layer);
    return {.attention_norm = at + "ln_1",
            .qkv = at + "attn.c_attn",
            .output = at + "attn.c_proj",
            .mlp_norm = at + "ln_2",
            .up = at + "mlp.c_fc",
            .down = at + "mlp.c_proj"};
  }
  if (family == Family::kCourse) {
    const std::string at = fmt::format("layers.{}.", layer);
    return {.attention_norm = at + "ln1",
            .qkv = at + "attn.qkv",
            .output = at + "attn.output_proj",
            .mlp_norm = at + "ln2",
            .up = at + "ffn.gate_up",
            .down = at + "ffn.w2",
            .qkv_parts = {at + "attn.q_proj", at + "attn.k_proj", at + "attn.v_proj"},
            .up_parts = {at + "ffn.w1", at + "ffn.w3"}};
  }
  const std::string at = fmt::format("model.layers.{}.", layer);
  const std::string attention = at + "self_attn.", mlp = at + "mlp.";
  BlockNames out = {.attention_norm = at + "input_layernorm",
                    .qkv = attention + "qkv_proj",
                    .output = attention + "o_proj",
                    .mlp_norm = at + "post_attention_layernorm",
                    .up = mlp + "gate_up_proj",
                    .down = mlp + "down_proj",
                    .qkv_parts = {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
                    .up_parts = {mlp + "gate_proj", mlp + "up_proj"},
                    .q_norm = attention + "q_norm",
                    .k_norm = attention + "k_norm"};
  if (!traits_of(family).norm_after) return out;
  out.attention_after = at + "post_attention_layernorm";
  out.mlp_norm = at + "pre_feedforward_layernorm";
  out.mlp_after = at + "post_feedforward_layernorm";
  return out;
}

std::vector<std::string> with_suffix(const std::vector<std::string>& parts, const char* suffix) {
  std::vector<std::string> out;
  for (const std::string& part : parts) out.push_back(part + suffix);
  return out;
}

}  // namespace flashlab::train
