#include "cuda/launch/implementations.h"

#include "cuda/launch/ladder_forward.h"
#include "cuda/launch/ladder_hopper.h"
#include "cuda/launch/naive.h"
#include "cuda/launch/sm80.h"
#include "cuda/launch/sm90.h"

namespace flashlab::cuda {

std::vector<const internal::Implementation*> implementations() {
  std::vector<const internal::Implementation*> all{&sm90_implementation(), &sm80_implementation(),
                                                   &naive_implementation()};
  for (const internal::Implementation* rung : ladder_forward_implementations()) all.push_back(rung);
  for (const internal::Implementation* rung : ladder_hopper_implementations()) all.push_back(rung);
  return all;
}

}  // namespace flashlab::cuda
