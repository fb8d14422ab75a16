#pragma once

// Files of a run: whole or not at all.

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "flashlab/status.h"

namespace flashlab::train {

/// kIoError with the system's reason for the last failed call; `done` is "read", "written", ...
Status io_error(const std::filesystem::path& path, const char* done);

/// Errors: kIoError (missing, a folder, not readable).
Result<std::string> read_file(const std::filesystem::path& path);

/// kIoError of a file that could not be written for `error`, an errno, with what to do about it.
Status write_error(const std::filesystem::path& path, int error, std::size_t bytes);

/// Whether the path names, or will name, a regular file: only such a one can be replaced.
bool replaceable(const std::filesystem::path& path);

/// Writes to a temporary name beside `path`, syncs and renames, so that a reader finds the old file
/// or the new one, whatever ends the process. The temporary is gone after a failure. A device or a
/// pipe is written to, never replaced; through a symbolic link the file it names is.
/// Errors: kIoError (a full disk, no permission, an empty name).
Status write_file(const std::filesystem::path& path, std::string_view bytes);

/// A file that is written piece by piece. What its maker did not finish is gone.
class PieceFile {
 public:
  PieceFile() = default;
  /// A new one, or one that somebody else has made and writes to as well. Errors, of all calls:
  /// kIoError.
  static Result<PieceFile> create(const std::filesystem::path& path);
  static Result<PieceFile> join(const std::filesystem::path& path);
  PieceFile(PieceFile&& other) noexcept { *this = std::move(other); }
  PieceFile& operator=(PieceFile&& other) noexcept;
  ~PieceFile();

  Status write(std::size_t offset, std::string_view bytes);
  /// Synced and closed.
  Status finish();

 private:
  static Result<PieceFile> open(const std::filesystem::path& path, int flags);
  Status failed(int error) const;
  std::filesystem::path path_;
  int file_ = -1;
  std::size_t bytes_ = 0;
  bool made_ = false;
};

/// Syncs the folder's own entries, after a rename inside it.
void sync_folder(const std::filesystem::path& folder);

}  // namespace flashlab::train
