#include "lab/results/baseline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "lab/results/subject.h"

namespace flashlab::lab {
namespace {

/// Where a ratio of speeds with its interval lies against the tolerance.
Change classify(double ratio, Interval interval, double tolerance) {
  const double upper = 1 + tolerance, lower = 1 / upper;
  if (interval.high < lower) return Change::kSlower;
  if (interval.low > upper) return Change::kFaster;
  // An interval this wide would hide a real change of its own size.
  const double widest = 1 + 6 * tolerance;
  const bool near = ratio >= lower && ratio <= upper;
  const bool narrow = interval.low >= 1 / widest && interval.high <= widest;
  const bool inside = interval.low >= lower && interval.high <= upper;
  const bool reaches_one = interval.low <= 1 && interval.high >= 1;
  return inside || (near && narrow && reaches_one) ? Change::kSame : Change::kAmbiguous;
}

bool has_time(const Measurement& result) {
  return result.status == RunStatus::kOk && result[kMedianMs] && *result[kMedianMs] > 0;
}

std::string outcome(const Measurement& result) {
  std::string out = to_string(result.status);
  if (!result.message.empty()) out += ": " + result.message;
  return out;
}

/// What makes times of two files answers to different questions; empty: nothing.
std::string difference(const Environment& a, const Environment& b) {
  std::vector<std::string> out;
  const auto differ = [&out](const char* what, const std::string& then, const std::string& now) {
    if (then.empty() || now.empty() || then == now) return;
    out.push_back(fmt::format("{} {} then, {} now", what, then, now));
  };
  const auto number = [](int value) { return value > 0 ? fmt::to_string(value) : std::string(); };
  differ("GPU", a.gpu, b.gpu);
  // Beside a GPU the processor only enqueues.
  if (a.gpu.empty() && b.gpu.empty()) {
    differ("processor", a.cpu_model, b.cpu_model);
    differ("instruction set", a.cpu_isa, b.cpu_isa);
    differ("threads", number(a.threads_used), number(b.threads_used));
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

std::vector<std::string> find_cautions(const Environment& old_one, const Environment& new_one) {
  std::vector<std::string> out;
  const auto differ = [&out](const char* what, const std::string& a, const std::string& b) {
    if (a != b) {
      out.push_back(fmt::format("{}: {} in the baseline, {} now", what, a.empty() ? "unknown" : a,
                                b.empty() ? "unknown" : b));
    }
  };
  differ("driver", old_one.driver, new_one.driver);
  differ("processors", fmt::to_string(old_one.cpu_threads_online),
         fmt::to_string(new_one.cpu_threads_online));
  differ("protocol", old_one.protocol, new_one.protocol);
  for (const EnvironmentWarning& warning : old_one.warnings) {
    out.push_back("when the baseline was made: " + warning.what);
  }
  for (const EnvironmentWarning& warning : new_one.warnings) out.push_back("now: " + warning.what);
  return out;
}

/// Which of the two times has an interval so wide that a change cannot be told from its noise.
std::string unsteady(Interval old_ms, Interval new_ms, double tolerance) {
  const auto wide = [tolerance](Interval ms) { return ms.high > (1 + 6 * tolerance) * ms.low; };
  const auto words = [](const char* whose, Interval ms) {
    return fmt::format("{} time lies anywhere from {:.4g} to {:.4g} ms: measure it again", whose,
                       ms.low, ms.high);
  };
  if (wide(old_ms)) return words("the baseline's", old_ms);
  return wide(new_ms) ? words("this run's", new_ms) : std::string();
}

/// Judges two measurements of the same case, both with a time.
void judge_times(const Measurement& old_one, const Measurement& new_one, double tolerance,
                 CaseChange& out) {
  const Interval old_ms = *time_interval(old_one);
  const Interval new_ms = *time_interval(new_one);
  out.speed_ratio = *old_one[kMedianMs] / *new_one[kMedianMs];
  out.speed_interval = {old_ms.low / new_ms.high, old_ms.high / new_ms.low};
  out.change = classify(*out.speed_ratio, out.speed_interval, tolerance);
  const bool firm = out.change == Change::kSlower || out.change == Change::kFaster;
  if (const std::string why = unsteady(old_ms, new_ms, tolerance); firm && !why.empty()) {
    out.change = Change::kAmbiguous;
    out.note = why;
    return;
  }
  // The pace of the machine itself, where both runs measured it beside the kernel.
  const std::optional<double>&then = old_one[kRoofTflops], &now = new_one[kRoofTflops];
  if (!then || !now || *then <= 0 || *now <= 0 || old_one.roof_name != new_one.roof_name) return;
  const double pace = *now / *then;
  const bool steady = pace <= 1 + tolerance && pace >= 1 / (1 + tolerance);
  if (steady || !firm) return;
  const Change against_roof =
      classify(*out.speed_ratio / pace,
               {out.speed_interval.low / pace, out.speed_interval.high / pace}, tolerance);
  if (against_roof == out.change) return;
  out.note =
      fmt::format("the machine's own pace changed: a roof of {:.4g} GFLOP/s then, {:.4g} now",
                  *then * 1e3, *now * 1e3);
  out.change = Change::kAmbiguous;
}

CaseChange judge(const Measurement* old_one, const Measurement* new_one,
                 const std::string& not_comparable, double tolerance) {
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
  } else if (!not_comparable.empty()) {
    out.note = not_comparable;
  } else if (has_time(*old_one) && has_time(*new_one)) {
    judge_times(*old_one, *new_one, tolerance, out);
  } else if (old_one->status == RunStatus::kOk && !has_time(*old_one)) {
    out.note = "the baseline has no time for it";
  } else if (new_one->status == RunStatus::kOk && !has_time(*new_one)) {
    out.note = "this run has no time for it";
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

namespace {

Interval spread_of(const Measurement& r) {
  const double median = *r[kMedianMs];
  if (r[kLowMs] && r[kHighMs] && *r[kLowMs] <= median && median <= *r[kHighMs]) {
    return Interval{*r[kLowMs], *r[kHighMs]};
  }
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

}  // namespace

std::optional<Interval> time_interval(const Measurement& r) {
  if (!r[kMedianMs]) return {};
  const Interval spread = spread_of(r);
  const double median = *r[kMedianMs];
  // A file whose median and spread contradict each other has only its median.
  return spread.low <= median && median <= spread.high ? spread : Interval{median, median};
}

BaselineReport compare_with_baseline(const ResultFile& baseline, const ResultFile& current,
                                     const BaselineOptions& options) {
  BaselineReport out;
  out.cautions = find_cautions(baseline.environment, current.environment);
  out.not_comparable = difference(baseline.environment, current.environment);

  // A key that occurs twice counts once, by its last result: that is what a re-run meant.
  std::unordered_map<std::string, const Measurement*> old_results, new_results;
  const auto collect = [&out](const ResultFile& file, const char* where, auto& by_key) {
    for (const Measurement& result : file.results) by_key[case_key(result)] = &result;
    const std::size_t again = file.results.size() - by_key.size();
    if (again == 0) return;
    out.cautions.push_back(
        fmt::format("{} of {} results in {} have the case of a later one: the "
                    "last of each case counts",
                    again, file.results.size(), where));
  };
  collect(baseline, "the baseline", old_results);
  collect(current, "this run", new_results);
  for (const auto& [key, result] : new_results) {
    const auto old_one = old_results.find(key);
    out.changes.push_back(judge(old_one == old_results.end() ? nullptr : old_one->second, result,
                                out.not_comparable, options.tolerance));
  }
  for (const auto& [key, result] : old_results) {
    if (new_results.contains(key)) continue;
    out.changes.push_back(judge(result, nullptr, out.not_comparable, options.tolerance));
  }

  for (const CaseChange& change : out.changes) {
    out.same += change.change == Change::kSame;
    out.faster += change.change == Change::kFaster;
    out.slower += change.change == Change::kSlower;
    out.ambiguous += change.change == Change::kAmbiguous;
    out.missing += change.change == Change::kMissing;
  }
  std::ranges::sort(out.changes, [](const CaseChange& a, const CaseChange& b) {
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
  if (compared() > 0) return out;
  return "nothing was compared: " + (!not_comparable.empty() ? not_comparable
                                     : changes.empty()       ? std::string("no cases")
                                                             : changes.front().note);
}

}  // namespace flashlab::lab
