#include "cuda/driver/library.h"

#include <dlfcn.h>
#include <link.h>

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

}  // namespace

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
