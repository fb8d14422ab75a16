#include "train/run/cuda_executor.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "api/context_state.h"
#include "runtime/program/nvtx.h"
#include "runtime/program/observer.h"
#include "train/parallel/collective_work.h"
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
  if (lost()) return;
  if (group_ != nullptr && workspace_.size() > 0) {
    static_cast<void>(group_->unshare(workspace_.data()));
  }
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
                                                                   ParameterStore& parameters,
                                                                   runtime::Communicator* group) {
  if (!parameters.matches(plan)) {
    return Status::invalid(
        {"parameters", "those of another model", "the parameters of the plan's model", ""});
  }
  cuda::GpuDevice& device = *context.state().gpu();
  if (device.info().major < 8) {
    return Status::unsupported(
        {"device", device.info().name, "a GPU of compute capability 8.0", "use --device cpu"});
  }
  for (const Operation& operation : plan.operations) {
    if (!is_collective(operation) || group != nullptr) continue;
    return Status::invalid({"step", fmt::format("{} without other ranks", operation.name),
                            "the communicator of all ranks", ""});
  }
  std::unique_ptr<CudaStepExecutor> out(new CudaStepExecutor(context, device));
  out->group_ = group;
  out->plan_ = std::move(plan);
  fuse(out->plan_);
  out->memory_ = plan_memory(out->plan_);
  out->vocabulary_ = vocabulary_of(out->plan_);
  const RankOf rank = group == nullptr ? RankOf{} : RankOf{group->rank(), group->size()};
  auto lowered =
      lower(out->plan_, out->memory_, device.info(), &context, out->program_.program(), rank);
  if (!lowered.ok()) return lowered.status();
  out->lowered_ = std::move(*lowered);
  if (Status s = out->bind(parameters); !s.ok()) return s;
  return out;
}

Result<std::int64_t> CudaStepExecutor::planned_bytes(const Context& context, StepPlan plan,
                                                     RankOf rank) {
  fuse(plan);
  const cuda::GpuDevice& device = *context.state().gpu();
  runtime::Program program;
  const auto lowered = lower(plan, plan_memory(plan), device.info(), &context, program, rank);
  if (!lowered.ok()) return lowered.status();
  return static_cast<std::int64_t>(program.workspace_bytes());
}

Status CudaStepExecutor::bind(ParameterStore& parameters) {
  store_ = &parameters;
  const bool learns = std::ranges::any_of(
      plan_.operations, [](const Operation& each) { return each.kind == OperationKind::kAdamW; });
  if (learns && plan_.keeps_low_halves() != parameters.follow_from_halves()) {
    return Status::invalid(
        {"parameters", "those of another precision", "a store that the step's plan made", ""});
  }
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
  if (Status s = make_streams(); !s.ok()) return s;
  if (Status s = allocate(); !s.ok()) return s;
  begin_loss_scale(*this);
  if (Status s = push_loss_scale(); !s.ok()) return s;
  if (group_ == nullptr) {
    if (Status s = program_.prepare(); !s.ok()) return s;
  } else {
    if (Status s = prepare_in_turn(); !s.ok()) return s;
    if (Status s = join_ranks(); !s.ok()) return s;
  }
  auto graph = program_.capture(call());
  if (!graph.ok()) return graph.status();
  graph_.emplace(std::move(*graph));
  return {};
}

// What ranks exchange takes what the step's stream leaves (DeviceParameters): sums run where a
// product's last blocks do not fill the GPU.
Status CudaStepExecutor::make_streams() {
  const cuda::ContextGuard current = device_.current();
  if (group_ != nullptr) {
    auto peers = cuda::PeerFunctions::get();
    if (!peers.ok()) return peers.status();
    peers_ = *peers;
  }
  streams_ = {stream_};
  while (streams_.size() < program().streams().size()) {
    cuda::CUstream made = nullptr;
    const auto result = device_.api().cuStreamCreate(&made, cuda::kStreamNonBlocking);
    if (Status s = device_.driver().check(result, "cuStreamCreate"); !s.ok()) return s;
    streams_.push_back(Stream{made});
  }
  return {};
}

// Rank 0 compiles kernels and measures products; the others find both in the caches.
Status CudaStepExecutor::prepare_in_turn() {
  Status own;
  if (group_->rank() == 0) own = program_.prepare();
  if (Status met = group_->barrier("kernels of rank 0"); !met.ok()) return met;
  return group_->rank() == 0 ? own : program_.prepare();
}

// The memory that others write into, and every collective once: what a transport prepares at the
// first call cannot be captured. Gradients are zeros yet, and all ranks have the same values.
Status CudaStepExecutor::join_ranks() {
  const auto bytes = static_cast<std::size_t>(workspace_.size());
  if (Status s = group_->share(workspace_.data(), bytes); !s.ok()) return s;
  if (Status s = parameters_->share(*group_); !s.ok()) return s;
  auto progress = HostBytes::allocate(device_, sizeof(std::uint32_t));
  if (!progress.ok()) return progress.status();
  progress_ = std::move(*progress);
  std::memset(progress_.data(), 0, sizeof(std::uint32_t));
  for (std::size_t i = 0; i < program().steps().size(); ++i) {
    const runtime::Step& step = program().steps()[i];
    const auto* work = std::get_if<runtime::CollectiveWork>(&step.work);
    if (work == nullptr) continue;
    collectives_.push_back(i);
    Status s = run_collective(program(), call(), *work, step.name, *group_, stream_.handle);
    if (!s.ok()) return s;
  }
  running_ = true;
  return wait();
}

Status CudaStepExecutor::gather(const Operation& operation) {
  const cuda::ContextGuard current = device_.current();
  const auto work = collective_work(plan_, operation, {lowered_.gradients, {kValues}, {kCopies}},
                                    {}, {}, group_->rank(), group_->size());
  running_ = true;
  return run_collective(program(), call(), work, operation.name, *group_, stream_.handle);
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
          .scalars = kScalarsOfAttention,
          .groups = {&group_, group_ == nullptr ? 0U : 1U},
          .progress = reinterpret_cast<std::uint32_t*>(progress_.data())};
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
    write_lengths(plan_, reinterpret_cast<const double*>(batch + lowered_.batch.scalars),
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
  if (running_) {
    if (Status s = wait(); !s.ok()) return s;
  }
  if (Status s = stage(); !s.ok()) return s;
  running_ = group_ != nullptr;
  leaves_parts();
  if (Status s = enqueue(observer); !s.ok()) return s;
  const cuda::CUresult copied = device_.api().cuMemcpyDtoHAsync(
      results_.data(), cuda::pointer_of(region(lowered_.results_buffer)),
      static_cast<std::size_t>(lowered_.read_bytes), parameters_->stream());
  return device_.driver().check(copied, "cuMemcpyDtoHAsync");
}

Status CudaStepExecutor::wait() {
  if (parameters_ == nullptr) return {};
  const cuda::ContextGuard current = device_.current();
  if (running_) return wait_among_ranks();
  return device_.driver().check(device_.api().cuStreamSynchronize(parameters_->stream()),
                                "cuStreamSynchronize");
}

// A stream may wait for another rank: who is lost is seen by the processes. The word stays behind
// when the step ends, so that the next one begins where this one did.
Status CudaStepExecutor::wait_among_ranks() {
  using Clock = std::chrono::steady_clock;
  const std::atomic_ref<std::uint32_t> word(*reinterpret_cast<std::uint32_t*>(progress_.data()));
  const auto all = static_cast<std::uint32_t>(collectives_.size());
  Clock::time_point since = Clock::now();
  for (std::uint32_t seen = 0, told = 0;;) {
    const cuda::CUresult result =
        peers_->cuStreamQuery(static_cast<cuda::CUstream>(stream_.handle));
    if (result != cuda::kCudaSuccess && result != cuda::kCudaNotReady) {
      return device_.driver().check(result, "a step among ranks");
    }
    const bool ended = result == cuda::kCudaSuccess;
    const std::uint32_t now = word.load(std::memory_order_relaxed);
    if (now != seen) since = Clock::now();
    seen = now;
    const std::uint32_t entered = ended ? all : (now + 1) / 2;
    runtime::StreamProgress progress = {
        .entered = entered - told,
        .waited_s = std::chrono::duration<double>(Clock::now() - since).count()};
    if (entered > told) {
      const runtime::Step& step = program().steps()[collectives_[entered - 1]];
      progress.kind = std::get<runtime::CollectiveWork>(step.work).kind;
      progress.name = step.name;
    }
    told = entered;
    if (Status s = group_->watch(progress); !s.ok()) return s;
    if (ended) break;
    ::sched_yield();
  }
  word.store(0, std::memory_order_relaxed);
  running_ = false;
  return {};
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

std::int64_t CudaStepExecutor::scratch_bytes() const {
  std::int64_t bytes = workspace_.size();
  for (const int planned :
       {lowered_.gradients.buffer, lowered_.batch_buffer, lowered_.results_buffer}) {
    bytes -=
        static_cast<std::int64_t>(program().buffers()[static_cast<std::size_t>(planned)].bytes);
  }
  return bytes;
}

void* CudaStepExecutor::data(TensorId id) const {
  const std::int64_t offset = lowered_.offsets[static_cast<std::size_t>(id)];
  const bool result = plan_.tensor(id).role == Role::kResult;
  if (result && offset >= lowered_.read_bytes) return nullptr;
  return (result ? results_.data() : batch_.data()) + offset;
}

}  // namespace flashlab::train
