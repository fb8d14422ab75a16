// Row kernels for AVX-512 F, BW, CD, DQ, VL.

#define FLASHLAB_TRAIN_NAMESPACE avx512

#include "train/cpu/rows-inl.h"

namespace flashlab::train::cpu::avx512 {

extern const KernelTable<float> kFloat;
extern const KernelTable<double> kDouble;
const KernelTable<float> kFloat = make_table<float>("avx512");
const KernelTable<double> kDouble = make_table<double>("avx512");

}  // namespace flashlab::train::cpu::avx512
