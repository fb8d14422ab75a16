#include "lab/subjects/collective/collective_gpu.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "cuda/kernels/lab/collective_arguments.h"
#include "lab/subjects/collective/product_stream.h"
#include "runtime/cuda/peers.h"
#include "runtime/kernel_store/config.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab::lab {

cuda::KernelSpec exchange_kernel(DType dtype, const char* entry) {
  cuda::ConfigPrinter config;
  config.integer("kBytes", static_cast<std::int64_t>(size_of(dtype)))
      .boolean("kFp16", dtype == DType::kFp16);
  return {"lab/collective.cu", entry, config.text(), {}};
}

namespace {

using cuda::CUdeviceptr;
using runtime::Collective;
using Clock = std::chrono::steady_clock;

constexpr int kMostCalls = 20;  // of a sample: as many as a graph holds
constexpr unsigned kExchangeBlocks = 1024;
constexpr int kLooksBetweenChecks = 1024;

class GpuWork final : public CollectiveWork {
 public:
  GpuWork(cuda::GpuDevice& device, runtime::Communicator& transport, runtime::Communicator& control,
          const CollectiveProblem& problem, const GpuWorkOptions& options)
      : device_(device),
        api_(device.api()),
        transport_(transport),
        control_(control),
        problem_(problem),
        options_(options) {}
  GpuWork(const GpuWork&) = delete;
  GpuWork& operator=(const GpuWork&) = delete;
  ~GpuWork() override;

  Status make() override;
  int most_calls() const override { return kMostCalls; }
  Result<double> sample(int calls) override;
  Result<std::string> first_wrong() override;
  Result<BesideTimes> beside_products() override;

 private:
  Status check(cuda::CUresult result, const char* call) const {
    return device_.driver().check(result, call);
  }
  Status allocate();
  Status fill();
  Status run(const char* entry, void* data, std::size_t count);
  Status wait() { return wait(stream_); }
  Status wait(cuda::CUstream stream);
  Status enqueue(int graphs);
  Result<double> slowest(double ms);
  Status capture(int calls);
  void forget_graph();

  cuda::GpuDevice& device_;
  const cuda::DriverFunctions& api_;
  const cuda::PeerFunctions* peer_api_ = nullptr;
  runtime::Communicator& transport_;
  runtime::Communicator& control_;
  const CollectiveProblem problem_;
  const GpuWorkOptions options_;
  CUdeviceptr to_ = 0, from_ = 0, wrong_ = 0;
  bool shared_ = false, warm_ = false;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent first_ = nullptr, last_ = nullptr;
  cuda::CUgraphExec graph_ = nullptr;
  int captured_ = 0;
  runtime::CollectiveCall call_;
};

GpuWork::~GpuWork() {
  // After a failure the stream may wait for a rank that is gone: the process's end frees all.
  if (!control_.failure().ok()) return;
  if (shared_) (void)transport_.unshare(reinterpret_cast<void*>(to_));
  const cuda::ContextGuard current = device_.current();
  forget_graph();
  for (cuda::CUevent event : {first_, last_}) {
    if (event != nullptr) api_.cuEventDestroy(event);
  }
  if (stream_ != nullptr) api_.cuStreamDestroy(stream_);
  for (const CUdeviceptr each : {to_, from_, wrong_}) {
    if (each != 0) api_.cuMemFree(each);
  }
}

void GpuWork::forget_graph() {
  if (graph_ != nullptr) api_.cuGraphExecDestroy(graph_);
  graph_ = nullptr;
}

Status GpuWork::allocate() {
  if (size_of(problem_.dtype) == 2 && device_.info().major < 8) {
    return Status::unsupported({to_string(problem_.dtype), device_.info().name,
                                "fp32 or fp64 before compute capability 8.0", "--dtype fp32"});
  }
  const auto peers = cuda::PeerFunctions::get();
  if (!peers.ok()) return peers.status();
  peer_api_ = *peers;
  const std::size_t element = size_of(problem_.dtype);
  Status status = check(api_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
  for (cuda::CUevent* event : {&first_, &last_}) {
    if (status.ok()) {
      status = check(api_.cuEventCreate(event, cuda::kEventDefault), "cuEventCreate");
    }
  }
  const auto take = [&](CUdeviceptr& at, std::size_t bytes) {
    if (status.ok()) status = check(api_.cuMemAlloc(&at, bytes), "cuMemAlloc");
  };
  take(to_, problem_.to_elements() * element);
  if (!problem_.in_place()) take(from_, problem_.from_elements() * element);
  take(wrong_, sizeof(unsigned long long));
  return status;
}

Status GpuWork::make() {
  const cuda::ContextGuard current = device_.current();
  const Status mine = allocate();
  const unsigned char failed = !mine.ok();
  std::vector<unsigned char> all(static_cast<std::size_t>(control_.size()));
  if (Status s = control_.all_gather(&failed, all.data(), 1, "memory"); !s.ok()) return s;
  if (!mine.ok()) return mine;
  if (std::ranges::count(all, 1) > 0) {
    return Status::out_of_memory(
        {"memory of another rank's GPU", "none", "as much free memory", "use fewer bytes"});
  }
  const std::size_t element = size_of(problem_.dtype);
  const auto rank = static_cast<std::size_t>(transport_.rank());
  Status status = transport_.share(reinterpret_cast<void*>(to_), problem_.to_elements() * element);
  if (!status.ok()) return status;
  shared_ = true;
  const std::size_t bytes = problem_.part_elements() * element;
  CUdeviceptr from = from_;
  if (problem_.in_place()) {
    from = to_ + (problem_.kind == Collective::kAllGather ? rank * bytes : 0);
  }
  call_ = {.kind = problem_.kind,
           .from = reinterpret_cast<void*>(from),
           .to = reinterpret_cast<void*>(to_),
           .bytes = bytes,
           .dtype = problem_.dtype,
           .name = "measured",
           .stream = stream_};
  status = check(api_.cuMemsetD8Async(to_, 0, problem_.to_elements() * element, stream_),
                 "cuMemsetD8Async");
  if (status.ok() && !problem_.changes_its_input()) status = fill();
  return status.ok() ? wait() : status;
}

Status GpuWork::run(const char* entry, void* data, std::size_t count) {
  const auto kernel = cuda::load_kernel(device_, exchange_kernel(problem_.dtype, entry));
  if (!kernel.ok()) return kernel.status();
  device::ExchangeArguments arguments{.data = data,
                                      .count = count,
                                      .part = problem_.part_elements(),
                                      .wrong = reinterpret_cast<unsigned long long*>(wrong_),
                                      .kind = static_cast<int>(problem_.kind),
                                      .ranks = problem_.ranks,
                                      .rank = transport_.rank()};
  cuda::LaunchShape shape;
  shape.grid_x = kExchangeBlocks;
  shape.threads = kExchangeThreads;
  void* pointers[] = {&arguments};
  return cuda::launch(device_, **kernel, shape, stream_, pointers);
}

Status GpuWork::fill() {
  // Of a broadcast the root's values come by the call.
  if (problem_.kind == Collective::kBroadcast && transport_.rank() != 0) return {};
  return run("lab_exchange_fill", const_cast<void*>(call_.from), problem_.from_elements());
}

// A stream may wait for another rank: whoever is lost is seen by the processes.
Status GpuWork::wait(cuda::CUstream stream) {
  const Clock::time_point begin = Clock::now();
  for (int looks = 1;; ++looks) {
    const cuda::CUresult result = peer_api_->cuStreamQuery(stream);
    if (result == cuda::kCudaSuccess) return {};
    if (result != cuda::kCudaNotReady) return check(result, "a collective");
    if (looks % kLooksBetweenChecks != 0) continue;
    if (Status status = control_.failure(); !status.ok()) return status;
    const std::chrono::duration<double> waited = Clock::now() - begin;
    if (waited.count() > options_.timeout_s) {
      return {StatusCode::kDeviceError,
              {fmt::format("{} on GPUs", to_string(problem_.kind)),
               fmt::format("nothing for {:g} s", options_.timeout_s), "its end",
               "see whether another rank ended; --timeout waits longer"}};
    }
    ::sched_yield();
  }
}

Status GpuWork::capture(int calls) {
  forget_graph();
  Status status = check(api_.cuStreamBeginCapture(stream_, cuda::kCaptureModeThreadLocal),
                        "cuStreamBeginCapture");
  for (int call = 0; call < calls && status.ok(); ++call) status = transport_.run(call_);
  cuda::CUgraph graph = nullptr;
  const Status end = check(api_.cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
  if (status.ok()) status = end;
  if (status.ok()) {
    status = check(api_.cuGraphInstantiate(&graph_, graph, 0), "cuGraphInstantiate");
  }
  if (graph != nullptr) api_.cuGraphDestroy(graph);
  captured_ = calls;
  // The first launch also loads it.
  if (status.ok()) status = check(api_.cuGraphLaunch(graph_, stream_), "cuGraphLaunch");
  if (status.ok()) status = wait();
  return status.ok() ? control_.barrier("captured") : status;
}

Result<double> GpuWork::sample(int calls) {
  const cuda::ContextGuard current = device_.current();
  // What a transport prepares at the first call cannot be captured.
  const bool graph = options_.graph && warm_;
  if (graph && captured_ != calls) {
    if (Status status = capture(calls); !status.ok()) return status;
  }
  Status status = check(api_.cuEventRecord(first_, stream_), "cuEventRecord");
  if (graph && status.ok()) {
    status = check(api_.cuGraphLaunch(graph_, stream_), "cuGraphLaunch");
  }
  for (int call = 0; call < calls && !graph && status.ok(); ++call) status = transport_.run(call_);
  if (status.ok()) status = check(api_.cuEventRecord(last_, stream_), "cuEventRecord");
  if (status.ok()) status = wait();
  float ms = 0;
  if (status.ok()) {
    status = check(api_.cuEventElapsedTime(&ms, first_, last_), "cuEventElapsedTime");
  }
  if (!status.ok()) return status;
  warm_ = true;
  return static_cast<double>(ms) / calls;
}

// Captured calls, so many times.
Status GpuWork::enqueue(int graphs) {
  Status status = check(api_.cuEventRecord(first_, stream_), "cuEventRecord");
  for (int i = 0; i < graphs && status.ok(); ++i) {
    status = check(api_.cuGraphLaunch(graph_, stream_), "cuGraphLaunch");
  }
  return status.ok() ? check(api_.cuEventRecord(last_, stream_), "cuEventRecord") : status;
}

Result<double> GpuWork::slowest(double ms) {
  std::vector<double> all(static_cast<std::size_t>(control_.size()));
  Status status = control_.all_gather(&ms, all.data(), sizeof ms, "times beside products");
  if (!status.ok()) return status;
  return std::ranges::max(all);
}

// What is timed has the other beside it from its first to its last: of that there is more than
// enough, as many on every rank.
Result<BesideTimes> GpuWork::beside_products() {
  constexpr int kProducts = 20, kRounds = 3;
  const cuda::ContextGuard current = device_.current();
  auto made = ProductStream::create(device_);
  std::vector<unsigned char> failed(static_cast<std::size_t>(control_.size()));
  const unsigned char mine = !made.ok();
  if (Status s = control_.all_gather(&mine, failed.data(), 1, "products"); !s.ok()) return s;
  if (!made.ok()) return made.status();
  if (std::ranges::count(failed, 1) > 0) {
    return Status::unsupported({"--beside product", "another rank has no products", "one", ""});
  }
  ProductStream& products = **made;
  if (Status s = capture(kMostCalls); !s.ok()) return s;
  BesideTimes out;
  // Products beside so many graphs of calls, or calls beside so many products; the less is timed.
  const auto time = [&](int count, int graphs, bool calls, double& least) -> Status {
    least = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      if (Status s = control_.barrier("beside products"); !s.ok()) return s;
      Status status = graphs > 0 && !calls ? enqueue(graphs) : Status();
      if (status.ok() && count > 0) status = products.enqueue(count);
      if (status.ok() && calls) status = enqueue(graphs);
      if (status.ok()) status = wait(calls ? stream_ : products.stream());
      Result<double> ms = 0.0;
      if (status.ok() && calls) {
        float all = 0;
        status = check(api_.cuEventElapsedTime(&all, first_, last_), "cuEventElapsedTime");
        ms = static_cast<double>(all) / (graphs * kMostCalls);
      } else if (status.ok()) {
        ms = products.ms();
      }
      if (status.ok()) status = wait();
      if (status.ok() && count > 0) status = wait(products.stream());
      if (!status.ok()) return status;
      if (!ms.ok()) return ms.status();
      const Result<double> all = slowest(*ms);
      if (!all.ok()) return all.status();
      least = std::min(least, *all);
    }
    return {};
  };
  Status status = products.enqueue(1);
  if (status.ok()) status = wait(products.stream());
  if (status.ok()) status = time(kProducts, 0, false, out.product);
  if (status.ok()) status = time(0, 1, true, out.call);
  if (!status.ok()) return status;
  const auto more = [](double work, double unit) { return static_cast<int>(2 * work / unit) + 2; };
  const int graphs = more(kProducts * out.product, kMostCalls * out.call);
  const int count = more(kMostCalls * out.call, out.product);
  status = time(kProducts, graphs, false, out.product_beside);
  if (status.ok()) status = time(count, 1, true, out.call_beside);
  if (!status.ok()) return status;
  return out;
}

Result<std::string> GpuWork::first_wrong() {
  const cuda::ContextGuard current = device_.current();
  unsigned long long first = ~0ull;
  Status status =
      check(api_.cuMemcpyHtoDAsync(wrong_, &first, sizeof first, stream_), "cuMemcpyHtoDAsync");
  if (status.ok() && problem_.changes_its_input()) {
    status = fill();
    if (status.ok()) status = transport_.run(call_);
  }
  if (status.ok()) status = wait();
  if (status.ok()) {
    status = run("lab_exchange_check", reinterpret_cast<void*>(to_), problem_.to_elements());
  }
  if (status.ok()) {
    status =
        check(api_.cuMemcpyDtoHAsync(&first, wrong_, sizeof first, stream_), "cuMemcpyDtoHAsync");
  }
  if (status.ok()) status = wait();
  if (!status.ok()) return status;
  if (first == ~0ull) return std::string();
  return words_of_wrong(problem_, transport_.rank(), static_cast<std::size_t>(first - 1));
}

}  // namespace

std::unique_ptr<CollectiveWork> gpu_work(cuda::GpuDevice& device, runtime::Communicator& transport,
                                         runtime::Communicator& control,
                                         const CollectiveProblem& problem,
                                         const GpuWorkOptions& options) {
  return std::make_unique<GpuWork>(device, transport, control, problem, options);
}

}  // namespace flashlab::lab
