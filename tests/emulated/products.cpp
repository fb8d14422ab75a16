// Products of matrices: of a warp at once, of a warpgroup while its threads go on.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numbers.h"
#include "state.h"

namespace emulated {
namespace {

struct MatrixLoad {
  unsigned* out;
  int count;
  unsigned address;
  bool transposed;
};

void load_for_all(void* const* lanes) {
  const auto load = [&](int lane) { return static_cast<const MatrixLoad*>(lanes[lane]); };
  if (std::count(lanes, lanes + 32, nullptr) != 0) stop("ldmatrix lacks lanes of its warp");
  for (int m = 0; m < load(0)->count; ++m) {
    std::uint16_t rows[8][8];
    for (int r = 0; r < 8; ++r) {
      const unsigned address = load(8 * m + r)->address;
      if (address % 16 != 0) stop("an address of ldmatrix is no multiple of 16");
      std::memcpy(rows[r], shared_at(address, 16), 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      const bool transposed = load(lane)->transposed;
      const unsigned low = transposed ? rows[t][g] : rows[g][t];
      const unsigned high = transposed ? rows[t + 1][g] : rows[g][t + 1];
      load(lane)->out[m] = low | high << 16;
    }
  }
}

struct MatrixStore {
  const unsigned* matrices;
  int count;
  unsigned address;
};

void store_for_all(void* const* lanes) {
  const auto store = [&](int lane) { return static_cast<const MatrixStore*>(lanes[lane]); };
  if (std::count(lanes, lanes + 32, nullptr) != 0) stop("stmatrix lacks lanes of its warp");
  for (int m = 0; m < store(0)->count; ++m) {
    for (int lane = 0; lane < 32; ++lane) {
      const unsigned address = store(8 * m + lane / 4)->address;
      if (address % 16 != 0) stop("an address of stmatrix is no multiple of 16");
      std::memcpy(shared_at(address + 4 * (lane % 4), 4), &store(lane)->matrices[m], 4);
    }
  }
}

float number_of(Number number, std::uint16_t bits) {
  return number == Number::kBf16 ? float_of_bf16(bits) : float_of_fp16(bits);
}

struct WarpProduct {
  Number number;
  int depth;
  float* d;
  const unsigned *a, *b;
};

float tf32(unsigned bits) {
  bits &= ~0x1fffu;  // the low 13 bits of an operand are ignored
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

void multiply_for_all(void* const* lanes) {
  if (std::count(lanes, lanes + 32, nullptr) != 0) stop("mma lacks lanes of its warp");
  const auto of = [&](int lane) { return static_cast<const WarpProduct*>(lanes[lane]); };
  const int depth = of(0)->depth;
  const Number number = of(0)->number;
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const WarpProduct& each = *of(lane);
    if (number == Number::kTf32) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = tf32(each.a[i]);
      for (int i = 0; i < 2; ++i) b[t + i * 4][g] = tf32(each.b[i]);
      continue;
    }
    for (int i = 0; i < depth / 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] =
            number_of(number, static_cast<std::uint16_t>(each.a[i] >> 16 * half));
      }
    }
    for (int i = 0; i < depth / 8; ++i) {
      for (int half = 0; half < 2; ++half) {
        b[2 * t + i * 8 + half][g] =
            number_of(number, static_cast<std::uint16_t>(each.b[i] >> 16 * half));
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = of(lane)->d[i];
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
      of(lane)->d[i] = sum;
    }
  }
}

// Of an operand in shared memory with the 128-byte swizzle, as its descriptor says: element (row,
// k), rows along M or N. PTX ISA, "Matrix Descriptor".
float element_at(const WarpgroupProduct& product, unsigned long long descriptor, bool by_rows,
                 unsigned row, unsigned k) {
  const auto field = [&](int bit) {
    return static_cast<unsigned>(descriptor >> bit & 0x3fff) << 4;
  };
  const unsigned outer = by_rows ? k : row, inner = by_rows ? row : k;
  const unsigned leading = by_rows ? inner / 64 * field(16) : 0;
  const unsigned address =
      field(0) + leading + outer / 8 * field(32) + outer % 8 * 128 + inner % 64 * 2;
  std::uint16_t bits;
  std::memcpy(&bits, shared_at(address ^ (address >> 7 & 7) << 4, 2), 2);
  return number_of(product.number, bits);
}

void multiply(const PendingProduct& product, std::size_t warp) {
  const WarpgroupProduct& what = product.what;
  const auto columns = static_cast<unsigned>(what.columns);
  const unsigned first_row = warp % 4 * 16;
  float a[16][16];
  std::vector<float> b(16 * columns);
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      if (what.a_registers == nullptr) {
        a[row][k] = element_at(what, what.a, what.a_by_rows, first_row + row, k);
        continue;
      }
      const unsigned lane = row % 8 * 4 + k % 8 / 2, index = row / 8 + k / 8 * 2;
      a[row][k] =
          number_of(what.number,
                    static_cast<std::uint16_t>(product.a_registers[lane][index] >> 16 * (k % 2)));
    }
  }
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned n = 0; n < columns; ++n) {
      b[k * columns + n] = element_at(what, what.b, what.b_by_rows, n, k);
    }
  }
  float* d = product.d->values.data();
  if (!what.accumulate) std::fill(d, d + 16 * columns, 0.0f);
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      const float left = a[row][k];
      for (unsigned n = 0; n < columns; ++n) d[row * columns + n] += left * b[k * columns + n];
    }
  }
}

// Between a thread's registers of D and the place in [16, columns] that they are.
template <class Move>
void for_each_register(Accumulator& d, const Move& move) {
  const std::size_t columns = d.values.size() / 16;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t i = 0; i < columns / 2; ++i) {
      const std::size_t row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      move(d.lanes[lane][i], d.values[row * columns + column]);
    }
  }
}

void finish_oldest(std::size_t index) {
  Warp& warp = block.warps[index];
  const PendingProduct product = warp.products.front();
  warp.products.pop_front();
  multiply(product, index);
  if (--product.d->products > 0) return;
  for_each_register(*product.d, [](float& held, float& value) { held = value; });
  warp.accumulators.erase(product.d->lanes[0]);
}

void issue(void* const* lanes) {
  if (std::count(lanes, lanes + 32, nullptr) != 0) stop("wgmma lacks lanes of its warp");
  const auto of = [&](int lane) { return static_cast<const WarpgroupProduct*>(lanes[lane]); };
  const auto index = static_cast<std::size_t>(block.current) / 32;
  Warp& warp = block.warps[index];
  PendingProduct product{*of(0), {}, nullptr, self().product_groups};
  constexpr int kBaseOffset = 49, kSwizzle = 62;
  for (const unsigned long long operand : {product.what.a, product.what.b}) {
    if (operand == product.what.a && product.what.a_registers != nullptr) continue;
    if ((operand >> kBaseOffset & 7) != 0 || operand >> kSwizzle != 1) {
      stop("only descriptors of the 128-byte swizzle without a base offset are known here");
    }
  }
  Accumulator* d = product.d = &warp.accumulators[product.what.d];
  const bool fresh = d->products == 0;
  ++d->products;
  d->values.resize(static_cast<std::size_t>(16 * product.what.columns));
  for (int lane = 0; lane < 32; ++lane) {
    const WarpgroupProduct& each = *of(lane);
    const Thread& thread = block.threads[32 * index + static_cast<std::size_t>(lane)];
    if (each.a != product.what.a || each.b != product.what.b) {
      stop("lanes of a warp have different descriptors");
    }
    if (!thread.fenced) stop("a product of a warpgroup without a fence since the last wait");
    product.a_registers[lane] = each.a_registers;
    d->lanes[lane] = each.d;
  }
  if (fresh) {
    // Until it is waited for nobody can know what is in the registers.
    for_each_register(*d, [](float& held, float& value) {
      value = held;
      held = std::nanf("");
    });
  }
  warp.products.push_back(product);
  if (draw(8) == 0) finish_oldest(index);
}

}  // namespace

void finish_products(std::size_t index, int group) {
  const Warp& warp = block.warps[index];
  while (!warp.products.empty() && warp.products.front().group < group) finish_oldest(index);
}

bool advance_products(bool anything) {
  const std::size_t warps = block.warps.size(), first = draw(static_cast<unsigned>(warps));
  for (std::size_t i = 0; i < (anything ? warps : 1); ++i) {
    const std::size_t index = (first + i) % warps;
    if (block.warps[index].products.empty()) continue;
    finish_oldest(index);
    return true;
  }
  return false;
}

void load_matrices(unsigned* out, int count, unsigned address, bool transposed) {
  MatrixLoad mine{out, count, address, transposed};
  together(load_for_all, &mine);
}

void store_matrices(const unsigned* matrices, int count, unsigned address) {
  MatrixStore mine{matrices, count, address};
  together(store_for_all, &mine);
}

void multiply_warp(Number number, int depth, float* d, const unsigned* a, const unsigned* b) {
  WarpProduct mine{number, depth, d, a, b};
  together(multiply_for_all, &mine);
}

void multiply_warpgroup(const WarpgroupProduct& product) {
  WarpgroupProduct mine = product;
  together(issue, &mine);
}

void warpgroup_fence() {
  self().fenced = true;
}

void warpgroup_commit() {
  ++self().product_groups;
}

void warpgroup_wait(int pending) {
  perhaps_give_way();
  finish_products(static_cast<std::size_t>(block.current) / 32, self().product_groups - pending);
  self().fenced = false;
}

}  // namespace emulated
