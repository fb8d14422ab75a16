#pragma once

// Which type each thing has: one table, printed by `explain precision`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/plan/tensor.h"

namespace flashlab::train {

enum class Precision : std::uint8_t { kFp64, kFp32, kTf32, kBf16, kFp16, kPureBf16, kLeanBf16 };

/// "fp64", "fp32", "tf32", "bf16", "fp16", "bf16-pure", "bf16-lean".
const char* to_string(Precision precision) noexcept;
std::optional<Precision> parse_precision(std::string_view name) noexcept;
std::vector<std::string> precision_names();

/// The types of a step. Sums inside an operation are fp32 at least, whatever its operands are.
struct PrecisionPolicy {
  Element activation = Element::kFp32;  ///< of products, attention and what lies between them
  Element parameter = Element::kFp32;   ///< what the optimizer changes
  Element gradient = Element::kFp32;    ///< of parameters
  Element state = Element::kFp32;       ///< both moments
  Element statistic = Element::kFp32;   ///< rstd, LSE, losses
  bool tf32 = false;                    ///< fp32 operands of products are rounded to tf32
  /// Forward reads a copy of the parameters in the activations' type.
  bool has_masters() const noexcept { return activation != parameter; }
};
PrecisionPolicy policy_of(Precision precision) noexcept;

}  // namespace flashlab::train
