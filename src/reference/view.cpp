#include "reference/view.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace flashlab::reference {
namespace {

// The formats by their numbers of bits; everything else follows.
struct Format {
  int mantissa_bits;  // stored
  int min_exponent;   // of the smallest normal value
  int max_exponent;   // of the largest finite value
};

constexpr Format kFp64Format{52, -1022, 1023};
constexpr Format kFp32Format{23, -126, 127};
constexpr Format kFp16Format{10, -14, 15};
constexpr Format kBf16Format{7, -126, 127};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
      return kFp64Format;
    case DType::kFp16:
      return kFp16Format;
    case DType::kBf16:
      return kBf16Format;
    default:
      return kFp32Format;
  }
}

double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// Of a positive value; subnormal ones lie below every 16-bit format.
int exponent_of(double magnitude) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(magnitude) >> 52) - 1023;
}

// To one of the 16-bit formats. The conformance list in bf16: 45.6 s of user time with frexp, ldexp
// and nearbyint, so 25.9 (an EPYC, 2026-11-24).
double round_to_format(const Format& format, double value) {
  const double magnitude = std::fabs(value);
  const double beyond = power_of_two(format.max_exponent + 1);
  const double infinity = std::copysign(std::numeric_limits<double>::infinity(), value);
  if (!(magnitude < beyond)) return std::isnan(value) ? value : infinity;
  // Adding and taking away 1.5 x 2^52 ulps leaves the sum with no bits below one ulp.
  const int exponent = std::max(exponent_of(magnitude), format.min_exponent);
  const double big = 1.5 * power_of_two(exponent - format.mantissa_bits + 52);
  const double rounded = (magnitude + big) - big;
  return rounded < beyond ? std::copysign(rounded, value) : infinity;
}

double decode16(const Format& format, std::uint16_t bits) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int field = (bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (field == (1 << exponent_bits) - 1) {
    if (mantissa != 0) return std::numeric_limits<double>::quiet_NaN();
    return sign * std::numeric_limits<double>::infinity();
  }
  const int exponent = std::max(field, 1) - 1 + format.min_exponent - format.mantissa_bits;
  const int implicit = field == 0 ? 0 : 1 << format.mantissa_bits;
  return sign * std::ldexp(static_cast<double>(mantissa + implicit), exponent);
}

std::uint16_t encode16(const Format& format, double value) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int infinity = ((1 << exponent_bits) - 1) << format.mantissa_bits;
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | infinity | 1 << (format.mantissa_bits - 1));
  }
  const double rounded = std::fabs(round_to_format(format, value));
  if (std::isinf(rounded)) return static_cast<std::uint16_t>(sign | infinity);
  if (rounded == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(exponent_of(rounded), format.min_exponent);
  const int mantissa = static_cast<int>(rounded * power_of_two(format.mantissa_bits - exponent));
  // A normal value's implicit bit adds one to the exponent field; a subnormal has neither.
  return static_cast<std::uint16_t>(
      sign | (((exponent - format.min_exponent) << format.mantissa_bits) + mantissa));
}

template <class T>
T element(const void* data, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void set_element(void* data, std::int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &value,
              sizeof(T));
}

// Every 16-bit pattern's value, because ldexp per element would dominate small cases.
template <const Format& F>
const std::vector<float>& table16() {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (int bits = 0; bits < 65536; ++bits) {
      values[static_cast<std::size_t>(bits)] =
          static_cast<float>(decode16(F, static_cast<std::uint16_t>(bits)));
    }
    return values;
  }();
  return table;
}

std::int64_t offset_of(const TensorSpec& spec, std::int64_t i0, std::int64_t i1, std::int64_t i2) {
  const std::int64_t index[3] = {i0, i1, i2};
  std::int64_t offset = 0;
  for (int d = 0; d < 3; ++d) {
    if (spec.shape[d] > 1) offset += index[d] * spec.strides[d];
  }
  return offset;
}

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// `count` distinct seeded numbers below `limit`, ascending, 0 and limit - 1 among them.
std::vector<std::int64_t> choose(std::int64_t count, std::int64_t limit, std::uint64_t seed) {
  if (count >= limit) return range(limit);
  std::vector<std::int64_t> chosen;
  if (count > 0) chosen.push_back(limit - 1);
  if (count > 1) chosen.push_back(0);
  for (std::uint64_t n = 0; static_cast<std::int64_t>(chosen.size()) < count; ++n) {
    const auto candidate = static_cast<std::int64_t>(mix(seed * 0x100000001B3u + n) %
                                                     static_cast<std::uint64_t>(limit));
    if (std::find(chosen.begin(), chosen.end(), candidate) == chosen.end()) {
      chosen.push_back(candidate);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

double load(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFp64:
      return element<double>(data, index);
    case DType::kFp32:
      return static_cast<double>(element<float>(data, index));
    case DType::kFp16:
      return table16<kFp16Format>()[element<std::uint16_t>(data, index)];
    case DType::kBf16:
      return table16<kBf16Format>()[element<std::uint16_t>(data, index)];
    case DType::kBool:
      return element<std::uint8_t>(data, index) != 0 ? 1.0 : 0.0;
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

void store(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::kFp64:
      set_element(data, index, value);
      return;
    case DType::kFp32:
      set_element(data, index, static_cast<float>(value));
      return;
    case DType::kFp16:
      set_element(data, index, encode16(kFp16Format, value));
      return;
    case DType::kBf16:
      set_element(data, index, encode16(kBf16Format, value));
      return;
    case DType::kBool:
      set_element<std::uint8_t>(data, index, value != 0 ? 1 : 0);
      return;
    default:
      return;
  }
}

double round_to(DType dtype, double value) {
  if (dtype == DType::kFp64) return value;
  if (dtype == DType::kFp32) return static_cast<double>(static_cast<float>(value));
  return round_to_format(format_of(dtype), value);
}

float round_to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0xFFFu + ((bits >> 13) & 1u)) & 0xFFFFE000u);
}

float round_to(DType dtype, float value) {
  if (dtype == DType::kBf16) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    if ((bits & 0x7FFFFFFFu) >= 0x7F800000u) return value;  // NaN and infinity stay
    const std::uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    return std::bit_cast<float>(rounded & 0xFFFF0000u);
  }
  if (dtype == DType::kFp16) {
    const float magnitude = std::fabs(value);
    if (!(magnitude < 65520.0f)) {  // half an ulp above the largest; NaN goes here too
      return std::isnan(value) ? value
                               : std::copysign(std::numeric_limits<float>::infinity(), value);
    }
    // Adding and taking away 1.5 x 2^23 ulps leaves the sum with no bits below one fp16 ulp.
    const auto bits = std::bit_cast<std::uint32_t>(magnitude);
    const int exponent = std::max(static_cast<int>(bits >> 23) - 127, kFp16Format.min_exponent);
    const float big = std::bit_cast<float>(
        static_cast<std::uint32_t>(exponent - kFp16Format.mantissa_bits + 23 + 127) << 23 |
        0x400000u);
    return std::copysign((magnitude + big) - big, value);
  }
  return value;
}

double largest(DType dtype) {
  const Format format = format_of(dtype);
  return std::ldexp(2.0 - std::ldexp(1.0, -format.mantissa_bits), format.max_exponent);
}

Sizes sizes_of(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v) {
  return {q.spec.shape[0], q.spec.shape[2], k.spec.shape[2], q.spec.shape[1],
          k.spec.shape[1], q.spec.shape[3], v.spec.shape[3]};
}

Sample Sample::everything(const Sizes& sizes) {
  Sample out;
  out.queries.reserve(static_cast<std::size_t>(sizes.batch * sizes.heads_q * sizes.seqlen_q));
  out.keys.reserve(static_cast<std::size_t>(sizes.batch * sizes.heads_k * sizes.seqlen_k));
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.heads_q; ++h) {
      for (std::int64_t i = 0; i < sizes.seqlen_q; ++i) out.queries.push_back({b, h, i});
    }
    for (std::int64_t h = 0; h < sizes.heads_k; ++h) {
      for (std::int64_t j = 0; j < sizes.seqlen_k; ++j) out.keys.push_back({b, h, j});
    }
  }
  return out;
}

Sample Sample::seeded(const Sizes& sizes, std::int64_t rows, std::int64_t heads,
                      std::uint64_t seed) {
  Sample out;
  out.all = false;
  auto spread = [&](std::int64_t all_heads, std::int64_t seqlen, std::uint64_t salt,
                    std::vector<Row>& list) {
    const std::int64_t heads_total = sizes.batch * all_heads;
    const std::int64_t heads_used = std::min(std::max<std::int64_t>(heads, 1), heads_total);
    if (heads_used == 0 || seqlen == 0) return;
    const std::int64_t per_head =
        std::min(seqlen, std::max<std::int64_t>(2, (rows + heads_used - 1) / heads_used));
    for (std::int64_t head : choose(heads_used, heads_total, mix(seed ^ salt))) {
      const std::uint64_t head_seed = mix(seed + salt * 31 + static_cast<std::uint64_t>(head));
      for (std::int64_t position : choose(per_head, seqlen, head_seed)) {
        list.push_back({head / all_heads, head % all_heads, position});
      }
    }
  };
  spread(sizes.heads_q, sizes.seqlen_q, 1, out.queries);
  spread(sizes.heads_k, sizes.seqlen_k, 2, out.keys);
  const std::int64_t used = std::min(std::max<std::int64_t>(heads, 1), sizes.batch * sizes.heads_q);
  out.description = std::to_string(out.queries.size()) + " rows of " + std::to_string(used) +
                    " heads, seed " + std::to_string(seed);
  return out;
}

Visibility::Visibility(const Sizes& sizes, const Options& options,
                       const std::optional<ConstTensor>& mask)
    : sizes_(sizes),
      causal_(options.causal),
      window_(options.window),
      chunk_(options.attention_chunk),
      mask_(mask) {}

std::int64_t Visibility::aligned_key(std::int64_t i) const {
  const bool bottom_right =
      causal_ == Causal::kBottomRight || (window_ && window_->alignment == Alignment::kBottomRight);
  return bottom_right ? i + sizes_.seqlen_k - sizes_.seqlen_q : i;
}

std::int64_t Visibility::within_reach(std::int64_t bound) const {
  const std::int64_t far = sizes_.seqlen_q + sizes_.seqlen_k;
  return std::clamp(bound, -far, far);
}

std::int64_t Visibility::chunk_of(std::int64_t key) const {
  return key >= 0 ? key / *chunk_ : -((-key + *chunk_ - 1) / *chunk_);
}

std::int64_t Visibility::first_key(std::int64_t i) const {
  std::int64_t first = 0;
  if (window_ && window_->left) first = aligned_key(i) - within_reach(*window_->left);
  if (chunk_) first = std::max(first, chunk_of(aligned_key(i)) * *chunk_);
  return std::clamp<std::int64_t>(first, 0, sizes_.seqlen_k);
}

std::int64_t Visibility::end_key(std::int64_t i) const {
  std::int64_t end = sizes_.seqlen_k;
  if (window_ && window_->right)
    end = std::min(end, aligned_key(i) + within_reach(*window_->right) + 1);
  if (chunk_) end = std::min(end, (chunk_of(aligned_key(i)) + 1) * *chunk_);
  if (causal_ != Causal::kNone) end = std::min(end, aligned_key(i) + 1);
  return std::max<std::int64_t>(end, 0);
}

void Visibility::row(std::int64_t b, std::int64_t h, std::int64_t i,
                     const std::vector<std::int64_t>& keys, std::vector<std::uint8_t>& visible,
                     std::vector<double>& bias) const {
  visible.resize(keys.size());
  bias.assign(keys.size(), 0.0);
  const std::int64_t first = first_key(i), end = end_key(i);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    visible[n] = keys[n] >= first && keys[n] < end ? 1 : 0;
  }
  if (!mask_) return;
  const TensorSpec& spec = mask_->spec;
  const std::int64_t base = offset_of(spec, b, h, i);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    if (visible[n] == 0) continue;
    const std::int64_t index = base + (spec.shape[3] > 1 ? keys[n] * spec.strides[3] : 0);
    const double value = load(mask_->data, spec.dtype, index);
    if (spec.dtype == DType::kBool) {
      visible[n] = value != 0 ? 1 : 0;
    } else if (value <= -largest(spec.dtype) / 2) {
      visible[n] = 0;
    } else {
      bias[n] = value;
    }
  }
}

double scale_of(const Options& options, std::int64_t head_dim, DType inputs) {
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return inputs == DType::kFp64 ? scale : static_cast<double>(static_cast<float>(scale));
}

template <class Real>
void read_rows(const ConstTensor& tensor, std::int64_t b, std::int64_t h,
               const std::vector<std::int64_t>& positions, std::vector<Real>& out) {
  const std::int64_t width = tensor.spec.shape[3];
  out.resize(positions.size() * static_cast<std::size_t>(width));
  Real* to = out.data();
  for (std::int64_t position : positions) {
    const std::int64_t base = offset_of(tensor.spec, b, position, h);
    for (std::int64_t d = 0; d < width; ++d) {
      *to++ = static_cast<Real>(load(tensor.data, tensor.spec.dtype, base + d));
    }
  }
}

template <class Real>
void read_columns(const ConstTensor& tensor, std::int64_t b, std::int64_t h,
                  const std::vector<std::int64_t>& positions, std::vector<Real>& out) {
  const std::int64_t width = tensor.spec.shape[3];
  const std::size_t count = positions.size();
  out.resize(count * static_cast<std::size_t>(width));
  for (std::size_t n = 0; n < count; ++n) {
    const std::int64_t base = offset_of(tensor.spec, b, positions[n], h);
    for (std::int64_t d = 0; d < width; ++d) {
      out[static_cast<std::size_t>(d) * count + n] =
          static_cast<Real>(load(tensor.data, tensor.spec.dtype, base + d));
    }
  }
}

template void read_rows(const ConstTensor&, std::int64_t, std::int64_t,
                        const std::vector<std::int64_t>&, std::vector<float>&);
template void read_rows(const ConstTensor&, std::int64_t, std::int64_t,
                        const std::vector<std::int64_t>&, std::vector<double>&);
template void read_rows(const ConstTensor&, std::int64_t, std::int64_t,
                        const std::vector<std::int64_t>&, std::vector<long double>&);
template void read_columns(const ConstTensor&, std::int64_t, std::int64_t,
                           const std::vector<std::int64_t>&, std::vector<float>&);
template void read_columns(const ConstTensor&, std::int64_t, std::int64_t,
                           const std::vector<std::int64_t>&, std::vector<double>&);
template void read_columns(const ConstTensor&, std::int64_t, std::int64_t,
                           const std::vector<std::int64_t>&, std::vector<long double>&);

double read_statistic(const ConstTensor& tensor, std::int64_t b, std::int64_t h, std::int64_t i) {
  return load(tensor.data, tensor.spec.dtype, offset_of(tensor.spec, b, h, i));
}

std::vector<std::int64_t> range(std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  for (std::size_t n = 0; n < out.size(); ++n) out[n] = static_cast<std::int64_t>(n);
  return out;
}

}  // namespace flashlab::reference
