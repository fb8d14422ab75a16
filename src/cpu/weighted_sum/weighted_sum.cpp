// The edge of the weighted sum: checks, scratch memory, the choice of form.

#include "cpu/weighted_sum/weighted_sum.h"

#include <fmt/format.h>

#include <string>

#include "api/context_state.h"
#include "cpu/weighted_sum/kernels.h"
#include "runtime/guard.h"

namespace flashlab::internal {
namespace {

// Memory of one argument, as addresses: [begin, end) in bytes.
struct Extent {
  const char* name;
  std::uintptr_t begin;
  std::uintptr_t end;
};

Extent extent(const char* name, const float* data, std::int64_t count) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return {name, begin, begin + static_cast<std::uintptr_t>(count) * sizeof(float)};
}

std::int64_t span(std::int64_t rows, std::int64_t dim, std::int64_t row_stride) {
  return rows == 0 || dim == 0 ? 0 : (rows - 1) * row_stride + dim;
}

template <class Element>
Status check_matrix(const char* name, const MatrixView<Element>& m) {
  if (m.rows < 0 || m.dim < 0) {
    return Status::invalid({fmt::format("{}.shape", name), fmt::format("[{}, {}]", m.rows, m.dim),
                            "extents >= 0", ""});
  }
  if (m.rows > 1 && m.row_stride < m.dim) {
    return Status::invalid({fmt::format("{}.row_stride", name), fmt::format("{}", m.row_stride),
                            fmt::format("at least the row's {} elements", m.dim),
                            "strides are in elements; rows may not overlap"});
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(m.rows, m.rows > 1 ? m.row_stride : m.dim, &bytes) ||
      __builtin_mul_overflow(bytes, std::int64_t{8}, &bytes)) {
    return Status::invalid({fmt::format("{}.shape", name), fmt::format("[{}, {}]", m.rows, m.dim),
                            "offsets that fit 63 bits in bytes", "use smaller extents"});
  }
  return {};
}

Status check_pointer(const Extent& e) {
  if (e.begin == e.end || e.begin != 0) return {};
  return Status::invalid({fmt::format("{}.data", e.name), "a null pointer",
                          fmt::format("memory of {} bytes", e.end - e.begin), ""});
}

Status check_apart(const Extent& output, const Extent& other) {
  if (output.end <= other.begin || other.end <= output.begin) return {};
  return Status::invalid(
      {fmt::format("{}.data", output.name), fmt::format("memory that overlaps {}", other.name),
       "an output that overlaps no other tensor", "give the output memory of its own"});
}

// Every extent has memory, and each of the first `outputs` overlaps none of the others.
Status check_memory(std::initializer_list<Extent> extents, std::size_t outputs) {
  for (const Extent& e : extents) {
    if (Status s = check_pointer(e); !s.ok()) return s;
  }
  for (std::size_t i = 0; i < outputs; ++i) {
    for (std::size_t j = i + 1; j < extents.size(); ++j) {
      const Extent &a = extents.begin()[i], &b = extents.begin()[j];
      if (a.begin == a.end || b.begin == b.end) continue;
      if (Status s = check_apart(a, b); !s.ok()) return s;
    }
  }
  return {};
}

Status forward(const Context& context, WeightedSumForm form, const WeightedSumTensors& t) {
  if (Status s = check_matrix("x", t.x); !s.ok()) return s;
  if (Status s = check_memory({extent("y", t.y, t.x.rows),
                               extent("x", t.x.data, span(t.x.rows, t.x.dim, t.x.row_stride)),
                               extent("w", t.w, t.x.dim)},
                              1);
      !s.ok()) {
    return s;
  }
  if (form == WeightedSumForm::kNaive) {
    naive_forward(t);
  } else {
    vector_forward(context.state().pool(), t);
  }
  return {};
}

Status backward(const Context& context, WeightedSumForm form, const WeightedSumTensors& t) {
  if (Status s = check_matrix("x", t.x); !s.ok()) return s;
  if (Status s = check_matrix("dx", t.dx); !s.ok()) return s;
  if (t.dx.rows != t.x.rows || t.dx.dim != t.x.dim) {
    return Status::invalid({"dx.shape", fmt::format("[{}, {}]", t.dx.rows, t.dx.dim),
                            fmt::format("[{}, {}], the shape of x", t.x.rows, t.x.dim), ""});
  }
  if (Status s = check_memory({extent("dx", t.dx.data, span(t.x.rows, t.x.dim, t.dx.row_stride)),
                               extent("dw", t.dw, t.x.dim),
                               extent("x", t.x.data, span(t.x.rows, t.x.dim, t.x.row_stride)),
                               extent("w", t.w, t.x.dim), extent("dy", t.dy, t.x.rows)},
                              2);
      !s.ok()) {
    return s;
  }
  if (form == WeightedSumForm::kNaive) {
    naive_backward(t);
    return {};
  }
  const std::size_t bytes = static_cast<std::size_t>(RowChunks(t.x.rows).count) *
                            static_cast<std::size_t>(t.x.dim) * sizeof(float);
  if (bytes == 0) {
    vector_backward(context.state().pool(), t, nullptr);
    return {};
  }
  auto memory =
      context.allocator().allocate(bytes, 64, {}, Tag{"workspace", "weighted_sum.backward"});
  if (!memory.ok()) return memory.status();
  vector_backward(context.state().pool(), t, static_cast<float*>(*memory));
  context.allocator().deallocate(*memory, bytes, {});
  return {};
}

}  // namespace

Status weighted_sum_forward(const Context& context, WeightedSumForm form,
                            const WeightedSumTensors& tensors) {
  return guard<Status>([&] { return forward(context, form, tensors); });
}

Status weighted_sum_backward(const Context& context, WeightedSumForm form,
                             const WeightedSumTensors& tensors) {
  return guard<Status>([&] { return backward(context, form, tensors); });
}

WeightedSumCost weighted_sum_forward_cost(std::int64_t rows, std::int64_t dim) noexcept {
  const double n = static_cast<double>(rows), m = static_cast<double>(dim);
  return {2 * n * m, 4 * (n * m + m + n)};
}

WeightedSumCost weighted_sum_backward_cost(std::int64_t rows, std::int64_t dim) noexcept {
  const double n = static_cast<double>(rows), m = static_cast<double>(dim);
  return {3 * n * m, 4 * (2 * n * m + 2 * m + n)};
}

}  // namespace flashlab::internal
