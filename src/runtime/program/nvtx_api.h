#pragma once

// The few declarations of NVTX's tool interface that are needed.

#include <array>
#include <cstddef>
#include <cstdint>

namespace flashlab::runtime {

inline constexpr std::uint32_t kNvtxTableCallbacks = 1, kNvtxTableVersion = 3;
inline constexpr std::uint32_t kNvtxVersion = 3;
/// Functions of each module by its number: none, core, cuda, opencl, cudart, core2, sync. Numbers
/// of functions start at 1.
inline constexpr std::array<unsigned, 7> kNvtxFunctions = {0, 16, 9, 15, 7, 16, 7};
inline constexpr std::size_t kNvtxModuleCore = 1;
inline constexpr std::size_t kNvtxRangePushA = 9, kNvtxRangePop = 11;  // of the core module

struct NvtxCallbacks {
  std::size_t struct_size;
  int (*GetModuleFunctionTable)(int module, void**** table, unsigned* size);
};
struct NvtxVersionInfo {
  std::size_t struct_size;
  std::uint32_t version, reserved0;
  void (*SetInjectionNvtxVersion)(std::uint32_t);
};

/// What a tool's InitializeInjectionNvtx2 is called with: the tables above, by their number.
const void* nvtx_export_table(std::uint32_t which);

}  // namespace flashlab::runtime
