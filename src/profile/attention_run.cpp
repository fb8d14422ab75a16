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
  /// Matrices of scores that it reads or writes: S in fp32, P, dP and dS at least in the inputs'
  /// type.
  int scores, weights;
};
constexpr std::array<KnownStep, 9> kKnownSteps = {{{"scores", "product", true, 1, 0},
                                                   {"softmax", "softmax", false, 1, 1},
                                                   {"values", "product", true, 0, 1},
                                                   {"probabilities", "softmax", true, 0, 1},
                                                   {"dv", "product", true, 0, 1},
                                                   {"ds", "softmax", true, 0, 2},
                                                   {"dq", "product", true, 0, 1},
                                                   {"dk", "product", true, 0, 1},
                                                   {"memset", "copy", false, 0, 0}}};

const KnownStep* known_step(std::string_view name) {
  const std::string_view last = name.substr(name.find_last_of('_') + 1);
  const auto found =
      std::ranges::find_if(kKnownSteps, [&](const KnownStep& step) { return step.name == last; });
  return found == kKnownSteps.end() ? nullptr : &*found;
}

bool has_product(const Event& event) {
  const KnownStep* step = known_step(event.kernel);
  return step != nullptr && step->has_product;
}

double work_of(const Measurement& m) {
  return m[lab::kTflops] && m[lab::kMedianMs] ? *m[lab::kTflops] * *m[lab::kMedianMs] * 1e9 : 0;
}

double bytes_of(const Measurement& m) {
  return m[lab::kGbPerS] && m[lab::kMedianMs] ? *m[lab::kGbPerS] * *m[lab::kMedianMs] * 1e6 : 0;
}

// FLOPs and bytes over the parts as the header says.
void share_out_work(const Measurement& m, std::vector<Event>& parts) {
  const double flops = work_of(m);
  const auto products = static_cast<double>(std::ranges::count_if(parts, has_product));
  if (products > 0) {
    const auto problem = lab::attention_case(m);
    const double per_score = problem ? 2.0 * static_cast<double>(problem->head_dim) : 0;
    const double scores = per_score > 0 ? flops / products / per_score : 0;
    const double weight = problem ? static_cast<double>(size_of(problem->dtype)) : 0;
    const double score = std::max(4.0, weight);
    for (Event& part : parts) {
      if (has_product(part)) part.flops = flops / products;
      if (part.event_class == "softmax") part.flops += kSoftmaxFlopsPerScore * scores;
      if (const KnownStep* step = known_step(part.kernel)) {
        part.bytes = scores * (step->scores * score + step->weights * weight);
      }
    }
    return;
  }
  const auto longest = std::ranges::max_element(
      parts, [](const Event& a, const Event& b) { return a.duration_ms < b.duration_ms; });
  longest->flops = flops;
  longest->bytes = bytes_of(m);
}

const CallKernels* recorded_call(std::span<const CallKernels> recorded, const Measurement& m) {
  const auto found = std::ranges::find_if(recorded, [&](const CallKernels& each) {
    return each.implementation == m.implementation && each.pass == m.pass;
  });
  return found == recorded.end() ? nullptr : &*found;
}

// Names and times, from the beginning of the call.
std::vector<Event> parts_of(const Measurement& m, const CallKernels* recorded) {
  std::vector<Event> out;
  if (recorded != nullptr) {
    for (const CallKernels::Kernel& kernel : recorded->kernels) {
      Event& event = out.emplace_back();
      event.kernel = kernel.name;
      event.start_ms = kernel.start_ms;
      event.duration_ms = kernel.duration_ms;
      event.launch = kernel.launch;
    }
  } else if (m.parts.size() < 2) {
    Event& event = out.emplace_back();
    event.kernel = m.parts.empty() ? m.implementation : m.parts[0].name;
    event.duration_ms = *m[lab::kMedianMs];
  } else {
    double now_ms = 0;
    for (const Measurement::Part& part : m.parts) {
      Event& event = out.emplace_back();
      event.kernel = part.name;
      event.start_ms = now_ms;
      event.duration_ms = part.median_ms;
      now_ms += part.median_ms;
    }
  }
  return out;
}

std::vector<Event> events_of(const Measurement& m, const CallKernels* recorded) {
  std::vector<Event> out = parts_of(m, recorded);
  for (Event& event : out) {
    const KnownStep* step = known_step(event.kernel);
    event.event_class = step != nullptr && out.size() > 1 ? step->event_class : "attention";
    event.phase = m.pass;
    event.name = "attention / " + m.implementation + " / " + event.kernel;
  }
  if (out.size() == 1) {
    out[0].flops = work_of(m);
    out[0].bytes = bytes_of(m);
  } else {
    share_out_work(m, out);
  }
  return out;
}

}  // namespace

Recording recording_of(std::span<const Measurement> measurements,
                       std::span<const CallKernels> recorded) {
  Recording out;
  double now_ms = 0;
  // All calls together are one step: shares are those of the whole.
  StepSpan span = {"attention", false, 0, 0};
  for (const Measurement& m : measurements) {
    if (m.status != lab::RunStatus::kOk || !m[lab::kMedianMs]) continue;
    const double begin_ms = now_ms;
    for (Event& event : events_of(m, recorded_call(recorded, m))) {
      event.start_ms += begin_ms;
      now_ms = std::max(now_ms, event.start_ms + event.duration_ms);
      out.events.push_back(std::move(event));
    }
  }
  span.duration_ms = now_ms;
  if (!recorded.empty()) out.clock = "CUPTI, kernel by kernel, in calls of their own";
  if (!out.events.empty()) out.spans.push_back(span);
  return out;
}

}  // namespace flashlab::profile
