#include "lab/subjects/step/step_subject.h"

#include <fmt/format.h>

#include "base/text.h"

namespace flashlab::lab {
namespace {

std::string without_context(const Labels& labels, std::string_view separator) {
  std::string out = fmt::format("{}{}{}{}batch {}", labels.text("model"), separator,
                                labels.text("dtype"), separator, labels.whole("batch"));
  if (labels.whole("accumulate") > 1) {
    out += fmt::format("{}{} micro-batches", separator, labels.whole("accumulate"));
  }
  return out + fmt::format("{}{} warm-ups", separator, labels.whole("warmup"));
}

}  // namespace

const Subject& step_subject() {
  static constexpr LabelSpec kLabels[] = {
      {.name = "model", .kind = LabelKind::kText, .heading = "model", .width = -12},
      {.name = "dtype", .kind = LabelKind::kText, .heading = "types", .width = -9},
      {.name = "batch", .heading = "batch", .width = 5},
      {.name = "context", .heading = "ctx", .width = 6},
      {.name = "warmup", .heading = "warm", .width = 4},
      {.name = "accumulate", .fallback = "1"},
      {.name = "layers", .identifies = false},
      {.name = "width", .identifies = false},
      {.name = "hidden", .identifies = false},
      {.name = "heads", .identifies = false},
      {.name = "vocabulary", .identifies = false},
      {.name = "seed", .identifies = false},
  };
  static constexpr ShownColumn kColumns[] = {
      {kMedianMs, Place::kEachPass, 9},
      {kMeanMs, Place::kDetails, 9},
      {kStdMs, Place::kDetails, 8},
      {kFirstMs, Place::kDetails, 9},
      {.column = kFirstLoss, .required = false},
      {.column = kStepRate, .required = false},
      {kTokensPerS, Place::kEachPass, 8},
      {kTflops, Place::kEachPass, 8},
      {kPeakBytes, Place::kRow, 9},
      {kPredictedBytes, Place::kDetails, 9},
      {kMinMs},
      {kMaxMs},
      {kQ1Ms},
      {kQ3Ms},
      {.column = kLowMs, .required = false},
      {.column = kHighMs, .required = false},
      {kTflopsPeak},
  };
  static constexpr Subject kSubject{
      .name = "step",
      .heading = "Training step",
      .labels = kLabels,
      .columns = kColumns,
      .pass_width = 16,
      .work = "What the plan's operations compute; what checkpointing repeats is not counted.",
      .names = "Context: tokens of a sequence; batch: sequences of a micro-batch.",
      .title =
          [](const Labels& labels, std::string_view separator) {
            return fmt::format("{}{}context {}", without_context(labels, separator), separator,
                               labels.whole("context"));
          },
      .family = [](const Labels& labels) { return without_context(labels, " · "); },
      .family_slug =
          [](const Labels& labels) {
            return fmt::format("step_{}_{}_B{}_W{}", base::file_name_part(labels.text("model")),
                               base::file_name_part(labels.text("dtype")), labels.whole("batch"),
                               labels.whole("warmup"));
          },
      .axis = "context",
      .axis_words = "context (tokens of a sequence)",
      .axis_short = "T",
  };
  return kSubject;
}

}  // namespace flashlab::lab
