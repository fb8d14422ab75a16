#pragma once

// Flags about how long a run is, how its rate goes, and when it looks, samples and saves: those
// that a resumed run may be given anew.

#include <string_view>

#include "cli/flags.h"
#include "train/run/train_config.h"

namespace flashlab::cli {

/// Whether the flag may stand beside --resume, because it changes the run from the next step on.
bool changes_run(std::string_view flag);

/// Those that were given, over `out`. A tenth stays a tenth: the minimum keeps its ratio to the
/// maximum where only that is given. Throws Failure.
void read_run_flags(const Arguments& arguments, train::TrainConfig& out);

/// "--" and the message of a configuration that is none, its keys as flags. Throws Failure.
void require_valid(const train::TrainConfig& config);

}  // namespace flashlab::cli
