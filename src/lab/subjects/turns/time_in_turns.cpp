#include "lab/subjects/turns/time_in_turns.h"

namespace flashlab::lab {

void time_in_turns(const MeasureOptions& options, std::span<const Contestant> contestants,
                   const std::function<void()>& so_far) {
  std::vector<TimedCall> calls;
  for (const Contestant& each : contestants) calls.push_back(each.call);
  MeasureOptions watched = options;
  if (so_far) {
    watched.before_long_sample = [&](const std::vector<std::span<const double>>& ms) {
      for (std::size_t i = 0; i < ms.size(); ++i) {
        contestants[i].result->set_times(ms[i], contestants[i].flops, contestants[i].bytes);
        contestants[i].result->cut_short = true;
      }
      so_far();
    };
  }
  const std::vector<Result<Samples>> samples = measure_interleaved(watched, calls);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Contestant& each = contestants[i];
    if (samples[i].ok()) {
      each.result->set_times(samples[i]->ms, each.flops, each.bytes);
      each.result->cut_short = samples[i]->cancelled;
    } else {
      each.result->set_failure(samples[i].status());
    }
  }
}

}  // namespace flashlab::lab
