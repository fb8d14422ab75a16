#pragma once

// What a sum loses in few bits: the same number added again and again, in several types.

#include <cstdint>
#include <string>
#include <vector>

#include "train/plan/tensor.h"

namespace flashlab::train {

struct Accumulation {
  Element accumulator = Element::kFp32;
  Element addend = Element::kFp32;  ///< the number is rounded to it first
  bool cast = false;                ///< and then to the accumulator's type, before it is added
  double sum = 0;
};

/// `count` times `value` in six ways: fp32 += fp32, fp16 += fp16, fp32 += fp16, fp32 += fp16 cast
/// to fp32 (the course's four), bf16 += bf16, fp32 += bf16. Every addition is rounded to the
/// accumulator's type, nearest, ties to even.
std::vector<Accumulation> accumulate(std::int64_t count, double value);

}  // namespace flashlab::train
