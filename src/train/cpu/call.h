#pragma once

// What a CPU function of an operation gets: its operands as pointers, the pool, scratch.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/cpu/thread_pool.h"
#include "train/cpu/kernels.h"
#include "train/plan/step_plan.h"

namespace flashlab::train::cpu {

/// Reductions over rows are cut into this many equal parts and added as a tree, so that the result
/// depends on neither threads nor their timing, and two ranks with half of the rows each give the
/// bits of one.
inline constexpr std::int64_t kReductionParts = 16;

template <class T>
struct Call {
  const Operation& operation;
  std::byte* const* addresses;  ///< of every tensor of the plan
  internal::ThreadPool& pool;
  const KernelTable<T>& kernels;
  std::byte* scratch;  ///< scratch_bytes(operation) of it

  template <class U = T>
  U* input(std::size_t i) const {
    return reinterpret_cast<U*>(addresses[operation.inputs[i]]);
  }
  template <class U = T>
  U* output(std::size_t i) const {
    return reinterpret_cast<U*>(addresses[operation.outputs[i]]);
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
};

/// Bytes of scratch memory that the operation's CPU function uses.
std::int64_t scratch_bytes(const StepPlan& plan, const Operation& operation);

// One function for each kind; attention and AdamW need more than a Call (run/cpu_executor.cpp).
template <class T>
void column_sum(const Call<T>& call);
template <class T>
void embedding(const Call<T>& call);
template <class T>
void embedding_backward(const Call<T>& call);
template <class T>
void rms_norm(const Call<T>& call);
template <class T>
void rms_norm_backward(const Call<T>& call);
template <class T>
void layer_norm(const Call<T>& call);
template <class T>
void layer_norm_backward(const Call<T>& call);
template <class T>
void cached_attention(const Call<T>& call);
template <class T>
void rope_angles(const Call<T>& call);
template <class T>
void rope(const Call<T>& call);
template <class T>
void row_max(const Call<T>& call);
template <class T>
void softmax(const Call<T>& call);
template <class T>
void softmax_backward(const Call<T>& call);
template <class T>
void activation(const Call<T>& call);
template <class T>
void pointwise(const Call<T>& call);
template <class T>
void dropout(const Call<T>& call);
template <class T>
void cross_entropy(const Call<T>& call);
template <class T>
void mean_loss(const Call<T>& call);
template <class T>
void product(const Call<T>& call);

}  // namespace flashlab::train::cpu
