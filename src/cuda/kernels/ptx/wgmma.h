#pragma once

// Matrix products of a warpgroup (wgmma, sm_90a): D [64, N] += A [64, 16] B [16, N], asynchronous,
// fp32 accumulators. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//
// With warp w of the group, g = lane / 4, t = lane % 4:
//   D: d[4 j], d[4 j + 1] = (16 w + g, 8 j + 2 t), (.., + 1);  d[4 j + 2], d[4 j + 3] = row + 8
//   A in registers: a[0] = (16 w + g, 2 t..), a[1] = (row + 8, 2 t..), a[2] = (row, 2 t + 8..),
//                   a[3] = (row + 8, 2 t + 8..); two elements per register
//   A and B in shared memory: by descriptors (tile/slab.h)
//
// The order of a product: wgmma_fence, the instructions, wgmma_commit; wgmma_wait before its
// accumulators are read or its operands overwritten. What ordinary code does with the registers
// must not move in between: `pin` them on both sides.

namespace flashlab::ptx {

/// Orders ordinary accesses to accumulators and operand registers before the products that follow.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes a group of products.
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending groups are under way.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of registers across this place.
__device__ inline void pin(float& value) {
  asm volatile("" : "+f"(value)::"memory");
}
__device__ inline void pin(unsigned& value) {
  asm volatile("" : "+r"(value)::"memory");
}
__device__ inline void pin(int& value) {
  asm volatile("" : "+r"(value)::"memory");
}

// An instruction names each of its registers. These macros spell the operands and their numbers for
// a count of accumulators.
// clang-format off
#define FLASHLAB_NUMBERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FLASHLAB_NUMBERS_16 FLASHLAB_NUMBERS_8 \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHLAB_NUMBERS_24 FLASHLAB_NUMBERS_16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FLASHLAB_NUMBERS_32 FLASHLAB_NUMBERS_24 \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHLAB_NUMBERS_64 FLASHLAB_NUMBERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48" \
  ", %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHLAB_NUMBERS_96 FLASHLAB_NUMBERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80" \
  ", %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FLASHLAB_NUMBERS_128 FLASHLAB_NUMBERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110" \
  ", %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124" \
  ", %125, %126, %127"
#define FLASHLAB_PLACES_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define FLASHLAB_PLACES_16(i) FLASHLAB_PLACES_8(i), FLASHLAB_PLACES_8(i + 8)
#define FLASHLAB_PLACES_24(i) FLASHLAB_PLACES_16(i), FLASHLAB_PLACES_8(i + 16)
#define FLASHLAB_PLACES_32(i) FLASHLAB_PLACES_16(i), FLASHLAB_PLACES_16(i + 16)
#define FLASHLAB_PLACES_64(i) FLASHLAB_PLACES_32(i), FLASHLAB_PLACES_32(i + 32)
#define FLASHLAB_PLACES_96(i) FLASHLAB_PLACES_64(i), FLASHLAB_PLACES_32(i + 64)
#define FLASHLAB_PLACES_128(i) FLASHLAB_PLACES_64(i), FLASHLAB_PLACES_64(i + 64)

// The body of a product of A and B in shared memory. `shape` is the instruction's, `major` 0, 0 for
// operands that are K-major and 1, 1 for MN-major; d has `count` registers, and the other places
// are those of the operands behind them.
#define FLASHLAB_WGMMA_SHARED(shape, type, major, count, a_place, b_place, p_place)            \
  {                                                                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " p_place ", 0; "                             \
                 "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " "               \
                 "{" FLASHLAB_NUMBERS_##count "}, " a_place ", " b_place ", p, 1, 1, " major   \
                 "; }"                                                                         \
                 : FLASHLAB_PLACES_##count(0)                                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                         \
  }
// The body of a product of A in registers, the operands `a_places`, and B in shared memory.
#define FLASHLAB_WGMMA_REGISTERS(shape, type, count, a_places, b_place)                        \
  {                                                                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; "                                       \
                 "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " "               \
                 "{" FLASHLAB_NUMBERS_##count "}, "                                            \
                 "{" a_places "}, " b_place ", p, 1, 1, 1; }"                                  \
                 : FLASHLAB_PLACES_##count(0)                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
  }

/// A and B from shared memory, both K-major. Without `accumulate` D is overwritten.
__device__ inline void wgmma_shared_bf16(float (&d)[32], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n64k16", "bf16", "0, 0", 32, "%32", "%33", "%34")
__device__ inline void wgmma_shared_fp16(float (&d)[32], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n64k16", "f16", "0, 0", 32, "%32", "%33", "%34")
__device__ inline void wgmma_shared_bf16(float (&d)[64], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n128k16", "bf16", "0, 0", 64, "%64", "%65", "%66")
__device__ inline void wgmma_shared_fp16(float (&d)[64], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n128k16", "f16", "0, 0", 64, "%64", "%65", "%66")
/// A and B from shared memory, both MN-major. Without `accumulate` D is overwritten.
__device__ inline void wgmma_shared_rows_bf16(float (&d)[32], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n64k16", "bf16", "1, 1", 32, "%32", "%33", "%34")
__device__ inline void wgmma_shared_rows_fp16(float (&d)[32], unsigned long long a,
        unsigned long long b, bool accumulate)
    FLASHLAB_WGMMA_SHARED("m64n64k16", "f16", "1, 1", 32, "%32", "%33", "%34")
/// A from registers, B from shared memory, MN-major; accumulates.
__device__ inline void wgmma_registers_bf16(float (&d)[8], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n16k16", "bf16", 8, "%8, %9, %10, %11", "%12")
__device__ inline void wgmma_registers_fp16(float (&d)[8], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n16k16", "f16", 8, "%8, %9, %10, %11", "%12")
__device__ inline void wgmma_registers_bf16(float (&d)[16], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n32k16", "bf16", 16, "%16, %17, %18, %19", "%20")
__device__ inline void wgmma_registers_fp16(float (&d)[16], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n32k16", "f16", 16, "%16, %17, %18, %19", "%20")
__device__ inline void wgmma_registers_bf16(float (&d)[24], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n48k16", "bf16", 24, "%24, %25, %26, %27", "%28")
__device__ inline void wgmma_registers_fp16(float (&d)[24], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n48k16", "f16", 24, "%24, %25, %26, %27", "%28")
__device__ inline void wgmma_registers_bf16(float (&d)[32], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n64k16", "bf16", 32, "%32, %33, %34, %35", "%36")
__device__ inline void wgmma_registers_fp16(float (&d)[32], const unsigned (&a)[4],
        unsigned long long b)
    FLASHLAB_WGMMA_REGISTERS("m64n64k16", "f16", 32, "%32, %33, %34, %35", "%36")
// clang-format on

}  // namespace flashlab::ptx
