#pragma once

// Runs a step's list on an NVIDIA GPU: the list is lowered once to a program, everything it needs
// is allocated once, and a step is the launch of one graph. Nothing waits inside a step.

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/cuda/peers.h"
#include "runtime/program/executor.h"
#include "train/cuda/lowering.h"
#include "train/run/device_parameters.h"
#include "train/run/step_executor.h"

namespace flashlab::train {

class CudaStepExecutor final : public StepExecutor {
 public:
  /// `context` is a GPU's; it and `parameters` outlive the executor. Executors of one store share
  /// its numbers on the GPU and their stream.
  /// Errors: kInvalidArgument (the store belongs to another model), kUnsupported (what the GPU has
  /// no kernel for, cuBLASLt or the compiler missing), kOutOfMemory with what was asked for.
  /// `group` carries out the collectives of the list, between GPUs; all ranks create and end alike.
  static Result<std::unique_ptr<CudaStepExecutor>> create(const Context& context, StepPlan plan,
                                                          ParameterStore& parameters,
                                                          runtime::Communicator* group = nullptr);
  /// What create() takes of the GPU beside the parameters.
  static Result<std::int64_t> planned_bytes(const Context& context, StepPlan plan, RankOf rank);
  ~CudaStepExecutor() override;

  /// Enqueues the batch's copy, the graph, and the copy of the results. With an observer it waits
  /// and launches operation by operation instead.
  Status run(OperationObserver* observer = nullptr) override;
  /// With other ranks it looks at them meanwhile. Errors: also a lost rank; then the stream may
  /// wait for ever, and the process ends without another call of CUDA.
  Status wait() override;
  Status push_parameters() override;
  Status pull_parameters() override;

  Result<std::byte*> gradients() override;

  const StepPlan& plan() const override { return plan_; }
  const MemoryPlan& memory() const override { return memory_; }
  std::int64_t held_bytes() const override;
  std::int64_t scratch_bytes() const override;
  void* data(TensorId id) const override;

  const runtime::Program& program() const { return program_.program(); }
  /// Per step of the program: which operation of the plan it belongs to.
  const std::vector<std::size_t>& operation_of() const { return lowered_.operation_of; }

 private:
  /// A copy of the batch that a GPU reads while the host fills the next one.
  struct Staged {
    HostBytes bytes;
    cuda::CUevent read = nullptr;
    bool pending = false;
  };
  CudaStepExecutor(const Context& context, cuda::GpuDevice& device);
  Status make_streams();
  Status gather(const Operation& operation) override;
  Status prepare_in_turn();
  Status join_ranks();
  Status wait_among_ranks();
  bool lost() const { return group_ != nullptr && !group_->failure().ok(); }
  Status bind(ParameterStore& parameters);
  Status allocate();
  Status push_loss_scale();
  Status enqueue(OperationObserver* observer);
  Status stage();
  runtime::Call call() const;
  std::byte* region(int buffer) const;

  static constexpr std::size_t kStagedBatches = 3;

  const Context& context_;
  cuda::GpuDevice& device_;
  StepPlan plan_;
  MemoryPlan memory_;
  LoweredStep lowered_;
  ParameterStore* store_ = nullptr;
  std::shared_ptr<DeviceParameters> parameters_;
  runtime::Executor program_;
  std::optional<runtime::CudaGraph> graph_;
  DeviceBytes workspace_;
  AlignedBytes batch_;      ///< what data() gives
  AlignedBytes gradients_;  ///< what gradients() gives
  HostBytes results_;
  std::array<Staged, kStagedBatches> staged_;
  std::size_t next_ = 0;
  std::int64_t vocabulary_ = 0;
  std::array<void*, kArenaSlots> arenas_{};
  void* workspace_address_ = nullptr;
  Stream stream_{};
  std::vector<Stream> streams_;  ///< of the program: stream_ first
  runtime::Communicator* group_ = nullptr;
  const cuda::PeerFunctions* peers_ = nullptr;
  std::vector<std::size_t> collectives_;  ///< steps of the program, in order
  HostBytes progress_;                    ///< the word that the GPU writes: see runtime::Call
  bool running_ = false;                  ///< a step that nobody has waited for
};

}  // namespace flashlab::train
