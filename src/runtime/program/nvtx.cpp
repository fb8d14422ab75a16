// NVTX without its header: a tool's library asks for tables of addresses and writes its functions
// there. Tables and numbers are those of nvtxTypes.h (NVTX 3); a test compares them.

#include "runtime/program/nvtx.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "runtime/program/nvtx_api.h"

namespace flashlab::runtime {
namespace {

// A tool refuses a program that lacks a module, also one whose functions are never called.
struct Module {
  std::array<void*, 16> functions{};  // a tool sets them
  std::array<void**, 17> table{};     // their addresses between two nulls
};
constinit std::array<Module, kNvtxFunctions.size()> modules;

int module_functions(int module, void**** table, unsigned* size) {
  if (module <= 0 || module >= static_cast<int>(kNvtxFunctions.size())) return 0;
  const auto index = static_cast<std::size_t>(module);
  Module& asked = modules[index];
  for (std::size_t i = 1; i < kNvtxFunctions[index]; ++i) asked.table[i] = &asked.functions[i];
  if (table != nullptr) *table = asked.table.data();
  if (size != nullptr) *size = kNvtxFunctions[index];
  return 1;
}

void ignore_version(std::uint32_t) {}

bool attach() {
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  if (path == nullptr || *path == '\0') return false;
  void* tool = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (tool == nullptr) return false;
  using Initialize = int(const void* (*)(std::uint32_t));
  auto* initialize = reinterpret_cast<Initialize*>(dlsym(tool, "InitializeInjectionNvtx2"));
  return initialize != nullptr && initialize(nvtx_export_table) != 0;
}

// A tool may set a function long after it was loaded, and take it back.
void* function(std::size_t number) {
  static const bool attached = attach();
  if (!attached) return nullptr;
  return std::atomic_ref(modules[kNvtxModuleCore].functions[number])
      .load(std::memory_order_acquire);
}

}  // namespace

const void* nvtx_export_table(std::uint32_t which) {
  static const NvtxCallbacks callbacks{sizeof(NvtxCallbacks), module_functions};
  static const NvtxVersionInfo version{sizeof(NvtxVersionInfo), kNvtxVersion, 0, ignore_version};
  if (which == kNvtxTableCallbacks) return &callbacks;
  return which == kNvtxTableVersion ? &version : nullptr;
}

bool nvtx_listened_to() {
  return function(kNvtxRangePushA) != nullptr;
}

bool nvtx_push(const char* name) {
  void* push = function(kNvtxRangePushA);
  if (push != nullptr) reinterpret_cast<int (*)(const char*)>(push)(name);
  return push != nullptr;
}

void nvtx_pop() {
  if (void* pop = function(kNvtxRangePop); pop != nullptr) reinterpret_cast<int (*)()>(pop)();
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
    if (!nvtx_push(wanted[i].c_str())) return;
    open_.push_back(std::move(wanted[i]));
  }
}

void NvtxPath::close_to(std::size_t depth) {
  for (; open_.size() > depth; open_.pop_back()) nvtx_pop();
}

}  // namespace flashlab::runtime
