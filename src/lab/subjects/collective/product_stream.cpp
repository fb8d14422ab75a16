#include "lab/subjects/collective/product_stream.h"

#include <bit>
#include <random>
#include <vector>

#include "runtime/cuda/peers.h"

namespace flashlab::lab {
namespace {

constexpr std::size_t kElements =
    static_cast<std::size_t>(ProductStream::kSize) * static_cast<std::size_t>(ProductStream::kSize);
constexpr std::size_t kDrawn = std::size_t{1} << 20;  // then again: a GPU's power depends on values

// Of a standard normal distribution, about: the upper half of an fp32.
std::vector<std::uint16_t> draw() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> out(kDrawn);
  for (std::uint16_t& each : out) {
    const float x = normal(random);
    each = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<ProductStream>> ProductStream::create(const cuda::GpuDevice& device) {
  std::unique_ptr<ProductStream> out(new ProductStream(device));
  if (Status s = out->make(); !s.ok()) return s;
  return out;
}

Status ProductStream::make() {
  const cuda::ContextGuard current = device_.current();
  auto library = cuda::CublasLt::of(device_);
  if (!library.ok()) return library.status();
  library_ = *library;
  const runtime::Matrix matrix = {.dtype = DType::kBf16, .row_stride = kSize};
  product_ = {.m = kSize, .n = kSize, .k = kSize, .a = matrix, .b = matrix, .c = matrix};
  auto prepared = library_->prepare(product_);
  if (!prepared.ok()) return prepared.status();
  prepared_ = *prepared;
  // As a step's stream: what ranks exchange takes what it leaves.
  const auto peers = cuda::PeerFunctions::get();
  if (!peers.ok()) return peers.status();
  Status status = check((*peers)->cuStreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking,
                                                             cuda::kHighestPriority),
                        "cuStreamCreateWithPriority");
  for (cuda::CUevent* event : {&first_, &last_}) {
    if (!status.ok()) return status;
    status = check(api_.cuEventCreate(event, cuda::kEventDefault), "cuEventCreate");
  }
  const std::vector<std::uint16_t> drawn = draw();
  for (cuda::CUdeviceptr& at : operands_) {
    if (status.ok()) status = check(api_.cuMemAlloc(&at, 2 * kElements), "cuMemAlloc");
    for (std::size_t i = 0; i < kElements && status.ok(); i += kDrawn) {
      status = check(api_.cuMemcpyHtoDAsync(at + 2 * i, drawn.data(), 2 * kDrawn, stream_),
                     "cuMemcpyHtoDAsync");
    }
  }
  if (status.ok()) {
    status = check(api_.cuMemAlloc(&scratch_, cuda::CublasLt::kWorkspaceBytes), "cuMemAlloc");
  }
  return status.ok() ? check(api_.cuStreamSynchronize(stream_), "cuStreamSynchronize") : status;
}

ProductStream::~ProductStream() {
  const cuda::ContextGuard current = device_.current();
  for (cuda::CUevent event : {first_, last_}) {
    if (event != nullptr) api_.cuEventDestroy(event);
  }
  if (stream_ != nullptr) api_.cuStreamDestroy(stream_);
  for (const cuda::CUdeviceptr at : {operands_[0], operands_[1], operands_[2], scratch_}) {
    if (at != 0) api_.cuMemFree(at);
  }
}

Status ProductStream::enqueue(int count) {
  const auto at = [](cuda::CUdeviceptr address) { return reinterpret_cast<void*>(address); };
  Status status = check(api_.cuEventRecord(first_, stream_), "cuEventRecord");
  for (int i = 0; i < count && status.ok(); ++i) {
    status = library_->run(*prepared_, product_, at(operands_[0]), at(operands_[1]),
                           at(operands_[2]), at(scratch_), stream_);
  }
  count_ = count;
  return status.ok() ? check(api_.cuEventRecord(last_, stream_), "cuEventRecord") : status;
}

Result<double> ProductStream::ms() const {
  float ms = 0;
  if (Status s = check(api_.cuEventElapsedTime(&ms, first_, last_), "cuEventElapsedTime"); !s.ok())
    return s;
  return static_cast<double>(ms) / count_;
}

}  // namespace flashlab::lab
