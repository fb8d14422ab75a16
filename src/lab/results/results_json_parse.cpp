#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>

#include "lab/results/json_depth.h"
#include "lab/results/results_json.h"
#include "lab/results/results_json_names.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

constexpr const char* kRemedy =
    "use a file written by `flashlab bench --json` or `flashlab compare --json`";

/// What stands in the file, short enough for a message.
std::string quote(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  constexpr std::size_t kShown = 60;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return fmt::format("{} ({})", text, value.type_name());
}

/// Reads members of one object; remembers the first thing that is wrong.
class Reader {
 public:
  Reader(const Json& object, std::string place, std::string source, Status& status)
      : object_(object), place_(std::move(place)), source_(std::move(source)), status_(status) {}

  void text(const char* key, std::string& out, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_string()) return fail(key, quote(*value), "a string or null");
    out = value->get<std::string>();
  }

  /// A string that `parse` (string_view -> bool) understands.
  template <class Parse>
  void name(const char* key, const char* expected, Parse parse, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr) return;
    if (!value->is_string() || !parse(std::string_view(value->get_ref<const std::string&>()))) {
      fail(key, quote(*value), expected);
    }
  }

  template <std::integral T>
  void integer(const char* key, T& out, bool required = true, bool nullable = false) {
    const Json* value = find(key, required);
    if (value == nullptr || (nullable && value->is_null())) return;
    const char* expected = nullable ? "a whole number >= 0, or null" : "a whole number >= 0";
    if (!value->is_number_unsigned()) return fail(key, quote(*value), expected);
    const auto number = value->get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
      return fail(key, quote(*value), fmt::format("at most {}", std::numeric_limits<T>::max()));
    }
    out = static_cast<T>(number);
  }

  void optional_integer(const char* key, std::optional<std::int64_t>& out, bool required = true) {
    std::int64_t number = -1;
    integer(key, number, required, true);
    if (number >= 0) out = number;
  }

  void optional_number(const char* key, std::optional<double>& out, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_number() || !(value->get<double>() >= 0) ||
        !std::isfinite(value->get<double>())) {
      return fail(key, quote(*value), "a finite number >= 0, or null");
    }
    out = value->get<double>();
  }

  void optional_scale(const char* key, std::optional<float>& out) {
    const Json* value = find(key, false);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_number() || !std::isfinite(value->get<float>())) {
      return fail(key, quote(*value), "a finite number, or null");
    }
    out = value->get<float>();
  }

  void boolean(const char* key, bool& out) {
    const Json* value = find(key, false);
    if (value == nullptr) return;
    if (!value->is_boolean()) return fail(key, quote(*value), "true or false");
    out = value->get<bool>();
  }

  /// Calls `each` with a Reader over every object of an array.
  template <class Each>
  void objects(const char* key, bool required, Each each) {
    const Json* value = find(key, required);
    if (value == nullptr) return;
    if (!value->is_array()) return fail(key, quote(*value), "an array of objects");
    for (std::size_t i = 0; i < value->size() && status_.ok(); ++i) {
      const std::string where = fmt::format("{}{}[{}]", place_, key, i);
      if (!(*value)[i].is_object()) {
        return fail(fmt::format("{}[{}]", key, i).c_str(), quote((*value)[i]), "an object");
      }
      Reader inner((*value)[i], where + ".", source_, status_);
      each(inner);
    }
  }

  void fail(const char* key, std::string got, std::string expected) {
    if (!status_.ok()) return;
    status_ = Status::invalid({fmt::format("{}: {}{}", source_, place_, key), std::move(got),
                               std::move(expected), kRemedy});
  }

 private:
  const Json* find(const char* key, bool required) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(key);
    if (found != object_.end()) return &*found;
    if (required) fail(key, "nothing", "this key, by the schema flashlab.bench/1");
    return nullptr;
  }

  const Json& object_;
  std::string place_;
  std::string source_;
  Status& status_;
};

void read(Reader& in, cases::Case& c) {
  in.name("dtype", "one of fp64, fp32, tf32, fp16, bf16, e4m3, e5m2",
          [&c](std::string_view name) { return parse_dtype_name(name, c); });
  in.integer("batch", c.batch);
  in.integer("heads_q", c.heads_q);
  in.integer("heads_k", c.heads_k);
  in.integer("head_dim", c.head_dim);
  in.integer("head_dim_v", c.head_dim_v);
  in.integer("seqlen_q", c.seqlen_q);
  in.integer("seqlen_k", c.seqlen_k);
  in.name("mask",
          "none, causal-top-left or causal-bottom-right, with +bool or +additive for a mask tensor",
          [&c](std::string_view name) { return parse_mask_name(name, c); });
  in.integer("seed", c.seed);
  in.text("case", c.name, false);
  in.optional_scale("scale", c.scale);
  in.boolean("lse_gradient", c.lse_gradient);
  in.boolean("fp32_outputs", c.fp32_outputs);
  bool accumulate = false;
  in.boolean("accumulate", accumulate);
  c.gradient_mode = accumulate ? GradientMode::kAccumulate : GradientMode::kOverwrite;
  in.boolean("deterministic", c.deterministic);
  in.name(
      "layout", "a layout's name, e.g. contiguous",
      [&c](std::string_view name) {
        const auto layout = parse_layout(name);
        if (layout) c.layout = *layout;
        return layout.has_value();
      },
      false);
  in.name(
      "fill", "a fill's name, e.g. normal",
      [&c](std::string_view name) {
        const auto fill = parse_fill(name);
        if (fill) c.fill = *fill;
        return fill.has_value();
      },
      false);
}

void read(Reader& in, BenchResult& r) {
  in.text("implementation", r.implementation);
  in.text("device", r.device);
  in.text("pass", r.pass);
  read(in, r.problem);
  in.name("status", "one of ok, oom, unsupported, error", [&r](std::string_view name) {
    const auto status = parse_status(name);
    if (status) r.status = *status;
    return status.has_value();
  });
  in.text("message", r.message);
  in.optional_number("median_ms", r.median_ms);
  in.optional_number("min_ms", r.min_ms);
  in.optional_number("mean_ms", r.mean_ms);
  in.optional_number("max_ms", r.max_ms);
  in.optional_number("std_ms", r.std_ms);
  in.optional_number("tflops", r.tflops);
  in.optional_number("tflops_peak", r.tflops_peak);
  in.optional_number("roof_share", r.roof_share);
  in.optional_number("gb_per_s", r.gb_per_s);
  in.optional_integer("peak_bytes", r.peak_bytes);
  in.optional_integer("workspace_bytes", r.workspace_bytes);
  in.optional_integer("memory_before_backward_bytes", r.memory_before_backward_bytes);
  in.optional_integer("process_peak_bytes", r.process_peak_bytes);
  in.optional_number("error_vs_fp64", r.error_vs_fp64);
  in.optional_number("naive_error_vs_fp64", r.naive_error_vs_fp64);
  in.text("error_sample", r.error_sample);
  in.text("plan", r.plan);
  in.integer("samples", r.samples, false, true);
  in.optional_number("q1_ms", r.q1_ms, false);
  in.optional_number("q3_ms", r.q3_ms, false);
  in.objects("parts", false, [&r](Reader& part) {
    BenchResult::Part out;
    std::optional<double> median;
    part.text("name", out.name);
    part.optional_number("median_ms", median);
    out.median_ms = median.value_or(0);
    r.parts.push_back(std::move(out));
  });
}

void read(Reader& in, Environment& e) {
  in.text("flashlab_version", e.flashlab_version, false);
  in.text("commit", e.commit, false);
  in.text("command", e.command, false);
  in.text("date_utc", e.date_utc, false);
  in.text("hostname_hash", e.hostname_hash, false);
  in.text("os", e.os, false);
  in.text("kernel", e.kernel, false);
  in.text("compiler", e.compiler, false);
  in.text("libc", e.libc, false);
  in.text("cpu_model", e.cpu_model, false);
  in.text("cpu_isa", e.cpu_isa, false);
  in.text("cpu_flags", e.cpu_flags, false);
  in.integer("cpu_threads_online", e.cpu_threads_online, false, true);
  in.integer("threads_used", e.threads_used, false, true);
  in.integer("memory_bytes", e.memory_bytes, false, true);
  in.integer("l1d_bytes", e.l1d_bytes, false, true);
  in.integer("l2_bytes", e.l2_bytes, false, true);
  in.integer("l3_bytes", e.l3_bytes, false, true);
  in.text("gpu", e.gpu, false);
  in.text("driver", e.driver, false);
  in.text("cuda_version", e.cuda_version, false);
  in.text("gpu_architecture", e.gpu_architecture, false);
  in.text("nvrtc", e.nvrtc, false);
  in.integer("gpu_memory_bytes", e.gpu_memory_bytes, false, true);
  in.integer("gpu_l2_bytes", e.gpu_l2_bytes, false, true);
  in.integer("gpu_multiprocessors", e.gpu_multiprocessors, false, true);
  in.optional_number("gpu_clock_mhz", e.gpu_clock_mhz, false);
  in.optional_number("gpu_max_clock_mhz", e.gpu_max_clock_mhz, false);
  in.optional_number("gpu_memory_clock_mhz", e.gpu_memory_clock_mhz, false);
  in.optional_number("gpu_power_w", e.gpu_power_w, false);
  in.optional_number("gpu_power_limit_w", e.gpu_power_limit_w, false);
  in.optional_number("gpu_temperature_c", e.gpu_temperature_c, false);
  in.text("gpu_ecc", e.gpu_ecc, false);
  in.optional_number("clock_mhz", e.clock_mhz, false);
  in.optional_number("roof_fp32_gflops", e.roof_fp32_gflops, false);
  in.optional_number("roof_bf16_gflops", e.roof_bf16_gflops, false);
  in.optional_number("copy_gb_per_s", e.copy_gb_per_s, false);
  in.text("roof_source", e.roof_source, false);
  in.text("protocol", e.protocol, false);
  in.objects("warnings", false, [&e](Reader& warning) {
    EnvironmentWarning out;
    warning.text("what", out.what);
    warning.text("remedy", out.remedy);
    e.warnings.push_back(std::move(out));
  });
}

/// A place in the text as a person finds it: "line 3, column 17".
std::string line_and_column(std::string_view text, std::size_t offset) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < std::min(offset, text.size()); ++i) {
    ++column;
    if (text[i] == '\n') {
      ++line;
      column = 1;
    }
  }
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

Result<ResultFile> parse_results(std::string_view text, std::string_view source) {
  const std::string name(source);
  if (is_nested_too_deeply(text)) {
    return Status::invalid({name, fmt::format("JSON nested over {} levels deep", kMaxJsonDepth),
                            "JSON of the schema flashlab.bench/1", kRemedy});
  }
  Json root;
  try {
    root = Json::parse(text);
  } catch (const Json::parse_error& error) {
    // byte counts from 1 and points behind what was read.
    const std::size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    const bool at_end = offset >= text.size();
    std::string got =
        text.empty() ? "an empty file"
        : at_end     ? fmt::format("a file that ends in the middle of its JSON, at {}",
                                   line_and_column(text, offset))
                     : fmt::format("text that is not JSON at {}", line_and_column(text, offset));
    return Status::invalid(
        {name, std::move(got), "JSON of the schema flashlab.bench/1",
         at_end ? "the file was cut off: make it again, or use another one" : kRemedy});
  } catch (const Json::exception& error) {  // e.g. a number beyond every type
    return Status::invalid({name, error.what(), "JSON of the schema flashlab.bench/1", kRemedy});
  }
  if (!root.is_object()) {
    return Status::invalid(
        {name, quote(root), "an object with schema, environment and results", kRemedy});
  }
  const auto schema = root.find("schema");
  if (schema == root.end() || *schema != kResultSchema) {
    return Status::invalid({name + ": schema", schema == root.end() ? "nothing" : quote(*schema),
                            fmt::format("\"{}\"", kResultSchema), kRemedy});
  }

  Status status;
  ResultFile out;
  const auto environment = root.find("environment");
  if (environment == root.end() || !environment->is_object()) {
    return Status::invalid({name + ": environment",
                            environment == root.end() ? "nothing" : quote(*environment),
                            "an object", kRemedy});
  }
  Reader environment_reader(*environment, "environment.", name, status);
  read(environment_reader, out.environment);
  Reader(root, "", name, status).objects("results", true, [&out](Reader& in) {
    BenchResult result;
    read(in, result);
    out.results.push_back(std::move(result));
  });
  if (!status.ok()) return status;
  return out;
}

}  // namespace flashlab::lab
