#pragma once

/// Version of the library and of its C++ API. The API may change between minor versions before 1.0.
#define FLASHLAB_VERSION_MAJOR 0
#define FLASHLAB_VERSION_MINOR 1
#define FLASHLAB_VERSION_PATCH 0
#define FLASHLAB_VERSION "0.1.0"

namespace flashlab {

/// The version of the linked library, e.g. "0.1.0"; compare with FLASHLAB_VERSION of the header.
const char* version() noexcept;

/// The commit the library was built from, "unknown" outside a git checkout. "+changes" is appended
/// when the tree had uncommitted changes.
const char* build_commit() noexcept;

}  // namespace flashlab
