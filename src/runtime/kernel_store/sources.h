#pragma once

// The device sources of src/cuda/kernels, embedded in the library.

#include <string>
#include <string_view>
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

/// Every device source, and what each includes.
class DeviceSources {
 public:
  explicit DeviceSources(std::vector<SourceFile> files);

  /// The files that a translation unit needs: what its text includes, what these include, and so
  /// on, in the order of their names. Nobody else's edit changes what is compiled from it.
  std::vector<SourceFile> closure(std::string_view text) const;

  /// The digest of that closure: part of a kernel's cache key.
  std::string digest(std::string_view text) const;

  const std::vector<SourceFile>& files() const noexcept { return files_; }

  /// The embedded sources, or the files of the folder FLASHLAB_KERNEL_SOURCES names (for kernel
  /// developers: edit and run without building). Read once per process.
  /// Errors: kIoError when that folder cannot be read.
  static Result<const DeviceSources*> get();

 private:
  /// The files that the text includes itself, as places in `files_`.
  std::vector<std::size_t> included(std::string_view text) const;
  std::vector<std::size_t> closure_indices(std::string_view text) const;

  std::vector<SourceFile> files_;                   ///< by name
  std::vector<std::string> digests_;                ///< of each file's text
  std::vector<std::vector<std::size_t>> includes_;  ///< of each file, places in `files_`
};

}  // namespace flashlab::cuda
