#include "lab/subjects/attention/case_names.h"

#include <array>
#include <cstddef>

namespace flashlab::lab {
namespace {

constexpr std::array kDtypes = {DType::kFp64, DType::kFp32, DType::kFp16,
                                DType::kBf16, DType::kE4m3, DType::kE5m2};

// An enum's value, its spelling in files and its words; none for what most cases have.
template <class Enum>
struct Named {
  Enum value;
  const char* name;
  const char* words;
};

constexpr Named<cases::Layout> kLayouts[] = {
    {cases::Layout::kContiguous, "contiguous", ""},
    {cases::Layout::kHeadsFirst, "heads-first", "heads first"},
    {cases::Layout::kPackedQkv, "packed-qkv", "packed qkv"},
    {cases::Layout::kPaddedRows, "padded-rows", "padded rows"},
};

constexpr Named<cases::Fill> kFills[] = {
    {cases::Fill::kNormal, "normal", ""},
    {cases::Fill::kLargeScores, "large-scores", "large scores"},
    {cases::Fill::kMixedScales, "mixed-scales", "mixed scales"},
    {cases::Fill::kSubnormal, "subnormal", "subnormal values"},
    {cases::Fill::kSpecial, "special", "special values"},
    {cases::Fill::kEqual, "equal", "equal scores"},
    {cases::Fill::kGrowing, "growing", "growing scores"},
    {cases::Fill::kShifted, "shifted", "shifted scores"},
    {cases::Fill::kEmptyRows, "empty-rows", "empty rows"},
};

template <class Enum, std::size_t N>
const Named<Enum>& row_of(const Named<Enum> (&table)[N], Enum value) noexcept {
  for (const Named<Enum>& row : table) {
    if (row.value == value) return row;
  }
  static constexpr Named<Enum> kUnknown = {{}, "unknown", ""};
  return kUnknown;
}

template <class Enum, std::size_t N>
std::optional<Enum> value_of(const Named<Enum> (&table)[N], std::string_view name) {
  for (const Named<Enum>& row : table) {
    if (name == row.name) return row.value;
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
  cases::Case named;
  for (const Causal causal : {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight}) {
    for (const cases::MaskKind mask :
         {cases::MaskKind::kNone, cases::MaskKind::kBool, cases::MaskKind::kAdditive}) {
      named.causal = causal;
      named.mask = mask;
      if (mask_name(named) != name) continue;
      problem.causal = causal;
      problem.mask = mask;
      return true;
    }
  }
  return false;
}

const char* layout_name(cases::Layout layout) noexcept {
  return row_of(kLayouts, layout).name;
}
const char* layout_words(cases::Layout layout) noexcept {
  return row_of(kLayouts, layout).words;
}
std::optional<cases::Layout> parse_layout(std::string_view name) {
  return value_of(kLayouts, name);
}

const char* fill_name(cases::Fill fill) noexcept {
  return row_of(kFills, fill).name;
}
const char* fill_words(cases::Fill fill) noexcept {
  return row_of(kFills, fill).words;
}
std::optional<cases::Fill> parse_fill(std::string_view name) {
  return value_of(kFills, name);
}

}  // namespace flashlab::lab
