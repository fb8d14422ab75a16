#include "profile/recording.h"

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
  if (!plain_step_ms || *plain_step_ms <= 0 || steps() == 0) return std::nullopt;
  return step_ms() / *plain_step_ms - 1;
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
