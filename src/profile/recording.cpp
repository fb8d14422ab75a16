#include "profile/recording.h"

#include <algorithm>

#include "lab/measure/statistics.h"

namespace flashlab::profile {

int Recording::steps() const {
  int count = 0;
  for (const StepSpan& span : spans) count += span.warmup ? 0 : 1;
  return count;
}

double Recording::step_ms() const {
  std::vector<double> times;
  for (const StepSpan& span : spans) {
    if (!span.warmup) times.push_back(span.duration_ms);
  }
  return lab::median_of(times).value_or(0);
}

double Recording::busy_ms() const {
  double sum = 0;
  for (const Event& event : events) sum += event.duration_ms;
  return steps() > 0 ? sum / steps() : 0;
}

std::optional<double> Recording::overhead() const {
  if (steps() == 0) return std::nullopt;
  std::vector<double> of_device;
  for (const StepSpan& span : spans) {
    if (!span.warmup && span.device_ms) of_device.push_back(*span.device_ms);
  }
  if (const auto recorded = lab::median_of(of_device); recorded && device_step_ms.value_or(0) > 0) {
    return *recorded / *device_step_ms - 1;
  }
  if (plain_step_ms.value_or(0) <= 0) return std::nullopt;
  return step_ms() / *plain_step_ms - 1;
}

// Clocks count nanoseconds; sums of them in floating point differ by less.
constexpr double kLeastGapMs = 5e-7;

std::optional<TimeAccount> Recording::account() const {
  std::vector<std::vector<const Event*>> by_step;
  for (const Event& event : events) {
    by_step.resize(std::max(by_step.size(), static_cast<std::size_t>(event.step) + 1));
    by_step[static_cast<std::size_t>(event.step)].push_back(&event);
  }
  std::vector<const StepSpan*> recorded;
  for (const StepSpan& span : spans) {
    if (!span.warmup) recorded.push_back(&span);
  }
  TimeAccount out;
  std::vector<double> whole, covered, gaps, counts, filled, explained;
  for (std::size_t step = 0; step < by_step.size(); ++step) {
    std::vector<const Event*>& of_step = by_step[step];
    if (of_step.empty()) continue;
    std::ranges::stable_sort(
        of_step, [](const Event* a, const Event* b) { return a->start_ms < b->start_ms; });
    double reached = of_step.front()->start_ms, idle = 0;
    int count = 0;
    const Event* last = of_step.front();
    for (const Event* event : of_step) {
      if (const double gap = event->start_ms - reached; gap > kLeastGapMs) {
        idle += gap;
        ++count;
        if (gap > out.longest_gap_ms) {
          out.longest_gap_ms = gap;
          out.longest_gap_after = last->name;
        }
      }
      if (const double end = event->start_ms + event->duration_ms; end >= reached) {
        reached = end;
        last = event;
      }
    }
    const double span = reached - of_step.front()->start_ms;
    whole.push_back(span);
    gaps.push_back(idle);
    covered.push_back(span - idle);
    counts.push_back(count);
    if (step >= recorded.size()) continue;
    const std::optional<double> device = recorded[step]->device_ms;
    if (device && *device > 0) explained.push_back(span / *device);
    const double all = device.value_or(recorded[step]->duration_ms);
    if (all > 0) filled.push_back((span - idle) / all);
  }
  if (whole.empty()) return std::nullopt;
  out.span_ms = *lab::median_of(whole);
  out.covered_ms = *lab::median_of(covered);
  out.gaps_ms = *lab::median_of(gaps);
  out.gaps = *lab::median_of(counts);
  out.filled = lab::median_of(filled).value_or(0);
  out.explained = lab::median_of(explained);
  return out;
}

std::vector<std::string> path_of(const std::string& name) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find(" / ", at), name.size());
    out.push_back(name.substr(at, end - at));
    at = end + 3;
  }
  return out;
}

LeastTime least_time(double flops, double bytes, const Roofs& roofs) {
  const double arithmetic = roofs.gflops && *roofs.gflops > 0 ? flops / *roofs.gflops * 1e-6 : 0;
  const double memory = roofs.gb_per_s && *roofs.gb_per_s > 0 ? bytes / *roofs.gb_per_s * 1e-6 : 0;
  if (arithmetic == 0 && memory == 0) return {};
  return arithmetic > memory ? LeastTime{arithmetic, "arithmetic"} : LeastTime{memory, "memory"};
}

}  // namespace flashlab::profile
