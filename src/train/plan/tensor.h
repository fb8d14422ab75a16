#pragma once

// A tensor of a training step: what it is called, its shape, and what it is for. No address.

#include <cstdint>
#include <string>
#include <vector>

#include "flashlab/tensor.h"

namespace flashlab::train {

/// Element types of a step's tensors: those of attention and the integers of tokens and indices.
enum class Element : std::uint8_t { kFp64, kFp32, kFp16, kBf16, kInt32, kInt64 };

/// "fp64", "fp32", "fp16", "bf16", "int32", "int64".
const char* to_string(Element element) noexcept;
std::int64_t size_of(Element element) noexcept;
/// The library's type of a floating element. Precondition: no integer.
DType dtype_of(Element element) noexcept;

/// What a tensor is for. Parameters, gradients and optimizer states live as long as the run; the
/// batch and the results as long as a step; saved activations from forward to backward.
enum class Role : std::uint8_t {
  kParameter,
  kGradient,
  kOptimizerState,
  kBatch,            ///< tokens, targets and the step's scalars: written before the step
  kResult,           ///< loss and gradient norm: read after it
  kSavedActivation,  ///< written in forward, read in backward
  kCommunication,    ///< what ranks gather, or add and keep a part of
  kTemporary,        ///< everything else
};
inline constexpr int kRoles = 8;

/// "parameter", "gradient", "optimizer state", ...
const char* to_string(Role role) noexcept;

/// Whether the tensor keeps its memory from step to step.
inline bool is_persistent(Role role) noexcept {
  return role != Role::kSavedActivation && role != Role::kTemporary && role != Role::kCommunication;
}

/// An index into StepPlan::tensors.
using TensorId = int;
inline constexpr TensorId kNoTensor = -1;

struct PlanTensor {
  std::string name;  ///< "layer 7 / attention / qkv"; a parameter's is the checkpoint's
  std::vector<std::int64_t> shape;
  Element element = Element::kFp32;
  Role role = Role::kTemporary;
  int layer = -1;               ///< -1: outside the blocks
  TensorId inside = kNoTensor;  ///< its elements are some of that tensor's, from `at` on
  std::int64_t at = 0;

  std::int64_t elements() const noexcept {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
  }
  std::int64_t bytes() const noexcept { return elements() * size_of(element); }
};

/// "fp32 [4, 2048, 2560]".
std::string describe(const PlanTensor& tensor);

}  // namespace flashlab::train
