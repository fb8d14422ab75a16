#include "runtime/products/time_product.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace flashlab::runtime {
namespace {

using cuda::CUdeviceptr;
using cuda::CUevent;
using cuda::DriverFunctions;
using cuda::kCudaSuccess;

constexpr int kRounds = 5;
constexpr float kHopeless = 1.5f;  // times the best of the first round: not run again
constexpr float kShortMs = 0.2f;   // what a launch and a memset take is a part of it
constexpr int kInGraph = 8;        // of a short product, one after the other
// What they read as b, each its own: a step finds weights and saved activations in memory, and in
// L2 what was just written.
constexpr std::size_t kMostBytesOfB = std::size_t{128} << 20;
constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr unsigned char kFill = 0x3c;  // 1.06 in fp16, 0.0115 in bf16 and fp32

std::size_t bytes_of(const Matrix& matrix, std::int64_t rows, std::int64_t columns, int batch) {
  if (matrix.transposed) std::swap(rows, columns);
  const std::int64_t last = (batch - 1) * matrix.batch_stride + (rows - 1) * matrix.row_stride;
  return static_cast<std::size_t>(last + columns) * size_of(matrix.dtype);
}

// Measuring allocates and waits, which a capture of this thread would forbid; what is measured runs
// on a stream that no capture knows.
class OutsideCapture {
 public:
  explicit OutsideCapture(const DriverFunctions& api) : api_(api) {
    exchanged_ = api_.cuThreadExchangeStreamCaptureMode(&mode_) == kCudaSuccess;
  }
  ~OutsideCapture() {
    if (exchanged_) api_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  const DriverFunctions& api_;
  int mode_ = cuda::kCaptureModeRelaxed;
  bool exchanged_ = false;
};

// The stream, two events and four pieces of memory; what could not be made is null.
class Bench {
 public:
  explicit Bench(const DriverFunctions& api) : api_(api) {
    made_ = api_.cuStreamCreate(&memory.stream, cuda::kStreamNonBlocking) == kCudaSuccess;
    for (CUevent& event : events_) {
      made_ = made_ && api_.cuEventCreate(&event, cuda::kEventDefault) == kCudaSuccess;
    }
  }
  ~Bench() {
    for (void* piece : {memory.a, memory.b, memory.c, memory.scratch}) {
      if (piece != nullptr) {
        api_.cuMemFreeAsync(cuda::pointer_of(piece), memory.stream);
      }
    }
    if (memory.stream != nullptr) api_.cuStreamSynchronize(memory.stream);
    for (CUevent event : events_) {
      if (event != nullptr) api_.cuEventDestroy(event);
    }
    if (memory.stream != nullptr) api_.cuStreamDestroy(memory.stream);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  bool allocate_b(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    pieces_ = std::clamp<std::size_t>(kMostBytesOfB / bytes_, 1, kInGraph);
    return allocate(memory.b, pieces_ * bytes_);
  }
  bool allocate(void*& piece, std::size_t bytes) {
    CUdeviceptr address = 0;
    made_ = made_ && api_.cuMemAllocAsync(&address, bytes, memory.stream) == kCudaSuccess;
    if (!made_) return false;
    piece = reinterpret_cast<void*>(address);
    made_ = api_.cuMemsetD8Async(address, kFill, bytes, memory.stream) == kCudaSuccess;
    return made_;
  }

  float time(const TimedRun& run) const {
    return between_events([&] { return run(memory).ok(); });
  }

  /// A product among others of a graph, as steps run it: idle time around what the library clears
  /// beforehand is in it, the host's launch is not.
  float time_in_graph(const TimedRun& run) const {
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec ready = nullptr;
    if (api_.cuStreamBeginCapture(memory.stream, cuda::kCaptureModeRelaxed) != kCudaSuccess) {
      return kNever;
    }
    bool good = true;
    ProductMemory own = memory;
    for (std::size_t i = 0; i < kInGraph; ++i) {
      own.b = static_cast<std::byte*>(memory.b) + i % pieces_ * bytes_;
      good = good && run(own).ok();
    }
    good = api_.cuStreamEndCapture(memory.stream, &graph) == kCudaSuccess && good;
    good = good && api_.cuGraphInstantiate(&ready, graph, 0) == kCudaSuccess;
    float best = kNever;
    const auto launch = [&] { return api_.cuGraphLaunch(ready, memory.stream) == kCudaSuccess; };
    for (int round = 0; good && round < kRounds; ++round) {
      // The host enqueues the second one while the first one runs.
      good = launch();
      best = std::min(best, between_events(launch) / kInGraph);
    }
    if (ready != nullptr) api_.cuGraphExecDestroy(ready);
    if (graph != nullptr) api_.cuGraphDestroy(graph);
    return best;
  }

  ProductMemory memory;

 private:
  template <class Enqueue>
  float between_events(const Enqueue& enqueue) const {
    float milliseconds = kNever;
    if (api_.cuEventRecord(events_[0], memory.stream) != kCudaSuccess || !enqueue() ||
        api_.cuEventRecord(events_[1], memory.stream) != kCudaSuccess ||
        api_.cuEventSynchronize(events_[1]) != kCudaSuccess ||
        api_.cuEventElapsedTime(&milliseconds, events_[0], events_[1]) != kCudaSuccess) {
      return kNever;
    }
    return milliseconds;
  }

  const DriverFunctions& api_;
  CUevent events_[2] = {};
  std::size_t pieces_ = 1, bytes_ = 0;  // of b
  bool made_ = false;
};

}  // namespace

std::vector<float> time_product(const cuda::GpuDevice& device, const Product& p,
                                std::size_t scratch_bytes, std::span<const TimedRun> ways) {
  const OutsideCapture outside(device.api());
  Bench bench(device.api());
  ProductMemory& memory = bench.memory;
  if (!bench.allocate(memory.a, bytes_of(p.a, p.m, p.k, p.batch)) ||
      !bench.allocate_b(bytes_of(p.b, p.k, p.n, p.batch)) ||
      !bench.allocate(memory.c, bytes_of(p.c, p.m, p.n, p.batch)) ||
      !bench.allocate(memory.scratch, scratch_bytes)) {
    return {};
  }
  std::vector<float> best(ways.size(), kNever);
  for (const TimedRun& way : ways) static_cast<void>(bench.time(way));  // loads the kernels
  for (int round = 0; round < kRounds; ++round) {
    const float least = *std::min_element(best.begin(), best.end());
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (round > 0 && best[i] > kHopeless * least) continue;
      best[i] = std::min(best[i], bench.time(ways[i]));
    }
  }
  const auto any = [](const std::vector<float>& times) {
    return std::ranges::any_of(times, [](float ms) { return ms < kNever; });
  };
  const float least = *std::ranges::min_element(best);
  if (least < kShortMs) {
    std::vector<float> in_graph(ways.size(), kNever);
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (best[i] <= kHopeless * least) in_graph[i] = bench.time_in_graph(ways[i]);
    }
    if (any(in_graph)) return in_graph;
  }
  return any(best) ? best : std::vector<float>();
}

}  // namespace flashlab::runtime
