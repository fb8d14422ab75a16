#pragma once

// A lowered step with its memory on the CPU: what a GPU would run, kernel by kernel. Attention is
// naive or the test's own: the library's needs a GPU.

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/cuda/known_gpus.h"
#include "train/cuda/lowering.h"
#include "train/parallel/collective_work.h"
#include "train/parallel/data_parallel.h"
#include "train/run/low_halves.h"
#include "train/run/parameters.h"
#include "train_emulated.h"

namespace flashlab::train::testing {

// Few multiprocessors: few rows are many turns of every block.
inline cuda::DeviceInfo small_gpu() {
  cuda::DeviceInfo out = *cuda::known_gpu("sm_90a");
  out.multiprocessors = 3;
  return out;
}

inline ModelConfig small_model(Family family) {
  return {.name = "test",
          .family = family,
          .vocabulary = 21,
          .context = 10,
          .width = 16,
          .hidden = 24,
          .layers = 1,
          .heads = 2};
}

/// A lowered list with its memory: parameters in a store, everything else in one workspace.
class EmulatedProgram {
 public:
  EmulatedProgram(const ModelConfig& model, StepOptions options,
                  const ParallelOptions& parallel = {}, bool halves = true)
      : vocabulary_(model.vocabulary) {
    options.gpu = true;
    Result<StepPlan> plan = build_parallel_step(model, options, parallel);
    EXPECT_TRUE(plan.ok());
    plan_ = std::move(*plan);
    plan_.on_gpu = halves;
    Result<ParameterStore> store = ParameterStore::create(plan_);
    EXPECT_TRUE(store.ok());
    store_.emplace(std::move(*store));
    store_->initialize(7);
    memory_ = plan_memory(plan_);
    if (plan_.keeps_low_halves()) {
      low_.resize(static_cast<std::size_t>(store_->moment_bytes()) / sizeof(float));
    }
    auto lowered =
        lower(plan_, memory_, small_gpu(), nullptr, program_, {options.rank, options.ranks});
    EXPECT_TRUE(lowered.ok()) << lowered.status().message();
    lowered_ = std::move(*lowered);
    workspace_.resize(program_.workspace_bytes() + 256, std::byte{0xff});
    // Gaps between gradients are zero, as in memory that an executor has allocated.
    const std::int64_t gradients =
        plan_.owned_gradients ? plan_.owned_elements(/*with_frozen=*/false) : plan_.learned_end;
    std::memset(region(lowered_.gradients.buffer) + lowered_.gradients.offset_bytes, 0,
                static_cast<std::size_t>(4 * gradients));
    std::memcpy(region(lowered_.constants_buffer), lowered_.constants.data(),
                4 * lowered_.constants.size());
  }
  virtual ~EmulatedProgram() = default;
  /// The steps of a phase; all of them where none is named.
  void run(std::string_view phase = "") {
    if (phase.empty()) begin();
    std::size_t next = 0;
    for (std::size_t i = 0; i < plan_.operations.size(); ++i) {
      for (; next < program_.steps().size() && lowered_.operation_of[next] == i; ++next) {
        const runtime::Step& step = program_.steps()[next];
        if (step.scope.starts_with(phase)) run(step);
      }
      compute(plan_.operations[i]);
    }
  }
  void begin() {
    if (lowered_.batch.micro_batches == 0) return;
    sort_tokens(lowered_.batch, vocabulary_, region(lowered_.batch_buffer));
  }
  void run(const runtime::Step& step) {
    const SplitValues halves = {reinterpret_cast<float*>(store_->values()),
                                reinterpret_cast<std::uint16_t*>(store_->copies()), low_.data(),
                                reinterpret_cast<float*>(store_->second_moments()),
                                static_cast<std::int64_t>(low_.size())};
    split_values(halves);
    with_call([&](const runtime::Call& call) { run_emulated(program_, step, call); });
    join_values(halves);
  }
  std::byte* at(runtime::Place place) {
    void* out = nullptr;
    with_call([&](const runtime::Call& call) { out = program_.address(call, place); });
    return static_cast<std::byte*>(out);
  }
  const runtime::Program& program() const { return program_; }
  void* data(TensorId id) {
    const int buffer =
        plan_.tensor(id).role == Role::kResult ? lowered_.results_buffer : lowered_.batch_buffer;
    return region(buffer) + lowered_.offsets[static_cast<std::size_t>(id)];
  }
  Numbers numbers(TensorId id) {
    return from_bytes(plan_.tensor(id).element, data(id), plan_.tensor(id).elements());
  }
  /// Of an arena's range, as an operation of StepPlan::settling.
  runtime::CollectiveWork collective(const Operation& operation, int rank, int ranks) const {
    return collective_work(plan_, operation, {lowered_.gradients, {kValues}, {kCopies}}, {}, {},
                           rank, ranks);
  }
  std::byte* gradients() {
    return region(lowered_.gradients.buffer) + lowered_.gradients.offset_bytes;
  }
  const ParameterStore& store() const { return *store_; }
  const StepPlan& plan() const { return plan_; }

 protected:
  /// Behind an operation's steps: what has none, because the library does it on a GPU.
  virtual void compute(const Operation&) {}
  float* activation(TensorId id) {
    return reinterpret_cast<float*>(region(lowered_.gradients.buffer) +
                                    memory_.offsets[static_cast<std::size_t>(id)]);
  }

 private:
  template <class F>
  void with_call(const F& f) {
    void* const values = low_.empty() ? static_cast<void*>(store_->values()) : low_.data();
    void* tensors[] = {values, store_->copies(), store_->first_moments(), store_->second_moments(),
                       nullptr};
    void* workspace = workspace_.data();
    f(runtime::Call{.tensors = tensors, .workspaces = {&workspace, 1}});
  }
  std::byte* region(int buffer) {
    return workspace_.data() + program_.buffers()[static_cast<std::size_t>(buffer)].offset_bytes;
  }

  std::int64_t vocabulary_;
  StepPlan plan_;
  MemoryPlan memory_;
  std::optional<ParameterStore> store_;
  runtime::Program program_;
  LoweredStep lowered_;
  std::vector<std::byte> workspace_;
  std::vector<std::uint16_t> low_;  ///< what kernels have for values, between these and them
};

// Tokens from `first` on: of one rank's part of a batch.
inline void fill(void* tokens, void* targets, void* scalars, std::int64_t count,
                 std::int64_t first = 0) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = first + i;
    static_cast<std::int32_t*>(tokens)[i] = static_cast<std::int32_t>(at * at % 21);
    static_cast<std::int32_t*>(targets)[i] = static_cast<std::int32_t>(at * 7 % 21);
  }
  static_cast<double*>(scalars)[kLearningRate] = 1e-3;
}

// The arena's numbers without the gaps between parameters.
inline Numbers parameters_of(const StepPlan& plan, Element element, const std::byte* arena) {
  Numbers out;
  for (const Parameter& each : plan.parameters) {
    const std::byte* from = arena + each.offset * size_of(element);
    for (const double number : from_bytes(element, from, each.elements)) out.push_back(number);
  }
  return out;
}

}  // namespace flashlab::train::testing
