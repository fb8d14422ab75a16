#pragma once

// The lines of JSON between this program and python/flashlab/peers: what is asked, what comes back.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "case.h"
#include "flashlab/status.h"
#include "lab/measure/measure.h"
#include "lab/results/measurement.h"

namespace flashlab::lab {

inline constexpr int kPythonProtocol = 1;

/// What a worker says of itself when it is ready.
struct PythonInfo {
  int protocol = 0;
  std::string python, executable, torch, flashlab;  ///< versions, and the path of the interpreter
  std::string device, clock;                        ///< "NVIDIA H200", "CUDA events around ..."
  int threads = 0;
  /// Optional packages with their versions; empty: not installed.
  std::vector<std::pair<std::string, std::string>> packages;

  bool has(std::string_view package) const;
  /// "Python 3.12.3, torch 2.11.0, flashlab 0.1.0".
  std::string words() const;
};

/// One problem for the worker.
struct PythonRequest {
  const cases::Case& problem;
  std::span<const Pass> passes;
  std::span<const std::string> implementations;
  const MeasureOptions& measure;
};
std::string to_json_line(const PythonRequest& request);

/// One line from the worker.
struct PythonMessage {
  enum class Kind { kReady, kMissing, kUnusable, kResult, kEnd } kind = Kind::kEnd;
  PythonInfo info;                   ///< of kReady
  std::vector<std::string> modules;  ///< of kMissing: what cannot be imported
  std::string text;                  ///< of kUnusable: why
  Measurement result;                ///< of kResult, with everything that can be computed from it
  bool lost = false;                 ///< of kEnd: the worker can do nothing more
};

/// Errors: kInvalidArgument for a line that is not by the protocol, naming what is wrong with it.
/// `asked`: the request under way, whose results alone are accepted; null: none.
Result<PythonMessage> parse_message(std::string_view line, const PythonRequest* asked,
                                    const std::string& device);

/// "progress DONE TOTAL WORDS" of a note; empty for any other.
struct PythonProgress {
  double done = 0, total = 1;
  std::string words;
};
std::optional<PythonProgress> parse_progress(std::string_view note);

}  // namespace flashlab::lab
