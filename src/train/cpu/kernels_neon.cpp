// Row kernels for AArch64's NEON.

#define FLASHLAB_TRAIN_NAMESPACE neon

#include "train/cpu/rows-inl.h"

namespace flashlab::train::cpu::neon {

extern const KernelTable<float> kFloat;
extern const KernelTable<double> kDouble;
const KernelTable<float> kFloat = make_table<float>("neon");
const KernelTable<double> kDouble = make_table<double>("neon");

}  // namespace flashlab::train::cpu::neon
