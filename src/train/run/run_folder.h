#pragma once

// A run's folder, held by one process: two runs that write one folder would mix their logs and
// remove each other's half-written checkpoints.

#include <filesystem>

#include "flashlab/status.h"

namespace flashlab::train {

class RunFolder {
 public:
  enum class Name : unsigned char {
    kExact,    ///< as it is: it may be there already
    kNumbered  ///< a new one: with -2, -3, ... behind it where the name is taken
  };

  RunFolder() = default;
  /// Makes the folder and holds it. A folder that was made here is removed with the object, unless
  /// keep() was called. Errors: kInvalidArgument (a run is going on there, or has been), kIoError.
  static Result<RunFolder> create(const std::filesystem::path& path, Name name);
  /// Holds a folder that is there. Errors: kInvalidArgument (a run is going on there), kIoError.
  static Result<RunFolder> open(const std::filesystem::path& path);
  /// The folder that another rank of the run holds.
  static RunFolder beside(std::filesystem::path path);
  RunFolder(RunFolder&& other) noexcept { *this = std::move(other); }
  RunFolder& operator=(RunFolder&& other) noexcept;
  ~RunFolder();

  const std::filesystem::path& path() const { return path_; }
  void keep() { made_.clear(); }

 private:
  Status hold();
  void let_go();

  std::filesystem::path path_;
  std::filesystem::path made_;  ///< the highest folder that was made here; empty: none, or kept
  int lock_ = -1;               ///< an open file; the system lets it go with the process
};

}  // namespace flashlab::train
