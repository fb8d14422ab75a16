#pragma once

// A file that says which problems a program has, so that its kernels can be compiled ahead.

#include <string>
#include <vector>

#include "case.h"
#include "flashlab/status.h"

namespace flashlab::lab {

/// The problems of a JSON file of one of two kinds.
///
/// A problem, or a list of problems: each an object with "head_dim", and as it differs from the
/// default "dtype" (bf16), "head_dim_v", "heads", "kv_heads", "batch", "seqlen", "seqlen_k",
/// "causal" ("none", "top-left", "bottom-right"), "window" ([left, right], null: none), "mask"
/// ("none", "bool", "additive"), "softcap", "alibi", "dropout", "deterministic".
///
/// A model's config.json as Hugging Face writes it: head dims and heads from "hidden_size",
/// "num_attention_heads", "num_key_value_heads" and "head_dim"; the type from "torch_dtype" or
/// "dtype"; "sliding_window", "attn_logit_softcapping" and "attention_dropout" where they are set.
/// It gives training's and prefill's causal attention and one step of decoding.
///
/// Errors: kIoError (cannot be read), kInvalidArgument (not JSON, a member that is not known here
/// or has another type).
Result<std::vector<cases::Case>> read_problem_file(const std::string& path);

}  // namespace flashlab::lab
