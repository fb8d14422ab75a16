#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "lab/machine/monitor.h"
#include "lab/results/environment_fields.h"
#include "lab/results/results_json.h"
#include "lab/results/subject.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

constexpr const char* kRemedy =
    "use a file written by `flashlab bench --json` or `flashlab compare --json`";

/// What stands in the file, short enough for a message.
std::string quote(const Json& value) {
  std::string text = base::json_text(value, -1, /*ascii=*/true);
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

  /// A string that `parse` (string_view -> bool) understands; null where none is required.
  template <class Parse>
  void name(const char* key, const char* expected, Parse parse, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr || (!required && value->is_null())) return;
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

  void optional_number(const char* key, std::optional<double>& out, bool required = true) {
    const Json* value = find(key, required);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_number() || !(value->get<double>() >= 0) ||
        !std::isfinite(value->get<double>())) {
      return fail(key, quote(*value), "a finite number >= 0, or null");
    }
    out = value->get<double>();
  }

  void optional_real(const char* key, std::optional<double>& out, bool required) {
    const Json* value = find(key, required);
    if (value == nullptr || value->is_null()) return;
    if (!value->is_number() || !std::isfinite(value->get<float>())) {
      return fail(key, quote(*value), "a finite number, or null");
    }
    out = value->get<double>();
  }

  void boolean(const char* key, bool& out, bool required = false) {
    const Json* value = find(key, required);
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

/// The keys of tables are literals: they end with a zero.
void read(Reader& in, const LabelSpec& spec, Labels& out) {
  const char* key = spec.name.data();
  if (spec.kind == LabelKind::kWhole) {
    // Nothing has more elements than a signed size can count; a seed has all its bits.
    if (spec.identifies) {
      std::int64_t number = -1;
      in.integer(key, number, spec.required);
      if (number >= 0) out.set(spec.name, static_cast<std::uint64_t>(number));
    } else {
      std::uint64_t number = 0;
      in.integer(key, number, spec.required);
      out.set(spec.name, number);
    }
  } else if (spec.kind == LabelKind::kReal) {
    std::optional<double> number;
    in.optional_real(key, number, spec.required);
    if (number) out.set(spec.name, *number);
  } else if (spec.kind == LabelKind::kFlag) {
    bool flag = false;
    in.boolean(key, flag, spec.required);
    out.set(spec.name, flag);
  } else {
    std::string text;
    if (spec.accepts != nullptr) {
      in.name(
          key, std::string(spec.expected).c_str(),
          [&](std::string_view name) {
            text = name;
            return spec.accepts(name);
          },
          spec.required);
    } else {
      in.text(key, text, spec.required);
    }
    if (!text.empty()) out.set(spec.name, std::move(text));
  }
}

void read(Reader& in, Measurement& r) {
  in.name(
      "subject", "a subject of this program: attention, weighted-sum or step",
      [&r](std::string_view name) {
        r.subject = name;
        return find_subject(name) != nullptr;
      },
      false);
  const Subject& subject = subject_of(r);
  in.text("implementation", r.implementation);
  in.text("device", r.device);
  in.text("pass", r.pass);
  for (const LabelSpec& spec : subject.labels) read(in, spec, r.labels);
  in.name("status", "one of ok, oom, unsupported, error", [&r](std::string_view name) {
    const auto status = parse_status(name);
    if (status) r.status = *status;
    return status.has_value();
  });
  in.text("message", r.message);
  for (const ShownColumn& shown : subject.columns) {
    in.optional_number(shown.column.name.data(), r[shown.column], shown.required);
  }
  in.text("error_sample", r.error_sample, false);
  in.text("plan", r.plan, false);
  in.integer("tile_q", r.tile_q, false, true);
  in.integer("tile_k", r.tile_k, false, true);
  in.text("roof_name", r.roof_name, false);
  in.integer("samples", r.samples, false, true);
  in.boolean("cut_short", r.cut_short);
  in.objects("parts", false, [&r](Reader& part) {
    Measurement::Part out;
    std::optional<double> median;
    part.text("name", out.name);
    part.optional_number("median_ms", median);
    out.median_ms = median.value_or(0);
    r.parts.push_back(std::move(out));
  });
}

/// Any member may be missing: an older or a newer program wrote the file.
struct FieldReader {
  Reader& in;
  void operator()(const char* name, std::string& value) { in.text(name, value, false); }
  void operator()(const char* name, std::optional<double>& value) {
    in.optional_number(name, value, false);
  }
  void operator()(const char* name, std::integral auto& value) {
    in.integer(name, value, false, true);
  }
};

void read(Reader& in, Environment& e) {
  for_each_field(e, FieldReader{in});
  in.objects("warnings", false, [&e](Reader& warning) {
    EnvironmentWarning out;
    warning.text("what", out.what);
    warning.text("remedy", out.remedy);
    e.warnings.push_back(std::move(out));
  });
  in.objects("monitor", false, [&e](Reader& sample) {
    MonitorSample out;
    std::optional<double> seconds;
    sample.optional_number("seconds", seconds);
    out.seconds = seconds.value_or(0);
    for (const MonitorFigure& figure : monitor_figures()) {
      sample.optional_real(figure.name, out.*figure.value, false);
    }
    sample.text("throttle", out.throttle, false);
    e.monitor.push_back(std::move(out));
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
  if (base::is_nested_too_deeply(text)) {
    return Status::invalid({name,
                            fmt::format("JSON nested over {} levels deep", base::kMaxJsonDepth),
                            "JSON of the schema flashlab.bench/1", kRemedy});
  }
  Json root;
  try {
    root = Json::parse(text);  // lint: allow(json) the message says where it fails
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
  Reader reader(root, "", name, status);
  reader.integer("planned", out.planned, false);
  reader.objects("results", true, [&out](Reader& in) {
    Measurement result;
    read(in, result);
    out.results.push_back(std::move(result));
  });
  if (!status.ok()) return status;
  return out;
}

}  // namespace flashlab::lab
