#pragma once

// A whole file as memory, read as its pages are touched.

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "flashlab/status.h"

namespace flashlab::train {

class MappedFile {
 public:
  MappedFile() = default;
  /// Errors: kIoError (missing, a folder, not readable).
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::string_view bytes() const { return {static_cast<const char*>(mapping_), size_}; }

 private:
  void* mapping_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace flashlab::train
