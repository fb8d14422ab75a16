// Row kernels for AVX2 with FMA (Haswell, Zen and later).

#define FLASHLAB_TRAIN_NAMESPACE avx2

#include "train/cpu/rows-inl.h"

namespace flashlab::train::cpu::avx2 {

extern const KernelTable<float> kFloat;
extern const KernelTable<double> kDouble;
const KernelTable<float> kFloat = make_table<float>("avx2");
const KernelTable<double> kDouble = make_table<double>("avx2");

}  // namespace flashlab::train::cpu::avx2
