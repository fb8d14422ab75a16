#include "train/cpu/kernels.h"

#include <type_traits>

#include "flashlab/context.h"

namespace flashlab::train::cpu {

#define FLASHLAB_TABLES(isa)                \
  namespace isa {                           \
  extern const KernelTable<float> kFloat;   \
  extern const KernelTable<double> kDouble; \
  }

FLASHLAB_TABLES(scalar)
#if defined(__x86_64__)
FLASHLAB_TABLES(avx2)
FLASHLAB_TABLES(avx512)
#elif defined(__aarch64__)
FLASHLAB_TABLES(neon)
#endif
#undef FLASHLAB_TABLES

namespace {

template <class T>
const KernelTable<T>& choose(const KernelTable<float>& floats, const KernelTable<double>& doubles) {
  if constexpr (std::is_same_v<T, float>) {
    return floats;
  } else {
    return doubles;
  }
}

}  // namespace

template <class T>
const KernelTable<T>& kernels(int isa) {
#if defined(__x86_64__)
  if (isa >= static_cast<int>(CpuIsa::kAvx512)) return choose<T>(avx512::kFloat, avx512::kDouble);
  if (isa >= static_cast<int>(CpuIsa::kAvx2)) return choose<T>(avx2::kFloat, avx2::kDouble);
#elif defined(__aarch64__)
  if (isa >= static_cast<int>(CpuIsa::kNeon)) return choose<T>(neon::kFloat, neon::kDouble);
#endif
  return choose<T>(scalar::kFloat, scalar::kDouble);
}

template const KernelTable<float>& kernels<float>(int isa);
template const KernelTable<double>& kernels<double>(int isa);

}  // namespace flashlab::train::cpu
