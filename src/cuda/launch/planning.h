#pragma once

// What planners of kernels share: arithmetic of tiles, limits, refusals, a launch from its parts.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "cuda/launch/arguments.h"
#include "cuda/launch/gpu_plan.h"
#include "runtime/kernel_store/config.h"

namespace flashlab::cuda {

template <class A, class B>
constexpr auto divide_up(A count, B size) {
  using Common = std::common_type_t<A, B>;
  return (Common{count} + Common{size} - 1) / Common{size};
}
template <class A, class B>
constexpr auto round_up(A value, B multiple) {
  return divide_up(value, multiple) * multiple;
}

/// The longest sequence of a call: positions are 32-bit in the kernels.
inline constexpr std::int64_t kMaxLength = INT32_MAX - 1024;
/// What a deterministic plan fills: a device of this many multiprocessors, whatever the real one.
inline constexpr int kNominalMultiprocessors = 128;

inline Status too_large(std::string_view what, std::int64_t got, std::int64_t limit,
                        std::string_view remedy) {
  return Status::unsupported({std::string(what), fmt::format("{}", got),
                              fmt::format("at most {}", limit), std::string(remedy)});
}

/// A launch of `blocks` blocks; its step is called as the kernel's entry.
inline GpuStep kernel_step(const char* source, const char* entry, const ConfigPrinter& config,
                           std::int64_t blocks, std::int64_t threads, std::int64_t shared_bytes,
                           std::string words) {
  GpuStep step;
  step.name = entry;
  step.spec = {source, entry, config.text(), {}};
  step.shape.grid_x = static_cast<unsigned>(blocks);
  step.shape.threads = static_cast<unsigned>(threads);
  step.shape.shared_bytes = static_cast<unsigned>(shared_bytes);
  step.configuration = config.summary();
  step.words = std::move(words);
  return step;
}

/// Makes a step a ragged call's: slots of tiles, whose number for all heads it has, then heads.
/// `arguments`: Ragged{Forward,Backward}Arguments without addresses.
template <class Arguments>
void give_sequences(GpuStep& step, const GpuPlan& plan, const Arguments& arguments,
                    std::int64_t heads) {
  step.shape.grid_x /= static_cast<unsigned>(heads);
  step.shape.grid_y = static_cast<unsigned>(heads);
  step.parameters = runtime::ParameterBlock(arguments);
  patch_addresses(step.parameters, plan.problem, static_cast<int>(plan.regions.size()));
  patch_sequences(step.parameters, plan.problem, offsetof(Arguments, sequences));
}

}  // namespace flashlab::cuda
