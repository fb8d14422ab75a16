#pragma once

// Opening vendor libraries at run time: nothing of NVIDIA's is linked, so one binary starts
// everywhere (docs/decisions).

#include <initializer_list>
#include <string>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::cuda {

/// Where a library of a CUDA toolkit or of NVIDIA's wheels lies, beyond the loader's own path:
/// files of /usr/local/cuda*/lib64 and of the active Python environment whose name matches
/// `pattern` ("libnvrtc.so.1[2-9]"), newest first in each folder.
std::vector<std::string> toolkit_paths(const std::string& pattern);

/// A shared library that stays loaded for the life of the process: its functions are called from
/// destructors of static objects too, so it is never closed.
class Library {
 public:
  /// Opens the first of `candidates` (sonames or paths) that loads. A soname that is loaded
  /// already is taken before the loader searches, so that a process has one copy.
  /// Errors: kUnsupported with every candidate and the loader's reason for each.
  static Result<Library> open(const std::string& what, const std::vector<std::string>& candidates,
                              const std::string& remedy);

  /// The address of a function, or null.
  void* symbol(const char* name) const noexcept;

  const std::string& path() const noexcept { return path_; }

  /// What dlopen gave.
  void* handle() const noexcept { return handle_; }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};

/// Fills a typed function pointer; false and the name in `missing` if the library lacks it.
template <class Function>
bool load(const Library& library, const char* name, Function*& function, std::string& missing) {
  function = reinterpret_cast<Function*>(library.symbol(name));
  if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  return function != nullptr;
}

}  // namespace flashlab::cuda
