#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace flashlab {

/// Element types. No kernel reads the fp8 types: they are refused. Integers are lengths, tables and
/// seeds.
enum class DType : std::uint8_t { kFp64, kFp32, kFp16, kBf16, kE4m3, kE5m2, kBool, kInt32, kInt64 };

/// "fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "bool", "int32", "int64".
const char* to_string(DType dtype) noexcept;

/// Bytes of one element (a bool takes one byte: 0 is false, anything else true).
constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFp64:
    case DType::kInt64:
      return 8;
    case DType::kFp32:
    case DType::kInt32:
      return 4;
    case DType::kFp16:
    case DType::kBf16:
      return 2;
    default:
      return 1;
  }
}

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

/// A place where memory lives and work runs.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu", "cuda:0".
std::string to_string(Device device);

/// What a tensor looks like, without where it is: everything a plan may depend on.
///
/// Strides are in elements, int64, ignored where the extent is <= 1. 0 is allowed on inputs
/// (broadcast) except in the innermost dimension, whose stride must be 1. Rows need no more than
/// their elements' alignment; on a GPU rows aligned to 16 bytes are read faster.
struct TensorSpec {
  static constexpr int kMaxRank = 4;

  DType dtype = DType::kFp32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};  ///< elements
  Device device{};
  int alignment_bytes = 16;  ///< largest power of two <= 16 that divides every row's address

  std::int64_t elements() const noexcept {
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  std::int64_t bytes() const noexcept {
    return elements() * static_cast<std::int64_t>(size_of(dtype));
  }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

/// "fp32 [2, 128, 8, 64] strides [65536, 512, 64, 1] on cpu".
std::string to_string(const TensorSpec& spec);

/// A spec with row-major strides; `shape` has 1 to 4 extents.
TensorSpec contiguous_spec(DType dtype, std::initializer_list<std::int64_t> shape,
                           Device device = {});

/// A non-owning view of memory that is only read.
struct ConstTensor {
  const void* data = nullptr;
  TensorSpec spec{};
};

/// A non-owning view of memory that may be written.
struct Tensor {
  void* data = nullptr;
  TensorSpec spec{};
  operator ConstTensor() const noexcept { return {data, spec}; }  // NOLINT: implicit by design
};

/// The element type of a C++ type: float, double, bool, int32_t, int64_t. 16-bit types are named
/// explicitly, because C++20 has none.
template <class T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  constexpr bool kFloating = std::is_same_v<U, float> || std::is_same_v<U, double>;
  constexpr bool kInteger = std::is_same_v<U, std::int32_t> || std::is_same_v<U, std::int64_t>;
  static_assert(kFloating || kInteger || std::is_same_v<U, bool>,
                "pass the DType explicitly for this element type");
  if constexpr (std::is_same_v<U, double>) return DType::kFp64;
  if constexpr (std::is_same_v<U, bool>) return DType::kBool;
  if constexpr (kInteger) return sizeof(U) == 4 ? DType::kInt32 : DType::kInt64;
  return DType::kFp32;
}

/// A row-major view: `tensor(pointer, {batch, seqlen, heads, head_dim})`.
template <class T>
auto tensor(T* data, std::initializer_list<std::int64_t> shape, DType dtype = dtype_of<T>(),
            Device device = {}) {
  using View = std::conditional_t<std::is_const_v<T>, ConstTensor, Tensor>;
  return View{data, contiguous_spec(dtype, shape, device)};
}

/// The same for memory whose element type C++ cannot name (fp16, bf16, fp8).
inline Tensor tensor(void* data, std::initializer_list<std::int64_t> shape, DType dtype,
                     Device device = {}) {
  return {data, contiguous_spec(dtype, shape, device)};
}
inline ConstTensor tensor(const void* data, std::initializer_list<std::int64_t> shape, DType dtype,
                          Device device = {}) {
  return {data, contiguous_spec(dtype, shape, device)};
}

/// Conversions between fp32 and the 16-bit types' bits, round to nearest even.
std::uint16_t bf16_from_float(float value) noexcept;
std::uint16_t fp16_from_float(float value) noexcept;
float float_from_bf16(std::uint16_t bits) noexcept;
float float_from_fp16(std::uint16_t bits) noexcept;

}  // namespace flashlab
