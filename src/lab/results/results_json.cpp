#include "lab/results/results_json.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lab/results/results_json_names.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// JSON has no NaN or infinity; a number that is neither is unmeasured.
Json or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

template <class T>
Json positive_or_null(T value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

Json to_json_value(const BenchResult& r) {
  const cases::Case& c = r.problem;
  Json out = Json::object();
  out["implementation"] = r.implementation;
  out["device"] = r.device;
  out["pass"] = r.pass;
  out["dtype"] = dtype_name(c);
  out["batch"] = c.batch;
  out["heads_q"] = c.heads_q;
  out["heads_k"] = c.heads_k;
  out["head_dim"] = c.head_dim;
  out["head_dim_v"] = c.head_dim_v;
  out["seqlen_q"] = c.seqlen_q;
  out["seqlen_k"] = c.seqlen_k;
  out["mask"] = mask_name(c);
  out["status"] = to_string(r.status);
  out["message"] = r.message;
  out["median_ms"] = or_null(r.median_ms);
  out["min_ms"] = or_null(r.min_ms);
  out["mean_ms"] = or_null(r.mean_ms);
  out["max_ms"] = or_null(r.max_ms);
  out["std_ms"] = or_null(r.std_ms);
  out["tflops"] = or_null(r.tflops);
  out["tflops_peak"] = or_null(r.tflops_peak);
  out["roof_share"] = or_null(r.roof_share);
  out["gb_per_s"] = or_null(r.gb_per_s);
  out["peak_bytes"] = or_null(r.peak_bytes);
  out["workspace_bytes"] = or_null(r.workspace_bytes);
  out["memory_before_backward_bytes"] = or_null(r.memory_before_backward_bytes);
  out["process_peak_bytes"] = or_null(r.process_peak_bytes);
  out["error_vs_fp64"] = or_null(r.error_vs_fp64);
  out["naive_error_vs_fp64"] = or_null(r.naive_error_vs_fp64);
  out["error_sample"] = text_or_null(r.error_sample);
  out["seed"] = c.seed;
  out["plan"] = text_or_null(r.plan);

  // Beyond the schema's list: the rest of the case, and what verdicts against a baseline need.
  out["case"] = text_or_null(c.name);
  out["scale"] = c.scale ? Json(*c.scale) : Json(nullptr);
  out["lse_gradient"] = c.lse_gradient;
  out["fp32_outputs"] = c.fp32_outputs;
  out["accumulate"] = c.gradient_mode == GradientMode::kAccumulate;
  out["deterministic"] = c.deterministic;
  out["layout"] = layout_name(c.layout);
  out["fill"] = fill_name(c.fill);
  out["samples"] = r.samples > 0 ? Json(r.samples) : Json(nullptr);
  out["q1_ms"] = or_null(r.q1_ms);
  out["q3_ms"] = or_null(r.q3_ms);
  Json parts = Json::array();
  for (const BenchResult::Part& part : r.parts) {
    parts.push_back({{"name", part.name}, {"median_ms", part.median_ms}});
  }
  out["parts"] = std::move(parts);
  return out;
}

Json to_json_value(const Environment& e) {
  Json out = Json::object();
  out["flashlab_version"] = text_or_null(e.flashlab_version);
  out["commit"] = text_or_null(e.commit);
  out["command"] = text_or_null(e.command);
  out["date_utc"] = text_or_null(e.date_utc);
  out["hostname_hash"] = text_or_null(e.hostname_hash);
  out["os"] = text_or_null(e.os);
  out["kernel"] = text_or_null(e.kernel);
  out["compiler"] = text_or_null(e.compiler);
  out["libc"] = text_or_null(e.libc);
  out["cpu_model"] = text_or_null(e.cpu_model);
  out["cpu_isa"] = text_or_null(e.cpu_isa);
  out["cpu_flags"] = text_or_null(e.cpu_flags);
  out["cpu_threads_online"] = positive_or_null(e.cpu_threads_online);
  out["threads_used"] = positive_or_null(e.threads_used);
  out["memory_bytes"] = positive_or_null(e.memory_bytes);
  out["l1d_bytes"] = positive_or_null(e.l1d_bytes);
  out["l2_bytes"] = positive_or_null(e.l2_bytes);
  out["l3_bytes"] = positive_or_null(e.l3_bytes);
  out["gpu"] = text_or_null(e.gpu);
  out["driver"] = text_or_null(e.driver);
  out["cuda_version"] = text_or_null(e.cuda_version);
  out["gpu_architecture"] = text_or_null(e.gpu_architecture);
  out["nvrtc"] = text_or_null(e.nvrtc);
  out["gpu_memory_bytes"] = positive_or_null(e.gpu_memory_bytes);
  out["gpu_l2_bytes"] = positive_or_null(e.gpu_l2_bytes);
  out["gpu_multiprocessors"] = positive_or_null(e.gpu_multiprocessors);
  out["gpu_clock_mhz"] = or_null(e.gpu_clock_mhz);
  out["gpu_max_clock_mhz"] = or_null(e.gpu_max_clock_mhz);
  out["gpu_memory_clock_mhz"] = or_null(e.gpu_memory_clock_mhz);
  out["gpu_power_w"] = or_null(e.gpu_power_w);
  out["gpu_power_limit_w"] = or_null(e.gpu_power_limit_w);
  out["gpu_temperature_c"] = or_null(e.gpu_temperature_c);
  out["gpu_ecc"] = text_or_null(e.gpu_ecc);
  out["clock_mhz"] = or_null(e.clock_mhz);
  out["roof_fp32_gflops"] = or_null(e.roof_fp32_gflops);
  out["roof_bf16_gflops"] = or_null(e.roof_bf16_gflops);
  out["copy_gb_per_s"] = or_null(e.copy_gb_per_s);
  out["roof_source"] = text_or_null(e.roof_source);
  out["protocol"] = text_or_null(e.protocol);
  Json warnings = Json::array();
  for (const EnvironmentWarning& warning : e.warnings) {
    warnings.push_back({{"what", warning.what}, {"remedy", warning.remedy}});
  }
  out["warnings"] = std::move(warnings);
  return out;
}

}  // namespace

const char* to_string(RunStatus status) noexcept {
  switch (status) {
    case RunStatus::kOk:
      return "ok";
    case RunStatus::kOutOfMemory:
      return "oom";
    case RunStatus::kUnsupported:
      return "unsupported";
    case RunStatus::kError:
      return "error";
  }
  return "error";
}

std::string to_json(const ResultFile& file, int indent) {
  Json out = Json::object();
  out["schema"] = kResultSchema;
  out["environment"] = to_json_value(file.environment);
  Json results = Json::array();
  for (const BenchResult& result : file.results) results.push_back(to_json_value(result));
  out["results"] = std::move(results);
  // Messages may quote bytes of a user's file: what is not UTF-8 is replaced, never refused.
  return out.dump(indent, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace flashlab::lab
