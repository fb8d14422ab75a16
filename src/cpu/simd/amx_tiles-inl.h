#pragma once

// The tile registers of Intel AMX: one function per instruction. Everything that knows these
// instructions is here; amx-inl.h is written against this interface, so that a test can put plain
// loops in its place on a processor without AMX.
//
// HW: eight tiles of 16 rows x 64 bytes. A tile instruction names its tiles in its encoding, hence
// template arguments. Tile state is per thread, and 8 KiB of it are saved at every context switch
// while it is in use, so a task releases it.

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// g++ 12's tile loads do not say that they read memory: without a barrier it may move or drop the
/// stores that made an operand.
HWY_INLINE void operands_are_in_memory() {
  asm volatile("" ::: "memory");
}

struct HardwareTiles {
  /// All eight tiles: 16 rows of 64 bytes. The constructor configures this thread, the destructor
  /// gives the tile state back.
  class Session {
   public:
    Session() {
      alignas(64) Configuration configuration = {};
      configuration.palette = 1;
      for (int tile = 0; tile < 8; ++tile) {
        configuration.bytes_per_row[tile] = 64;
        configuration.rows[tile] = 16;
      }
      operands_are_in_memory();
      _tile_loadconfig(&configuration);
    }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

   private:
    struct Configuration {  // Intel SDM, LDTILECFG
      uint8_t palette;
      uint8_t start_row;
      uint8_t reserved[14];
      uint16_t bytes_per_row[16];
      uint8_t rows[16];
    };
    static_assert(sizeof(Configuration) == 64);
  };

// The intrinsics paste their tile number into assembly text, so it must be a literal.
#define FLASHLAB_EACH_TILE(call) \
  if constexpr (kTile == 0) {    \
    call(0);                     \
  }                              \
  if constexpr (kTile == 1) {    \
    call(1);                     \
  }                              \
  if constexpr (kTile == 2) {    \
    call(2);                     \
  }                              \
  if constexpr (kTile == 3) {    \
    call(3);                     \
  }                              \
  if constexpr (kTile == 4) {    \
    call(4);                     \
  }                              \
  if constexpr (kTile == 5) {    \
    call(5);                     \
  }                              \
  if constexpr (kTile == 6) {    \
    call(6);                     \
  }                              \
  if constexpr (kTile == 7) {    \
    call(7);                     \
  }

  /// Tile = 0.
  template <int kTile>
  static HWY_INLINE void zero() {
#define FLASHLAB_CALL(tile) _tile_zero(tile)
    FLASHLAB_EACH_TILE(FLASHLAB_CALL)
#undef FLASHLAB_CALL
  }

  /// Tile row i = the 64 bytes at base + i * stride_bytes.
  template <int kTile>
  static HWY_INLINE void load(const void* base, int64_t stride_bytes) {
    operands_are_in_memory();
#define FLASHLAB_CALL(tile) _tile_loadd(tile, base, stride_bytes)
    FLASHLAB_EACH_TILE(FLASHLAB_CALL)
#undef FLASHLAB_CALL
  }

  template <int kTile>
  static HWY_INLINE void store(void* base, int64_t stride_bytes) {
#define FLASHLAB_CALL(tile) _tile_stored(tile, base, stride_bytes)
    FLASHLAB_EACH_TILE(FLASHLAB_CALL)
#undef FLASHLAB_CALL
    operands_are_in_memory();
  }
#undef FLASHLAB_EACH_TILE

  /// C (tile kRow * 2 + kColumn) += A (tile 4 + kRow) B (tile 6 + kColumn), over 16 pairs of bf16:
  ///   C[i][j] += sum_k A[i][k].low * B[k][j].low + A[i][k].high * B[k][j].high
  template <int kRow, int kColumn>
  static HWY_INLINE void multiply_add() {
    if constexpr (kRow == 0 && kColumn == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRow == 0 && kColumn == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRow == 1 && kColumn == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRow == 1 && kColumn == 1) _tile_dpbf16ps(3, 5, 7);
  }
};

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
