#include "runtime/kernel_store/sources.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

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
  if (const char* folder = std::getenv("FLASHLAB_KERNEL_SOURCES");
      folder != nullptr && *folder != '\0') {
    auto files = read_folder(folder);
    if (!files.ok()) return files.status();
    return DeviceSources(std::move(*files));
  }
  std::vector<SourceFile> files;
  for (const EmbeddedSource* s = kEmbeddedSources; s->name != nullptr; ++s) {
    files.push_back({s->name, s->text});
  }
  return DeviceSources(std::move(files));
}

// The names between the quotes of a text's `#include "..."` lines. A line that is commented out or
// left out by the preprocessor counts: a file too many costs a compilation, one too few a wrong
// kernel. The compiler sees only the closure, so that an include of another form fails there.
std::vector<std::string_view> included_names(std::string_view text) {
  constexpr std::string_view kDirective = "#include \"";
  std::vector<std::string_view> names;
  for (std::size_t at = text.find(kDirective); at != std::string_view::npos;
       at = text.find(kDirective, at)) {
    at += kDirective.size();
    names.push_back(text.substr(at, text.find('"', at) - at));
  }
  return names;
}

}  // namespace

DeviceSources::DeviceSources(std::vector<SourceFile> files) : files_(std::move(files)) {
  std::sort(files_.begin(), files_.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  for (const SourceFile& file : files_) {
    digests_.push_back(Sha256().update(file.text).hex());
    includes_.push_back(included(file.text));
  }
}

std::vector<std::size_t> DeviceSources::included(std::string_view text) const {
  std::vector<std::size_t> places;
  for (const std::string_view name : included_names(text)) {
    const auto at = std::lower_bound(
        files_.begin(), files_.end(), name,
        [](const SourceFile& file, std::string_view wanted) { return file.name < wanted; });
    if (at == files_.end() || at->name != name) continue;
    places.push_back(static_cast<std::size_t>(at - files_.begin()));
  }
  return places;
}

std::vector<std::size_t> DeviceSources::closure_indices(std::string_view text) const {
  std::set<std::size_t> seen;
  std::vector<std::size_t> open = included(text);
  while (!open.empty()) {
    const std::size_t file = open.back();
    open.pop_back();
    if (!seen.insert(file).second) continue;
    open.insert(open.end(), includes_[file].begin(), includes_[file].end());
  }
  return {seen.begin(), seen.end()};
}

std::vector<SourceFile> DeviceSources::closure(std::string_view text) const {
  std::vector<SourceFile> out;
  for (const std::size_t file : closure_indices(text)) out.push_back(files_[file]);
  return out;
}

std::string DeviceSources::digest(std::string_view text) const {
  Sha256 hash;
  for (const std::size_t file : closure_indices(text)) {
    hash.update_field(files_[file].name).update_field(digests_[file]);
  }
  return hash.hex();
}

Result<const DeviceSources*> DeviceSources::get() {
  static const Result<DeviceSources> loaded = load_sources();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace flashlab::cuda
