#pragma once

// A Python that carries out a text of ours and answers each line of its input by one of its output.

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/machine/child_process.h"

namespace flashlab::lab {

struct PeerPython {
  std::string python = "python3";
  double silence_s = 300;                       ///< no answer for this long: it hangs
  std::string_view silence_flag = "--timeout";  ///< what says so, for messages
  const std::atomic<bool>* cancel = nullptr;
  int look_ms = 50;                   ///< an answer may be seen so much later
  std::string_view what = "PyTorch";  ///< what the text needs, for messages
  std::string_view remedy = {};       ///< where it is missing; empty: PyTorch's
};

class PythonAnswers {
 public:
  /// Starts `text` with `arguments`, and waits for its first line: what imports PyTorch says so.
  /// Errors: kIoError (no such program), kUnsupported (no PyTorch there, or it ended), with what
  /// Python said.
  static Result<std::unique_ptr<PythonAnswers>> start(const PeerPython& options,
                                                      std::string_view text,
                                                      const std::vector<std::string>& arguments);

  /// Its first line, {"ready": WORDS, ...}, and the words: "torch 2.11.0".
  const std::string& ready() const { return ready_; }
  const std::string& words() const { return words_; }
  bool ended() const { return child_->ended(); }
  /// Errors: kUnsupported when no answer comes, with what Python said.
  Result<std::string> ask(std::string_view request);

 private:
  explicit PythonAnswers(const PeerPython& options) : options_(options) {}
  Result<std::string> answer();

  PeerPython options_;
  std::unique_ptr<ChildProcess> child_;
  std::vector<std::string> lines_, notes_;
  std::string ready_, words_;
};

}  // namespace flashlab::lab
