#pragma once

#include "cli/flags.h"

namespace flashlab::cli {

/// Whether --implementation names sm90.loop, which is no implementation but an instrument.
bool names_loop(const Arguments& arguments);
/// Prints which share of its clocks the loop keeps the tensor cores busy, and records it.
int run_bench_loop(const Arguments& arguments);
/// Prints what the loop is for each problem: on any machine.
int run_explain_loop(const Arguments& arguments);

}  // namespace flashlab::cli
