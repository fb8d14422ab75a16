#pragma once

// The part of the table of commands and flags that is about training.

#include <vector>

#include "cli/flags.h"

namespace flashlab::cli {

std::vector<FlagSpec> flags_of_training();
std::vector<CommandSpec> commands_of_training();

}  // namespace flashlab::cli
