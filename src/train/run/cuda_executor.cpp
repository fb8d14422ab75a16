#include "train/run/cuda_executor.h"

#include <fmt/format.h>

#include <cstring>

#include "api/context_state.h"
#include "runtime/program/nvtx.h"
#include "runtime/program/observer.h"
#include "train/plan/documents.h"
#include "train/plan/fusion.h"

namespace flashlab::train {
namespace {

// Times of the program's steps, gathered into those of the operations they belong to.
class OperationTimes final : public internal::StepObserver {
 public:
  OperationTimes(const std::vector<std::size_t>& operation_of, OperationObserver& observer)
      : operation_of_(operation_of), observer_(observer), end_(OperationObserver::Clock::now()) {}
  ~OperationTimes() override { report(); }
  OperationTimes(const OperationTimes&) = delete;
  OperationTimes& operator=(const OperationTimes&) = delete;

  void step_enqueued(double host_milliseconds) override {
    if (step_ > 0 && operation_of_[step_] != operation_of_[step_ - 1]) report();
    host_milliseconds_ += host_milliseconds;
  }
  void step_finished(std::string_view, double milliseconds) override {
    milliseconds_ += milliseconds;
    ++step_;
  }

 private:
  void report() {
    if (step_ == 0) return;
    const auto start = end_;
    end_ += std::chrono::duration_cast<OperationObserver::Clock::duration>(
        std::chrono::duration<double, std::milli>(milliseconds_));
    observer_.operation_enqueued(operation_of_[step_ - 1], host_milliseconds_);
    observer_.operation_finished(operation_of_[step_ - 1], start, end_);
    milliseconds_ = host_milliseconds_ = 0;
  }

  const std::vector<std::size_t>& operation_of_;
  OperationObserver& observer_;
  OperationObserver::Clock::time_point end_;
  std::size_t step_ = 0;
  double milliseconds_ = 0, host_milliseconds_ = 0;
};

std::int64_t vocabulary_of(const StepPlan& plan) {
  for (const Operation& operation : plan.operations) {
    if (operation.kind == OperationKind::kEmbedding) {
      return std::get<EmbeddingAttributes>(operation.attributes).vocabulary;
    }
  }
  return 0;
}

}  // namespace

CudaStepExecutor::CudaStepExecutor(const Context& context, cuda::GpuDevice& device)
    : context_(context), device_(device), program_({&device}) {}

CudaStepExecutor::~CudaStepExecutor() {
  static_cast<void>(wait());
  const cuda::ContextGuard current = device_.current();
  for (const Staged& staged : staged_) {
    if (staged.read != nullptr) device_.api().cuEventDestroy(staged.read);
  }
  for (std::size_t i = 1; i < streams_.size(); ++i) {
    device_.api().cuStreamDestroy(static_cast<cuda::CUstream>(streams_[i].handle));
  }
}

Result<std::unique_ptr<CudaStepExecutor>> CudaStepExecutor::create(const Context& context,
                                                                   StepPlan plan,
                                                                   ParameterStore& parameters) {
  if (!parameters.matches(plan)) {
    return Status::invalid(
        {"parameters", "those of another model", "the parameters of the plan's model", ""});
  }
  cuda::GpuDevice& device = *context.state().gpu();
  if (device.info().major < 8) {
    return Status::unsupported(
        {"device", device.info().name, "a GPU of compute capability 8.0", "use --device cpu"});
  }
  std::unique_ptr<CudaStepExecutor> out(new CudaStepExecutor(context, device));
  out->plan_ = std::move(plan);
  fuse(out->plan_);
  out->memory_ = plan_memory(out->plan_);
  out->vocabulary_ = vocabulary_of(out->plan_);
  auto lowered = lower(out->plan_, out->memory_, device.info(), &context, out->program_.program());
  if (!lowered.ok()) return lowered.status();
  out->lowered_ = std::move(*lowered);
  if (Status s = out->bind(parameters); !s.ok()) return s;
  return out;
}

Status CudaStepExecutor::bind(ParameterStore& parameters) {
  store_ = &parameters;
  if (parameters.on_device() == nullptr) {
    auto made = DeviceParameters::create(device_, parameters);
    if (!made.ok()) return made.status();
    parameters.on_device() = std::move(*made);
  }
  parameters_ = parameters.on_device();
  for (int slot = 0; slot < kArenaSlots; ++slot) {
    arenas_[static_cast<std::size_t>(slot)] = parameters_->arena(static_cast<ArenaSlot>(slot));
  }
  stream_ = Stream{parameters_->stream()};
  streams_ = {stream_};
  while (streams_.size() < program().streams().size()) {
    const cuda::ContextGuard current = device_.current();
    cuda::CUstream made = nullptr;
    const auto result = device_.api().cuStreamCreate(&made, cuda::kStreamNonBlocking);
    if (Status s = device_.driver().check(result, "cuStreamCreate"); !s.ok()) return s;
    streams_.push_back(Stream{made});
  }
  if (Status s = allocate(); !s.ok()) return s;
  begin_loss_scale(*this);
  if (Status s = push_loss_scale(); !s.ok()) return s;
  if (Status s = program_.prepare(); !s.ok()) return s;
  auto graph = program_.capture(call());
  if (!graph.ok()) return graph.status();
  graph_.emplace(std::move(*graph));
  return {};
}

Status CudaStepExecutor::allocate() {
  const auto bytes = static_cast<std::int64_t>(program().workspace_bytes());
  auto workspace = DeviceBytes::allocate(device_, bytes, "memory of a step");
  if (!workspace.ok()) return workspace.status();
  workspace_ = std::move(*workspace);
  workspace_address_ = workspace_.data();
  auto batch = AlignedBytes::allocate(lowered_.batch.bytes, "batch");
  if (!batch.ok()) return batch.status();
  batch_ = std::move(*batch);
  auto results = HostBytes::allocate(device_, lowered_.read_bytes);
  if (!results.ok()) return results.status();
  results_ = std::move(*results);
  const cuda::ContextGuard current = device_.current();
  const cuda::DriverFunctions& api = device_.api();
  for (Staged& staged : staged_) {
    auto memory = HostBytes::allocate(device_, lowered_.batch.bytes);
    if (!memory.ok()) return memory.status();
    staged.bytes = std::move(*memory);
    const cuda::CUresult made = api.cuEventCreate(&staged.read, cuda::kEventDisableTiming);
    if (Status s = device_.driver().check(made, "cuEventCreate"); !s.ok()) return s;
  }
  if (lowered_.constants.empty()) return {};
  const cuda::CUresult copied = api.cuMemcpyHtoDAsync(
      cuda::pointer_of(region(lowered_.constants_buffer)), lowered_.constants.data(),
      4 * lowered_.constants.size(), parameters_->stream());
  if (Status s = device_.driver().check(copied, "cuMemcpyHtoDAsync"); !s.ok()) return s;
  return wait();
}

std::byte* CudaStepExecutor::region(int buffer) const {
  return workspace_.data() + program().buffers()[static_cast<std::size_t>(buffer)].offset_bytes;
}

runtime::Call CudaStepExecutor::call() const {
  // Attention's scalars are its dropout's, which it reads from the batch here.
  static constexpr std::array<std::uint64_t, 2> kScalarsOfAttention{};
  return {.tensors = arenas_,
          .workspaces = {&workspace_address_, 1},
          .streams = streams_,
          .scalars = kScalarsOfAttention};
}

// The host may fill the next batch as soon as this has returned.
Status CudaStepExecutor::stage() {
  Staged& staged = staged_[next_];
  next_ = (next_ + 1) % kStagedBatches;
  const cuda::DriverFunctions& api = device_.api();
  if (staged.pending) {
    if (Status s =
            device_.driver().check(api.cuEventSynchronize(staged.read), "cuEventSynchronize");
        !s.ok()) {
      return s;
    }
  }
  std::byte* batch = batch_.data();
  if (plan_.lengths != kNoTensor) {
    write_lengths(reinterpret_cast<const double*>(batch + lowered_.batch.scalars),
                  static_cast<std::int32_t*>(data(plan_.lengths)));
  }
  if (plan_.documents != kNoTensor) {
    const auto* tokens = reinterpret_cast<const std::int32_t*>(batch + lowered_.batch.tokens);
    auto* offsets = reinterpret_cast<std::int32_t*>(batch + lowered_.batch.documents);
    if (Status s = write_documents(plan_, tokens, offsets); !s.ok()) return s;
  }
  sort_tokens(lowered_.batch, vocabulary_, batch);
  write_dropout_states(lowered_.batch, batch);
  const auto bytes = static_cast<std::size_t>(lowered_.batch.bytes);
  std::memcpy(staged.bytes.data(), batch, bytes);
  const cuda::CUresult copied =
      api.cuMemcpyHtoDAsync(cuda::pointer_of(region(lowered_.batch_buffer)), staged.bytes.data(),
                            bytes, parameters_->stream());
  if (Status s = device_.driver().check(copied, "cuMemcpyHtoDAsync"); !s.ok()) return s;
  staged.pending = true;
  return device_.driver().check(api.cuEventRecord(staged.read, parameters_->stream()),
                                "cuEventRecord");
}

Status CudaStepExecutor::enqueue(OperationObserver* observer) {
  if (observer == nullptr) {
    // Ranges are of this thread: a profiler tells phases apart only in work that is launched inside
    // of them, which a graph's is not.
    return runtime::nvtx_listened_to() ? program_.enqueue(call()) : graph_->launch(stream_);
  }
  OperationTimes times(lowered_.operation_of, *observer);
  const internal::ObserveSteps scope(times);
  return program_.enqueue(call());
}

Status CudaStepExecutor::run(OperationObserver* observer) {
  const cuda::ContextGuard current = device_.current();
  if (Status s = stage(); !s.ok()) return s;
  if (Status s = enqueue(observer); !s.ok()) return s;
  const cuda::CUresult copied = device_.api().cuMemcpyDtoHAsync(
      results_.data(), cuda::pointer_of(region(lowered_.results_buffer)),
      static_cast<std::size_t>(lowered_.read_bytes), parameters_->stream());
  return device_.driver().check(copied, "cuMemcpyDtoHAsync");
}

Status CudaStepExecutor::wait() {
  if (parameters_ == nullptr) return {};
  const cuda::ContextGuard current = device_.current();
  return device_.driver().check(device_.api().cuStreamSynchronize(parameters_->stream()),
                                "cuStreamSynchronize");
}

// The scale's numbers on the host are those of the last step, or of a checkpoint.
Status CudaStepExecutor::push_loss_scale() {
  const TensorId id = plan_.loss_scale;
  if (id == kNoTensor) return {};
  const cuda::ContextGuard current = device_.current();
  const std::int64_t offset = lowered_.offsets[static_cast<std::size_t>(id)];
  const cuda::CUresult copied = device_.api().cuMemcpyHtoDAsync(
      cuda::pointer_of(region(lowered_.results_buffer) + offset), data(id),
      static_cast<std::size_t>(plan_.tensor(id).bytes()), parameters_->stream());
  return device_.driver().check(copied, "cuMemcpyHtoDAsync");
}

Status CudaStepExecutor::push_parameters() {
  if (Status s = push_loss_scale(); !s.ok()) return s;
  return parameters_->push(*store_);
}

Status CudaStepExecutor::pull_parameters() {
  return parameters_->pull(*store_);
}

Result<std::byte*> CudaStepExecutor::gradients() {
  const std::int64_t size = size_of(plan_.tensor(plan_.parameters.front().gradient).element);
  auto memory = AlignedBytes::allocate(plan_.learned_end * size, "gradients on the host");
  if (!memory.ok()) return memory.status();
  gradients_ = std::move(*memory);
  if (Status s = wait(); !s.ok()) return s;
  const cuda::ContextGuard current = device_.current();
  const std::byte* from = region(lowered_.gradients.buffer) + lowered_.gradients.offset_bytes;
  const cuda::CUresult copied = device_.api().cuMemcpyDtoHAsync(
      gradients_.data(), cuda::pointer_of(from), static_cast<std::size_t>(gradients_.size()),
      parameters_->stream());
  if (Status s = device_.driver().check(copied, "cuMemcpyDtoHAsync"); !s.ok()) return s;
  if (Status s = wait(); !s.ok()) return s;
  return gradients_.data();
}

std::int64_t CudaStepExecutor::held_bytes() const {
  return parameters_->bytes() + workspace_.size();
}

void* CudaStepExecutor::data(TensorId id) const {
  const std::int64_t offset = lowered_.offsets[static_cast<std::size_t>(id)];
  const bool result = plan_.tensor(id).role == Role::kResult;
  if (result && offset >= lowered_.read_bytes) return nullptr;
  return (result ? results_.data() : batch_.data()) + offset;
}

}  // namespace flashlab::train
