#include "profile/attention_run.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::profile {
namespace {

using lab::Measurement;

// Maximum, difference, exponential, sum, quotient.
constexpr double kSoftmaxFlopsPerScore = 5;

/// A step of an attention in several, by the end of its name: "flash_bwd_naive_dq" is "dq".
struct KnownStep {
  std::string_view name;
  const char* event_class;
  bool has_product;  ///< multiplies matrices once over all scores
};
constexpr std::array<KnownStep, 9> kKnownSteps = {{{"scores", "product", true},
                                                   {"softmax", "softmax", false},
                                                   {"values", "product", true},
                                                   {"probabilities", "softmax", true},
                                                   {"dv", "product", true},
                                                   {"ds", "softmax", true},
                                                   {"dq", "product", true},
                                                   {"dk", "product", true},
                                                   {"memset", "copy", false}}};

const KnownStep* known_step(std::string_view name) {
  const std::string_view last = name.substr(name.find_last_of('_') + 1);
  const auto found = std::find_if(kKnownSteps.begin(), kKnownSteps.end(),
                                  [&](const KnownStep& step) { return step.name == last; });
  return found == kKnownSteps.end() ? nullptr : &*found;
}

bool has_product(const Event& event) {
  const KnownStep* step = known_step(event.kernel);
  return step != nullptr && step->has_product;
}

double work_of(const Measurement& m) {
  return m[lab::kTflops] && m[lab::kMedianMs] ? *m[lab::kTflops] * *m[lab::kMedianMs] * 1e9 : 0;
}

// FLOPs over the parts as the header says.
void share_out_flops(const Measurement& m, std::vector<Event>& parts) {
  const double flops = work_of(m);
  const auto products = static_cast<double>(std::count_if(parts.begin(), parts.end(), has_product));
  if (products > 0) {
    const auto problem = lab::attention_case(m);
    const double per_score = problem ? 2.0 * static_cast<double>(problem->head_dim) : 0;
    const double scores = per_score > 0 ? flops / products / per_score : 0;
    for (Event& part : parts) {
      if (has_product(part)) part.flops = flops / products;
      if (part.event_class == "softmax") part.flops += kSoftmaxFlopsPerScore * scores;
    }
    return;
  }
  const auto longest = std::max_element(
      parts.begin(), parts.end(),
      [](const Event& a, const Event& b) { return a.duration_ms < b.duration_ms; });
  longest->flops = flops;
}

std::vector<Event> events_of(const Measurement& m) {
  std::vector<Event> out;
  Event event;
  event.phase = m.pass;
  if (m.parts.size() < 2) {
    event.kernel = m.parts.empty() ? m.implementation : m.parts[0].name;
    event.event_class = "attention";
    event.duration_ms = *m[lab::kMedianMs];
    event.flops = work_of(m);
    event.bytes = m[lab::kGbPerS] ? *m[lab::kGbPerS] * event.duration_ms * 1e6 : 0;
    out.push_back(event);
  } else {
    for (const Measurement::Part& part : m.parts) {
      event.kernel = part.name;
      const KnownStep* step = known_step(part.name);
      event.event_class = step != nullptr ? step->event_class : "attention";
      event.duration_ms = part.median_ms;
      out.push_back(event);
    }
    share_out_flops(m, out);
  }
  for (Event& e : out) e.name = "attention / " + m.implementation + " / " + e.kernel;
  return out;
}

}  // namespace

Recording recording_of(std::span<const Measurement> measurements) {
  Recording out;
  double now_ms = 0;
  // All calls together are one step: shares are those of the whole.
  StepSpan span = {"attention", false, 0, 0};
  for (const Measurement& m : measurements) {
    if (m.status != lab::RunStatus::kOk || !m[lab::kMedianMs]) continue;
    for (Event& event : events_of(m)) {
      event.start_ms = now_ms;
      now_ms += event.duration_ms;
      out.events.push_back(std::move(event));
    }
  }
  span.duration_ms = now_ms;
  if (!out.events.empty()) out.spans.push_back(span);
  return out;
}

}  // namespace flashlab::profile
