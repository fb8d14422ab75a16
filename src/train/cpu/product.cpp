#include "train/cpu/product.h"

#include <cblas.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace flashlab::train::cpu {
namespace {

constexpr const char* kThreadsVariable = "OPENBLAS_NUM_THREADS";
bool g_variable_is_ours = false;

// OpenBLAS reads this when the program starts and would make a thread for every processor then and
// there; the pool hands out tiles instead. 101 is the first priority that programs may use:
// constructors without one, OpenBLAS's among them, come later.
[[gnu::constructor(101)]] void keep_openblas_single_threaded() {
  g_variable_is_ours = std::getenv(kThreadsVariable) == nullptr;
  if (g_variable_is_ours) setenv(kThreadsVariable, "1", 0);
}

struct Tile {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
};

// Sides of a tile: about eight of them along the rows, because packing B again for every tile costs
// 1 / rows of the product.
struct TileShape {
  std::int64_t rows, columns;
};

TileShape tile_shape(std::int64_t m, std::int64_t n) {
  const std::int64_t eighth = (m + 7) / 8;
  const std::int64_t rows = std::clamp<std::int64_t>((eighth + 31) / 32 * 32, 64, 512);
  return {rows, std::min<std::int64_t>(n, 1024)};
}

void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n, std::int64_t k,
          double alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
          double beta, float* c, std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
              static_cast<float>(alpha), a, static_cast<int>(lda), b, static_cast<int>(ldb),
              static_cast<float>(beta), c, static_cast<int>(ldc));
}
void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::int64_t m, std::int64_t n, std::int64_t k,
          double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
          double beta, double* c, std::int64_t ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
              alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta, c,
              static_cast<int>(ldc));
}

// What the product is added to: bias of the columns, addend, both.
template <class T>
void begin_tile(const ProductAttributes& p, const ProductOperands<T>& o, const Tile& tile) {
  for (std::int64_t row = tile.row; row < tile.row + tile.rows; ++row) {
    T* c = o.c + p.c.offset + row * p.c.leading + tile.column;
    const T* addend = o.addend ? o.addend + p.c.offset + row * p.c.leading + tile.column : nullptr;
    if (!o.bias) {
      std::memcpy(c, addend, static_cast<std::size_t>(tile.columns) * sizeof(T));
      continue;
    }
    const T* bias = o.bias + tile.column;
    for (std::int64_t j = 0; j < tile.columns; ++j) c[j] = bias[j] + (addend ? addend[j] : T(0));
  }
}

template <class T>
const T* at(const T* base, const ProductAttributes::Matrix& matrix, std::int64_t inner,
            std::int64_t outer, std::int64_t row, std::int64_t column) {
  const std::int64_t within =
      matrix.transposed ? column * matrix.leading + row : row * matrix.leading + column;
  return base + matrix.offset + inner * matrix.inner_stride + outer * matrix.outer_stride + within;
}

CBLAS_TRANSPOSE transposition(const ProductAttributes::Matrix& matrix) {
  return matrix.transposed ? CblasTrans : CblasNoTrans;
}

template <class T>
void run_tile(const ProductAttributes& p, const ProductOperands<T>& o, const Tile& tile,
              std::int64_t inner, std::int64_t outer) {
  const bool begun = o.bias || o.addend;
  if (begun) begin_tile(p, o, tile);
  const T* a = at(o.a, p.a, inner, outer, tile.row, 0);
  const T* b = at(o.b, p.b, inner, outer, 0, tile.column);
  T* c = const_cast<T*>(at(static_cast<const T*>(o.c), p.c, inner, outer, tile.row, tile.column));
  gemm(transposition(p.a), transposition(p.b), tile.rows, tile.columns, p.k, p.alpha, a,
       p.a.leading, b, p.b.leading, begun || p.accumulate ? 1.0 : 0.0, c, p.c.leading);
}

}  // namespace

void give_back_environment() {
  if (g_variable_is_ours) unsetenv(kThreadsVariable);
  g_variable_is_ours = false;
  // A person's own value is for other programs: tiles stay one thread's each.
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

template <class T>
void multiply(internal::ThreadPool& pool, const ProductAttributes& p,
              const ProductOperands<T>& operands) {
  const std::int64_t batch = p.inner * p.outer;
  const TileShape shape = batch > 1 ? TileShape{p.m, p.n} : tile_shape(p.m, p.n);
  const std::int64_t tile_rows = (p.m + shape.rows - 1) / shape.rows;
  const std::int64_t tile_columns = (p.n + shape.columns - 1) / shape.columns;
  const std::int64_t tiles = tile_rows * tile_columns;
  pool.run(tiles * batch, [&](std::int64_t task, int) {
    const std::int64_t index = task % tiles, product = task / tiles;
    Tile tile;
    tile.row = index % tile_rows * shape.rows;
    tile.column = index / tile_rows * shape.columns;
    tile.rows = std::min(shape.rows, p.m - tile.row);
    tile.columns = std::min(shape.columns, p.n - tile.column);
    run_tile(p, operands, tile, product % p.inner, product / p.inner);
  });
}

template void multiply<float>(internal::ThreadPool&, const ProductAttributes&,
                              const ProductOperands<float>&);
template void multiply<double>(internal::ThreadPool&, const ProductAttributes&,
                               const ProductOperands<double>&);

}  // namespace flashlab::train::cpu
