#include "train/cuda/product_steps.h"

#include <numeric>

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

}  // namespace

ProductSteps::ProductSteps(const StepPlan& plan, const std::vector<runtime::Place>& places,
                           std::vector<int> scratch, const cuda::CublasLt* library)
    : plan_(plan),
      places_(places),
      scratch_(std::move(scratch)),
      library_(library),
      taken_(plan.operations.size()),
      works_(plan.operations.size()) {
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    if (operation.kind != OperationKind::kProduct) continue;
    const auto& p = std::get<ProductAttributes>(operation.attributes);
    for (std::int64_t sequence = 0; sequence < p.outer; ++sequence) {
      works_[i].push_back(work_of(operation, sequence));
    }
    if (p.inner * p.outer == 1) take_in(i);
  }
}

bool ProductSteps::serves(const runtime::Product& product) const {
  return library_ == nullptr || library_->prepare(product).ok();
}

bool ProductSteps::is_gelu_of(std::size_t operation, TensorId id) const {
  return operation < plan_.operations.size() &&
         plan_.operations[operation].kind == OperationKind::kGelu &&
         plan_.operations[operation].stream == plan_.operations[operation - 1].stream &&
         plan_.operations[operation].in(Slot::kX) == id;
}

// An epilogue saves the neighbour's reading and writing. GELU is rounded as 16-bit results are:
// fp32 ones keep the kernel's, which is exact to its last bits. GELU's gradient stays a kernel,
// which adds up the bias's, too: cuBLASLt's epilogue of it costs more than it saves.
void ProductSteps::take_in(std::size_t i) {
  const Operation& product = plan_.operations[i];
  const auto& p = std::get<ProductAttributes>(product.attributes);
  const TensorId c = product.out(Slot::kC);
  const bool narrow = size_of(plan_.tensor(c).element) == 2 && p.c.leading % 8 == 0;
  const bool plain = !product.has(Slot::kAddend) && !p.accumulate;
  if (!narrow || !plain || !product.has(Slot::kBias) || !is_gelu_of(i + 1, c)) return;
  ProductWork wanted = works_[i].front();
  wanted.product.epilogue = Epilogue::kBiasGelu;
  wanted.aux = wanted.c;
  wanted.c = place(plan_.operations[i + 1].out(Slot::kY));
  if (!serves(wanted.product)) return;
  works_[i].front() = wanted;
  taken_[i + 1] = true;
}

std::vector<ProductWork> ProductSteps::of(std::size_t operation) const {
  return works_[operation];
}

ProductWork ProductSteps::work_of(const Operation& operation, std::int64_t sequence) const {
  const auto& p = std::get<ProductAttributes>(operation.attributes);
  ProductWork out;
  out.product.m = p.m;
  out.product.n = p.n;
  out.product.k = p.k;
  out.product.alpha = static_cast<float>(p.alpha);
  out.product.beta = p.accumulate || operation.has(Slot::kAddend) ? 1.0f : 0.0f;
  out.product.tf32 = plan_.tf32;
  out.product.batch = static_cast<int>(p.inner);
  matrix(operation.in(Slot::kA), p.a, sequence, out.product.a, out.a);
  matrix(operation.in(Slot::kB), p.b, sequence, out.product.b, out.b);
  matrix(operation.out(Slot::kC), p.c, sequence, out.product.c, out.c);
  out.scratch = {scratch_[static_cast<std::size_t>(operation.stream)]};
  if (operation.has(Slot::kBias)) {
    out.product.epilogue = Epilogue::kBias;
    out.bias = place(operation.in(Slot::kBias));
  }
  if (operation.has(Slot::kAddend)) {
    runtime::Matrix same;
    matrix(operation.in(Slot::kAddend), p.c, sequence, same, out.addend);
  }
  return out;
}

void ProductSteps::matrix(TensorId id, const ProductAttributes::Matrix& from, std::int64_t sequence,
                          runtime::Matrix& out, runtime::Place& where) const {
  const Element element = plan_.tensor(id).element;
  out.dtype = dtype_of(element);
  out.transposed = from.transposed;
  out.row_stride = from.leading;
  out.batch_stride = from.inner_stride;
  out.alignment_bytes = alignment_of(from, size_of(element));
  where = place(id);
  where.offset_bytes += (from.offset + sequence * from.outer_stride) * size_of(element);
}

}  // namespace flashlab::train
