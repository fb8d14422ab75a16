#include "api/implementation.h"
#include "cpu/attention.h"
#include "cpu/naive/naive.h"
#include "cpu/plain/plain.h"
#include "cuda/launch/defaults.h"
#include "cuda/launch/implementations.h"
#include "peers/cublas/cublas.h"
#include "peers/cudnn/cudnn.h"
#include "reference/implementation.h"

namespace flashlab::internal {

std::vector<const Implementation*> registry(DeviceKind device) {
  if (device == DeviceKind::kCuda) {
    std::vector<const Implementation*> list = cuda::implementations();
    list.push_back(&peers::cublas_implementation());
    list.push_back(&peers::cudnn_implementation());
    return list;
  }
  return {&cpu_implementation(), &plain_implementation(), &naive_implementation(),
          &reference_implementation()};
}

std::vector<const Implementation*> default_implementations(DeviceKind device,
                                                           const cuda::DeviceInfo* gpu) {
  if (gpu != nullptr) return cuda::default_implementations(*gpu);
  std::vector<const Implementation*> list = registry(device);
  list.resize(1);
  return list;
}

}  // namespace flashlab::internal

namespace flashlab {

std::vector<std::string> implementations(Device device) {
  std::vector<std::string> names;
  for (const auto* implementation : internal::registry(device.kind)) {
    names.emplace_back(implementation->name);
  }
  return names;
}

}  // namespace flashlab
