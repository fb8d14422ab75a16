#define FLASHLAB_TILE_ISA baseline
#include "cpu/plain/tile_kernels-inl.h"
