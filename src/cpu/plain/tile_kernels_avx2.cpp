#define FLASHLAB_TILE_ISA avx2
#include "cpu/plain/tile_kernels-inl.h"
