// The executor's end of a step: the norm of all gradients, AdamW over the arenas, the loss scale.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "api/context_state.h"
#include "train/cpu/call.h"
#include "train/cpu/narrow.h"
#include "train/run/cpu_executor.h"

namespace flashlab::train {
namespace {

// Squares are summed in chunks of this many elements, then the chunks' sums as a tree.
constexpr std::int64_t kNormChunk = 1 << 16;
static_assert(kNormChunk % kNormPart == 0);
constexpr std::int64_t kUpdateGrain = 1 << 15;

// Runs of 16-bit numbers as fp32 on the stack.
constexpr std::int64_t kNarrowRun = 2048;

// Smaller ones where ranks own parts of whole chunks, and on one rank that is to give their bits.
std::int64_t norm_chunk(const StepPlan& plan) {
  return plan.any_threads ? kNormPart : kNormChunk;
}

// Of all ranks.
std::int64_t norm_chunks(const StepPlan& plan) {
  if (plan.squares > 0) return plan.squares;
  return (plan.learned_elements() + norm_chunk(plan) - 1) / norm_chunk(plan);
}

double tree_sum(const double* x, std::int64_t count) {
  if (count == 1) return x[0];
  return tree_sum(x, count / 2) + tree_sum(x + count / 2, count - count / 2);
}

}  // namespace

std::int64_t CpuExecutor::norm_scratch_bytes() const {
  return static_cast<std::int64_t>(sizeof(double)) * norm_chunks(plan_);
}

template <class T>
double CpuExecutor::squares_of(std::int64_t first, std::int64_t count) {
  const auto& kernels = cpu::kernels<T>(context_.cpu_isa());
  const Element element = gradient_element();
  if (!cpu::is_narrow(element)) {
    return kernels.sum_of_squares(reinterpret_cast<const T*>(gradient_arena()) + first, count);
  }
  double out = 0;
  T wide[kNarrowRun];
  for (std::int64_t at = 0; at < count; at += kNarrowRun) {
    const std::int64_t run = std::min(kNarrowRun, count - at);
    widen_run(element, gradient_arena(), first + at, wide, run);
    out += kernels.sum_of_squares(wide, run);
  }
  return out;
}

template <class T>
void CpuExecutor::gradient_norm(const Operation& operation) {
  const std::int64_t chunk = norm_chunk(plan_), chunks = norm_chunks(plan_);
  const TensorId own = operation.out(Slot::kSum), of_all = operation.in(Slot::kSum);
  double* sums = reinterpret_cast<double*>(scratch_.data());
  if (own != kNoTensor || of_all != kNoTensor) {
    sums = static_cast<double*>(data(own != kNoTensor ? own : of_all));
  }
  if (own != kNoTensor) std::fill_n(sums, plan_.tensor(own).elements(), 0.0);
  const std::int64_t grain = kNormChunk / chunk;
  // The whole norm of whole gradients is everybody's, whoever has the moments.
  const std::vector<OwnedRange> whole = {{.learned = plan_.learned_elements()}};
  for (const OwnedRange& range : own != kNoTensor ? plan_.owned : whole) {
    if (of_all != kNoTensor) break;
    const std::int64_t here = (range.learned + chunk - 1) / chunk;
    const std::int64_t arena = plan_.owned_gradients ? range.local : range.begin;
    context_.state().pool().run((here + grain - 1) / grain, [&](std::int64_t task, int) {
      for (std::int64_t i = task * grain; i < std::min((task + 1) * grain, here); ++i) {
        const std::int64_t count = std::min(chunk, range.learned - i * chunk);
        sums[range.squares + i] = squares_of<T>(arena + i * chunk, count);
      }
    });
  }
  if (own != kNoTensor) return;
  const double scale = plan_.loss_scale == kNoTensor ? 1 : number(plan_.loss_scale);
  *static_cast<T*>(data(operation.out(Slot::kNorm))) =
      static_cast<T>(std::sqrt(tree_sum(sums, chunks)) / scale);
}

// Numbers of a 16-bit arena as fp32, and back.
template <class T>
void CpuExecutor::widen_run(Element element, const std::byte* arena, std::int64_t at, T* wide,
                            std::int64_t count) {
  const auto* narrow = reinterpret_cast<const std::uint16_t*>(arena) + at;
  if constexpr (std::is_same_v<T, float>) cpu::widen(element, narrow, wide, count);
}

template <class T>
void CpuExecutor::narrow_run(const T* wide, std::byte* arena, std::int64_t at, std::int64_t count) {
  auto* narrow = reinterpret_cast<std::uint16_t*>(arena) + at;
  if constexpr (std::is_same_v<T, float>) {
    cpu::narrow(parameters_->element(), wide, narrow, count);
  }
}

// One range of gradients of 16 bits, and perhaps of all else: runs of them become fp32 and are
// rounded again.
template <class T>
void CpuExecutor::adamw_narrow(const cpu::AdamWRange& range, const Places& first,
                               std::int64_t count) {
  const auto& kernels = cpu::kernels<T>(context_.cpu_isa());
  std::byte* const arenas[] = {parameters_->values(), parameters_->first_moments(),
                               parameters_->second_moments()};
  T wide[4][kNarrowRun];
  const Element element = parameters_->element();
  for (std::int64_t at = 0; at < count; at += kNarrowRun) {
    const std::int64_t run = std::min(kNarrowRun, count - at);
    widen_run(gradient_element(), gradient_arena(), first.gradient + at, wide[3], run);
    const std::int64_t places[] = {first.value + at, first.moment + at, first.moment + at};
    if (!cpu::is_narrow(element)) {
      T* here[3];
      for (std::size_t i = 0; i < 3; ++i) here[i] = reinterpret_cast<T*>(arenas[i]) + places[i];
      kernels.adamw(range, wide[3], here[0], here[1], here[2], run);
      continue;
    }
    for (std::size_t i = 0; i < 3; ++i) widen_run(element, arenas[i], places[i], wide[i], run);
    kernels.adamw(range, wide[3], wide[0], wide[1], wide[2], run);
    for (std::size_t i = 0; i < 3; ++i) narrow_run(wide[i], arenas[i], places[i], run);
  }
}

// What the step's norm says of the scale. INVARIANT: AdamW of this step has run.
void CpuExecutor::update_loss_scale(const Operation& operation) {
  const auto& a = std::get<LossScaleAttributes>(operation.attributes);
  float* state = static_cast<float*>(data(plan_.loss_scale));
  const bool good = std::isfinite(number(plan_.gradient_norm));
  if (!good) state[2] += 1;
  if (!a.dynamic) return;
  state[1] = good ? state[1] + 1 : 0;
  if (!good) {
    state[0] = std::max(state[0] / 2, 1.0f);
  } else if (state[1] >= static_cast<float>(a.interval)) {
    state[0] = std::min(state[0] * 2, 0x1p40f);
    state[1] = 0;
  }
}

template <class T>
void CpuExecutor::adamw(const Operation& operation) {
  const auto& a = std::get<AdamWAttributes>(operation.attributes);
  const auto& kernels = cpu::kernels<T>(context_.cpu_isa());
  const double* scalars = static_cast<const double*>(data(plan_.scalars));
  const double rate = scalars[kLearningRate];
  const double norm = number(plan_.gradient_norm);
  double step = scalars[kStepIndex], scale = 1;
  if (plan_.loss_scale != kNoTensor) {
    if (!std::isfinite(norm)) return;
    // Moments have seen only the steps that were taken.
    const float* state = static_cast<const float*>(data(plan_.loss_scale));
    scale = static_cast<double>(state[0]);
    step -= static_cast<double>(state[2]);
  }
  const double correction1 = 1 - std::pow(a.beta1, step), correction2 = 1 - std::pow(a.beta2, step);
  cpu::AdamWRange range = {};
  range.beta1 = a.beta1;
  range.beta2 = a.beta2;
  range.epsilon = a.epsilon;
  const bool torch = a.convention == AdamWConvention::kTorch;
  range.rate = torch ? rate / correction1 : rate * std::sqrt(correction2) / correction1;
  range.denominator_scale = torch ? 1 / std::sqrt(correction2) : 1;
  if (a.convention == AdamWConvention::kSgd) {
    range.rate = rate / (1 - a.beta1);
    range.denominator_scale = 0;
  }
  range.gradient_scale = (a.max_norm > 0 ? std::min(1.0, a.max_norm / (norm + 1e-6)) : 1) / scale;
  T* values = reinterpret_cast<T*>(parameters_->values());
  const T* gradients = reinterpret_cast<const T*>(gradient_arena());
  T* first = reinterpret_cast<T*>(parameters_->first_moments());
  T* second = reinterpret_cast<T*>(parameters_->second_moments());
  for (const AdamWAttributes::Range& part : a.ranges) {
    range.keep = 1 - rate * part.weight_decay;
    const std::int64_t tasks = (part.end - part.begin + kUpdateGrain - 1) / kUpdateGrain;
    context_.state().pool().run(tasks, [&](std::int64_t task, int) {
      const std::int64_t done = task * kUpdateGrain;
      const std::int64_t count = std::min(kUpdateGrain, part.end - part.begin - done);
      const Places at = {(plan_.owned_values ? part.local : part.begin) + done,
                         (plan_.owned_gradients ? part.local : part.begin) + done,
                         part.local + done};
      if (cpu::is_narrow(gradient_element())) return adamw_narrow<T>(range, at, count);
      kernels.adamw(range, gradients + at.gradient, values + at.value, first + at.moment,
                    second + at.moment, count);
    });
  }
  parameters_->round_copies(context_.state().pool());
}

#define FLASHLAB_INSTANTIATE(T)                                  \
  template void CpuExecutor::gradient_norm<T>(const Operation&); \
  template void CpuExecutor::adamw<T>(const Operation&);
FLASHLAB_INSTANTIATE(float)
FLASHLAB_INSTANTIATE(double)
#undef FLASHLAB_INSTANTIATE

}  // namespace flashlab::train
