#include "lab/kernels/problem_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"

namespace flashlab::lab {
namespace {

using cases::Case;
using Json = nlohmann::json;

constexpr std::int64_t kMostOfAnything = std::int64_t{1} << 31;

// Members of one object, read by name; the first that is wrong is kept.
class Members {
 public:
  Members(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const Json* find(const char* name) {
    known_.emplace_back(name);
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  void size(const char* name, std::int64_t& out, std::int64_t least = 1) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_number_integer()) return fail(name, *value, "a whole number");
    const auto number = value->get<std::int64_t>();
    if (number < least || number > kMostOfAnything) {
      return fail(name, *value, fmt::format("{} to {}", least, kMostOfAnything));
    }
    out = number;
  }

  std::optional<double> number(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (value->is_number()) return value->get<double>();
    fail(name, *value, "a number");
    return {};
  }

  bool flag(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) fail(name, *value, "true or false");
    return value->is_boolean() && value->get<bool>();
  }

  // Which of `words`; 0 where the member is absent.
  std::size_t word(const char* name, const std::vector<std::string>& words) {
    const Json* value = find(name);
    if (value == nullptr) return 0;
    std::string expected;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (value->is_string() && value->get<std::string>() == words[i]) return i;
      expected += (expected.empty() ? "" : ", ") + words[i];
    }
    fail(name, *value, "one of " + expected);
    return 0;
  }

  void fail(const char* name, const Json& got, std::string expected) {
    if (!status_.ok()) return;
    status_ = Status::invalid({fmt::format("{}: \"{}\"", path_, name),
                               base::json_text(got, -1, /*ascii=*/true), std::move(expected),
                               "flashlab precompile --help names the members"});
  }

  // Refuses what nobody has asked for: a misspelt member would change nothing.
  Status finish() {
    for (const auto& [name, value] : object_.items()) {
      if (std::ranges::find(known_, name) == known_.end()) {
        fail(name.c_str(), value, "no such member");
      }
    }
    return status_;
  }

  const Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
  Status status_;
};

const std::vector<std::string> kTypeNames = {"bf16", "fp16", "fp32", "tf32"};

void set_type(Case& c, std::size_t index) {
  c.dtype = index == 0 ? DType::kBf16 : index == 1 ? DType::kFp16 : DType::kFp32;
  c.precision = index == 3 ? Precision::kTf32 : Precision::kIeee;
}

Result<Case> read_problem(const Json& object, const std::string& path) {
  Members in(object, path);
  Case c;
  set_type(c, in.word("dtype", kTypeNames));
  if (in.find("head_dim") == nullptr) in.fail("head_dim", Json(), "a whole number");
  in.size("head_dim", c.head_dim);
  c.head_dim_v = c.head_dim;
  in.size("head_dim_v", c.head_dim_v);
  in.size("batch", c.batch);
  in.size("heads", c.heads_q);
  c.heads_k = c.heads_q;
  in.size("kv_heads", c.heads_k);
  in.size("seqlen", c.seqlen_q);
  c.seqlen_k = c.seqlen_q;
  in.size("seqlen_k", c.seqlen_k);
  constexpr Causal kCausal[] = {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight};
  c.causal = kCausal[in.word("causal", {"none", "top-left", "bottom-right"})];
  constexpr cases::MaskKind kMasks[] = {cases::MaskKind::kNone, cases::MaskKind::kBool,
                                        cases::MaskKind::kAdditive};
  c.mask = kMasks[in.word("mask", {"none", "bool", "additive"})];
  if (const Json* window = in.find("window")) {
    const auto is_side = [](const Json& side) {
      return side.is_null() || side.is_number_integer();
    };
    const auto side_of = [](const Json& side) {
      return side.is_null() ? std::optional<std::int64_t>() : side.get<std::int64_t>();
    };
    const bool pair =
        window->is_array() && window->size() == 2 && is_side((*window)[0]) && is_side((*window)[1]);
    if (!pair) in.fail("window", *window, "[left, right], null for no bound");
    if (pair) c.window = Window{side_of((*window)[0]), side_of((*window)[1])};
  }
  if (const auto cap = in.number("softcap")) c.softcap = static_cast<float>(*cap);
  c.alibi = in.flag("alibi");
  c.dropout = static_cast<float>(in.number("dropout").value_or(0));
  c.deterministic = in.flag("deterministic");
  if (Status status = in.finish(); !status.ok()) return status;
  return c;
}

// A decoder's config.json has dozens of members: those that attention does not need are skipped.
Result<std::vector<Case>> read_model(const Json& object, const std::string& path) {
  Members in(object, path);
  Case c;
  std::int64_t hidden = 0;
  in.size("hidden_size", hidden);
  in.size("num_attention_heads", c.heads_q);
  c.heads_k = c.heads_q;
  in.size("num_key_value_heads", c.heads_k);
  c.head_dim = hidden > 0 ? std::max<std::int64_t>(1, hidden / c.heads_q) : 64;
  in.size("head_dim", c.head_dim);
  c.head_dim_v = c.head_dim;
  const char* type = object.contains("torch_dtype") ? "torch_dtype" : "dtype";
  set_type(c, in.word(type, {"bfloat16", "float16", "float32"}));
  c.batch = 8;
  c.seqlen_q = c.seqlen_k = 2048;
  c.causal = Causal::kBottomRight;
  if (const auto cap = in.number("attn_logit_softcapping")) c.softcap = static_cast<float>(*cap);
  const double dropout = in.number("attention_dropout").value_or(0);
  std::int64_t window = 0;
  in.size("sliding_window", window);
  if (!in.status().ok()) return in.status();
  std::vector<Case> out = {c};
  if (window > 0) {
    out.push_back(c);
    out.back().window = Window{.left = window - 1};
  }
  if (dropout > 0) {
    out.push_back(c);
    out.back().dropout = static_cast<float>(dropout);
  }
  for (std::int64_t batch = 1; batch <= 64; batch *= 4) {
    Case decode = c;
    decode.batch = batch;
    decode.seqlen_q = 1;
    decode.seqlen_k = 16384;
    out.push_back(decode);
  }
  return out;
}

}  // namespace

Result<std::vector<Case>> read_problem_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) {
    return Status(StatusCode::kIoError, {path, "nothing that can be read", "a JSON file",
                                         "check the name and the permissions"});
  }
  const bool deep = base::is_nested_too_deeply(text);
  const Json json = base::read_json<Json>(text);
  if (!(json.is_object() || json.is_array())) {
    return Status::invalid({path, deep ? "brackets nested too deeply" : "no JSON object or list",
                            "a problem, a list of problems, or a model's config.json",
                            "flashlab precompile --help shows one"});
  }
  if (json.is_object() && json.contains("num_attention_heads")) return read_model(json, path);
  if (json.empty()) {
    return Status::invalid({path, "an empty list or object", "at least one problem",
                            "flashlab precompile --help shows one"});
  }
  std::vector<Case> out;
  for (const Json& each : json.is_array() ? json : Json::array({json})) {
    if (!each.is_object()) {
      return Status::invalid({path, "an element that is no object", "a list of problems",
                              "flashlab precompile --help shows one"});
    }
    auto problem = read_problem(each, path);
    if (!problem.ok()) return problem.status();
    out.push_back(std::move(*problem));
  }
  return out;
}

}  // namespace flashlab::lab
