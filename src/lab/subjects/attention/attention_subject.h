#pragma once

// Attention as a subject: the labels of a case, both ways, and its words.

#include <optional>
#include <string>

#include "case.h"
#include "lab/results/subject.h"

namespace flashlab::lab {

const Subject& attention_subject();

Labels labels_of(const cases::Case& problem);
/// What labels do not say has the case's default.
cases::Case case_of(const Labels& labels);
/// The case of a measurement of attention; empty for another subject.
std::optional<cases::Case> attention_case(const Measurement& measurement);

/// Nothing measured yet.
Measurement attention_measurement(std::string implementation, Device device, Pass pass,
                                  const cases::Case& problem);

/// "causal", "causal, bottom-right + boolean mask", "" for none.
std::string mask_words(const cases::Case& problem);
/// The mask and everything else that is not the default: "causal, scale 1".
std::string variant_words(const cases::Case& problem);

}  // namespace flashlab::lab
