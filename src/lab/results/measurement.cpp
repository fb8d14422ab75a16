#include "lab/results/measurement.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlab::lab {
std::string to_string(const LabelValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "yes" : "no";
  if (const std::string* text = std::get_if<std::string>(&value)) return *text;
  if (const double* real = std::get_if<double>(&value)) {
    // Labels are numbers that somebody typed: as a float 0.1f is 0.1 again.
    return fmt::to_string(static_cast<float>(*real));
  }
  return fmt::to_string(std::get<std::uint64_t>(value));
}

void Labels::set(std::string_view name, LabelValue value) {
  values_.insert_or_assign(std::string(name), std::move(value));
}

const LabelValue* Labels::find(std::string_view name) const {
  const auto at = values_.find(name);
  return at == values_.end() ? nullptr : &at->second;
}

std::string Labels::text(std::string_view name) const {
  const LabelValue* value = find(name);
  const std::string* text = value != nullptr ? std::get_if<std::string>(value) : nullptr;
  return text != nullptr ? *text : std::string();
}

std::uint64_t Labels::whole(std::string_view name) const {
  const LabelValue* value = find(name);
  const std::uint64_t* whole = value != nullptr ? std::get_if<std::uint64_t>(value) : nullptr;
  return whole != nullptr ? *whole : 0;
}

bool Labels::flag(std::string_view name) const {
  const LabelValue* value = find(name);
  const bool* flag = value != nullptr ? std::get_if<bool>(value) : nullptr;
  return flag != nullptr && *flag;
}

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

std::optional<RunStatus> parse_status(std::string_view name) {
  for (const RunStatus status :
       {RunStatus::kOk, RunStatus::kOutOfMemory, RunStatus::kUnsupported, RunStatus::kError}) {
    if (name == to_string(status)) return status;
  }
  return {};
}

std::optional<double>& Measurement::operator[](const Column& column) {
  return figures_[std::string(column.name)];
}

const std::optional<double>& Measurement::operator[](const Column& column) const {
  static const std::optional<double> kNothing;
  const auto at = figures_.find(column.name);
  return at == figures_.end() ? kNothing : at->second;
}

void Measurement::set_times(std::span<const double> ms, double flops, double bytes) {
  const std::optional<Statistics> statistics = summarize(ms);
  if (!statistics) return;
  Measurement& self = *this;
  samples = static_cast<int>(statistics->count);
  self[kMedianMs] = statistics->median;
  self[kMinMs] = statistics->min;
  self[kMeanMs] = statistics->mean;
  self[kMaxMs] = statistics->max;
  self[kStdMs] = statistics->std;
  self[kQ1Ms] = statistics->q1;
  self[kQ3Ms] = statistics->q3;
  const Interval interval = window_interval(ms);
  self[kLowMs] = interval.low;
  self[kHighMs] = interval.high;
  if (statistics->median > 0) {
    self[kTflops] = flops / statistics->median * 1e-9;
    self[kGbPerS] = bytes / statistics->median * 1e-6;
  }
  if (statistics->min > 0) self[kTflopsPeak] = flops / statistics->min * 1e-9;
}

void Measurement::set_read_share(const Environment& environment) {
  Measurement& self = *this;
  const bool roof_of_reads = environment.read_gb_per_s.has_value();
  const std::optional<double>&bytes =
            roof_of_reads ? environment.read_gb_per_s : environment.copy_gb_per_s,
        &math = environment.roof_bf16_gflops;
  if (!bytes || !math || !self[kGbPerS] || !self[kTflops]) return;
  // The roof of fp64 is measured nowhere: beside another type's every call would wait for bytes.
  if (!roof_of_reads && !self[kRoofShare]) return;
  const double products = std::max(self[kRoofShare].value_or(0), *self[kTflops] * 1e3 / *math);
  const double share = *self[kGbPerS] / *bytes;
  if (products > share) return;
  self[kRoofShare] = roof_of_reads ? std::optional(share) : std::nullopt;
  self[kRoofTflops] = std::nullopt;
  roof_name = kRoofOfReads;
}

void Measurement::join_window(const Measurement& other) {
  Measurement& self = *this;
  const auto median = self[kMedianMs], another = other[kMedianMs];
  if (!median || !another) return;
  const double low = std::min(self[kLowMs].value_or(*median), other[kLowMs].value_or(*another));
  const double high = std::max(self[kHighMs].value_or(*median), other[kHighMs].value_or(*another));
  // Other programs only ever add time: the quicker window is the nearer to the truth.
  if (*another < *median) {
    for (const Column& column : {kMedianMs, kMinMs, kMeanMs, kMaxMs, kStdMs, kQ1Ms, kQ3Ms, kTflops,
                                 kTflopsPeak, kGbPerS, kRoofShare, kRoofTflops}) {
      self[column] = other[column];
    }
    samples = other.samples;
    cut_short = other.cut_short;
    parts = other.parts;
  }
  self[kLowMs] = low;
  self[kHighMs] = high;
}

void Measurement::set_failure(const Status& why) {
  status = why.code() == StatusCode::kOutOfMemory   ? RunStatus::kOutOfMemory
           : why.code() == StatusCode::kUnsupported ? RunStatus::kUnsupported
                                                    : RunStatus::kError;
  message = why.message();
}

namespace {

std::size_t whole_results(const std::vector<Measurement>& results) {
  return static_cast<std::size_t>(
      std::ranges::count_if(results, [](const auto& each) { return !each.cut_short; }));
}

}  // namespace

bool ResultFile::interrupted() const noexcept {
  return whole_results(results) < std::max(planned, results.size());
}

std::string ResultFile::interruption() const {
  if (!interrupted()) return {};
  const std::size_t whole = whole_results(results);
  std::string out =
      fmt::format("interrupted, {} of {} measured", whole, std::max(planned, results.size()));
  if (whole < results.size()) out += fmt::format(", {} in part", results.size() - whole);
  return out;
}

}  // namespace flashlab::lab
