#pragma once

// What every fuzz target needs: values out of bytes, and a way to say "this is a finding".

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace flashlab::fuzz {

/// Reports a broken promise. A crash is the only language that fuzzers understand.
[[noreturn]] inline void finding(const char* what, const char* detail = "") {
  std::fprintf(stderr, "finding: %s %s\n", what, detail);
  std::fflush(stderr);
  std::abort();  // lint: allow(aborts) a finding is a crash that the fuzzer keeps the input of
}

/// Takes values from the front of the input; zeros once it is used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }

  template <class T>
  T raw() {
    T value{};
    unsigned char bytes[sizeof(T)];
    for (unsigned char& b : bytes) b = byte();
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }

  /// In [low, high], both included.
  int range(int low, int high) {
    return low + static_cast<int>(raw<std::uint16_t>() % static_cast<unsigned>(high - low + 1));
  }

  /// True once in `n`.
  bool one_in(int n) { return range(1, n) == n; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace flashlab::fuzz
