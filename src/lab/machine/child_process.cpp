#include "lab/machine/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

extern "C" char** environ;

namespace flashlab::lab {
namespace {

// A line without end is not a line: what is longer is handed on as it is.
constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr std::size_t kPiece = 65536;

void close_one(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

/// What posix_spawn is told, freed on every way out.
struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSettings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  /// A group of its own, and signals as a fresh program finds them.
  void set_group_and_signals() {
    sigset_t standard, none;
    sigemptyset(&none);
    sigemptyset(&standard);
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&standard, signal);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigdefault(&attributes, &standard);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(
        &attributes,
        static_cast<short>(POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  }
};

}  // namespace

std::string find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (std::string file = fmt::format("{}/{}", folder, name); ::access(file.c_str(), X_OK) == 0) {
      return file;
    }
  }
  return {};
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& command) {
  // [0] is read from, [1] written to. Closed in every other program that is started.
  int input[2] = {-1, -1}, results[2] = {-1, -1}, notes[2] = {-1, -1};
  const bool piped = ::pipe2(input, O_CLOEXEC) == 0 && ::pipe2(results, O_CLOEXEC) == 0 &&
                     ::pipe2(notes, O_CLOEXEC) == 0;
  int error = piped ? 0 : errno;
  pid_t pid = -1;
  if (piped) {
    SpawnSettings settings;
    settings.set_group_and_signals();
    posix_spawn_file_actions_adddup2(&settings.actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&settings.actions, results[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&settings.actions, notes[1], STDERR_FILENO);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    error = ::posix_spawnp(&pid, words[0], &settings.actions, &settings.attributes, words.data(),
                           environ);
  }
  for (int* end : {&input[0], &results[1], &notes[1]}) close_one(*end);
  if (error != 0) {
    for (int* end : {&input[1], &results[0], &notes[0]}) close_one(*end);
    return Status{StatusCode::kIoError, {command[0], error_text(error), "a program", ""}};
  }
  std::unique_ptr<ChildProcess> child(new ChildProcess);
  child->pid_ = pid;
  child->input_ = input[1];
  child->results_.descriptor = results[0];
  child->notes_.descriptor = notes[0];
  for (const int end : {results[0], notes[0]}) {
    ::fcntl(end, F_SETFL, ::fcntl(end, F_GETFL) | O_NONBLOCK);
  }
  return child;
}

ChildProcess::~ChildProcess() {
  kill();
  close_all();
}

void ChildProcess::close_all() {
  close_one(input_);
  close_one(results_.descriptor);
  close_one(notes_.descriptor);
}

void ChildProcess::close_input() {
  close_one(input_);
}

bool ChildProcess::send(std::string_view line) {
  std::string text(line);
  text += '\n';
  std::size_t sent = 0;
  while (input_ >= 0 && sent < text.size()) {
    const ssize_t count = ::write(input_, text.data() + sent, text.size() - sent);
    if (count < 0 && errno != EINTR) close_input();
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  return sent == text.size();
}

void ChildProcess::take(Pipe& pipe, std::vector<std::string>& lines) {
  char piece[kPiece];
  while (pipe.descriptor >= 0) {
    const ssize_t count = ::read(pipe.descriptor, piece, sizeof piece);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) {
      close_one(pipe.descriptor);
      break;
    }
    pipe.rest.append(piece, static_cast<std::size_t>(count));
    std::size_t begin = 0;
    for (std::size_t end; (end = pipe.rest.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      lines.push_back(pipe.rest.substr(begin, end - begin));
    }
    pipe.rest.erase(0, begin);
    if (pipe.rest.size() > kLongestLine) lines.push_back(std::exchange(pipe.rest, {}));
    // One that never stops printing must not keep its reader from looking at the time.
    if (lines.size() > 1000) break;
  }
}

ChildProcess::Lines ChildProcess::read(int wait_ms) {
  Lines out;
  if (ended_) return out;
  pollfd ends[2] = {{results_.descriptor, POLLIN, 0}, {notes_.descriptor, POLLIN, 0}};
  // Asked before what it printed is read, so that its last words are not missed.
  reap(WNOHANG);
  // Programs that it started may keep the pipes open after its end.
  ::poll(ends, 2, reaped_ ? 0 : wait_ms);
  take(results_, out.results);
  take(notes_, out.notes);
  const bool closed = results_.descriptor < 0 && notes_.descriptor < 0;
  if (closed && !reaped_) {
    // It closed its pipes and is ending, or it goes on in silence: then time decides.
    reap(WNOHANG);
    if (!reaped_) ::poll(nullptr, 0, std::min(wait_ms, 10));
  }
  if (reaped_ && out.results.empty() && out.notes.empty()) {
    if (!results_.rest.empty()) out.results.push_back(std::exchange(results_.rest, {}));
    if (!notes_.rest.empty()) out.notes.push_back(std::exchange(notes_.rest, {}));
    ended_ = true;
  }
  return out;
}

void ChildProcess::reap(int flags) {
  if (reaped_ || pid_ <= 0) return;
  siginfo_t seen{};
  int result = 0;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &seen, WEXITED | WNOWAIT | flags);
  } while (result < 0 && errno == EINTR);
  if (result == 0 && seen.si_pid == 0) return;  // it runs
  // Until it is reaped its number is nobody else's, so that this is its group and no other.
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) continue;
  reaped_ = true;
}

std::string ChildProcess::how_it_ended() const {
  if (WIFSIGNALED(wait_status_)) {
    const int signal = WTERMSIG(wait_status_);
    return fmt::format("signal {} ({})", signal, ::strsignal(signal));
  }
  return fmt::format("exit code {}", WEXITSTATUS(wait_status_));
}

void ChildProcess::interrupt() const {
  if (!reaped_) ::kill(pid_, SIGINT);
}

void ChildProcess::kill() {
  if (pid_ > 0 && !reaped_) ::kill(-pid_, SIGKILL);
  reap(0);
}

}  // namespace flashlab::lab
