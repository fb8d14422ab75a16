#pragma once

// What runs the problems: the device, its context, the implementations.

#include <string>
#include <vector>

#include "cli/flags.h"
#include "flashlab/attention.h"

namespace flashlab::cli {

/// The context that --device, --threads and --cpu-isa ask for. Throws Failure: no such device, an
/// instruction set that is not here.
Context make_context(const Arguments& arguments, Allocator* allocator = nullptr);

/// --tile-q and --tile-k; 0 where not given.
TileOptions tile_options(const Arguments& arguments);

/// --implementation; else `fallback`.
std::vector<std::string> implementation_names(const Arguments& arguments,
                                              std::vector<std::string> fallback);

/// The device's production implementation.
std::vector<std::string> production(const Context& context);

/// All of the device but "reference": the fp64 oracle is the yardstick of every error figure, and
/// its plain loops take minutes where the others take a second.
std::vector<std::string> all_but_reference(const Context& context);

}  // namespace flashlab::cli
