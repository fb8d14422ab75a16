// NVTX without its header: a tool's library asks for a table of addresses and writes its functions
// there. Tables and numbers are those of nvtxTypes.h (NVTX 3); a test compares them.

#include "runtime/program/nvtx.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "runtime/program/nvtx_api.h"

namespace flashlab::runtime {
namespace {

struct Tables {
  std::array<void*, kNvtxCoreFunctions> functions{};  // a tool sets them
  std::array<void**, kNvtxCoreFunctions + 1> core{};  // their addresses, then null
  std::uint32_t tool_version = 0;
};

Tables& tables() {
  static Tables made;
  return made;
}

int module_functions(int module, void**** table, unsigned* size) {
  if (module != kNvtxModuleCore) return 0;
  *table = tables().core.data();
  *size = kNvtxCoreFunctions;
  return 1;
}

void set_version(std::uint32_t version) {
  tables().tool_version = version;
}

const void* export_table(std::uint32_t which) {
  static const NvtxCallbacks callbacks{sizeof(NvtxCallbacks), module_functions};
  static const NvtxVersionInfo version{sizeof(NvtxVersionInfo), 3, 0, set_version};
  if (which == kNvtxTableCallbacks) return &callbacks;
  return which == kNvtxTableVersion ? &version : nullptr;
}

NvtxFunctions attach() {
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  if (path == nullptr || *path == '\0') return {};
  Tables& made = tables();
  for (std::size_t i = 0; i < kNvtxCoreFunctions; ++i) made.core[i] = &made.functions[i];
  void* tool = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (tool == nullptr) return {};
  using Initialize = int(const void* (*)(std::uint32_t));
  auto* initialize = reinterpret_cast<Initialize*>(dlsym(tool, "InitializeInjectionNvtx2"));
  if (initialize == nullptr || initialize(export_table) == 0) return {};
  NvtxFunctions out;
  out.push = reinterpret_cast<int (*)(const char*)>(made.functions[kNvtxRangePushA]);
  out.pop = reinterpret_cast<int (*)()>(made.functions[kNvtxRangePop]);
  return out.push != nullptr && out.pop != nullptr ? out : NvtxFunctions{};
}

}  // namespace

const NvtxFunctions& NvtxFunctions::get() {
  static const NvtxFunctions functions = attach();
  return functions;
}

void NvtxPath::follow(std::string_view scope, std::string_view name) {
  constexpr std::string_view kBetween = " / ";
  std::string path(scope);
  if (path.empty()) {
    path = name;
  } else if (!path.ends_with(name)) {
    path.append(kBetween).append(name);
  }
  std::vector<std::string> wanted;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find(kBetween, at), path.size());
    wanted.emplace_back(path.substr(at, end - at));
    at = end + kBetween.size();
  }
  // The last part is what runs: one after another of the same name are two.
  const std::size_t outer = wanted.size() - 1;
  std::size_t same = 0;
  while (same < open_.size() && same < outer && open_[same] == wanted[same]) ++same;
  close_to(same);
  for (std::size_t i = same; i < wanted.size(); ++i) {
    NvtxFunctions::get().push(wanted[i].c_str());
    open_.push_back(std::move(wanted[i]));
  }
}

void NvtxPath::close_to(std::size_t depth) {
  for (; open_.size() > depth; open_.pop_back()) NvtxFunctions::get().pop();
}

}  // namespace flashlab::runtime
