#include "lab/subjects/loop/loop_subject.h"

#include <fmt/format.h>

namespace flashlab::lab {
namespace {

std::string tiling_words(const Labels& labels, std::string_view separator) {
  return fmt::format("{}{}{} queries x {} keys{}", labels.text("dtype"), separator,
                     labels.whole("tile_q"), labels.whole("block_keys"),
                     labels.flag("turns") ? " in turns" : "");
}

}  // namespace

const Subject& loop_subject() {
  static constexpr LabelSpec kLabels[] = {
      {.name = "dtype", .kind = LabelKind::kText, .heading = "dtype", .width = -5},
      {.name = "head_dim", .heading = "D", .width = 4},
      {.name = "head_dim_v", .heading = "Dv", .width = 4},
      {.name = "tile_q", .heading = "queries", .width = 7},
      {.name = "block_keys", .heading = "keys", .width = 4},
      {.name = "turns", .kind = LabelKind::kFlag, .fallback = "no"},
      {.name = "stages_k"},
      {.name = "stages_v"},
      {.name = "steps", .identifies = false},
  };
  static constexpr ShownColumn kColumns[] = {
      {kStepClocks, Place::kEachPass, 8},
      {kTensorShare, Place::kEachPass, 5},
      {kProductClocks, Place::kDetails, 8},
      {kQ1StepClocks},
      {kQ3StepClocks},
      {kMedianMs},
      {kMinMs},
      {kQ1Ms},
      {kQ3Ms},
  };
  static constexpr Subject kSubject{
      .name = "sm90-loop",
      .heading = "Main loop of the Hopper forward kernel",
      .labels = kLabels,
      .columns = kColumns,
      .work = "A step: 2 queries keys (D + Dv), at 4096 FLOP per clock and multiprocessor.",
      .names = "Queries and keys of a step of all consumers; D: head dim.",
      .title =
          [](const Labels& labels, std::string_view separator) {
            return fmt::format("{}{}d {}", tiling_words(labels, separator), separator,
                               labels.whole("head_dim"));
          },
      .family = [](const Labels& labels) { return tiling_words(labels, " · "); },
      .family_slug =
          [](const Labels& labels) {
            return fmt::format("sm90_loop_{}_q{}_k{}{}", labels.text("dtype"),
                               labels.whole("tile_q"), labels.whole("block_keys"),
                               labels.flag("turns") ? "_turns" : "");
          },
      .axis = "head_dim",
      .axis_words = "head dim d",
      .axis_short = "d",
  };
  return kSubject;
}

Measurement measurement_of(const cases::Case& problem, Device device, const LoopReading& reading) {
  Measurement out;
  out.subject = loop_subject().name;
  out.implementation = kSm90LoopName;
  out.device = to_string(device);
  out.pass = "forward";
  const auto whole = [&](const char* name, std::int64_t value) {
    out.labels.set(name, static_cast<std::uint64_t>(value));
  };
  out.labels.set("dtype", std::string(to_string(problem.dtype)));
  whole("head_dim", problem.head_dim);
  whole("head_dim_v", problem.head_dim_v);
  whole("tile_q", reading.tiling.tile_q());
  whole("block_keys", reading.tiling.block_keys);
  out.labels.set("turns", reading.tiling.turns);
  whole("stages_k", reading.tiling.stages_k);
  whole("stages_v", reading.tiling.stages_v);
  whole("steps", reading.steps);
  out.samples = static_cast<int>(reading.clocks.count);
  out[kStepClocks] = reading.clocks.median;
  out[kQ1StepClocks] = reading.clocks.q1;
  out[kQ3StepClocks] = reading.clocks.q3;
  out[kProductClocks] = reading.ideal_clocks;
  out[kTensorShare] = reading.ideal_clocks / reading.clocks.median;
  return out;
}

}  // namespace flashlab::lab
