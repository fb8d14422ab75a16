#pragma once

// Tile registers as plain loops: what src/cpu/simd/amx_tiles-inl.h is on a processor that has them.

#include <cstdint>
#include <cstring>

namespace flashlab::testing {

/// How often and when the tile state was taken, for the test.
struct TileState {
  static inline thread_local int open_sessions = 0;
  static inline thread_local long sessions = 0;
  static inline thread_local long outside_session = 0;  ///< tile instructions without a session
};

struct SoftwareTiles {
  class Session {
   public:
    Session() { ++TileState::open_sessions, ++TileState::sessions; }
    ~Session() { --TileState::open_sessions; }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int kTile>
  static void zero() {
    std::memset(use(kTile), 0, sizeof(Tile));
  }
  template <int kTile>
  static void load(const void* base, std::int64_t stride_bytes) {
    Tile& tile = *use(kTile);
    for (int row = 0; row < 16; ++row) {
      std::memcpy(tile.rows[row], static_cast<const char*>(base) + row * stride_bytes, 64);
    }
  }
  template <int kTile>
  static void store(void* base, std::int64_t stride_bytes) {
    const Tile& tile = *use(kTile);
    for (int row = 0; row < 16; ++row) {
      std::memcpy(static_cast<char*>(base) + row * stride_bytes, tile.rows[row], 64);
    }
  }
  template <int kRow, int kColumn>
  static void multiply_add() {
    Tile& c = *use(kRow * 2 + kColumn);
    const Tile& a = *use(4 + kRow);
    const Tile& b = *use(6 + kColumn);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        float sum = as_float(c.rows[i][j]);
        for (int k = 0; k < 16; ++k) {
          sum += as_float(a.rows[i][k] << 16) * as_float(b.rows[k][j] << 16);
          sum += as_float(a.rows[i][k] & 0xffff0000u) * as_float(b.rows[k][j] & 0xffff0000u);
        }
        std::memcpy(&c.rows[i][j], &sum, sizeof sum);
      }
    }
  }

 private:
  struct Tile {
    std::uint32_t rows[16][16];
  };
  static float as_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  static Tile* use(int tile) {
    static thread_local Tile tiles[8];
    if (TileState::open_sessions == 0) ++TileState::outside_session;
    return &tiles[tile];
  }
};

}  // namespace flashlab::testing
