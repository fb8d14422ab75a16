#pragma once

// Products without pause on a stream of their own: what a collective runs beside.

#include <memory>

#include "runtime/cuda/device.h"
#include "runtime/products/cublas_lt.h"

namespace flashlab::lab {

class ProductStream {
 public:
  static constexpr std::int64_t kSize = 8192;  ///< of each side, in bf16

  /// Random operands. Errors: those of cuBLASLt; kOutOfMemory.
  static Result<std::unique_ptr<ProductStream>> create(const cuda::GpuDevice& device);
  ~ProductStream();
  ProductStream(const ProductStream&) = delete;
  ProductStream& operator=(const ProductStream&) = delete;

  /// So many products, one after the other, between two events.
  Status enqueue(int count);
  /// Milliseconds of one of the last enqueue's, which have ended.
  Result<double> ms() const;
  cuda::CUstream stream() const { return stream_; }

 private:
  explicit ProductStream(const cuda::GpuDevice& device) : device_(device), api_(device.api()) {}
  Status make();
  Status check(cuda::CUresult result, const char* call) const {
    return device_.driver().check(result, call);
  }

  const cuda::GpuDevice& device_;
  const cuda::DriverFunctions& api_;
  const cuda::CublasLt* library_ = nullptr;
  const cuda::PreparedProduct* prepared_ = nullptr;
  runtime::Product product_;
  cuda::CUdeviceptr operands_[3] = {}, scratch_ = 0;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent first_ = nullptr, last_ = nullptr;
  int count_ = 0;
};

}  // namespace flashlab::lab
