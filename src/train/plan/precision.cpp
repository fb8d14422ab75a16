#include "train/plan/precision.h"

#include <array>

namespace flashlab::train {
namespace {

struct Row {
  Precision precision;
  const char* name;
  PrecisionPolicy policy;
};

using E = Element;

// activation, parameter, gradient, state, statistic, tf32
constexpr std::array<Row, 7> kTable = {{
    {Precision::kFp64, "fp64", {E::kFp64, E::kFp64, E::kFp64, E::kFp64, E::kFp64, false}},
    {Precision::kFp32, "fp32", {E::kFp32, E::kFp32, E::kFp32, E::kFp32, E::kFp32, false}},
    {Precision::kTf32, "tf32", {E::kFp32, E::kFp32, E::kFp32, E::kFp32, E::kFp32, true}},
    {Precision::kBf16, "bf16", {E::kBf16, E::kFp32, E::kFp32, E::kFp32, E::kFp32, false}},
    {Precision::kFp16, "fp16", {E::kFp16, E::kFp32, E::kFp32, E::kFp32, E::kFp32, false}},
    {Precision::kPureBf16, "bf16-pure", {E::kBf16, E::kBf16, E::kBf16, E::kBf16, E::kFp32, false}},
    {Precision::kLeanBf16, "bf16-lean", {E::kBf16, E::kFp32, E::kBf16, E::kFp32, E::kFp32, false}},
}};

}  // namespace

const char* to_string(Precision precision) noexcept {
  for (const Row& row : kTable) {
    if (row.precision == precision) return row.name;
  }
  return "?";
}

std::optional<Precision> parse_precision(std::string_view name) noexcept {
  for (const Row& row : kTable) {
    if (name == row.name) return row.precision;
  }
  return std::nullopt;
}

std::vector<std::string> precision_names() {
  std::vector<std::string> out;
  for (const Row& row : kTable) out.emplace_back(row.name);
  return out;
}

PrecisionPolicy policy_of(Precision precision) noexcept {
  for (const Row& row : kTable) {
    if (row.precision == precision) return row.policy;
  }
  return {};
}

}  // namespace flashlab::train
