#include "lab/subjects/time_in_turns.h"

namespace flashlab::lab {

void time_in_turns(const MeasureOptions& options, std::span<const Contestant> contestants) {
  std::vector<TimedCall> calls;
  for (const Contestant& each : contestants) calls.push_back(each.call);
  const std::vector<Result<Samples>> samples = measure_interleaved(options, calls);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Contestant& each = contestants[i];
    if (samples[i].ok()) {
      each.result->set_times(samples[i]->statistics(), each.flops, each.bytes);
    } else {
      each.result->set_failure(samples[i].status());
    }
  }
}

}  // namespace flashlab::lab
