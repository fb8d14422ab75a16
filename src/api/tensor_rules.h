#pragma once

// What is asked of one tensor, whichever call it belongs to: attention's validation and `merge`
// use the same rules, so that neither is weaker than the other.

#include <cstdint>
#include <string>
#include <string_view>

#include "flashlab/status.h"
#include "flashlab/tensor_table.h"

namespace flashlab::internal {

/// Checks tensors one by one and keeps the first error; later checks are skipped once there is one.
class TensorRules {
 public:
  const Status& status() const noexcept { return status_; }
  bool ok() const noexcept { return status_.ok(); }

  void fail(std::string argument, std::string got, std::string expected, std::string remedy);

  /// Rank, extents, strides, and bytes that fit 63 bits. Strides that are never used become 0.
  void structure(std::string_view name, TensorSpec& spec, const ShapeRule& rule);

  /// Every extent is what `sizes` says, or 1 where the rule broadcasts. Precondition: structure().
  void shape(std::string_view name, const TensorSpec& spec, const ShapeRule& rule,
             const Extents& sizes);

  void dtype(std::string_view name, const TensorSpec& spec, const DTypeList& allowed,
             const char* remedy);

  /// `owner` says whose device is expected: "where q is".
  void device(std::string_view name, const TensorSpec& spec, Device expected, const char* owner);

  /// No two elements of an output are the same memory.
  void output(std::string_view name, const TensorSpec& spec);

 private:
  Status status_;
};

/// Memory where there are elements, aligned to the element type. Allocates only for an error.
Status check_memory(const char* name, const void* data, const TensorSpec& spec);

/// The error of an output that shares memory with something.
Status overlap_error(std::string_view output, std::string_view other);

}  // namespace flashlab::internal
