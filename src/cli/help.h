#pragma once

#include <string>

#include "cli/flags.h"

namespace flashlab::cli {

/// `flashlab --help`: the commands.
std::string program_help(int width);
/// `flashlab COMMAND --help`.
std::string command_help(const CommandSpec& spec, int width);
/// docs/command-line.md.
std::string markdown_help();

/// A completion script. `shell` is one of the choices of `completion`.
std::string completion_script(std::string_view shell);

}  // namespace flashlab::cli
