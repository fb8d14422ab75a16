#include "runtime/library/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <cstdlib>

namespace flashlab::cuda {
namespace {

std::string path_of(void* handle, const std::string& fallback) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr &&
      map->l_name[0] != '\0') {
    return map->l_name;
  }
  return fallback;
}

void add_matches(std::vector<std::string>& paths, const std::string& pattern) {
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    // Newest last in the alphabet, first in the search.
    for (std::size_t i = found.gl_pathc; i > 0; --i) paths.emplace_back(found.gl_pathv[i - 1]);
  }
  globfree(&found);
}

}  // namespace

std::vector<std::string> toolkit_paths(const std::string& pattern) {
  std::vector<std::string> paths;
  add_matches(paths, "/usr/local/cuda/lib64/" + pattern);
  add_matches(paths, "/usr/local/cuda-*/lib64/" + pattern);
  add_matches(paths, "/usr/local/cuda*/extras/CUPTI/lib64/" + pattern);
  // The wheels put a library under site-packages/nvidia/<package>/lib.
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* root = std::getenv(variable);
    if (root == nullptr || *root == '\0') continue;
    add_matches(paths, std::string(root) + "/lib/python3*/site-packages/nvidia/*/lib/" + pattern);
    add_matches(paths, std::string(root) + "/lib/" + pattern);
  }
  return paths;
}

Result<Library> Library::open(const std::string& what, const std::vector<std::string>& candidates,
                              const std::string& remedy) {
  for (const std::string& name : candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
      return Library(handle, path_of(handle, name));
    }
  }
  std::string reasons;
  for (const std::string& name : candidates) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return Library(handle, path_of(handle, name));
    }
    const char* reason = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name);
  }
  return Status::unsupported({what, candidates.front() + " was not found (" + reasons + ")",
                              "a loadable library", remedy});
}

void* Library::symbol(const char* name) const noexcept {
  return dlsym(handle_, name);
}

}  // namespace flashlab::cuda
