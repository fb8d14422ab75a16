#include "train/cpu/accumulate.h"

namespace flashlab::train {
namespace {

// The sum of two 16-bit numbers rounded to fp32 and then to their type is the sum rounded once:
// fp32 has more than twice their bits and two (Figueroa 1995).
float rounded(float x, Element element) {
  if (element == Element::kFp16) return float_from_fp16(fp16_from_float(x));
  if (element == Element::kBf16) return float_from_bf16(bf16_from_float(x));
  return x;
}

}  // namespace

std::vector<Accumulation> accumulate(std::int64_t count, double value) {
  std::vector<Accumulation> out = {
      {Element::kFp32, Element::kFp32, false, 0}, {Element::kFp16, Element::kFp16, false, 0},
      {Element::kFp32, Element::kFp16, false, 0}, {Element::kFp32, Element::kFp16, true, 0},
      {Element::kBf16, Element::kBf16, false, 0}, {Element::kFp32, Element::kBf16, false, 0}};
  for (Accumulation& way : out) {
    float addend = rounded(static_cast<float>(value), way.addend);
    if (way.cast) addend = rounded(addend, way.accumulator);
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum = rounded(sum + addend, way.accumulator);
    way.sum = sum;
  }
  return out;
}

}  // namespace flashlab::train
