#include "cuda/launch/zero.h"

#include <algorithm>

namespace flashlab::cuda {

Status zero_rows(const GpuDevice& device, Stream stream, const Tensor& tensor) {
  const TensorSpec& s = tensor.spec;
  if (s.elements() == 0) return {};
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  const auto width = static_cast<std::size_t>(s.shape[3] * size);
  const auto pitch = std::max(width, static_cast<std::size_t>(s.strides[1] * size));
  const ContextGuard current = device.current();
  for (std::int64_t b = 0; b < s.shape[0]; ++b) {
    for (std::int64_t h = 0; h < s.shape[2]; ++h) {
      const auto* rows =
          static_cast<char*>(tensor.data) + (b * s.strides[0] + h * s.strides[2]) * size;
      const CUresult result = device.api().cuMemsetD2D8Async(pointer_of(rows), pitch, 0, width,
                                                             static_cast<std::size_t>(s.shape[1]),
                                                             static_cast<CUstream>(stream.handle));
      if (Status status = device.driver().check(result, "cuMemsetD2D8Async"); !status.ok()) {
        return status;
      }
    }
  }
  return {};
}

}  // namespace flashlab::cuda
