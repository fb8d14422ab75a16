#include "train/cuda/product_steps.h"

#include <numeric>
#include <utility>

#include "train/cuda/kernel_config.h"

namespace flashlab::train {
namespace {

using runtime::Epilogue;
using runtime::ProductWork;

// The largest power of two up to 16 that divides the bytes of every row's address.
int alignment_of(const ProductAttributes::Matrix& matrix, std::int64_t element_bytes) {
  std::int64_t bytes = 16;
  for (const std::int64_t elements :
       {matrix.offset, matrix.leading, matrix.inner_stride, matrix.outer_stride}) {
    bytes = std::gcd(bytes, elements * element_bytes);
  }
  return static_cast<int>(bytes);
}

runtime::Matrix matrix_of(const StepPlan& plan, TensorId id,
                          const ProductAttributes::Matrix& from) {
  const Element element = plan.tensor(id).element;
  return {.dtype = dtype_of(element),
          .transposed = from.transposed,
          .row_stride = from.leading,
          .batch_stride = from.inner_stride,
          .alignment_bytes = alignment_of(from, size_of(element))};
}

}  // namespace

std::vector<ProductWork> products_of(const StepPlan& plan,
                                     const std::vector<runtime::Place>& places, int scratch,
                                     const Operation& operation) {
  const auto& p = std::get<ProductAttributes>(operation.attributes);
  const bool gelu = operation.kind == OperationKind::kProductGelu;
  runtime::Product product = {.m = p.m,
                              .n = p.n,
                              .k = p.k,
                              .batch = static_cast<int>(p.inner),
                              .a = matrix_of(plan, operation.in(Slot::kA), p.a),
                              .b = matrix_of(plan, operation.in(Slot::kB), p.b),
                              .c = matrix_of(plan, operation.out(Slot::kC), p.c),
                              .alpha = static_cast<float>(p.alpha),
                              .tf32 = plan.tf32};
  if (p.accumulate || operation.has(Slot::kAddend)) product.beta = 1;
  if (operation.has(Slot::kBias)) product.epilogue = gelu ? Epilogue::kBiasGelu : Epilogue::kBias;
  std::vector<ProductWork> out;
  for (std::int64_t sequence = 0; sequence < p.outer; ++sequence) {
    const auto at = [&](TensorId id, const ProductAttributes::Matrix& from = {}) {
      if (id == kNoTensor) return runtime::Place();
      return shifted(
          places[static_cast<std::size_t>(id)],
          (from.offset + sequence * from.outer_stride) * size_of(plan.tensor(id).element));
    };
    ProductWork& work = out.emplace_back(ProductWork{.product = product,
                                                     .a = at(operation.in(Slot::kA), p.a),
                                                     .b = at(operation.in(Slot::kB), p.b),
                                                     .c = at(operation.out(Slot::kC), p.c),
                                                     .scratch = {scratch},
                                                     .addend = at(operation.in(Slot::kAddend), p.c),
                                                     .bias = at(operation.in(Slot::kBias))});
    if (gelu) work.aux = std::exchange(work.c, at(operation.out(Slot::kY)));
  }
  return out;
}

}  // namespace flashlab::train
