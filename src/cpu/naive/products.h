#pragma once

// The three shapes of product in attention, block by block. Factors are converted to Acc as they
// are loaded, sums stay in Acc until a block is finished.

#include "api/context_state.h"
#include "cpu/naive/plan.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {

/// Rows [first, first + rows) of one head, and the worker that has them.
struct RowBlock {
  std::int64_t batch, head, first, rows;
  int worker;
};

/// Calls body(RowBlock) for every block of `length` rows of every head, on all threads.
template <class Body>
void for_each_block(ContextState& context, std::int64_t batches, std::int64_t heads,
                    std::int64_t length, const Body& body) {
  const std::int64_t blocks = (length + kNaiveBlock - 1) / kNaiveBlock;
  context.pool().run(batches * heads * blocks, [&](std::int64_t task, int worker) {
    const std::int64_t head = task / blocks, first = task % blocks * kNaiveBlock;
    body(
        RowBlock{head / heads, head % heads, first, std::min(kNaiveBlock, length - first), worker});
  });
}

/// left[rows][dim] right[.][dim]^T, one block of columns after the other (S = Q K^T, dP = dO V^T).
/// finish(r, column, columns, values) gets each row of each block; values has padding to fill.
template <class Acc, class Finish>
void rows_by_rows(const TileKernels<Acc>& kernels, const HeadRows& left, const HeadRows& right,
                  std::int64_t first, std::int64_t rows, std::int64_t right_rows,
                  NaiveBlocks<Acc>& t, const Finish& finish) {
  const std::int64_t ld = padded<Acc>(left.dim);
  load_tile(left, first, rows, ld, t.left);
  for (std::int64_t column = 0; column < right_rows; column += kNaiveBlock) {
    const std::int64_t columns = std::min(kNaiveBlock, right_rows - column);
    const std::int64_t ld_sums = padded<Acc>(columns);
    load_transposed(right, column, columns, ld_sums, t.right, t.lines);
    std::fill_n(t.sums, rows * ld_sums, Acc(0));
    kernels.multiply_add(rows, ld_sums, left.dim, t.left, ld, 1, t.right, ld_sums, t.sums, ld_sums);
    for (std::int64_t r = 0; r < rows; ++r) finish(r, column, columns, t.sums + r * ld_sums);
  }
}

/// sums[rows][dim] = W[first + rows][columns] right[columns][dim]   (O = P V, dQ = dS K)
/// weights(column, columns) is that part of W; pairs that are not visible(r, column) count nothing.
template <class Acc, class Weights, class Visible>
void weighted_rows(const TileKernels<Acc>& kernels, const Weights& weights, const HeadRows& right,
                   std::int64_t first, std::int64_t rows, std::int64_t right_rows,
                   NaiveBlocks<Acc>& t, const Visible& visible) {
  const std::int64_t ld = padded<Acc>(right.dim);
  std::fill_n(t.sums, rows * ld, Acc(0));
  for (std::int64_t column = 0; column < right_rows; column += kNaiveBlock) {
    const std::int64_t columns = std::min(kNaiveBlock, right_rows - column);
    bool finite = load_tile(weights(column, columns), first, rows, kNaiveBlock, t.left);
    finite &= load_tile(right, column, columns, ld, t.right);
    if (finite) {
      kernels.multiply_add(rows, ld, columns, t.left, kNaiveBlock, 1, t.right, ld, t.sums, ld);
    } else {
      multiply_add_visible(
          rows, ld, columns, t.left, kNaiveBlock, 1, t.right, ld, t.sums, ld,
          [&](std::int64_t r, std::int64_t c) { return visible(first + r, column + c); });
    }
  }
}

/// sums[columns][dim] += W[.][column + columns]^T right[.][dim]   (dV = P^T dO, dK = dS^T Q)
/// `weights` is those columns of W; adjust(row, values) changes each of their rows before its use.
template <class Acc, class Visible, class Adjust>
void weighted_columns(const TileKernels<Acc>& kernels, const HeadRows& weights,
                      const HeadRows& right, std::int64_t column, std::int64_t right_rows,
                      NaiveBlocks<Acc>& t, const Visible& visible, const Adjust& adjust) {
  const std::int64_t ld = padded<Acc>(right.dim), columns = weights.dim;
  for (std::int64_t first = 0; first < right_rows; first += kNaiveBlock) {
    const std::int64_t rows = std::min(kNaiveBlock, right_rows - first);
    bool finite = load_tile(weights, first, rows, kNaiveBlock, t.left);
    for (std::int64_t r = 0; r < rows; ++r) adjust(first + r, t.left + r * kNaiveBlock);
    finite &= load_tile(right, first, rows, ld, t.right);
    if (finite) {
      kernels.multiply_add(columns, ld, rows, t.left, 1, kNaiveBlock, t.right, ld, t.sums, ld);
    } else {
      multiply_add_visible(
          columns, ld, rows, t.left, 1, kNaiveBlock, t.right, ld, t.sums, ld,
          [&](std::int64_t c, std::int64_t r) { return visible(first + r, column + c); });
    }
  }
}

}  // namespace flashlab::internal
