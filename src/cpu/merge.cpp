// Merging partial attentions:  LSE = log(sum_i exp(LSE_i)),  O = sum_i exp(LSE_i - LSE) O_i.

#include "cpu/merge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

float lse_at(const Partial& part, std::int64_t b, std::int64_t h, std::int64_t i) {
  const auto& s = part.lse.spec.strides;
  return static_cast<const float*>(part.lse.data)[b * s[0] + h * s[1] + i * s[2]];
}

// exp(lse - merged), with 0 for an empty part and NaN kept.
float weight(float lse, float merged) {
  return lse == kEmpty ? 0.0f : std::exp(lse - merged);
}

float merged_lse(std::span<const Partial> parts, std::int64_t b, std::int64_t h, std::int64_t i) {
  float largest = kEmpty;
  for (const Partial& part : parts) {
    const float lse = lse_at(part, b, h, i);
    if (std::isnan(lse)) return lse;
    largest = std::max(largest, lse);
  }
  if (largest == kEmpty) return kEmpty;
  double sum = 0;
  for (const Partial& part : parts) {
    const float lse = lse_at(part, b, h, i);
    if (lse != kEmpty) sum += std::exp(static_cast<double>(lse) - largest);
  }
  return static_cast<float>(largest + std::log(sum));
}

void store(const Tensor& o, std::int64_t offset, float value) {
  switch (o.spec.dtype) {
    case DType::kFp16:
      static_cast<std::uint16_t*>(o.data)[offset] = fp16_from_float(value);
      break;
    case DType::kBf16:
      static_cast<std::uint16_t*>(o.data)[offset] = bf16_from_float(value);
      break;
    default:
      static_cast<float*>(o.data)[offset] = value;
  }
}

}  // namespace

void merge_on_cpu(ThreadPool& pool, std::span<const Partial> parts, const Tensor& o,
                  const std::optional<Tensor>& lse) {
  const auto& shape = o.spec.shape;  // [batch, seqlen_q, heads_q, head_dim_v]
  const std::int64_t heads = shape[2], columns = shape[3];
  pool.run(shape[0] * shape[1], [&](std::int64_t row, int) {
    const std::int64_t b = row / shape[1], i = row % shape[1];
    for (std::int64_t h = 0; h < heads; ++h) {
      const float merged = merged_lse(parts, b, h, i);
      if (lse) {
        const auto& s = lse->spec.strides;
        static_cast<float*>(lse->data)[b * s[0] + h * s[1] + i * s[2]] = merged;
      }
      const auto& so = o.spec.strides;
      const std::int64_t out = b * so[0] + i * so[1] + h * so[2];
      for (std::int64_t d = 0; d < columns; ++d) {
        float sum = 0;
        for (const Partial& part : parts) {
          const float w = weight(lse_at(part, b, h, i), merged);
          if (w == 0.0f) continue;  // what an empty part's o holds is never read
          const auto& sp = part.o.spec.strides;
          sum += w * static_cast<const float*>(part.o.data)[b * sp[0] + i * sp[1] + h * sp[2] + d];
        }
        store(o, out + d, sum);
      }
    }
  });
}

}  // namespace flashlab::internal
