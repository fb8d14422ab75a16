#pragma once

// The few declarations of NVTX's tool interface that are needed.

#include <cstddef>
#include <cstdint>

namespace flashlab::runtime {

inline constexpr int kNvtxModuleCore = 1;
inline constexpr std::uint32_t kNvtxTableCallbacks = 1, kNvtxTableVersion = 3;
/// Numbers of the core module's functions; a table has one place more than the greatest.
inline constexpr std::size_t kNvtxRangePushA = 9, kNvtxRangePop = 11, kNvtxCoreFunctions = 16;

struct NvtxCallbacks {
  std::size_t struct_size;
  int (*GetModuleFunctionTable)(int module, void**** table, unsigned* size);
};
struct NvtxVersionInfo {
  std::size_t struct_size;
  std::uint32_t version, reserved0;
  void (*SetInjectionNvtxVersion)(std::uint32_t);
};

}  // namespace flashlab::runtime
