#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "cli/failure.h"

namespace flashlab::cli {
namespace {

std::atomic<bool> g_interrupted{false};
std::atomic<bool> g_looked_at{false};   // by what ends in an order of its own
std::atomic<bool> g_line_shown{false};  // compilations tell from threads of their own
bool g_reader_left = false;

extern "C" void on_interrupt(int) {
  // Until a command looks at the flag there is nothing to save: a long plan or a search ends here.
  // A second Ctrl-C means that the person will not wait for the sample to end.
  if (!g_looked_at || g_interrupted.exchange(true)) ::_exit(kExitInterrupted);
}

int columns_of(int descriptor) {
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 100;
}

bool progress_wanted() {
  static const bool kWanted = [] {
    const char* term = std::getenv("TERM");
    return ::isatty(STDERR_FILENO) == 1 && !(term && std::string_view(term) == "dumb");
  }();
  return kWanted;
}

void clear_line() {
  if (!g_line_shown) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  g_line_shown = false;
}

}  // namespace

const std::atomic<bool>& interrupted() {
  g_looked_at = true;
  return g_interrupted;
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A closed pipe is seen as an error of the write, so that files are still completed.
  std::signal(SIGPIPE, SIG_IGN);
}

int terminal_width() {
  return columns_of(STDOUT_FILENO);
}

bool colours() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && !(no_color && *no_color) &&
         !(term && std::string_view(term) == "dumb");
}

namespace {

std::string folded(std::string_view text, int width) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    // Colours take no columns; tables that have them keep to the width themselves.
    if (line.find('\x1b') == std::string_view::npos) {
      out += base::join(base::fold(line, width), "\n");
    } else {
      out += line;
    }
    if (end == std::string_view::npos) break;
    out += '\n';
    text.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace

void print(std::string_view given) {
  if (g_reader_left) return;
  clear_line();
  std::string text(given);
  if (::isatty(STDOUT_FILENO) == 1) text = folded(given, terminal_width());
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return;
  if (errno == EPIPE) {
    g_reader_left = true;
    return;
  }
  fail(fmt::format("stdout cannot be written: {}; what was saved in files is complete",
                   std::strerror(errno)));
}

void print_line(std::string_view text) {
  print(std::string(text) + "\n");
}

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

void print_hanging(std::string_view head, std::string_view text) {
  if (::isatty(STDOUT_FILENO) != 1) return print_line(std::string(head) + std::string(text));
  const int indent = base::display_width(head);
  std::string lead(head);
  for (const std::string& line : base::wrap(text, std::max(terminal_width() - indent, 20))) {
    print_line(lead + line);
    lead.assign(static_cast<std::size_t>(indent), ' ');
  }
}

void note(std::string_view text) {
  clear_line();
  std::fputs(fmt::format("flashlab: {}\n", text).c_str(), stderr);
}

void note_of_rank(int rank, std::string_view line) {
  clear_line();
  std::fputs(fmt::format("[rank {}] {}\n", rank, line).c_str(), stderr);
}

void ProgressLine::show(double done, double total, std::string_view what) {
  draw(done, total, what);
}

void ProgressLine::draw(double done, double total, std::string_view what) {
  if (!progress_wanted() || total <= 0) return;
  using Clock = std::chrono::steady_clock;
  static Clock::time_point last;
  const Clock::time_point now = Clock::now();
  if (g_line_shown && now - last < std::chrono::milliseconds(50)) return;
  last = now;

  constexpr int kBarColumns = 24;
  const double share = std::clamp(done / total, 0.0, 1.0);
  // What is left, once enough is done to tell. Work that begins again starts the clock again.
  static Clock::time_point begun;
  static double before = 2;
  if (share < before) begun = now;
  before = share;
  const double seconds = std::chrono::duration<double>(now - begun).count();
  const double left = share > 0.05 ? seconds * (1 - share) / share : 0;
  const std::string rest =
      seconds > 3 && left > 1 ? fmt::format(" · about {} left", duration(left)) : std::string();
  const int filled = static_cast<int>(share * kBarColumns);
  std::string bar;
  for (int i = 0; i < kBarColumns; ++i) bar += i < filled ? "█" : "·";
  const std::string head = fmt::format(" {:3.0f}%  ", share * 100);
  const int room = std::max(columns_of(STDERR_FILENO) - kBarColumns - 8, 1);
  std::string words = base::clean(what) + rest;
  while (base::display_width(words) > room) words.pop_back();
  std::fputs(fmt::format("\r{}{}{}\x1b[K", bar, head, words).c_str(), stderr);
  std::fflush(stderr);
  g_line_shown = true;
}

void ProgressLine::clear() {
  clear_line();
}

void leave_at_once(int exit_code) {
  std::fflush(stdout);
  std::fflush(stderr);
  ::_exit(exit_code);
}

}  // namespace flashlab::cli
