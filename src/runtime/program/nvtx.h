#pragma once

// Ranges for a profiler (NVTX). Nothing is opened: a tool that listens names its library in
// NVTX_INJECTION64_PATH; without one a range costs a comparison.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flashlab::runtime {

/// NVTX's functions that a tool has put in place; null without a tool.
struct NvtxFunctions {
  int (*push)(const char*) = nullptr;
  int (*pop)() = nullptr;
  static const NvtxFunctions& get();
  /// Whether a tool listens to ranges.
  static bool listened_to() { return get().push != nullptr; }
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

/// Ranges inside each other that follow a path like "forward / layer 0 / attention": what two paths
/// in a row begin with stays open between them. All are closed at the end.
class NvtxPath {
 public:
  NvtxPath() = default;
  ~NvtxPath() { close_to(0); }
  NvtxPath(const NvtxPath&) = delete;
  NvtxPath& operator=(const NvtxPath&) = delete;
  /// Opens `scope` and, inside of it, `name`; a scope that ends with the name has it already.
  void move_to(std::string_view scope, std::string_view name) {
    if (NvtxFunctions::listened_to()) follow(scope, name);
  }

 private:
  void follow(std::string_view scope, std::string_view name);
  void close_to(std::size_t depth);
  std::vector<std::string> open_;
};

}  // namespace flashlab::runtime
