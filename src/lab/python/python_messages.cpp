#include "lab/python/python_messages.h"
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "lab/measure/statistics.h"
#include "lab/subjects/attention/attention_subject.h"
#include "lab/subjects/attention/case_names.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

/// The start of a line, fit to be shown: what came instead of JSON may be anything.
std::string shortened(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::string out(text.substr(0, kShown));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  }
  return out + (text.size() > kShown ? "..." : "");
}

/// Members of one line; remembers the first that is wrong.
class Line {
 public:
  explicit Line(const Json& object) : object_(object) {}

  std::string text(const char* key, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    fail(key, "a string");
    return {};
  }
  bool boolean(const char* key) {
    const Json* value = find(key, true);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    if (value != nullptr) fail(key, "true or false");
    return false;
  }
  int integer(const char* key) {
    const Json* value = find(key, true);
    if (value == nullptr) return 0;
    if (value->is_number_unsigned() && value->get<std::uint64_t>() <= INT32_MAX) {
      return value->get<int>();
    }
    fail(key, "a whole number >= 0");
    return 0;
  }
  std::optional<std::int64_t> bytes(const char* key) {
    const Json* value = find(key, false);
    if (value == nullptr) return {};
    if (value->is_number_unsigned() &&
        value->get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max()) {
      return value->get<std::int64_t>();
    }
    fail(key, "a whole number >= 0, or null");
    return {};
  }
  std::optional<double> number(const char* key) {
    const Json* value = find(key, false);
    if (value == nullptr) return {};
    if (is_measure(*value)) return value->get<double>();
    fail(key, "a finite number >= 0, or null");
    return {};
  }
  std::vector<double> numbers(const char* key) {
    const Json* value = find(key, false);
    if (value == nullptr) return {};
    if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_measure)) {
      fail(key, "an array of finite numbers >= 0");
      return {};
    }
    return value->get<std::vector<double>>();
  }
  std::vector<std::string> texts(const char* key) {
    const Json* value = find(key, true);
    if (value == nullptr) return {};
    if (!value->is_array() || value->empty() ||
        !std::all_of(value->begin(), value->end(), [](const Json& x) { return x.is_string(); })) {
      fail(key, "an array of names");
      return {};
    }
    return value->get<std::vector<std::string>>();
  }
  const Json* object(const char* key) {
    const Json* value = find(key, true);
    if (value != nullptr && !value->is_object()) fail(key, "an object");
    return value != nullptr && value->is_object() ? value : nullptr;
  }

  void fail(std::string_view key, std::string_view expected) {
    if (wrong_.empty()) wrong_ = fmt::format("{} is not {}", key, expected);
  }
  const std::string& wrong() const { return wrong_; }

 private:
  static bool is_measure(const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
  }
  const Json* find(const char* key, bool required) {
    const auto found = object_.find(key);
    if (found != object_.end() && (required || !found->is_null())) return &*found;
    if (required) fail(key, "there");
    return nullptr;
  }
  const Json& object_;
  std::string wrong_;
};

PythonInfo read_info(Line& line) {
  PythonInfo out;
  out.protocol = line.integer("protocol");
  out.python = line.text("python");
  out.executable = line.text("executable");
  out.torch = line.text("torch");
  out.flashlab = line.text("flashlab");
  out.device = line.text("device");
  out.clock = line.text("clock");
  out.threads = line.integer("threads");
  if (const Json* installed = line.object("installed")) {
    for (const auto& [name, version] : installed->items()) {
      out.packages.emplace_back(name, version.is_string() ? version.get<std::string>() : "");
    }
  }
  return out;
}

Measurement read_result(Line& line, const PythonRequest& asked, const std::string& device) {
  Measurement out;
  out.labels = labels_of(asked.problem);
  out.device = device;
  out.implementation = line.text("implementation");
  const auto& names = asked.implementations;
  if (std::ranges::find(names, out.implementation) == names.end()) {
    line.fail("implementation", "one that was asked for");
  }
  out.pass = line.text("pass");
  const auto pass =
      std::ranges::find_if(asked.passes, [&](Pass each) { return out.pass == to_string(each); });
  if (pass == asked.passes.end()) line.fail("pass", "one that was asked for");
  const auto status = parse_status(line.text("status"));
  if (!status) line.fail("status", "ok, oom, unsupported or error");
  out.status = status.value_or(RunStatus::kError);
  out.message = line.text("message");
  const std::vector<double> samples = line.numbers("samples_ms");
  if (out.status == RunStatus::kOk && samples.empty()) line.fail("samples_ms", "there");
  out[kPeakBytes] = line.bytes("peak_bytes");
  out[kSavedBytes] = line.bytes("memory_before_backward_bytes");
  out[kProcessPeakBytes] = line.bytes("process_peak_bytes");
  out[kError] = line.number("error_vs_fp64");
  out[kNaiveError] = line.number("naive_error_vs_fp64");
  out.error_sample = line.text("error_sample", false);
  out.plan = line.text("plan", false);
  if (line.wrong().empty() && out.status == RunStatus::kOk) {
    out.set_times(samples, asked.problem.flops(*pass), asked.problem.ideal_bytes(*pass));
  }
  return out;
}

Status not_by_protocol(std::string_view line, const std::string& why) {
  return Status::invalid({fmt::format("the line \"{}\": {}", shortened(line), why), "", "", ""});
}

}  // namespace

bool PythonInfo::has(std::string_view package) const {
  return std::ranges::any_of(
      packages, [&](const auto& each) { return each.first == package && !each.second.empty(); });
}

std::string PythonInfo::words() const {
  std::string out = fmt::format("Python {}, torch {}, flashlab {}", python, torch, flashlab);
  for (const auto& [name, version] : packages) {
    if (!version.empty()) out += fmt::format(", {} {}", name, version);
  }
  return out;
}

std::string to_json_line(const PythonRequest& request) {
  const cases::Case& c = request.problem;
  Json problem = {{"dtype", dtype_name(c)},
                  {"batch", c.batch},
                  {"heads_q", c.heads_q},
                  {"heads_k", c.heads_k},
                  {"head_dim", c.head_dim},
                  {"head_dim_v", c.head_dim_v},
                  {"seqlen_q", c.seqlen_q},
                  {"seqlen_k", c.seqlen_k},
                  {"mask", mask_name(c)},
                  {"seed", c.seed},
                  {"scale", c.scale ? Json(*c.scale) : Json(nullptr)},
                  {"lengths", nullptr},
                  {"cache", nullptr}};
  for (const cases::SequenceLengths& each : c.sequences) {
    problem["lengths"].push_back({each.q, each.k});
  }
  if (c.cache) {
    problem["cache"] = {{"capacity", c.cache->capacity},
                        {"page_size", c.cache->page_size},
                        {"dense_queries", c.cache->dense_queries}};
  }
  Json passes = Json::array();
  for (const Pass pass : request.passes) passes.push_back(to_string(pass));
  const Json out = {
      {"problem", std::move(problem)},
      {"passes", std::move(passes)},
      {"implementations", Json(std::vector<std::string>(request.implementations.begin(),
                                                        request.implementations.end()))},
      {"warmup", request.measure.warmup},
      {"repeats", request.measure.repeats},
      {"max_total_ms", request.measure.max_total_ms}};
  return base::json_text(out);
}

Result<PythonMessage> parse_message(std::string_view text, const PythonRequest* asked,
                                    const std::string& device) {
  if (base::is_nested_too_deeply(text))
    return not_by_protocol(text, "its JSON is nested too deeply");
  const Json root = base::read_json<Json>(text);
  if (!root.is_object()) return not_by_protocol(text, "it is not a JSON object");
  Line line(root);
  const std::string event = line.text("event");
  PythonMessage out;
  if (event == "ready") {
    out.kind = PythonMessage::Kind::kReady;
    out.info = read_info(line);
  } else if (event == "missing") {
    out.kind = PythonMessage::Kind::kMissing;
    out.modules = line.texts("modules");
  } else if (event == "unusable") {
    out.kind = PythonMessage::Kind::kUnusable;
    out.text = line.text("text");
  } else if (event == "end") {
    out.kind = PythonMessage::Kind::kEnd;
    out.lost = line.boolean("lost");
  } else if (event == "result" && asked != nullptr) {
    out.kind = PythonMessage::Kind::kResult;
    out.result = read_result(line, *asked, device);
  } else {
    line.fail("event", "one that is expected here");
  }
  if (!line.wrong().empty()) return not_by_protocol(text, line.wrong());
  return out;
}

std::optional<PythonProgress> parse_progress(std::string_view note) {
  const std::string text(note);
  PythonProgress out;
  int words = 0;
  if (std::sscanf(text.c_str(), "progress %lf %lf %n", &out.done, &out.total, &words) != 2 ||
      words == 0 || !(out.total > 0) || !(out.done >= 0)) {
    return {};
  }
  out.words = text.substr(static_cast<std::size_t>(words));
  return out;
}

}  // namespace flashlab::lab
