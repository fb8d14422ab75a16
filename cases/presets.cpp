// Problems people know by name.

#include <algorithm>
#include <utility>

#include "case.h"

namespace flashlab::cases {
namespace {

Preset preset(const char* name, std::int64_t batch, std::int64_t seqlen, std::int64_t heads,
              std::int64_t head_dim, Causal causal, const char* summary) {
  Preset out;
  out.problem.name = name;
  out.problem.batch = batch;
  out.problem.seqlen_q = out.problem.seqlen_k = seqlen;
  out.problem.heads_q = out.problem.heads_k = heads;
  out.problem.head_dim = out.problem.head_dim_v = head_dim;
  out.problem.causal = causal;
  out.summary = summary;
  return out;
}

}  // namespace

std::vector<Preset> presets() {
  std::vector<Preset> list = {
      preset("gpt2-small", 8, 1024, 12, 64, Causal::kTopLeft, "GPT-2 small, training"),
      preset("gpt3-large", 2, 2048, 96, 128, Causal::kTopLeft, "GPT-3 175B, training"),
      preset("bert-base", 16, 512, 12, 64, Causal::kNone, "BERT base, training"),
      preset("bert-large", 8, 512, 16, 64, Causal::kNone, "BERT large, training"),
      preset("long-8k", 1, 8192, 8, 64, Causal::kNone, "one sequence of 8192 tokens"),
      preset("long-16k", 1, 16384, 8, 64, Causal::kNone, "one sequence of 16384 tokens"),
      preset("batch-inference", 32, 512, 8, 64, Causal::kNone,
             "many short sequences, forward only"),
  };
  list.back().forward_only = true;
  return list;
}

std::optional<Preset> find_preset(std::string_view name) {
  for (Preset& candidate : presets()) {
    if (candidate.problem.name == name) return std::move(candidate);
  }
  return std::nullopt;
}

}  // namespace flashlab::cases
