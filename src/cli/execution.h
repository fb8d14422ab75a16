#pragma once

// What runs the problems: the device, its context, the implementations.

#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "flashlab/attention.h"
#include "lab/lab.h"

namespace flashlab::cli {

/// What runs a command when --device does not say.
enum class DefaultDevice {
  kCpu,         ///< the GPU only if an implementation is named that a CPU does not have
  kGpuIfThere,  ///< the first GPU, if it can run what the flags name; flags that are about CPUs
                ///< (--threads, --cpu-isa, an implementation that only a CPU has) mean the CPU
};

/// The device that --device asks for. Throws Failure for a word that names none.
Device device_of(const Arguments& arguments, DefaultDevice fallback);

/// The context that --device, --threads and --cpu-isa ask for. Throws Failure: no such device, an
/// instruction set that is not here.
Context make_context(const Arguments& arguments, DefaultDevice fallback = DefaultDevice::kCpu,
                     Allocator* allocator = nullptr);

/// The allocator a context of that device would have by itself; the caller owns it.
std::unique_ptr<Allocator> device_allocator(Device device);

/// "NVIDIA H200 (cuda:0)", or "avx512 · 8 threads".
std::string device_words(const Context& context);

/// The environment of a run in that context, observed for `observe_ms`.
lab::Environment environment_of(const Context& context, std::string protocol,
                                double observe_ms = 200);

/// --tile-q and --tile-k; 0 where not given.
TileOptions tile_options(const Arguments& arguments);

/// --implementation; else `fallback`.
std::vector<std::string> implementation_names(const Arguments& arguments,
                                              std::vector<std::string> fallback);

/// Throws Failure for a name that the context's device does not have.
void require_implementations(const Context& context, const std::vector<std::string>& names);

/// The device's production implementation; on a GPU that is too old for it what a call that names
/// none tries in turn.
std::vector<std::string> production(const Context& context);

/// All of the device but "reference": the fp64 oracle is the yardstick of every error figure, and
/// its plain loops take minutes where the others take a second. Of other people's libraries those
/// that are found.
std::vector<std::string> all_but_reference(const Context& context);

}  // namespace flashlab::cli
