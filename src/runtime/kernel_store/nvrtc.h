#pragma once

// NVRTC, NVIDIA's run-time compiler: found and opened when the first kernel must be compiled.

#include <string>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::cuda {

/// A device source file as the compiler sees it.
struct SourceFile {
  std::string name;  ///< as it is included: "tile/softmax.h"
  std::string text;
};

/// One compilation.
struct CompileRequest {
  SourceFile main;
  std::vector<SourceFile> headers;
  std::string architecture;          ///< "sm_90a": a cubin; "compute_90": PTX
  std::vector<std::string> options;  ///< further ones, e.g. "--device-int128"
};

/// What came out of it.
struct Compiled {
  std::string image;     ///< a cubin, or PTX
  std::string log;       ///< warnings, and registers, spills and shared memory per kernel
  std::string compiler;  ///< "NVRTC 13.0"
  double seconds = 0;
};

/// The compiler of this process; thread-safe.
class Nvrtc {
 public:
  /// Looked for in this order: FLASHLAB_NVRTC (a file), a copy that is loaded already, the loader's
  /// path, /usr/local/cuda*/lib64, and nvidia/*/lib of the active Python environment. The outcome
  /// is remembered. Errors: kUnsupported with what was tried and how to install it.
  static Result<const Nvrtc*> get();

  /// Where a library would be looked for, in order, after the loader's own path.
  static std::vector<std::string> search_paths();

  /// Errors: kDeviceError with the compiler's log.
  Result<Compiled> compile(const CompileRequest& request) const;

  const std::string& path() const noexcept { return path_; }
  int major() const noexcept { return major_; }
  int minor() const noexcept { return minor_; }
  std::string version() const;

  /// Architectures it can compile for, as numbers: 75, 80, 90, ...
  std::vector<int> architectures() const;

 private:
  friend Result<Nvrtc> open_nvrtc();
  struct Functions;
  const Functions* functions_ = nullptr;
  std::string path_;
  int major_ = 0, minor_ = 0;
};

}  // namespace flashlab::cuda
