// Row kernels for any processor.

#define HWY_COMPILE_ONLY_SCALAR
#define FLASHLAB_TRAIN_NAMESPACE scalar

#include "train/cpu/rows-inl.h"

namespace flashlab::train::cpu::scalar {

extern const KernelTable<float> kFloat;
extern const KernelTable<double> kDouble;
const KernelTable<float> kFloat = make_table<float>("scalar");
const KernelTable<double> kDouble = make_table<double>("scalar");

}  // namespace flashlab::train::cpu::scalar
