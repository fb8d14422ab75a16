#include "train/cuda/product_steps.h"

#include <numeric>

namespace flashlab::train {
namespace {

using runtime::Epilogue;
using runtime::ProductWork;

// The largest power of two up to 16 that divides the bytes of every row's address.
int alignment_of(const ProductAttributes::Matrix& matrix, std::int64_t element_bytes) {
  const std::int64_t bytes = std::gcd(
      std::gcd(matrix.offset * element_bytes, matrix.leading * element_bytes), std::int64_t{16});
  return static_cast<int>(bytes);
}

bool is_batch(const Operation& operation) {
  const auto& p = std::get<ProductAttributes>(operation.attributes);
  return p.inner * p.outer != 1;
}

}  // namespace

ProductSteps::ProductSteps(const StepPlan& plan, const std::vector<runtime::Place>& places,
                           int scratch, const cuda::CublasLt* library)
    : plan_(plan),
      places_(places),
      scratch_(scratch),
      library_(library),
      taken_(plan.operations.size()),
      work_index_(plan.operations.size(), -1) {
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    if (operation.kind != OperationKind::kProduct || is_batch(operation)) continue;
    work_index_[i] = static_cast<int>(works_.size());
    works_.push_back(work_of(operation));
    take_in(i);
  }
}

bool ProductSteps::serves(const runtime::Product& product) const {
  return library_ == nullptr || library_->prepare(product).ok();
}

bool ProductSteps::reads(std::size_t operation, OperationKind kind, std::size_t input,
                         TensorId id) const {
  return operation < plan_.operations.size() && plan_.operations[operation].kind == kind &&
         plan_.operations[operation].inputs[input] == id;
}

// An epilogue saves the neighbour's reading and writing. GELU is rounded as 16-bit results are:
// fp32 ones keep the kernel's, which is exact to its last bits.
void ProductSteps::take_in(std::size_t i) {
  const Operation& product = plan_.operations[i];
  const auto& p = std::get<ProductAttributes>(product.attributes);
  ProductWork& work = works_.back();
  ProductWork wanted = work;
  const auto replace = [&] {
    if (!serves(wanted.product)) return;
    work = wanted;
    taken_[i + 1] = true;
  };
  const TensorId c = product.outputs[0];
  const bool narrow = size_of(plan_.tensor(c).element) == 2 && p.c.leading % 8 == 0;
  const bool plain = !p.has_addend && !p.accumulate;
  if (narrow && plain && p.has_bias && reads(i + 1, OperationKind::kGelu, 0, c)) {
    wanted.product.epilogue = Epilogue::kBiasGelu;
    wanted.aux = work.c;
    wanted.c = place(plan_.operations[i + 1].outputs[0]);
    replace();
  } else if (narrow && plain && !p.has_bias && reads(i + 1, OperationKind::kGeluBackward, 0, c)) {
    wanted.product.epilogue = Epilogue::kGeluBackward;
    wanted.aux = place(plan_.operations[i + 1].inputs[1]);
    wanted.c = place(plan_.operations[i + 1].outputs[0]);
    replace();
  }
}

Result<ProductWork> ProductSteps::of(std::size_t operation) const {
  if (work_index_[operation] < 0) {
    return Status::unsupported(
        {"attention", plan_.operations[operation].name + " (naive attention)",
         "the library's attention on a GPU", "leave --attention out, or name sm80 or sm90"});
  }
  return works_[static_cast<std::size_t>(work_index_[operation])];
}

ProductWork ProductSteps::work_of(const Operation& operation) const {
  const auto& p = std::get<ProductAttributes>(operation.attributes);
  ProductWork out;
  out.product.m = p.m;
  out.product.n = p.n;
  out.product.k = p.k;
  out.product.alpha = static_cast<float>(p.alpha);
  out.product.beta = p.accumulate || p.has_addend ? 1.0f : 0.0f;
  out.product.tf32 = plan_.tf32;
  matrix(operation.inputs[0], p.a, out.product.a, out.a);
  matrix(operation.inputs[1], p.b, out.product.b, out.b);
  matrix(operation.outputs[0], p.c, out.product.c, out.c);
  out.scratch = {scratch_};
  if (p.has_bias) {
    out.product.epilogue = Epilogue::kBias;
    out.bias = place(operation.inputs[2]);
  }
  if (p.has_addend) {
    runtime::Matrix same;
    matrix(operation.inputs[p.has_bias ? 3 : 2], p.c, same, out.addend);
  }
  return out;
}

void ProductSteps::matrix(TensorId id, const ProductAttributes::Matrix& from, runtime::Matrix& out,
                          runtime::Place& where) const {
  const Element element = plan_.tensor(id).element;
  out.dtype = dtype_of(element);
  out.transposed = from.transposed;
  out.row_stride = from.leading;
  out.alignment_bytes = alignment_of(from, size_of(element));
  where = place(id);
  where.offset_bytes += from.offset * size_of(element);
}

}  // namespace flashlab::train
