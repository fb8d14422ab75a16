#include "runtime/program/cpu_executor.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "runtime/program/nvtx.h"
#include "runtime/program/observer.h"

namespace flashlab::runtime {
namespace {

double load(DType dtype, const void* data, std::int64_t at) {
  if (dtype == DType::kFp64) return static_cast<const double*>(data)[at];
  if (dtype == DType::kFp32) return static_cast<const float*>(data)[at];
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(data)[at]} << 16);
}

void store(DType dtype, void* data, std::int64_t at, double value) {
  if (dtype == DType::kFp64) {
    static_cast<double*>(data)[at] = value;
    return;
  }
  const auto single = static_cast<float>(value);
  if (dtype == DType::kFp32) {
    static_cast<float*>(data)[at] = single;
  } else {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(single);
    const std::uint32_t even = single == single ? 0x7fffu + ((bits >> 16) & 1u) : 0u;
    static_cast<std::uint16_t*>(data)[at] = static_cast<std::uint16_t>((bits + even) >> 16);
  }
}

std::int64_t index_of(const Matrix& m, std::int64_t batch, std::int64_t row, std::int64_t column) {
  if (m.transposed) std::swap(row, column);
  return batch * m.batch_stride + row * m.row_stride + column;
}

bool can_multiply(DType dtype) {
  return dtype == DType::kFp64 || dtype == DType::kFp32 || dtype == DType::kBf16;
}

}  // namespace

Status multiply_plainly(internal::ThreadPool& pool, const Product& p, const void* a, const void* b,
                        void* c) {
  for (const Matrix* matrix : {&p.a, &p.b, &p.c}) {
    if (can_multiply(matrix->dtype)) continue;
    return Status::unsupported(
        {"product on cpu", to_string(matrix->dtype), "fp64, fp32 or bf16", ""});
  }
  const bool wide = p.a.dtype == DType::kFp64;
  const auto row = [&](std::int64_t task, int) {
    const std::int64_t batch = task / p.m, i = task % p.m;
    for (std::int64_t j = 0; j < p.n; ++j) {
      double wide_sum = 0;
      float sum = 0;
      for (std::int64_t n = 0; n < p.k; ++n) {
        const double x = load(p.a.dtype, a, index_of(p.a, batch, i, n));
        const double y = load(p.b.dtype, b, index_of(p.b, batch, n, j));
        if (wide) {
          wide_sum += x * y;
        } else {
          sum += static_cast<float>(x) * static_cast<float>(y);
        }
      }
      const std::int64_t at = index_of(p.c, batch, i, j);
      const double kept = p.beta == 0 ? 0 : double{p.beta} * load(p.c.dtype, c, at);
      store(p.c.dtype, c, at, p.alpha * (wide ? wide_sum : double{sum}) + kept);
    }
  };
  pool.run(p.m * p.batch, row);
  return {};
}

Status CpuExecutor::run(const Call& call) const {
  if (Status s = program_.check(); !s.ok()) return s;
  if (Status s = program_.check(call); !s.ok()) return s;
  const auto address = [&](Place place) { return program_.address(call, place); };
  NvtxPath path;
  for (std::size_t i = 0; i < program_.steps().size(); ++i) {
    const Step& step = program_.steps()[i];
    if (std::holds_alternative<KernelWork>(step.work)) {
      return Status::unsupported(
          {fmt::format("step {} '{}'", i, step.name), "a GPU's kernel on cpu", "a CUDA device",
           fmt::format("{} of {} steps have run", i, program_.steps().size())});
    }
    path.move_to(step.scope, step.name);
    Status status;
    internal::observed_step(step.name, [&] {
      if (const auto* memset = std::get_if<MemsetWork>(&step.work)) {
        std::memset(address(memset->target), memset->value, memset->bytes);
      } else if (const auto* copy = std::get_if<CopyWork>(&step.work)) {
        std::memmove(address(copy->to), address(copy->from), copy->bytes);
      } else if (const auto* product = std::get_if<ProductWork>(&step.work)) {
        status = multiply_(pool_, product->product, address(product->a), address(product->b),
                           address(product->c));
      } else if (const auto* host = std::get_if<HostWork>(&step.work)) {
        std::vector<void*> addresses;
        for (const Place& place : host->places) addresses.push_back(address(place));
        host->function(addresses);
      }
    });
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace flashlab::runtime
