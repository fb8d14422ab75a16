#pragma once

// Ranges for a profiler (NVTX). Nothing is opened: a tool that listens names its library in
// NVTX_INJECTION64_PATH; without one a range costs a comparison.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flashlab::runtime {

/// Whether a tool listens to ranges now.
bool nvtx_listened_to();
/// Opens a range of this thread; false without a tool.
bool nvtx_push(const char* name);
/// Closes the range that this thread opened last.
void nvtx_pop();

/// A range of this thread while it lives.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) : open_(nvtx_push(name)) {}
  ~NvtxRange() {
    if (open_) nvtx_pop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  bool open_;
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
    if (nvtx_listened_to()) follow(scope, name);
  }

 private:
  void follow(std::string_view scope, std::string_view name);
  void close_to(std::size_t depth);
  std::vector<std::string> open_;
};

}  // namespace flashlab::runtime
