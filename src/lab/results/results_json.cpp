#include "lab/results/results_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "lab/machine/monitor.h"
#include "lab/results/environment_fields.h"
#include "lab/results/subject.h"

namespace flashlab::lab {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What is not known is null: an empty text, a size of 0, a figure that was not measured. JSON has
// no NaN or infinity either.
OrderedJson or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}
template <std::integral T>
OrderedJson or_null(T value) {
  return value > 0 ? OrderedJson(value) : OrderedJson(nullptr);
}
OrderedJson or_null(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? OrderedJson(*value) : OrderedJson(nullptr);
}

/// Bytes are whole numbers, and stay so in the file as far as a double counts them.
OrderedJson figure(const Column& column, const std::optional<double>& value) {
  constexpr double kExact = 9007199254740992;
  if (column.unit == "bytes" && value && *value >= 0 && *value < kExact) {
    return OrderedJson(static_cast<std::int64_t>(*value));
  }
  return or_null(value);
}

OrderedJson label(const LabelSpec& spec, const LabelValue* value) {
  if (value != nullptr) {
    return std::visit([](const auto& each) { return OrderedJson(each); }, *value);
  }
  return spec.kind == LabelKind::kFlag ? OrderedJson(false) : OrderedJson(nullptr);
}

OrderedJson to_json_value(const Measurement& r) {
  const Subject& subject = subject_of(r);
  OrderedJson out = OrderedJson::object();
  if (&subject != subjects().front()) out["subject"] = subject.name;
  out["implementation"] = r.implementation;
  out["device"] = r.device;
  out["pass"] = r.pass;
  for (const LabelSpec& spec : subject.labels) {
    out[spec.name] = label(spec, r.labels.find(spec.name));
  }
  out["status"] = to_string(r.status);
  out["message"] = r.message;
  out["samples"] = or_null(r.samples);
  if (r.cut_short) out["cut_short"] = true;
  for (const ShownColumn& shown : subject.columns) {
    out[shown.column.name] = figure(shown.column, r[shown.column]);
  }
  out["error_sample"] = or_null(r.error_sample);
  out["plan"] = or_null(r.plan);
  if (r.tile_q > 0) out["tile_q"] = r.tile_q;
  if (r.tile_k > 0) out["tile_k"] = r.tile_k;
  if (!r.roof_name.empty()) out["roof_name"] = r.roof_name;
  OrderedJson parts = OrderedJson::array();
  for (const Measurement::Part& part : r.parts) {
    parts.push_back({{"name", part.name}, {"median_ms", part.median_ms}});
  }
  out["parts"] = std::move(parts);
  return out;
}

OrderedJson to_json_value(const Environment& e) {
  OrderedJson out = OrderedJson::object();
  for_each_field(e, [&out](const char* name, const auto& value) { out[name] = or_null(value); });
  OrderedJson warnings = OrderedJson::array();
  for (const EnvironmentWarning& warning : e.warnings) {
    warnings.push_back({{"what", warning.what}, {"remedy", warning.remedy}});
  }
  out["warnings"] = std::move(warnings);
  for (const MonitorSample& sample : e.monitor) {
    OrderedJson row = {{"seconds", sample.seconds}};
    for (const MonitorFigure& figure : monitor_figures()) {
      row[figure.name] = or_null(sample.*figure.value);
    }
    row["throttle"] = or_null(sample.throttle);
    out["monitor"].push_back(std::move(row));
  }
  return out;
}

}  // namespace

std::string to_json(const ResultFile& file, int indent) {
  OrderedJson out = OrderedJson::object();
  out["schema"] = kResultSchema;
  if (file.planned > 0) out["planned"] = file.planned;
  if (file.planned > 0 || file.interrupted()) out["interrupted"] = file.interrupted();
  out["environment"] = to_json_value(file.environment);
  OrderedJson results = OrderedJson::array();
  for (const Measurement& result : file.results) results.push_back(to_json_value(result));
  out["results"] = std::move(results);
  // Messages may quote bytes of a user's file: what is not UTF-8 is replaced, never refused.
  return base::json_text(out, indent) + '\n';
}

}  // namespace flashlab::lab
