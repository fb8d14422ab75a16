#pragma once

// The part of the table of commands and flags that measures and checks training steps.

#include <vector>

#include "cli/flags.h"

namespace flashlab::cli {

std::vector<FlagSpec> flags_of_steps();
std::vector<CommandSpec> commands_of_steps();

}  // namespace flashlab::cli
