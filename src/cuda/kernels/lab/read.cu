// Reads memory and does nothing else: what kernels that are bound by reading are measured against.

#include "lab/roof_arguments.h"

namespace flashlab::device {

constexpr int kReadAtOnce = 8;  // loads of a thread that are under way

}  // namespace flashlab::device

/// `out` has a place for every thread of the launch. Of the 16-byte pieces the last ones, fewer
/// than the launch reads at once, are left out.
extern "C" __global__ void __launch_bounds__(256) lab_read(flashlab::device::ReadArguments given) {
  using namespace flashlab::device;
  const long long threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const long long thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const uint4* data = static_cast<const uint4*>(given.data);
  unsigned bits = 0;
  for (int pass = 0; pass < given.passes; ++pass) {
    for (long long i = thread; i + (kReadAtOnce - 1) * threads < given.pieces;
         i += kReadAtOnce * threads) {
      uint4 read[kReadAtOnce];
#pragma unroll
      for (int n = 0; n < kReadAtOnce; ++n) read[n] = data[i + n * threads];
#pragma unroll
      for (int n = 0; n < kReadAtOnce; ++n) bits ^= read[n].x ^ read[n].y ^ read[n].z ^ read[n].w;
    }
  }
  given.out[thread] = __uint_as_float(bits);
}
