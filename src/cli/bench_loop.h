#pragma once

#include "cli/flags.h"

namespace flashlab::cli {

/// Whether --implementation names sm90.loop, which is no implementation but an instrument.
bool names_loop(const Arguments& arguments);
/// Prints which share of its clocks the loop keeps the tensor cores busy.
int run_bench_loop(const Arguments& arguments);

}  // namespace flashlab::cli
