#pragma once

// What the functions that plan training kernels share: a Config's beginning, places, sizes.

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/train/arguments.h"
#include "runtime/kernel_store/config.h"
#include "runtime/program/program.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

#define FLASHLAB_AT(Struct, member) offsetof(device::Struct, member)

inline std::int64_t div_up(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

inline const char* name_of(Element element) {
  if (element == Element::kFp16) return "kFp16";
  return element == Element::kBf16 ? "kBf16" : "kFp32";
}

inline cuda::ConfigPrinter config_of(const char* name, Element element) {
  cuda::ConfigPrinter out;
  out.choice(name, "Element", name_of(element));
  return out;
}

inline runtime::Place shifted(runtime::Place place, std::int64_t bytes) {
  return {place.buffer, place.offset_bytes + bytes};
}

}  // namespace flashlab::train
