// Where the API's backends are put together: the only place that knows all of them.

#include "api/backend.h"
#include "backends/reference.h"
#include "cpu/attention.h"
#include "cpu/backend.h"
#include "cpu/naive/naive.h"
#include "cpu/plain/plain.h"
#include "cuda/backend.h"
#include "cuda/implementations.h"
#include "peers/cublas/cublas.h"
#include "peers/cudnn/cudnn.h"

namespace flashlab::internal {

const Backend& backend_of(DeviceKind kind) {
  static const CpuBackend cpu({&cpu_implementation(), &plain_implementation(),
                               &naive_implementation(), &reference_implementation()});
  static const cuda::CudaBackend gpu([] {
    std::vector<const Implementation*> list = cuda::implementations();
    list.push_back(&peers::cublas_implementation());
    list.push_back(&peers::cudnn_implementation());
    return list;
  }());
  if (kind == DeviceKind::kCuda) return gpu;
  return cpu;
}

}  // namespace flashlab::internal
