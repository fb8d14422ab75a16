#include "flashlab/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

namespace flashlab {

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFp64:
      return "fp64";
    case DType::kFp32:
      return "fp32";
    case DType::kFp16:
      return "fp16";
    case DType::kBf16:
      return "bf16";
    case DType::kE4m3:
      return "e4m3";
    case DType::kE5m2:
      return "e5m2";
    case DType::kBool:
      return "bool";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
  }
  return "unknown";
}

std::string to_string(Device device) {
  return device.kind == DeviceKind::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::string to_string(const TensorSpec& spec) {
  // A message about a wrong rank must not itself read past the arrays.
  const int rank = std::clamp(spec.rank, 0, TensorSpec::kMaxRank);
  auto begin = [](const auto& a) { return a.data(); };
  return fmt::format("{} [{}] strides [{}] on {}", to_string(spec.dtype),
                     fmt::join(begin(spec.shape), begin(spec.shape) + rank, ", "),
                     fmt::join(begin(spec.strides), begin(spec.strides) + rank, ", "),
                     to_string(spec.device));
}

TensorSpec contiguous_spec(DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  TensorSpec spec;
  spec.dtype = dtype;
  spec.device = device;
  for (std::int64_t extent : shape) {
    if (spec.rank == TensorSpec::kMaxRank) break;
    spec.shape[spec.rank++] = extent;
  }
  // Unsigned arithmetic: an absurd shape must wrap here and be refused by validation, not be
  // undefined behaviour before validation can see it.
  std::uint64_t stride = 1;
  for (int i = spec.rank - 1; i >= 0; --i) {
    spec.strides[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(spec.shape[i] > 0 ? spec.shape[i] : 1);
  }
  return spec;
}

std::uint16_t bf16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float float_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t fp16_from_float(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN, made quiet
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to 65536 or beyond: infinity
  if (magnitude < 0x38800000u) {
    // Subnormal result. Adding 0.5 puts the last fp16 bit (2^-24) at the last bit of the float's
    // mantissa, so the addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0x7ffu));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float float_from_fp16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace flashlab
