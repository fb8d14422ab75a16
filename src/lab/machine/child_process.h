#pragma once

// Another program, spoken to by lines: its input, what it prints, and how it ends.

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::lab {

/// The file that PATH has of that name; empty: none that may run.
std::string find_program(std::string_view name);

/// Runs in a process group of its own, so that Ctrl-C on the terminal does not reach it: whoever
/// started it decides. Ended with everything it started when this goes.
class ChildProcess {
 public:
  /// `command[0]` is looked for in PATH unless it names a folder.
  /// Errors: kIoError, with the system's words.
  static Result<std::unique_ptr<ChildProcess>> start(const std::vector<std::string>& command);
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();

  /// Sends a line. Short ones (below 4 KiB) never wait for a reader. False: nobody reads.
  bool send(std::string_view line);
  void close_input();

  struct Lines {
    std::vector<std::string> results;  ///< of its standard output
    std::vector<std::string> notes;    ///< of its standard error
  };
  /// Complete lines that have come, without their ends; waits up to `wait_ms` for the first. What
  /// stands behind the last line's end comes when the process has ended.
  Lines read(int wait_ms);

  /// Whether it has ended and everything that it printed was read.
  bool ended() const noexcept { return ended_; }
  /// "exit code 1", "signal 11 (Segmentation fault)".
  std::string how_it_ended() const;

  void interrupt() const;  ///< as Ctrl-C does
  void kill();             ///< at once, with everything that it started

 private:
  struct Pipe {
    int descriptor = -1;
    std::string rest;  // of a line whose end has not come
  };
  ChildProcess() = default;
  static void take(Pipe& pipe, std::vector<std::string>& lines);
  void reap(int flags);
  void close_all();

  pid_t pid_ = -1;
  int input_ = -1;
  Pipe results_, notes_;
  bool reaped_ = false, ended_ = false;
  int wait_status_ = 0;
};

}  // namespace flashlab::lab
