#pragma once

// Printing a plan's choices as the `Config` struct a kernel is compiled with: named constants,
// never a row of numbers.

#include <cstdint>
#include <string>
#include <string_view>

namespace flashlab::cuda {

/// Builds the text of `struct Config { static constexpr ... };`. Equal calls give equal text, which
/// is part of the kernel's cache key.
class ConfigPrinter {
 public:
  ConfigPrinter& integer(std::string_view name, std::int64_t value);
  ConfigPrinter& boolean(std::string_view name, bool value);
  /// A value of an enum that the device sources declare: `choice("kDtype", "DType", "kBf16")`.
  ConfigPrinter& choice(std::string_view name, std::string_view type, std::string_view value);

  /// The struct, complete.
  std::string text() const;

  /// One line for `explain`: "kTileQ 128 · kTileK 64 · kCausal true".
  const std::string& summary() const noexcept { return summary_; }

 private:
  ConfigPrinter& member(std::string_view type, std::string_view name, std::string_view value,
                        std::string_view shown);
  std::string members_;
  std::string summary_;
};

}  // namespace flashlab::cuda
