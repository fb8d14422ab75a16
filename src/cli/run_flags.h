#pragma once

// Flags about how long a run is, how its rate goes, and when it looks, samples and saves: those
// that a resumed run may be given anew.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "train/run/train_config.h"

namespace flashlab::cli {

/// Whether the flag may stand beside --resume, because it changes the run from the next step on.
bool changes_run(std::string_view flag);

/// Those that were given, over `out`. A tenth stays a tenth: the minimum keeps its ratio to the
/// maximum where only that is given. Throws Failure.
void read_run_flags(const Arguments& arguments, train::TrainConfig& out);

/// The maximum; the minimum keeps its ratio to it.
void set_learning_rate(double rate, train::TrainConfig& out);

/// The flag's choice of an enumeration whose names are these, in order.
template <class Choice>
void read_choice(const Arguments& arguments, std::string_view flag,
                 const std::vector<std::string>& names, Choice& out) {
  const auto name = arguments.value(flag);
  if (!name) return;
  out = static_cast<Choice>(std::ranges::find(names, *name) - names.begin());
}

/// "--" and the message of a configuration that is none, its keys as flags. Throws Failure.
void require_valid(const train::TrainConfig& config);

}  // namespace flashlab::cli
