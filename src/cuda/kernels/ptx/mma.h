#pragma once

// Warp-wide matrix products on tensor cores, D += A B, fp32 accumulators.
//
// With g = lane / 4, t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//   A [16, 16] row-major: a[0] = (g, 2t..), a[1] = (g + 8, 2t..), a[2] = (g, 2t + 8..),
//                         a[3] = (g + 8, 2t + 8..); two 16-bit elements per register
//   B [16, 8] by columns: b[0] = rows 2t.. of column g, b[1] = rows 2t + 8.. of column g
//   D [16, 8]:            d[0], d[1] = (g, 2t), (g, 2t + 1);  d[2], d[3] = the same of row g + 8

namespace flashlab::ptx {

/// bf16, sm_80.
__device__ inline void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4],
                                      const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// fp16, sm_80.
__device__ inline void mma_fp16_16816(float (&d)[4], const unsigned (&a)[4],
                                      const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// fp16 with K = 8, sm_75: A [16, 8] a[0] = (g, 2t..), a[1] = (g + 8, 2t..); B [8, 8] b = rows 2t..
__device__ inline void mma_fp16_1688(float (&d)[4], const unsigned (&a)[2], unsigned b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}

/// tf32 with K = 8, sm_80: A [16, 8] a[0] = (g, t), a[1] = (g + 8, t), a[2] = (g, t + 4),
/// a[3] = (g + 8, t + 4); B [8, 8] b[0] = (t, g), b[1] = (t + 4, g). The low 13 bits of an operand
/// are ignored, not rounded: round first.
__device__ inline void mma_tf32_1688(float (&d)[4], const unsigned (&a)[4],
                                     const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace flashlab::ptx
