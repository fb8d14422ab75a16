#include <fmt/format.h>

#include <array>

#include "lab/subjects/append/append_bench.h"
#include "lab/subjects/attention/attention_subject.h"
#include "lab/subjects/collective/collective_bench.h"
#include "lab/subjects/step/step_subject.h"
#include "lab/subjects/weighted_sum/weighted_sum_bench.h"

namespace flashlab::lab {

std::span<const Subject* const> subjects() {
  static const std::array kSubjects = {&attention_subject(), &append_subject(),
                                       &weighted_sum_subject(), &collective_subject(),
                                       &step_subject()};
  return kSubjects;
}

const Subject* find_subject(std::string_view name) {
  for (const Subject* subject : subjects()) {
    if (subject->name == name) return subject;
  }
  return nullptr;
}

const Subject& subject_of(const Measurement& measurement) {
  const Subject* subject = find_subject(measurement.subject);
  return subject != nullptr ? *subject : attention_subject();
}

std::string title_of(const Measurement& measurement, std::string_view separator) {
  return subject_of(measurement).title(measurement.labels, separator);
}

std::string problem_key(const Measurement& measurement) {
  std::string out = measurement.subject;
  for (const LabelSpec& spec : subject_of(measurement).labels) {
    const LabelValue* value = spec.identifies ? measurement.labels.find(spec.name) : nullptr;
    // A file may leave out what has its default.
    const std::string text = value != nullptr ? to_string(*value) : std::string(spec.fallback);
    if (text != spec.fallback) out += fmt::format(" {}={}", spec.name, text);
  }
  return out;
}

}  // namespace flashlab::lab
