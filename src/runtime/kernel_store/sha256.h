#pragma once

// SHA-256 (FIPS 180-4): names of cache entries and their integrity. Own code because a
// cryptographic library would be a dependency of the wheel for these sixty lines.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashlab::cuda {

class Sha256 {
 public:
  Sha256& update(std::string_view bytes);
  /// Lengths are hashed too, so that {"ab", "c"} and {"a", "bc"} differ.
  Sha256& update_field(std::string_view field);
  /// 64 hexadecimal digits. The object is finished afterwards.
  std::string hex();

 private:
  void block(const unsigned char* bytes);
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  std::uint64_t length_bytes_ = 0;
};

}  // namespace flashlab::cuda
