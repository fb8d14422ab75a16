#pragma once

// Programs of a GPU on the CPU: kernels on an emulated block (tests/emulated/machine.h), products
// by plain loops.

#include <gtest/gtest.h>

#include "emulated/kernels.h"
#include "runtime/program/program.h"
#include "train_kernels.h"

namespace flashlab::train::testing {

inline emulated::Kernels& emulated_kernels() {
  static emulated::Kernels kernels;
  return kernels;
}

inline Element element_of(DType dtype) {
  if (dtype == DType::kFp16) return Element::kFp16;
  return dtype == DType::kBf16 ? Element::kBf16 : Element::kFp32;
}

/// A matrix of a product in memory.
struct HostMatrix {
  Element element;
  const runtime::Matrix& matrix;
  std::byte* data;

  std::byte* at(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    if (matrix.transposed) std::swap(row, column);
    return data +
           (batch * matrix.batch_stride + row * matrix.row_stride + column) * size_of(element);
  }
  double get(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    return from_bytes(element, at(batch, row, column), 1).front();
  }
  void put(std::int64_t batch, std::int64_t row, std::int64_t column, double value) const {
    to_bytes(element, {value}, at(batch, row, column));
  }
};

inline void run_product(const runtime::Program& program, const runtime::Call& call,
                        const runtime::ProductWork& work) {
  const auto host = [&](const runtime::Matrix& matrix, runtime::Place place) {
    const runtime::Place there = place.buffer < 0 ? work.c : place;
    return HostMatrix{element_of(matrix.dtype), matrix,
                      static_cast<std::byte*>(program.address(call, there))};
  };
  const runtime::Product& p = work.product;
  const HostMatrix a = host(p.a, work.a), b = host(p.b, work.b), c = host(p.c, work.c);
  const HostMatrix addend = host(p.c, work.addend), aux = host(p.c, work.aux);
  const HostMatrix bias = host(p.c, work.bias);
  using runtime::Epilogue;
  const bool biased = p.epilogue == Epilogue::kBias || p.epilogue == Epilogue::kBiasGelu;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      const std::int64_t row = i / p.n, column = i % p.n;
      double sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k) sum += a.get(batch, row, k) * b.get(batch, k, column);
      sum *= static_cast<double>(p.alpha);
      if (p.beta != 0) sum += static_cast<double>(p.beta) * addend.get(batch, row, column);
      if (biased) sum += bias.get(0, 0, column);
      if (p.epilogue == Epilogue::kBiasGelu) {
        aux.put(batch, row, column, sum);
        sum = gelu(sum);
      }
      c.put(batch, row, column, sum);
    }
  }
}

/// Runs a step whose kernels, products and memsets are all there is.
inline void run_emulated(const runtime::Program& program, const runtime::Step& step,
                         const runtime::Call& call) {
  if (const auto* product = std::get_if<runtime::ProductWork>(&step.work)) {
    return run_product(program, call, *product);
  }
  EXPECT_EQ(emulated::run_step(emulated_kernels(), program, step, call), "");
}

}  // namespace flashlab::train::testing
