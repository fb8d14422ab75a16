#pragma once

// What the person sees: text on stdout, progress on stderr, and Ctrl-C.

#include <atomic>
#include <string>
#include <string_view>

namespace flashlab::cli {

/// Set by the first Ctrl-C or SIGTERM; the second ends the process at once. So does the first one
/// before anybody has asked for this flag: what looks at it asks before it has something to save.
const std::atomic<bool>& interrupted();
void catch_interrupts();

/// Columns of the terminal on stdout; 100 where it is none.
int terminal_width();
/// Whether stdout shows colours: a terminal, NO_COLOR unset or empty, TERM not "dumb".
bool colours();

/// Writes to stdout at once, taking a progress line away first; on a terminal, lines that are wider
/// than it are broken at spaces. Throws Failure when it cannot (a full disk); a reader that has
/// left (head) ends the output quietly.
void print(std::string_view text);
void print_line(std::string_view text);

/// "40 s", "3 min", "2.5 h".
std::string duration(double seconds);

/// "warning  ..." broken at spaces under its own indentation where stdout is a terminal; one line
/// elsewhere, so that grep finds it whole.
void print_hanging(std::string_view head, std::string_view text);

/// A note on stderr: "flashlab: ...".
void note(std::string_view text);

/// A line of another rank on stderr: "[rank 1] ...".
void note_of_rank(int rank, std::string_view line);

/// One line on stderr that is redrawn: only where stderr is a terminal.
class ProgressLine {
 public:
  ProgressLine() = default;
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { clear(); }

  /// `done` of `total` and what is being done. Redrawn at most 20 times a second.
  void show(double done, double total, std::string_view what);
  void clear();
  /// `show` without an object: from another thread, while the object is alive.
  static void draw(double done, double total, std::string_view what);
};

/// Ends the process with what was printed, and nothing else: no destructor runs.
[[noreturn]] void leave_at_once(int exit_code);

}  // namespace flashlab::cli
