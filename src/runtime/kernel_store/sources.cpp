#include "runtime/kernel_store/sources.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/kernel_store/sha256.h"

namespace flashlab::cuda {
namespace {

namespace fs = std::filesystem;

Status unreadable(const std::string& path) {
  return Status(StatusCode::kIoError, {"FLASHLAB_KERNEL_SOURCES", path + " cannot be read",
                                       "the folder src/cuda/kernels of a source tree",
                                       "unset it to use what is built in"});
}

Result<std::vector<SourceFile>> read_folder(const fs::path& root) {
  std::vector<SourceFile> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension != ".h" && extension != ".cu") continue;
    std::ifstream stream(it->path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(stream), {}};
    if (!stream) return unreadable(it->path().string());
    files.push_back({fs::relative(it->path(), root).string(), std::move(text)});
  }
  if (error || files.empty()) return unreadable(root.string());
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return files;
}

Result<DeviceSources> load_sources() {
  DeviceSources sources;
  if (const char* folder = std::getenv("FLASHLAB_KERNEL_SOURCES");
      folder != nullptr && *folder != '\0') {
    auto files = read_folder(folder);
    if (!files.ok()) return files.status();
    sources.files = std::move(*files);
  } else {
    for (const EmbeddedSource* s = kEmbeddedSources; s->name != nullptr; ++s) {
      sources.files.push_back({s->name, s->text});
    }
  }
  Sha256 hash;
  for (const SourceFile& file : sources.files) {
    hash.update_field(file.name).update_field(file.text);
  }
  sources.digest = hash.hex();
  return sources;
}

}  // namespace

Result<const DeviceSources*> DeviceSources::get() {
  static const Result<DeviceSources> loaded = load_sources();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace flashlab::cuda
