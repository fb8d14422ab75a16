#include "runtime/program/executor.h"

#include <fmt/format.h>

#include <chrono>
#include <future>

#include "runtime/cuda/peers.h"
#include "runtime/guard.h"
#include "runtime/products/cublas_lt.h"
#include "runtime/program/host_call.h"
#include "runtime/program/host_streams.h"
#include "runtime/program/nvtx.h"
#include "runtime/program/observer.h"
#include "runtime/program/tensor_maps.h"

namespace flashlab::runtime {
namespace {

using cuda::ContextGuard;
using cuda::CUstream;

constexpr int kNoEvent = -1;

CUstream handle_of(Stream stream) {
  return static_cast<CUstream>(stream.handle);
}

Status no_context() {
  return Status(StatusCode::kDeviceError,
                {"device", "the GPU's context cannot be made current", "a working context",
                 "an earlier kernel of this process may have failed"});
}

}  // namespace

// What a call needs beside the program: immutable once `ready_` is set, but for the parts with a
// lock of their own.
struct Executor::Loaded {
  struct StepState {
    const cuda::Kernel* kernel = nullptr;
    cuda::LaunchShape shape;
    const cuda::CublasLt* library = nullptr;
    const cuda::PreparedProduct* product = nullptr;
    std::size_t first_map = 0;     ///< number of its first tensor map among the program's
    bool block_of_last = false;    ///< its parameters are those of the kernel step before it
    int event = kNoEvent;          ///< recorded after the step, where another stream waits for it
    std::uint32_t collective = 0;  ///< its number among the program's collectives
  };
  std::vector<StepState> steps;
  std::vector<int> last_step;     ///< per stream; -1 for one without steps
  std::vector<int> event_device;  ///< per event; the first is the call's start
  std::unique_ptr<TensorMapCache> maps;
  const cuda::PeerFunctions* peers = nullptr;  ///< of a program with collectives

  // Sets of events: a call of several streams borrows one, as several threads may call.
  using Events = std::vector<cuda::CUevent>;
  std::mutex mutex;
  std::vector<Events> free_events;
  std::vector<std::unique_ptr<HostCall>> captured;  ///< graphs may replay them at any time
  HostFailure failure;
};

// One call on its way to the GPUs.
class Executor::Run {
 public:
  Run(const Executor& executor, const Call& call)
      : executor_(executor), program_(executor.program_), loaded_(*executor.loaded_), call_(call) {}
  ~Run() {
    if (events_.empty()) return;
    std::lock_guard lock(loaded_.mutex);
    loaded_.free_events.push_back(std::move(events_));
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Status all() {
    if (here()) return all_here();
    StepObserver* observer = internal::ObserveSteps::current();
    if (Status s = fork(); !s.ok()) return s;
    NvtxPath path;
    if (observer != nullptr) marks_.reserve(program_.steps().size() * 2);
    for (std::size_t i = 0; i < program_.steps().size(); ++i) {
      const Step& step = program_.steps()[i];
      path.move_to(step.scope, step.name);
      if (Status s = enter(step.stream); !s.ok()) return s;
      for (const int earlier : step.depends_on) {
        if (Status s = wait(step.stream, earlier); !s.ok()) return s;
      }
      if (observer != nullptr) mark(step.stream);
      const auto begin = observer != nullptr ? Clock::now() : Clock::time_point();
      const Status status = std::visit([&](const auto& work) { return run(i, work); }, step.work);
      if (!status.ok()) return status;
      if (observer != nullptr) {
        const std::chrono::duration<double, std::milli> busy = Clock::now() - begin;
        host_ms_.push_back(busy.count());
        mark(step.stream);
      }
      if (Status s = record(loaded_.steps[i].event, step.stream); !s.ok()) return s;
    }
    if (Status s = join(); !s.ok()) return s;
    if (observer != nullptr) report(*observer);
    return {};
  }

  /// A host call inside of a capture must live as long as the graph.
  void capturing() { capturing_ = true; }

 private:
  using StepObserver = internal::StepObserver;
  using Clock = std::chrono::steady_clock;

  Status all_here() {
    return run_here(program_, [this](std::size_t i) {
      return std::visit([&](const auto& work) { return run(i, work); }, program_.steps()[i].work);
    });
  }
  bool here() const { return executor_.devices_.empty(); }
  Status needs_gpu(std::size_t index, const char* what) const {
    return Status::unsupported(
        {fmt::format("step {} '{}'", index, program_.steps()[index].name),
         fmt::format("a GPU's {} on cpu", what), "a CUDA device",
         fmt::format("{} of {} steps have run", index, program_.steps().size())});
  }

  const cuda::GpuDevice& device_of(int stream) const {
    return executor_.device(program_.streams()[index_of(stream)]);
  }
  CUstream stream(int index) const { return handle_of(call_.streams[index_of(index)]); }

  // Makes the context of a stream's device current.
  Status enter(int stream) {
    const cuda::GpuDevice& device = device_of(stream);
    if (&device == current_device_) return {};
    current_.reset();
    current_.emplace(device.api(), device.context());
    current_device_ = &device;
    return current_->ok() ? Status() : no_context();
  }

  Status check(cuda::CUresult result, const char* what) const {
    return result == cuda::kCudaSuccess ? Status() : current_device_->driver().check(result, what);
  }

  // The other streams start after what the first one holds already.
  Status fork() {
    if (program_.streams().size() == 1) return {};
    if (Status s = borrow_events(); !s.ok()) return s;
    if (Status s = enter(0); !s.ok()) return s;
    if (Status s = record(0, 0); !s.ok()) return s;
    for (std::size_t i = 1; i < program_.streams().size(); ++i) {
      const int other = static_cast<int>(i);
      if (loaded_.last_step[i] < 0) continue;
      if (Status s = enter(other); !s.ok()) return s;
      if (Status s = wait_for_event(other, 0); !s.ok()) return s;
    }
    return {};
  }

  // The first stream goes on after all of them.
  Status join() {
    for (std::size_t i = 1; i < program_.streams().size(); ++i) {
      if (loaded_.last_step[i] < 0) continue;
      if (Status s = enter(0); !s.ok()) return s;
      if (Status s = wait(0, loaded_.last_step[i]); !s.ok()) return s;
    }
    return {};
  }

  Status wait(int stream, int earlier) const {
    const int event = loaded_.steps[index_of(earlier)].event;
    const bool same = program_.steps()[index_of(earlier)].stream == stream;
    return same || event == kNoEvent ? Status() : wait_for_event(stream, event);
  }
  Status wait_for_event(int index, int event) const {
    return check(
        current_device_->api().cuStreamWaitEvent(stream(index), events_[index_of(event)], 0),
        "cuStreamWaitEvent");
  }
  Status record(int event, int index) const {
    if (event == kNoEvent || events_.empty()) return {};
    return check(current_device_->api().cuEventRecord(events_[index_of(event)], stream(index)),
                 "cuEventRecord");
  }

  Status borrow_events() {
    {
      std::lock_guard lock(loaded_.mutex);
      if (!loaded_.free_events.empty()) {
        events_ = std::move(loaded_.free_events.back());
        loaded_.free_events.pop_back();
        return {};
      }
    }
    for (const int index : loaded_.event_device) {
      const cuda::GpuDevice& device = executor_.device(index);
      const ContextGuard current = device.current();
      cuda::CUevent event = nullptr;
      const auto result = device.api().cuEventCreate(&event, cuda::kEventDisableTiming);
      if (Status s = device.driver().check(result, "cuEventCreate"); !s.ok()) {
        destroy(executor_, events_);
        return s;
      }
      events_.push_back(event);
    }
    return {};
  }

  Status run(std::size_t index, const KernelWork& work) {
    if (here()) return needs_gpu(index, "kernel");
    const Loaded::StepState& state = loaded_.steps[index];
    if (!state.block_of_last) {
      if (Status s = patch(work.parameters, state.first_map); !s.ok()) return s;
    }
    void* arguments[] = {block_};
    return cuda::launch(*current_device_, *state.kernel, state.shape, step_stream(index),
                        arguments);
  }
  Status patch(const ParameterBlock& parameters, std::size_t map) {
    std::memcpy(block_, parameters.bytes().data(), parameters.bytes().size());
    for (const auto& each : parameters.pointers()) {
      void* address = program_.address(call_, each.place);
      std::memcpy(block_ + each.offset, &address, sizeof address);
    }
    for (const auto& each : parameters.scalars()) {
      const std::size_t number = index_of(each.scalar);
      if (number >= call_.scalars.size()) continue;
      std::memcpy(block_ + each.offset, &call_.scalars[number], each.bytes);
    }
    for (const auto& each : parameters.tensor_maps()) {
      if (Status s = loaded_.maps->write(*current_device_, map++, each.map,
                                         program_.address(call_, each.place), block_ + each.offset);
          !s.ok()) {
        return s;
      }
    }
    return {};
  }
  Status run(std::size_t index, const MemsetWork& work) {
    void* target = program_.address(call_, work.target);
    if (here()) return std::memset(target, work.value, work.bytes), Status();
    return check(current_device_->api().cuMemsetD8Async(cuda::pointer_of(target), work.value,
                                                        work.bytes, step_stream(index)),
                 "cuMemsetD8Async");
  }
  // Addresses are unified: the driver finds the devices, and the copy may go from one to another.
  Status run(std::size_t index, const CopyWork& work) {
    void *to = program_.address(call_, work.to), *from = program_.address(call_, work.from);
    if (here()) return std::memmove(to, from, work.bytes), Status();
    return check(current_device_->api().cuMemcpyAsync(cuda::pointer_of(to), cuda::pointer_of(from),
                                                      work.bytes, step_stream(index)),
                 "cuMemcpyAsync");
  }
  Status run(std::size_t index, const ProductWork& work) {
    if (here()) return needs_gpu(index, "product");
    const Loaded::StepState& state = loaded_.steps[index];
    const auto optional = [&](Place place) {
      return place.buffer < 0 ? nullptr : program_.address(call_, place);
    };
    return state.library->run(*state.product, work.product, program_.address(call_, work.a),
                              program_.address(call_, work.b), program_.address(call_, work.c),
                              program_.address(call_, work.scratch), step_stream(index),
                              optional(work.addend), optional(work.bias), optional(work.aux));
  }
  Status run(std::size_t index, const HostWork& work) {
    std::vector<void*> addresses;
    for (const Place& place : work.places) addresses.push_back(program_.address(call_, place));
    if (here()) return work.function(addresses);
    std::unique_ptr<HostCall> host(new HostCall{&work, std::move(addresses), &loaded_.failure});
    int capture_status = 0;
    current_device_->api().cuStreamIsCapturing(step_stream(index), &capture_status);
    host->once = capture_status == 0 && !capturing_;
    const bool once = host->once;
    HostCall* enqueued = host.get();
    if (!once) {
      std::lock_guard lock(loaded_.mutex);
      loaded_.captured.push_back(std::move(host));
    }
    const Status status =
        check(current_device_->api().cuLaunchHostFunc(step_stream(index), HostCall::run, enqueued),
              "cuLaunchHostFunc");
    if (once && status.ok()) static_cast<void>(host.release());  // it deletes itself
    return status;
  }
  Status run(std::size_t index, const CollectiveWork& work) {
    const auto optional = [&](Place place) {
      return place.buffer < 0 ? nullptr : program_.address(call_, place);
    };
    const auto call = [&](void* stream) {
      return call_.groups[index_of(work.group)]->run({.kind = work.kind,
                                                      .from = optional(work.from),
                                                      .to = optional(work.to),
                                                      .bytes = work.bytes,
                                                      .dtype = work.dtype,
                                                      .root = work.root,
                                                      .name = program_.steps()[index].name,
                                                      .stream = stream});
    };
    if (here()) return call(nullptr);
    const std::uint32_t number = 2 * loaded_.steps[index].collective;
    if (Status s = tell(index, number + 1); !s.ok()) return s;
    if (Status s = call(step_stream(index)); !s.ok()) return s;
    return tell(index, number + 2);
  }
  Status tell(std::size_t index, std::uint32_t number) const {
    if (call_.progress == nullptr) return {};
    return check(loaded_.peers->cuStreamWriteValue32(step_stream(index),
                                                     cuda::pointer_of(call_.progress), number, 0),
                 "cuStreamWriteValue32");
  }
  CUstream step_stream(std::size_t index) const { return stream(program_.steps()[index].stream); }

  // Events before and after every step, for an observer.
  void mark(int index) {
    cuda::CUevent event = nullptr;
    if (current_device_->api().cuEventCreate(&event, cuda::kEventDefault) == cuda::kCudaSuccess) {
      current_device_->api().cuEventRecord(event, stream(index));
    }
    marks_.push_back(event);
  }
  void report(StepObserver& observer) {
    for (std::size_t i = 0; i < program_.steps().size(); ++i) {
      const Step& step = program_.steps()[i];
      if (!enter(step.stream).ok()) return;
      const cuda::DriverFunctions& api = current_device_->api();
      float milliseconds = 0;
      const cuda::CUevent start = marks_[2 * i], stop = marks_[2 * i + 1];
      if (start != nullptr && stop != nullptr &&
          api.cuEventSynchronize(stop) == cuda::kCudaSuccess &&
          api.cuEventElapsedTime(&milliseconds, start, stop) == cuda::kCudaSuccess) {
        observer.step_enqueued(host_ms_[i]);
        observer.step_finished(step.name, milliseconds);
      }
      for (const cuda::CUevent event : {start, stop}) {
        if (event != nullptr) api.cuEventDestroy(event);
      }
    }
  }

 public:
  static void destroy(const Executor& executor, Loaded::Events& events) {
    for (std::size_t i = 0; i < events.size(); ++i) {
      const cuda::GpuDevice& device = executor.device(executor.loaded_->event_device[i]);
      const ContextGuard current = device.current();
      device.api().cuEventDestroy(events[i]);
    }
    events.clear();
  }

 private:
  const Executor& executor_;
  const Program& program_;
  Loaded& loaded_;
  const Call& call_;
  bool capturing_ = false;
  std::optional<ContextGuard> current_;
  const cuda::GpuDevice* current_device_ = nullptr;
  Loaded::Events events_;
  std::vector<cuda::CUevent> marks_;
  std::vector<double> host_ms_;  // of the steps, where marks are set
  alignas(cuda::CUtensorMap) std::byte block_[ParameterBlock::kMaxBytes];  // as the kernel gets it
};

CudaGraph::~CudaGraph() {
  if (graph_ == nullptr) return;
  const ContextGuard current = device_->current();
  device_->api().cuGraphExecDestroy(graph_);
}

Status CudaGraph::launch(Stream stream) const {
  const ContextGuard current = device_->current();
  return device_->driver().check(device_->api().cuGraphLaunch(graph_, handle_of(stream)),
                                 "cuGraphLaunch");
}

Executor::Executor(std::vector<const cuda::GpuDevice*> devices) : devices_(std::move(devices)) {}

Executor::~Executor() {
  if (loaded_ == nullptr) return;
  for (auto& events : loaded_->free_events) Run::destroy(*this, events);
}

// Nothing may be enqueued before everything is there: a call that fails writes nothing.
Status Executor::load() const {
  if (Status s = program_.check(); !s.ok()) return s;
  if (devices_.empty()) {
    loaded_ = std::make_unique<Loaded>();
    return {};
  }
  if (devices_.size() != static_cast<std::size_t>(program_.devices())) {
    return Status(StatusCode::kInternal, {"program", fmt::format("{} devices", devices_.size()),
                                          fmt::format("{} devices", program_.devices()), ""});
  }
  auto loaded = std::make_unique<Loaded>();
  const std::vector<Step>& steps = program_.steps();
  loaded->steps.resize(steps.size());
  loaded->last_step.resize(program_.streams().size(), -1);
  loaded->event_device = {program_.streams().front()};
  std::vector<bool> waited_for(steps.size(), false);
  std::size_t maps = 0;
  std::vector<std::future<Status>> loading;
  const auto prepare_step = [&](std::size_t i) {
    const cuda::GpuDevice& device = *devices_[index_of(program_.device_of(steps[i]))];
    Loaded::StepState& state = loaded->steps[i];
    return internal::guard<Status>([&]() -> Status {
      if (const auto* kernel = std::get_if<KernelWork>(&steps[i].work)) {
        auto found = cuda::load_kernel(device, kernel->spec, kernel->shape.shared_bytes);
        if (!found.ok()) return found.status();
        state.kernel = *found;
        auto shape = cuda::fitted(device, **found, kernel->shape);
        if (!shape.ok()) return shape.status();
        state.shape = *shape;
      } else if (const auto* product = std::get_if<ProductWork>(&steps[i].work)) {
        auto library = cuda::CublasLt::of(device);
        if (!library.ok()) return library.status();
        auto prepared = (*library)->prepare(product->product);
        if (!prepared.ok()) return prepared.status();
        state.library = *library;
        state.product = *prepared;
      }
      return {};
    });
  };
  const KernelWork* last = nullptr;
  std::uint32_t collectives = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (std::holds_alternative<CollectiveWork>(steps[i].work)) {
      loaded->steps[i].collective = collectives++;
    }
    loaded->last_step[index_of(steps[i].stream)] = static_cast<int>(i);
    for (const int earlier : steps[i].depends_on) {
      if (steps[index_of(earlier)].stream != steps[i].stream) waited_for[index_of(earlier)] = true;
    }
    if (const auto* kernel = std::get_if<KernelWork>(&steps[i].work)) {
      loaded->steps[i].first_map = maps;
      maps += kernel->parameters.tensor_maps().size();
      loaded->steps[i].block_of_last =
          last != nullptr && kernel->parameters.same_without_maps(last->parameters);
      last = kernel;
    }
  }
  if (collectives > 0) {
    const auto peers = cuda::PeerFunctions::get();
    if (!peers.ok()) return peers.status();
    loaded->peers = *peers;
  }
  for (std::size_t i = 1; i < loaded->last_step.size(); ++i) {
    if (loaded->last_step[i] >= 0) waited_for[index_of(loaded->last_step[i])] = true;
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!waited_for[i]) continue;
    loaded->steps[i].event = static_cast<int>(loaded->event_device.size());
    loaded->event_device.push_back(program_.device_of(steps[i]));
  }
  loaded->maps = std::make_unique<TensorMapCache>(maps);
  // Kernels compile for up to a second each: at the same time, the first one on this thread.
  std::size_t own = steps.size();
  Status first;
  const auto note = [&](Status status) {
    if (first.ok() && !status.ok()) first = std::move(status);
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!std::holds_alternative<KernelWork>(steps[i].work)) {
      note(prepare_step(i));
    } else if (own == steps.size()) {
      own = i;
    } else {
      loading.push_back(std::async(std::launch::async, [&, i] { return prepare_step(i); }));
    }
  }
  if (own < steps.size()) note(prepare_step(own));
  for (auto& each : loading) note(each.get());
  if (first.ok()) loaded_ = std::move(loaded);
  return first;
}

Status Executor::prepare() const {
  if (ready_.load(std::memory_order_acquire)) return {};
  std::lock_guard lock(mutex_);
  if (ready_.load(std::memory_order_relaxed)) return {};
  if (Status s = load(); !s.ok()) return s;
  ready_.store(true, std::memory_order_release);
  return {};
}

Status Executor::enqueue(const Call& call) const {
  if (Status s = prepare(); !s.ok()) return s;
  if (Status s = program_.check(call); !s.ok()) return s;
  if (Status s = loaded_->failure.take(); !s.ok()) return s;
  Run run(*this, call);
  return run.all();
}

Result<CudaGraph> Executor::capture(const Call& call) const {
  if (Status s = prepare(); !s.ok()) return s;
  if (Status s = program_.check(call); !s.ok()) return s;
  const cuda::GpuDevice& first = device(program_.streams().front());
  const cuda::DriverFunctions& api = first.api();
  const ContextGuard current = first.current();
  const CUstream stream = handle_of(call.streams.front());
  if (Status s = first.driver().check(
          api.cuStreamBeginCapture(stream, cuda::kCaptureModeThreadLocal), "cuStreamBeginCapture");
      !s.ok()) {
    return s;
  }
  Status status;
  {
    Run run(*this, call);
    run.capturing();
    status = run.all();
  }
  cuda::CUgraph graph = nullptr;
  const Status ended =
      first.driver().check(api.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  cuda::CUgraphExec ready = nullptr;
  if (status.ok()) status = ended;
  if (status.ok()) {
    status = first.driver().check(api.cuGraphInstantiate(&ready, graph, 0), "cuGraphInstantiate");
  }
  if (graph != nullptr) api.cuGraphDestroy(graph);
  if (!status.ok()) return status;
  return CudaGraph(first, ready);
}

}  // namespace flashlab::runtime
