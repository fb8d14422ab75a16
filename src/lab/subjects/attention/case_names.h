#pragma once

// The spellings of enums in a results file, both ways.

#include <optional>
#include <string>
#include <string_view>

#include "case.h"

namespace flashlab::lab {

/// "fp32", ..., and "tf32" for fp32 tensors multiplied in tf32.
std::string dtype_name(const cases::Case& problem);
bool parse_dtype_name(std::string_view name, cases::Case& problem);

/// "none", "causal-top-left", "causal-bottom-right"; "+bool" or "+additive" for a mask tensor.
/// A bare causal (equal lengths) is recorded as top-left, as the library does.
std::string mask_name(const cases::Case& problem);
bool parse_mask_name(std::string_view name, cases::Case& problem);

const char* layout_name(cases::Layout layout) noexcept;
/// "heads first"; empty for what most cases have.
const char* layout_words(cases::Layout layout) noexcept;
std::optional<cases::Layout> parse_layout(std::string_view name);

const char* fill_name(cases::Fill fill) noexcept;
const char* fill_words(cases::Fill fill) noexcept;
std::optional<cases::Fill> parse_fill(std::string_view name);

}  // namespace flashlab::lab
