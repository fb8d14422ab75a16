#define FLASHLAB_TILE_ISA avx512
#include "cpu/plain/tile_kernels-inl.h"
