#include "dist/launch/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>

#include "base/stop.h"
#include "base/text.h"
#include "dist/launch/processors.h"
#include "dist/shared/segment.h"
#include "dist/start/join.h"
#include "dist/start/world.h"
#include "runtime/cpu/processors.h"

extern "C" char** environ;

namespace flashlab::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 20;
// Whoever sees a rank die may end before it is seen here: so long others are asked for the reason.
constexpr double kReasonsS = 0.3;
// The others say in which collective a killed one is missing once they wait for it there.
constexpr double kLastWordsS = 1;
// What cannot be run is said by all ranks, each in its time: rank 0's word is waited for.
constexpr double kSameReasonS = 2;
constexpr int kExitUsage = 2;
constexpr int kExitInterrupted = 130;

void close_one(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Pipe {
  int descriptor = -1;
  std::string rest{};  // of a line whose end has not come
};

struct Child {
  int rank = 0;
  pid_t pid = -1;
  Pipe out{}, notes{}, report{};
  bool running = true;
  int wait_status = 0;
  int reported_code = 0;
  bool lost = false;     // by its report: another rank is the reason
  std::string reason{};  // of its report
  Clock::time_point ended_at{};

  bool signalled() const { return WIFSIGNALED(wait_status); }
  int exit_code() const { return signalled() ? 1 : WEXITSTATUS(wait_status); }
};

// A port that nobody listens on, for programs that meet by one.
int free_port() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  int port = 29500;
  if (descriptor >= 0 &&
      ::bind(descriptor, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port = ntohs(address.sin_port);
  }
  if (descriptor >= 0) ::close(descriptor);
  return port;
}

// What a rank's process is started with, made before the fork: behind it nothing may allocate.
struct Start {
  std::vector<std::string> words, variables;
  std::vector<char*> word_pointers, variable_pointers;
  cpu_set_t processors;
  bool bound = false;
  int out = -1, notes = -1, report = -1, input = -1;
  pid_t parent = 0;
};

void set_variable(std::vector<std::string>& variables, const std::string& name,
                  const std::string& value) {
  std::erase_if(variables, [&](const std::string& one) { return one.starts_with(name + "="); });
  variables.push_back(name + "=" + value);
}

std::vector<std::string> variables_of(int rank, const LaunchOptions& options, const Share& share,
                                      const std::string& job, int port) {
  std::vector<std::string> out;
  for (char** each = environ; *each != nullptr; ++each) out.emplace_back(*each);
  const std::string rank_text = std::to_string(rank), size_text = std::to_string(options.ranks);
  set_variable(out, "RANK", rank_text);
  set_variable(out, "LOCAL_RANK", rank_text);
  set_variable(out, "WORLD_SIZE", size_text);
  set_variable(out, "LOCAL_WORLD_SIZE", size_text);
  set_variable(out, "MASTER_ADDR", "127.0.0.1");
  set_variable(out, "MASTER_PORT", std::to_string(port));
  set_variable(out, "FLASHLAB_JOB", job);
  const std::string threads = std::to_string(share.threads);
  set_variable(out, "FLASHLAB_THREADS", threads);
  // Other programs' threads, unless somebody has chosen.
  if (!environment()("OMP_NUM_THREADS")) set_variable(out, "OMP_NUM_THREADS", threads);
  for (const Setting& setting : kMulticastOff) set_variable(out, setting.name, setting.value);
  return out;
}

void write_whole(int descriptor, const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(descriptor, text, std::strlen(text));
}

// The forked child until it becomes its program: async-signal-safe calls only.
[[noreturn]] void become(const Start& start) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD}) {
    ::sigaction(signal, &usual, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (start.bound) ::sched_setaffinity(0, sizeof start.processors, &start.processors);
  ::dup2(start.input, STDIN_FILENO);
  if (start.out >= 0) ::dup2(start.out, STDOUT_FILENO);
  if (start.notes >= 0) ::dup2(start.notes, STDERR_FILENO);
  ::fcntl(start.report, F_SETFD, 0);  // it stays open in the program
  // The launcher may have gone before the signal of its death was asked for.
  if (::getppid() == start.parent) {
    ::execvpe(start.word_pointers[0], start.word_pointers.data(), start.variable_pointers.data());
    const int error = errno;
    write_whole(start.report, "2 failed ");
    write_whole(start.report, start.word_pointers[0]);
    write_whole(start.report, error == ENOENT   ? ": no such program; give its path\n"
                              : error == EACCES ? ": it may not be run; give a program\n"
                                                : ": it cannot be started\n");
  }
  ::_exit(kExitUsage);  // lint: allow(exits) because a forked child has nowhere to return to
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options)
      : options_(options),
        name_(host_of()),
        job_(fmt::format("{}-{:08x}", ::getpid(), std::random_device()())) {}
  ~Launcher() {
    end_all(SIGKILL);
    for (Child& child : children_) {
      if (child.running) ::waitpid(child.pid, &child.wait_status, 0);
      for (Pipe* pipe : {&child.out, &child.notes, &child.report}) close_one(pipe->descriptor);
    }
    // A run that ended while its ranks met may have left the place where they did.
    Segment::forget(fmt::format("{}-{}-main", ::getuid(), job_));
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  Status start_all();
  LaunchEnd wait();

 private:
  static std::string host_of() {
    const Result<World> world =
        world_of([](const char*) -> std::optional<std::string> { return std::nullopt; });
    return world.ok() ? world->host : "this host";
  }
  Status start(int rank, const Share& share, int port);
  void read_all(int wait_ms);
  void read(Child& child, Pipe& pipe);
  void take_line(Child& child, const Pipe& pipe, std::string_view line);
  void reap();
  void end_all(int signal);
  bool any_running() const {
    return std::ranges::any_of(children_, [](const Child& child) { return child.running; });
  }
  bool is_failure(const Child& child) const {
    return !child.running && child.wait_status != 0 &&
           (child.signalled() ||
            std::ranges::find(options_.verdicts, child.exit_code()) == options_.verdicts.end());
  }
  const Child* culprit() const;
  double patience_with(const Child* culprit) const;
  LaunchEnd judge(bool interrupted) const;
  std::string words(const Child& child) const;

  const LaunchOptions& options_;
  std::string name_, job_;
  std::vector<Child> children_;
  bool ending_ = false;
  Clock::time_point ending_since_{};
};

Status Launcher::start(int rank, const Share& share, int port) {
  Child child{.rank = rank};
  std::array<int, 2> out = {-1, -1}, notes = {-1, -1}, report = {-1, -1};
  Start start;
  start.input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  bool made = start.input >= 0 && ::pipe2(report.data(), O_CLOEXEC) == 0;
  if (made && rank > 0) {
    made = ::pipe2(out.data(), O_CLOEXEC) == 0 && ::pipe2(notes.data(), O_CLOEXEC) == 0;
  }
  start.out = out[1];
  start.notes = notes[1];
  start.report = report[1];
  start.parent = ::getpid();
  start.words = options_.command;
  start.variables = variables_of(rank, options_, share, job_, port);
  set_variable(start.variables, kReportVariable, std::to_string(report[1]));
  for (std::string& word : start.words) start.word_pointers.push_back(word.data());
  for (std::string& one : start.variables) start.variable_pointers.push_back(one.data());
  start.word_pointers.push_back(nullptr);
  start.variable_pointers.push_back(nullptr);
  start.bound = !share.processors.empty();
  CPU_ZERO(&start.processors);
  for (const int number : share.processors) CPU_SET(number, &start.processors);
  if (made) child.pid = ::fork();
  if (child.pid == 0) become(start);
  const int error = errno;
  for (int* end : {&out[1], &notes[1], &report[1], &start.input}) close_one(*end);
  child.out.descriptor = out[0];
  child.notes.descriptor = notes[0];
  child.report.descriptor = report[0];
  if (child.pid < 0) {
    for (int* end : {&out[0], &notes[0], &report[0]}) close_one(*end);
    return {StatusCode::kIoError,
            {fmt::format("a process for rank {}", rank), std::strerror(error), "a process",
             "start fewer ranks"}};
  }
  ::setpgid(child.pid, child.pid);  // here too: whichever comes first
  for (const Pipe* pipe : {&child.out, &child.notes, &child.report}) {
    if (pipe->descriptor >= 0) {
      ::fcntl(pipe->descriptor, F_SETFL, ::fcntl(pipe->descriptor, F_GETFL) | O_NONBLOCK);
    }
  }
  children_.push_back(std::move(child));
  return {};
}

Status Launcher::start_all() {
  const std::vector<Share> shares =
      deal(usable_processors(), internal::cpu_quota(), options_.ranks);
  const int port = free_port();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    Status status = start(rank, shares[static_cast<std::size_t>(rank)], port);
    if (!status.ok()) return status;
  }
  return {};
}

void Launcher::take_line(Child& child, const Pipe& pipe, std::string_view line) {
  if (&pipe != &child.report) {
    options_.line(child.rank, line);
    return;
  }
  // "1 lost rank 2 (process 4711 on host) has ended": see report_to_launcher.
  const std::size_t first = line.find(' ');
  const std::size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos || !child.reason.empty()) return;
  child.reported_code = line[0] - '0';
  child.lost = line.substr(first + 1, second - first - 1) == "lost";
  child.reason = line.substr(second + 1);
}

void Launcher::read(Child& child, Pipe& pipe) {
  std::array<char, 65536> piece;
  while (pipe.descriptor >= 0) {
    const ssize_t count = ::read(pipe.descriptor, piece.data(), piece.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return;
    }
    pipe.rest.append(piece.data(), static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = pipe.rest.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      take_line(child, pipe, std::string_view(pipe.rest).substr(begin, end - begin));
    }
    pipe.rest.erase(0, begin);
    if (count > 0) continue;
    if (!pipe.rest.empty()) take_line(child, pipe, pipe.rest);
    pipe.rest.clear();
    close_one(pipe.descriptor);
  }
}

void Launcher::read_all(int wait_ms) {
  std::vector<pollfd> waited;
  for (const Child& child : children_) {
    for (const Pipe* pipe : {&child.out, &child.notes, &child.report}) {
      if (pipe->descriptor >= 0) waited.push_back({pipe->descriptor, POLLIN, 0});
    }
  }
  ::poll(waited.data(), waited.size(), wait_ms);
  for (Child& child : children_) {
    for (Pipe* pipe : {&child.out, &child.notes, &child.report}) read(child, *pipe);
  }
}

void Launcher::reap() {
  for (Child& child : children_) {
    if (!child.running) continue;
    siginfo_t about{};
    const int found =
        ::waitid(P_PID, static_cast<id_t>(child.pid), &about, WEXITED | WNOHANG | WNOWAIT);
    if (found != 0 || about.si_pid == 0) continue;
    // What it started goes with it; until it is waited for, the group's number is its own.
    ::kill(-child.pid, SIGKILL);
    ::waitpid(child.pid, &child.wait_status, 0);
    child.running = false;
    child.ended_at = Clock::now();
    for (Pipe* pipe : {&child.out, &child.notes, &child.report}) read(child, *pipe);
  }
}

void Launcher::end_all(int signal) {
  for (const Child& child : children_) {
    if (!child.running) continue;
    ::kill(-child.pid, signal);
    ::kill(-child.pid, SIGCONT);  // a stopped one takes no other signal
  }
}

// The first that failed by itself; where all blame another, the first that says so.
const Child* Launcher::culprit() const {
  const Child* first = nullptr;
  for (const Child& child : children_) {
    if (!is_failure(child) || (ending_ && child.ended_at > ending_since_)) continue;
    const bool better = first == nullptr || (first->lost && !child.lost) ||
                        (first->lost == child.lost && child.ended_at < first->ended_at);
    if (better) first = &child;
  }
  return first;
}

// So long others may say why after the first failure.
double Launcher::patience_with(const Child* culprit) const {
  if (culprit == nullptr || culprit->lost) return kReasonsS;
  if (!culprit->reason.empty() && children_[0].running) return kSameReasonS;
  if (std::ranges::any_of(children_, [](const Child& each) { return each.lost; })) return 0;
  return culprit->signalled() && options_.grace_s == 0 ? kLastWordsS : kReasonsS / 3;
}

std::string Launcher::words(const Child& child) const {
  std::string out = fmt::format("rank {} of {} (process {} on {}) ", child.rank, options_.ranks,
                                child.pid, name_);
  if (child.signalled()) {
    const int signal = WTERMSIG(child.wait_status);
    out += fmt::format("was ended by signal {} ({})", signal, ::strsignal(signal));
  } else {
    out += fmt::format("ended with exit code {}", child.exit_code());
  }
  return out;
}

LaunchEnd Launcher::judge(bool interrupted) const {
  if (interrupted) return {kExitInterrupted, {}};
  const Child* child = culprit();
  if (child == nullptr) {
    // Rank 0 speaks for all; a verdict of another rank alone is one, too.
    int code = 0;
    for (const Child& each : children_) {
      if (code == 0) code = each.exit_code();
    }
    return {code, {}};
  }
  if (child->lost) return {1, child->reason + "; all ranks were ended"};
  // What ranks have found together is no rank's fault. A refusal needs rank 0 alone.
  const auto says_so = [&](const Child& each) { return each.reason == child->reason; };
  const auto agreeing = std::ranges::count_if(children_, says_so);
  const bool usage = child->exit_code() == kExitUsage;
  if (!child->reason.empty() && says_so(children_[0]) && (usage || agreeing > 1)) {
    return {child->exit_code(), child->reason};
  }
  std::string message = words(*child);
  if (!child->reason.empty()) message += ": " + child->reason;
  for (const Child& other : children_) {
    // "rank 1 (...) has ended; all-reduce 17: rank 0 came, rank 1 never did": the latter half.
    const std::size_t where = other.lost ? other.reason.find("; ") : std::string::npos;
    if (where == std::string::npos) continue;
    message += other.reason.substr(where);
    break;
  }
  return {child->exit_code(), message + "; all ranks were ended"};
}

LaunchEnd Launcher::wait() {
  bool interrupted = false;
  std::optional<Clock::time_point> failed_at;
  while (any_running()) {
    read_all(kPollMs);
    reap();
    if (!interrupted && base::is_set(options_.interrupted)) {
      interrupted = true;
      end_all(SIGINT);  // a second Ctrl-C ends this process, and all others with it
    }
    const bool failed =
        std::ranges::any_of(children_, [&](const Child& child) { return is_failure(child); });
    if (failed && !failed_at) failed_at = Clock::now();
    const Child* child = failed ? culprit() : nullptr;
    const double waited = failed ? seconds_since(*failed_at) : 0;
    if (failed && !ending_ && waited > patience_with(child)) {
      ending_ = true;
      ending_since_ = Clock::now();
      if (options_.grace_s > 0) end_all(SIGTERM);
    }
    if (ending_ && seconds_since(ending_since_) >= options_.grace_s) end_all(SIGKILL);
  }
  read_all(0);
  return judge(interrupted);
}

}  // namespace

Result<LaunchEnd> launch(const LaunchOptions& options) {
  Launcher launcher(options);
  if (Status status = launcher.start_all(); !status.ok()) return status;
  return launcher.wait();
}

}  // namespace flashlab::dist
