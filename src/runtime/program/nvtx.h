#pragma once

// Ranges for a profiler (NVTX). Nothing is opened: a tool that listens names its library in
// NVTX_INJECTION64_PATH; without one a range costs a comparison.

#include <string>

namespace flashlab::runtime {

/// NVTX's functions that a tool has put in place; null without a tool.
struct NvtxFunctions {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;
  static const NvtxFunctions& get();
};

/// A range of this thread while it lives.
class NvtxRange {
 public:
  explicit NvtxRange(const std::string& name) {
    if (NvtxFunctions::get().push != nullptr) NvtxFunctions::get().push(name.c_str());
  }
  ~NvtxRange() {
    if (NvtxFunctions::get().pop != nullptr) NvtxFunctions::get().pop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace flashlab::runtime
