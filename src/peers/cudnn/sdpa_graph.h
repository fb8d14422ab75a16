#pragma once

// One attention problem as a cuDNN graph. The only part that needs NVIDIA's headers: built from
// sdpa_graph.cpp where CMake found them, else from sdpa_graph_missing.cpp.

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "api/problem.h"
#include "flashlab/attention.h"
#include "runtime/cuda/types.h"

namespace flashlab::peers {

/// What a pointer of a call is to the graph.
enum class SdpaTensor : int { kQ = 1, kK, kV, kO, kStatistics, kGradO, kGradQ, kGradK, kGradV };

using SdpaPointers = std::unordered_map<SdpaTensor, void*>;

class SdpaGraph {
 public:
  /// The GPU's context is current. Errors: kUnsupported (no headers in this build, no library, a
  /// problem that cuDNN refuses, with its text).
  static Result<std::unique_ptr<SdpaGraph>> build(const Problem& problem,
                                                  const internal::Geometry& geometry);
  virtual ~SdpaGraph() = default;

  virtual std::size_t workspace_bytes() const = 0;
  virtual Status run(cuda::CUstream stream, const SdpaPointers& pointers,
                     void* workspace) const = 0;
  /// "cuDNN 9.19.0".
  virtual std::string version() const = 0;
};

}  // namespace flashlab::peers
