#pragma once

// Other people's attention by name: which of it runs in Python.

#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "flashlab/attention.h"

namespace flashlab::cli {

/// "torch.cudnn", ..., "flash-attn", "xformers": what is measured in a Python process.
const std::vector<std::string>& python_peers();
/// Those of them that take sequences of one length, ragged ones, or keys in caches.
enum class Sequences { kDense, kRagged, kCached };
std::vector<std::string> python_peers_for(Sequences sequences);
bool runs_in_python(std::string_view name);

/// Flags that it does not know, and what to do instead.
struct FlagRemedy {
  const char* flag;
  const char* remedy;
};
const std::vector<FlagRemedy>& flags_unknown_to_python();

/// What `compare` runs.
struct Contestants {
  std::vector<std::string> ours;      ///< implementations of the device
  std::vector<std::string> python;    ///< of python_peers
  std::vector<std::string> optional;  ///< those of `python` that matter only where installed
  std::vector<std::string> absent;    ///< asked for and not there on this device
  bool python_if_there = false;  ///< nobody asked for `python`: without a Python it is left out
};

/// --implementation, else `fallback`, and --peers: "torch" is all of PyTorch's backends and the
/// packages beside it, "none" leaves out other people's libraries. Where neither flag is given nor
/// one that Python does not know, those that the device can run are tried.
Contestants contestants_of(const Arguments& arguments, Device device,
                           std::vector<std::string> fallback);

}  // namespace flashlab::cli
