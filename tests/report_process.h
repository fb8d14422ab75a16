#pragma once

// Runs Python on files, without a shell, and keeps what it says; a folder that goes away again.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern char** environ;  // NOLINT: POSIX names it so

namespace flashlab::lab::report {

struct Outcome {
  int code = -1;
  std::string output;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "report-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary folder";
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The interpreter of the build; on another machine, to which a test was carried, the one there.
inline std::string python() {
  return access(FLASHLAB_PYTHON, X_OK) == 0 ? FLASHLAB_PYTHON : "python3";
}

inline Outcome run_python(std::vector<std::string> arguments) {
  const TemporaryFolder folder;
  const std::string log = (folder.path() / "output").string();
  arguments.insert(arguments.begin(), python());
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  Outcome out;
  const int error = posix_spawnp(&child, words[0], &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    ADD_FAILURE() << arguments[0] << " did not start";
    return out;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  out.output = read_file(log);
  return out;
}

/// Parses each file as XML.
inline Outcome parse_xml(const std::vector<std::filesystem::path>& files) {
  std::vector<std::string> arguments = {
      "-c", "import sys, xml.etree.ElementTree as e\n[e.parse(f) for f in sys.argv[1:]]"};
  for (const auto& file : files) arguments.push_back(file.string());
  return run_python(arguments);
}

}  // namespace flashlab::lab::report
