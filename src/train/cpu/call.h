#pragma once

// What a CPU function of an operation gets: its operands as pointers, the pool, scratch.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/cpu/thread_pool.h"
#include "train/cpu/rows-inl.h"
#include "train/plan/step_plan.h"

namespace flashlab::train::cpu {

/// Reductions over rows are cut into this many equal parts and added as a tree, so that the result
/// depends on neither threads nor their timing. It depends on the rows that are one call:
/// StepOptions::shares makes those the same on any number of ranks.
inline constexpr std::int64_t kReductionParts = 16;

template <class T>
struct Call {
  const Operation& operation;
  std::byte* const* addresses;  ///< of every tensor of the plan
  internal::ThreadPool& pool;
  const KernelTable<T>& kernels;
  std::byte* scratch;  ///< scratch_bytes(operation) of it

  /// An operand of the name; null where it is absent.
  template <class U = T>
  U* in(Slot slot) const {
    return at<U>(operation.in(slot));
  }
  template <class U = T>
  U* out(Slot slot) const {
    return at<U>(operation.out(slot));
  }
  template <class A>
  const A& attributes() const {
    return std::get<A>(operation.attributes);
  }
  /// body(first, count) over ranges of [0, count) of at most `grain`.
  template <class Body>
  void parallel(std::int64_t count, std::int64_t grain, const Body& body) const {
    const std::int64_t tasks = (count + grain - 1) / grain;
    pool.run(tasks, [&](std::int64_t task, int) {
      const std::int64_t first = task * grain;
      body(first, count - first < grain ? count - first : grain);
    });
  }

 private:
  template <class U>
  U* at(TensorId id) const {
    return id == kNoTensor ? nullptr : reinterpret_cast<U*>(addresses[id]);
  }
};

/// Bytes of scratch memory that the operation's CPU function uses.
std::int64_t scratch_bytes(const StepPlan& plan, const Operation& operation);

/// Of kinds whose operations an executor runs in a way of its own, or not at all.
template <class T>
void none(const Call<T>&) {}
#define FLASHLAB_OPERATION(kind, name, inputs, outputs, function, gpu) \
  template <class T>                                                   \
  void function(const Call<T>& call);
#include "train/plan/operations.inc"
#undef FLASHLAB_OPERATION

}  // namespace flashlab::train::cpu
