#pragma once

// The part of the table of commands and flags that shows where time and memory go.

#include <vector>

#include "cli/flags.h"

namespace flashlab::cli {

std::vector<FlagSpec> flags_of_profiles();
std::vector<CommandSpec> commands_of_profiles();

}  // namespace flashlab::cli
