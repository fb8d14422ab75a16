#include "lab/subjects/attention/case_names.h"

#include <array>
#include <utility>

namespace flashlab::lab {
namespace {

constexpr std::array kDtypes = {DType::kFp64, DType::kFp32, DType::kFp16,
                                DType::kBf16, DType::kE4m3, DType::kE5m2};

constexpr std::array kLayouts = {
    std::pair{cases::Layout::kContiguous, "contiguous"},
    std::pair{cases::Layout::kHeadsFirst, "heads-first"},
    std::pair{cases::Layout::kPackedQkv, "packed-qkv"},
    std::pair{cases::Layout::kPaddedRows, "padded-rows"},
};

constexpr std::array kFills = {
    std::pair{cases::Fill::kNormal, "normal"},
    std::pair{cases::Fill::kLargeScores, "large-scores"},
    std::pair{cases::Fill::kMixedScales, "mixed-scales"},
    std::pair{cases::Fill::kSubnormal, "subnormal"},
    std::pair{cases::Fill::kSpecial, "special"},
    std::pair{cases::Fill::kEqual, "equal"},
    std::pair{cases::Fill::kGrowing, "growing"},
    std::pair{cases::Fill::kShifted, "shifted"},
    std::pair{cases::Fill::kEmptyRows, "empty-rows"},
};

template <class Table, class Enum>
const char* name_in(const Table& table, Enum value) noexcept {
  for (const auto& [key, name] : table) {
    if (key == value) return name;
  }
  return "unknown";
}

template <class Table>
auto value_in(const Table& table, std::string_view name)
    -> std::optional<decltype(table[0].first)> {
  for (const auto& [key, spelling] : table) {
    if (name == spelling) return key;
  }
  return {};
}

}  // namespace

std::string dtype_name(const cases::Case& problem) {
  if (problem.dtype == DType::kFp32 && problem.precision == Precision::kTf32) return "tf32";
  return to_string(problem.dtype);
}

bool parse_dtype_name(std::string_view name, cases::Case& problem) {
  problem.precision = name == "tf32" ? Precision::kTf32 : Precision::kIeee;
  if (name == "tf32") name = "fp32";
  for (const DType dtype : kDtypes) {
    if (name != to_string(dtype)) continue;
    problem.dtype = dtype;
    return true;
  }
  return false;
}

std::string mask_name(const cases::Case& problem) {
  std::string out = "none";
  if (problem.causal == Causal::kCausal || problem.causal == Causal::kTopLeft) {
    out = "causal-top-left";
  } else if (problem.causal == Causal::kBottomRight) {
    out = "causal-bottom-right";
  }
  if (problem.mask == cases::MaskKind::kBool) out += "+bool";
  if (problem.mask == cases::MaskKind::kAdditive) out += "+additive";
  return out;
}

bool parse_mask_name(std::string_view name, cases::Case& problem) {
  const auto plus = name.find('+');
  const std::string_view base = name.substr(0, plus);
  const std::string_view extra =
      plus == std::string_view::npos ? std::string_view() : name.substr(plus);
  if (base == "none") {
    problem.causal = Causal::kNone;
  } else if (base == "causal-top-left") {
    problem.causal = Causal::kTopLeft;
  } else if (base == "causal-bottom-right") {
    problem.causal = Causal::kBottomRight;
  } else {
    return false;
  }
  if (extra.empty()) {
    problem.mask = cases::MaskKind::kNone;
  } else if (extra == "+bool") {
    problem.mask = cases::MaskKind::kBool;
  } else if (extra == "+additive") {
    problem.mask = cases::MaskKind::kAdditive;
  } else {
    return false;
  }
  return true;
}

const char* layout_name(cases::Layout layout) noexcept {
  return name_in(kLayouts, layout);
}
std::optional<cases::Layout> parse_layout(std::string_view name) {
  return value_in(kLayouts, name);
}

const char* fill_name(cases::Fill fill) noexcept {
  return name_in(kFills, fill);
}
std::optional<cases::Fill> parse_fill(std::string_view name) {
  return value_in(kFills, name);
}

}  // namespace flashlab::lab
