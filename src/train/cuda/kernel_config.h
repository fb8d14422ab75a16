#pragma once

// What the functions that plan training kernels share: a Config's beginning, places, sizes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "cuda/kernels/train/arguments.h"
#include "runtime/kernel_store/config.h"
#include "runtime/program/program.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

#define FLASHLAB_AT(Struct, member) offsetof(device::Struct, member)

inline constexpr int kAccessBytes = 16;
inline constexpr int kRowThreads = 256;  // of kernels that work on packs

inline std::int64_t div_up(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

/// Elements per access of rows of `width`.
inline int vector_of(std::int64_t width, std::int64_t element_bytes) {
  const auto vector = static_cast<int>(kAccessBytes / element_bytes);
  return width % vector == 0 ? vector : 1;
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

/// Clears memory by a kernel: before and after a memset between two kernels the GPU is idle. The
/// address and `bytes` are even; buffers begin on multiples of 16.
inline runtime::Step zero_step(std::string name, runtime::Place target, std::int64_t bytes) {
  constexpr std::int64_t kThreads = 256;
  const std::int64_t access = (target.offset_bytes | bytes) % 16 == 0 ? 16 : 2;
  cuda::ConfigPrinter config;
  config.integer("kBytes", access);
  runtime::ParameterBlock block(device::ZeroArguments{.bytes = bytes});
  block.pointer(FLASHLAB_AT(ZeroArguments, to), target);
  const std::int64_t blocks = div_up(bytes / access, kThreads);
  return {.name = std::move(name),
          .configuration = config.summary(),
          .work = runtime::KernelWork{
              {"train/zero.cu", "flash_zero", config.text(), {}},
              {.grid_x = static_cast<unsigned>(blocks), .threads = static_cast<unsigned>(kThreads)},
              std::move(block)}};
}

inline runtime::Place shifted(runtime::Place place, std::int64_t bytes) {
  return {place.buffer, place.offset_bytes + bytes};
}

}  // namespace flashlab::train
