#include "lab/results/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "lab/results/subject.h"

namespace flashlab::lab {
namespace {

/// Where an interval of speed ratios lies against the tolerance.
Change classify(Interval ratio, double tolerance) {
  const double upper = 1 + tolerance;
  const double lower = 1 / upper;
  if (ratio.high < lower) return Change::kSlower;
  if (ratio.low > upper) return Change::kFaster;
  if (ratio.low >= lower && ratio.high <= upper) return Change::kSame;
  return Change::kAmbiguous;
}

bool has_time(const Measurement& result) {
  return result.status == RunStatus::kOk && result[kMedianMs] && *result[kMedianMs] > 0;
}

std::string outcome(const Measurement& result) {
  std::string out = to_string(result.status);
  if (!result.message.empty()) out += ": " + result.message;
  return out;
}

/// Whether two files come from machines whose times may be compared at all.
bool same_machine(const Environment& a, const Environment& b) {
  return a.cpu_model == b.cpu_model && a.gpu == b.gpu &&
         (a.hostname_hash == b.hostname_hash || a.cpu_threads_online == b.cpu_threads_online);
}

std::vector<std::string> find_cautions(const Environment& old_one, const Environment& new_one) {
  std::vector<std::string> out;
  const auto differ = [&out](const char* what, const std::string& a, const std::string& b) {
    if (a != b) {
      out.push_back(fmt::format("{}: {} in the baseline, {} now", what, a.empty() ? "unknown" : a,
                                b.empty() ? "unknown" : b));
    }
  };
  differ("CPU", old_one.cpu_model, new_one.cpu_model);
  differ("GPU", old_one.gpu, new_one.gpu);
  differ("driver", old_one.driver, new_one.driver);
  differ("instruction set", old_one.cpu_isa, new_one.cpu_isa);
  differ("threads used", fmt::to_string(old_one.threads_used),
         fmt::to_string(new_one.threads_used));
  differ("processors", fmt::to_string(old_one.cpu_threads_online),
         fmt::to_string(new_one.cpu_threads_online));
  differ("protocol", old_one.protocol, new_one.protocol);
  for (const EnvironmentWarning& warning : old_one.warnings) {
    out.push_back("when the baseline was made: " + warning.what);
  }
  for (const EnvironmentWarning& warning : new_one.warnings) out.push_back("now: " + warning.what);
  return out;
}

/// Judges two measurements of the same case, both with a time.
void judge_times(const Measurement& old_one, const Measurement& new_one, bool comparable,
                 double tolerance, CaseChange& out) {
  const Interval old_ms = *time_interval(old_one);
  const Interval new_ms = *time_interval(new_one);
  out.speed_ratio = *old_one[kMedianMs] / *new_one[kMedianMs];
  out.speed_interval = {old_ms.low / new_ms.high, old_ms.high / new_ms.low};
  out.change = classify(out.speed_interval, tolerance);

  const bool shares = old_one[kRoofShare] && new_one[kRoofShare] && *old_one[kRoofShare] > 0 &&
                      *new_one[kRoofShare] > 0;
  if (!shares) {
    if (!comparable) {
      out.change = Change::kAmbiguous;
      out.note = "another machine, and no share of the roof to compare instead";
    }
    return;
  }
  const double share_ratio = *new_one[kRoofShare] / *old_one[kRoofShare];
  // Within a run times and shares scatter alike, so the share gets the relative interval of the
  // times.
  const Interval share_interval = {share_ratio * out.speed_interval.low / *out.speed_ratio,
                                   share_ratio * out.speed_interval.high / *out.speed_ratio};
  const Change by_share = classify(share_interval, tolerance);
  if (!comparable) {
    out.change = by_share;
    out.speed_ratio = share_ratio;
    out.speed_interval = share_interval;
    out.note = "another machine: shares of the roof are compared, not times";
    return;
  }
  const bool moved = out.change == Change::kSlower || out.change == Change::kFaster;
  if (moved && by_share != out.change) {
    out.note = fmt::format("the machine itself was {}: {:.0f}% of the roof then, {:.0f}% now",
                           out.change == Change::kSlower ? "slower" : "faster",
                           100 * *old_one[kRoofShare], 100 * *new_one[kRoofShare]);
    out.change = Change::kAmbiguous;
  }
}

CaseChange judge(const Measurement* old_one, const Measurement* new_one, bool comparable,
                 double tolerance) {
  const Measurement& any = new_one != nullptr ? *new_one : *old_one;
  CaseChange out;
  out.key = case_key(any);
  out.implementation = any.implementation;
  out.device = any.device;
  out.pass = any.pass;
  out.title = title_of(any);
  if (old_one != nullptr) out.old_ms = (*old_one)[kMedianMs];
  if (new_one != nullptr) out.new_ms = (*new_one)[kMedianMs];

  if (old_one == nullptr) {
    out.note = "not in the baseline";
  } else if (new_one == nullptr) {
    out.note = "not in this run";
  } else if (has_time(*old_one) && has_time(*new_one)) {
    judge_times(*old_one, *new_one, comparable, tolerance, out);
  } else if (has_time(*old_one)) {
    out.change = Change::kSlower;
    out.note = fmt::format("took {:.4g} ms, now {}", *(*old_one)[kMedianMs], outcome(*new_one));
  } else if (has_time(*new_one)) {
    out.change = Change::kFaster;
    out.note =
        fmt::format("was {}, now takes {:.4g} ms", outcome(*old_one), *(*new_one)[kMedianMs]);
  } else {
    out.note = fmt::format("did not run: {}", outcome(*new_one));
  }
  out.regression = out.change == Change::kSlower;
  return out;
}

int badness(const CaseChange& change) {
  switch (change.change) {
    case Change::kSlower:
      return change.speed_ratio ? 1 : 0;  // what no longer runs comes first
    case Change::kAmbiguous:
      return 2;
    case Change::kMissing:
      return 3;
    case Change::kSame:
      return 4;
    case Change::kFaster:
      return 5;
  }
  return 6;
}

}  // namespace

const char* to_string(Change change) noexcept {
  switch (change) {
    case Change::kSame:
      return "same";
    case Change::kFaster:
      return "faster";
    case Change::kSlower:
      return "slower";
    case Change::kAmbiguous:
      return "ambiguous";
    case Change::kMissing:
      return "missing";
  }
  return "unknown";
}

std::string case_key(const Measurement& r) {
  return fmt::format("{} {} {} {}", r.implementation, r.device, r.pass, problem_key(r));
}

std::optional<Interval> time_interval(const Measurement& r) {
  if (!r[kMedianMs]) return {};
  const double median = *r[kMedianMs];
  const double low = r[kMinMs].value_or(median);
  const double high = r[kMaxMs].value_or(median);
  if (r.samples > 0 && r[kQ1Ms] && r[kQ3Ms]) {
    Statistics statistics;
    statistics.count = static_cast<std::size_t>(r.samples);
    statistics.min = low;
    statistics.max = high;
    statistics.median = median;
    statistics.q1 = *r[kQ1Ms];
    statistics.q3 = *r[kQ3Ms];
    return median_interval(statistics);
  }
  if (r[kStdMs] && r.samples > 1) {
    // 1.96 standard errors of a median, which is 1.25 times that of a mean.
    const double half = 1.96 * 1.2533 * *r[kStdMs] / std::sqrt(static_cast<double>(r.samples));
    return Interval{std::max(low, median - half), std::min(high, median + half)};
  }
  return Interval{low, high};
}

BaselineReport compare_with_baseline(const ResultFile& baseline, const ResultFile& current,
                                     const BaselineOptions& options) {
  BaselineReport out;
  out.cautions = find_cautions(baseline.environment, current.environment);
  const bool comparable = same_machine(baseline.environment, current.environment);

  // A key that occurs twice counts once, by its last result: that is what a re-run meant.
  std::unordered_map<std::string, const Measurement*> old_results, new_results;
  for (const Measurement& result : baseline.results) old_results[case_key(result)] = &result;
  for (const Measurement& result : current.results) new_results[case_key(result)] = &result;
  for (const auto& [key, result] : new_results) {
    const auto old_one = old_results.find(key);
    out.changes.push_back(judge(old_one == old_results.end() ? nullptr : old_one->second, result,
                                comparable, options.tolerance));
  }
  for (const auto& [key, result] : old_results) {
    if (new_results.contains(key)) continue;
    out.changes.push_back(judge(result, nullptr, comparable, options.tolerance));
  }

  for (const CaseChange& change : out.changes) {
    out.same += change.change == Change::kSame;
    out.faster += change.change == Change::kFaster;
    out.slower += change.change == Change::kSlower;
    out.ambiguous += change.change == Change::kAmbiguous;
    out.missing += change.change == Change::kMissing;
  }
  std::sort(out.changes.begin(), out.changes.end(), [](const CaseChange& a, const CaseChange& b) {
    const int a_bad = badness(a);
    const int b_bad = badness(b);
    if (a_bad != b_bad) return a_bad < b_bad;
    const double a_ratio = a.speed_ratio.value_or(0);
    const double b_ratio = b.speed_ratio.value_or(0);
    return a_ratio != b_ratio ? a_ratio < b_ratio : a.key < b.key;
  });
  return out;
}

std::string BaselineReport::summary() const {
  std::string out;
  const auto add = [&out](int count, const char* what, const std::string& detail = {}) {
    if (count == 0) return;
    out += fmt::format("{}{} {}{}", out.empty() ? "" : ", ", count, what, detail);
  };
  add(faster, "faster");
  add(same, "same");
  if (slower > 0) {
    const CaseChange& worst = changes.front();
    const std::string how = worst.speed_ratio
                                ? fmt::format("{:.2f}x, outside the noise", *worst.speed_ratio)
                                : worst.note;
    add(slower, "slower",
        fmt::format(" ({}{} {} {}: {})", slower > 1 ? "worst: " : "", worst.implementation,
                    worst.pass, worst.title, how));
  }
  add(ambiguous, "ambiguous");
  add(missing, "missing");
  return out.empty() ? "no cases" : out;
}

}  // namespace flashlab::lab
