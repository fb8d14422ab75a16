#pragma once

// The device sources of src/cuda/kernels, embedded in the library.

#include <string>
#include <vector>

#include "flashlab/status.h"
#include "runtime/kernel_store/nvrtc.h"

namespace flashlab::cuda {

/// A file of src/cuda/kernels: its path below that folder, and its text. The list ends with nulls.
struct EmbeddedSource {
  const char* name;
  const char* text;
};
extern const EmbeddedSource kEmbeddedSources[];

/// Every device source with the digest of them all, which is part of each kernel's cache key.
struct DeviceSources {
  std::vector<SourceFile> files;
  std::string digest;

  /// The embedded sources, or the files of the folder FLASHLAB_KERNEL_SOURCES names (for kernel
  /// developers: edit and run without building). Read once per process.
  /// Errors: kIoError when that folder cannot be read.
  static Result<const DeviceSources*> get();
};

}  // namespace flashlab::cuda
