#pragma once

// Recordings with round figures.

#include <string>

#include "profile/recording.h"

namespace flashlab::profile {

struct SampleEvent {
  std::string name, kernel, event_class;
  std::string phase = "forward";
  double ms = 1;
  double flops = 0, bytes = 0;
  int layer = -1;
};

/// Steps one after another, each with these events in a row and `gap_ms` before every event.
inline Recording recording_of(const std::vector<SampleEvent>& events, int steps = 2,
                              double gap_ms = 0) {
  Recording out;
  out.title = "sample";
  out.device = "a device";
  double now = 0;
  out.spans.push_back({"warm-up 1", true, now, 5});
  now += 5;
  for (int step = 0; step < steps; ++step) {
    const double start = now;
    for (const SampleEvent& e : events) {
      now += gap_ms;
      Event event;
      event.name = e.name;
      event.kernel = e.kernel;
      event.event_class = e.event_class;
      event.phase = e.phase;
      event.layer = e.layer;
      event.flops = e.flops;
      event.bytes = e.bytes;
      event.step = step;
      event.start_ms = now;
      event.duration_ms = e.ms;
      now += e.ms;
      out.events.push_back(event);
    }
    out.spans.push_back({"step " + std::to_string(step + 1), false, start, now - start});
  }
  out.first_step_ms = 5;
  return out;
}

inline Recording layered_recording() {
  Recording out = recording_of(
      {{"embedding", "embedding", "elementwise", "forward", 0.5, 0, 1e6},
       {"layer 0 / attention / scores", "product", "product", "forward", 2, 4e9, 4e6, 0},
       {"layer 0 / attention / softmax", "softmax", "softmax", "forward", 1, 1e8, 8e6, 0},
       {"layer 0 / attention / values", "product", "product", "forward", 2, 4e9, 4e6, 0},
       {"layer 1 / mlp / down", "product", "product", "forward", 1, 4e9, 4e6, 1},
       {"layer 1 / mlp / d down", "product", "product", "backward", 3, 8e9, 8e6, 1},
       {"adamw", "adamw", "optimizer", "optimizer", 0.5, 0, 2e6}});
  out.roofs = {4000, 20, "given"};
  return out;
}

}  // namespace flashlab::profile
