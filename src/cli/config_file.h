#pragma once

// --config: a JSON or TOML file whose keys are the command's flags, with _ for -. Flags that are
// typed go over it.

#include <string>
#include <string_view>

#include "cli/flags.h"

namespace flashlab::cli {

/// Adds the flags of the file that were not typed. Keys of a run and its model are left to who
/// reads them, where the command is about one. Throws Failure: a file that is none, a key that is
/// no flag, a value of another kind.
void read_config(Arguments& arguments);

/// Of the same file, as JSON: the keys of a run and its model alone; "{}" where there is no file.
/// Throws Failure.
std::string run_keys_of(const Arguments& arguments);

}  // namespace flashlab::cli
