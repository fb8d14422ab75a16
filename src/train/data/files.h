#pragma once

// Files of a run: whole or not at all.

#include <filesystem>
#include <string>
#include <string_view>

#include "flashlab/status.h"

namespace flashlab::train {

/// kIoError with the system's reason for the last failed call.
Status io_error(const std::filesystem::path& path, const char* doing);

/// Errors: kIoError (missing, a folder, not readable).
Result<std::string> read_file(const std::filesystem::path& path);

/// Writes to a temporary name beside `path`, syncs and renames, so that a reader finds the old file
/// or the new one, whatever ends the process. The temporary is gone after a failure.
/// Errors: kIoError (a full disk, no permission).
Status write_file(const std::filesystem::path& path, std::string_view bytes);

/// Syncs the folder's own entries, after a rename inside it.
void sync_folder(const std::filesystem::path& folder);

}  // namespace flashlab::train
