#pragma once

// Matrix products of a step on the CPU, by OpenBLAS (docs/decisions/0013-products-on-the-cpu.md).

#include "runtime/cpu/thread_pool.h"
#include "train/plan/operation.h"

namespace flashlab::train::cpu {

/// Undoes at the beginning of a program what products set in the environment before it, so that
/// other programs started from this one are as they would be.
void give_back_environment();

template <class T>
struct ProductOperands {
  const T* a = nullptr;
  const T* b = nullptr;
  const T* bias = nullptr;    ///< [n]
  const T* addend = nullptr;  ///< like c
  T* c = nullptr;
};

/// The product that the attributes describe. The output is cut into tiles that depend on the shape
/// alone, and one thread makes each: the same bits for any number of threads.
template <class T>
void multiply(internal::ThreadPool& pool, const ProductAttributes& attributes,
              const ProductOperands<T>& operands);

}  // namespace flashlab::train::cpu
