#include "cuda/implementations.h"

#include "cuda/kernels/decode/plan.h"
#include "cuda/kernels/ladder/plan.h"
#include "cuda/kernels/sm80/plan.h"
#include "cuda/kernels/sm90/plan.h"

namespace flashlab::cuda {

std::vector<const internal::Implementation*> implementations() {
  std::vector<const internal::Implementation*> all{&sm90_implementation(), &sm80_implementation(),
                                                   &decode_implementation(),
                                                   &naive_implementation()};
  for (const internal::Implementation* rung : ladder_forward_implementations()) all.push_back(rung);
  for (const internal::Implementation* rung : ladder_hopper_implementations()) all.push_back(rung);
  return all;
}

}  // namespace flashlab::cuda
