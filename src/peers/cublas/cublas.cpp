#include "peers/cublas/cublas.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "api/context_state.h"
#include "cuda/kernels/composed_arguments.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "peers/cublas/cublas_lt.h"
#include "runtime/kernel_store/config.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab::peers {
namespace {

using internal::Feature;
using internal::Geometry;

constexpr std::int64_t kMaxHeads = 65535;  // of a launch's grid in y

// A view of [batch, seqlen, heads, dim] as one matrix per head of one batch element: rows are
// tokens. Heads `step` apart make the batch of a product.
struct HeadMatrices {
  Matrix matrix;
  std::int64_t batch_stride = 0, head_stride = 0;
  std::int64_t element_bytes = 4;

  HeadMatrices(const TensorSpec& spec, std::int64_t step) {
    matrix.dtype = spec.dtype;
    // One row has no stride; cuBLASLt wants one that spans the row.
    matrix.row_stride = std::max(spec.strides[1], spec.shape[3]);
    matrix.batch_stride = spec.strides[2] * step;
    matrix.alignment_bytes = cuda::row_alignment_bytes(spec);
    batch_stride = spec.strides[0];
    head_stride = spec.strides[2];
    element_bytes = static_cast<std::int64_t>(size_of(spec.dtype));
  }
  template <class Pointer>
  Pointer at(Pointer data, std::int64_t b, std::int64_t h) const {
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    return static_cast<Byte*>(data) + (b * batch_stride + h * head_stride) * element_bytes;
  }
};

Matrix transposed(Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}

class CublasPlan final : public internal::PlanState {
 public:
  Status forward(internal::ContextState& context, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace) const override;
  Status backward(internal::ContextState& context, Stream stream, const BackwardTensors& tensors,
                  Workspace workspace) const override;
  Status prepare(internal::ContextState& context) const override;

  cuda::KernelSpec kernel;
  cuda::KernelSpec empty_rows;  ///< no source where no row can be empty, or dq accumulates
  // Regions of the workspace; for fp32 the probabilities lie where the scores lay.
  std::size_t scores = 0, probabilities = 0, d_probabilities = 0, d_scores = 0, library = 0,
              empty = 0;

 private:
  friend class Call;
  bool tf32() const { return problem.options.precision == Precision::kTf32; }
};

// One call: the pieces that every product of it shares.
class Call {
 public:
  Call(const CublasPlan& plan, internal::ContextState& context, Stream stream, Workspace workspace)
      : plan_(plan),
        gpu_(*context.gpu()),
        current_(gpu_.current()),
        stream_(static_cast<cuda::CUstream>(stream.handle)),
        base_(static_cast<char*>(workspace.data)) {
    const Geometry& g = plan.geometry;
    score_.row_stride = g.seqlen_k;
    score_.batch_stride = g.group() * g.seqlen_q * g.seqlen_k;
    // Rows of scores are packed: an odd length leaves element alignment only.
    score_.alignment_bytes = static_cast<int>(std::gcd<std::int64_t>(16, g.seqlen_k * 4));
    weight_ = score_;
    weight_.dtype = g.dtype;
    const auto size = static_cast<std::int64_t>(size_of(g.dtype));
    weight_.alignment_bytes = static_cast<int>(std::gcd<std::int64_t>(16, g.seqlen_k * size));
  }

  Status open() {
    auto library = CublasLt::get();
    if (!library.ok()) return library.status();
    library_ = *library;
    auto kernel = cuda::load_kernel(gpu_, plan_.kernel);
    if (!kernel.ok()) return kernel.status();
    kernel_ = *kernel;
    if (plan_.empty_rows.source.empty()) return {};
    auto empty_rows = cuda::load_kernel(gpu_, plan_.empty_rows);
    if (!empty_rows.ok()) return empty_rows.status();
    empty_rows_ = *empty_rows;
    return {};
  }

  Status multiply(Product product, const void* a, const void* b, void* c) const {
    product.batch = static_cast<int>(plan_.geometry.heads_k);
    product.tf32 = plan_.tf32();
    return library_->multiply(product, a, b, c, base_ + plan_.library, stream_);
  }

  template <class Arguments>
  Status launch(Arguments& arguments) const {
    return launch(*kernel_, arguments);
  }
  Status launch_empty_rows(device::ComposedEmptyRows& arguments) const {
    return launch(*empty_rows_, arguments);
  }
  /// A mark per row of one batch element; null where no row can be empty.
  unsigned char* empty_marks() const {
    return empty_rows_ == nullptr ? nullptr : reinterpret_cast<unsigned char*>(base_) + plan_.empty;
  }

  /// The scores of the group's member `g` in a region, for all key heads.
  void* region(std::size_t offset, DType dtype, std::int64_t member) const {
    const Geometry& g = plan_.geometry;
    return base_ + offset +
           static_cast<std::size_t>(member * g.seqlen_q * g.seqlen_k) * size_of(dtype);
  }

  const Matrix& score() const { return score_; }
  const Matrix& weight() const { return weight_; }

 private:
  // A block per row.
  template <class Arguments>
  Status launch(const cuda::Kernel& kernel, Arguments& arguments) const {
    cuda::LaunchShape shape;
    shape.grid_x = static_cast<unsigned>(plan_.geometry.seqlen_q);
    shape.grid_y = static_cast<unsigned>(plan_.geometry.heads_q);
    shape.threads = kCublasKernelThreads;
    void* pointers[] = {&arguments};
    return cuda::launch(gpu_, kernel, shape, stream_, pointers);
  }

  const CublasPlan& plan_;
  cuda::GpuDevice& gpu_;
  cuda::ContextGuard current_;
  cuda::CUstream stream_;
  char* base_;
  Matrix score_, weight_;  ///< fp32 scores; probabilities in the inputs' type
  const CublasLt* library_ = nullptr;
  const cuda::Kernel* kernel_ = nullptr;
  const cuda::Kernel* empty_rows_ = nullptr;
};

Status CublasPlan::prepare(internal::ContextState& context) const {
  Call call(*this, context, Stream{}, Workspace{});
  return call.open();
}

Status CublasPlan::forward(internal::ContextState& context, Stream stream, const ForwardTensors& t,
                           Workspace workspace) const {
  Call call(*this, context, stream, workspace);
  if (Status s = call.open(); !s.ok()) return s;
  const Geometry& g = geometry;
  const std::int64_t group = g.group();
  const HeadMatrices q(t.q.spec, group), k(t.k.spec, 1), v(t.v.spec, 1), o(t.o.spec, group);
  const auto arguments = cuda::arguments_of(g, t);
  Product s{.m = g.seqlen_q,
            .n = g.seqlen_k,
            .k = g.head_dim,
            .a = q.matrix,
            .b = transposed(k.matrix),
            .c = call.score()};
  Product pv{.m = g.seqlen_q,
             .n = g.head_dim_v,
             .k = g.seqlen_k,
             .a = call.weight(),
             .b = v.matrix,
             .c = o.matrix};
  for (std::int64_t b = 0; b < g.batch; ++b) {
    Status status;
    for (std::int64_t m = 0; m < group && status.ok(); ++m) {
      status = call.multiply(s, q.at(t.q.data, b, m), k.at(t.k.data, b, 0),
                             call.region(scores, DType::kFp32, m));
    }
    if (!status.ok()) return status;
    device::ComposedSoftmax softmax{static_cast<const float*>(call.region(scores, DType::kFp32, 0)),
                                    call.region(probabilities, g.dtype, 0),
                                    arguments.lse,
                                    arguments.mask,
                                    arguments.shape,
                                    static_cast<int>(b),
                                    call.empty_marks()};
    if (status = call.launch(softmax); !status.ok()) return status;
    for (std::int64_t m = 0; m < group && status.ok(); ++m) {
      status = call.multiply(pv, call.region(probabilities, g.dtype, m), v.at(t.v.data, b, 0),
                             o.at(t.o.data, b, m));
    }
    if (status.ok() && softmax.empty != nullptr) {
      device::ComposedEmptyRows rows{softmax.empty, arguments.o, arguments.shape.seqlen_q,
                                     arguments.shape.head_dim_v, softmax.batch};
      status = call.launch_empty_rows(rows);
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status CublasPlan::backward(internal::ContextState& context, Stream stream,
                            const BackwardTensors& t, Workspace workspace) const {
  Call call(*this, context, stream, workspace);
  if (Status s = call.open(); !s.ok()) return s;
  const Geometry& g = geometry;
  const std::int64_t group = g.group();
  const HeadMatrices q(t.q.spec, group), k(t.k.spec, 1), v(t.v.spec, 1);
  const HeadMatrices d_o(t.d_o.spec, group), dq(t.dq.spec, group), dk(t.dk.spec, 1),
      dv(t.dv.spec, 1);
  const auto arguments = cuda::arguments_of(g, t);
  const float kept = problem.options.gradient_mode == GradientMode::kAccumulate ? 1.0f : 0.0f;
  const Matrix& weight = call.weight();
  const Product s{.m = g.seqlen_q,
                  .n = g.seqlen_k,
                  .k = g.head_dim,
                  .a = q.matrix,
                  .b = transposed(k.matrix),
                  .c = call.score()};
  const Product dp{.m = g.seqlen_q,
                   .n = g.seqlen_k,
                   .k = g.head_dim_v,
                   .a = d_o.matrix,
                   .b = transposed(v.matrix),
                   .c = call.score()};
  const Product of_q{.m = g.seqlen_q,
                     .n = g.head_dim,
                     .k = g.seqlen_k,
                     .a = weight,
                     .b = k.matrix,
                     .c = dq.matrix,
                     .alpha = static_cast<float>(g.scale),
                     .beta = kept};
  Product of_k{.m = g.seqlen_k,
               .n = g.head_dim,
               .k = g.seqlen_q,
               .a = transposed(weight),
               .b = q.matrix,
               .c = dk.matrix,
               .alpha = static_cast<float>(g.scale)};
  Product of_v{.m = g.seqlen_k,
               .n = g.head_dim_v,
               .k = g.seqlen_q,
               .a = transposed(weight),
               .b = d_o.matrix,
               .c = dv.matrix};
  for (std::int64_t b = 0; b < g.batch; ++b) {
    Status status;
    const auto run = [&](const Product& product, const void* x, const void* y, void* z) {
      if (status.ok()) status = call.multiply(product, x, y, z);
    };
    for (std::int64_t m = 0; m < group; ++m) {
      run(s, q.at(t.q.data, b, m), k.at(t.k.data, b, 0), call.region(scores, DType::kFp32, m));
      run(dp, d_o.at(t.d_o.data, b, m), v.at(t.v.data, b, 0),
          call.region(d_probabilities, DType::kFp32, m));
    }
    if (!status.ok()) return status;
    device::ComposedGradient gradient{
        static_cast<const float*>(call.region(scores, DType::kFp32, 0)),
        static_cast<const float*>(call.region(d_probabilities, DType::kFp32, 0)),
        call.region(probabilities, g.dtype, 0),
        call.region(d_scores, g.dtype, 0),
        arguments.o,
        arguments.d_o,
        arguments.lse,
        arguments.d_lse,
        arguments.mask,
        arguments.shape,
        static_cast<int>(b),
        call.empty_marks()};
    if (status = call.launch(gradient); !status.ok()) return status;
    for (std::int64_t m = 0; m < group; ++m) {
      const void* ds = call.region(d_scores, g.dtype, m);
      of_k.beta = of_v.beta = m > 0 ? 1.0f : kept;  // the group's members add up
      run(of_q, ds, k.at(t.k.data, b, 0), dq.at(t.dq.data, b, m));
      run(of_k, ds, q.at(t.q.data, b, m), dk.at(t.dk.data, b, 0));
      run(of_v, call.region(probabilities, g.dtype, m), d_o.at(t.d_o.data, b, m),
          dv.at(t.dv.data, b, 0));
    }
    if (status.ok() && gradient.empty != nullptr) {
      device::ComposedEmptyRows rows{gradient.empty, arguments.dq, arguments.shape.seqlen_q,
                                     arguments.shape.head_dim, gradient.batch};
      status = call.launch_empty_rows(rows);
    }
    if (!status.ok()) return status;
  }
  return {};
}

// ---------------------------------------------------------------------------------------------
// Planning
// ---------------------------------------------------------------------------------------------

Status refuse(std::string what, std::string got, std::string expected) {
  return Status::unsupported(
      {"cublas: " + what, std::move(got), std::move(expected), "use another implementation"});
}

// cuBLASLt reads matrices: rows that lie apart and do not overlap.
Status check_matrix(const char* name, const TensorSpec& spec) {
  if (spec.shape[1] > 1 && spec.strides[1] < spec.shape[3]) {
    return refuse(fmt::format("{}.strides[1]", name), fmt::format("{}", spec.strides[1]),
                  fmt::format("at least the row's {} elements", spec.shape[3]));
  }
  return {};
}

Status check_problem(const Problem& p, const Geometry& g) {
  for (const auto& [name, spec] : {std::pair<const char*, const TensorSpec*>{"q", &p.q},
                                   {"k", &p.k},
                                   {"v", &p.v},
                                   {"o", &p.o},
                                   {"d_o", p.d_o ? &*p.d_o : &p.o}}) {
    if (Status s = check_matrix(name, *spec); !s.ok()) return s;
  }
  if (g.heads_q > kMaxHeads) {
    return refuse("heads_q", fmt::format("{}", g.heads_q), fmt::format("at most {}", kMaxHeads));
  }
  if (g.seqlen_k == 0) return refuse("seqlen_k", "0", "at least one key");
  if (p.pass == Pass::kForward) return {};
  if (p.d_o->dtype != g.dtype) {
    return refuse("d_o.dtype", to_string(p.d_o->dtype), fmt::format("q's {}", to_string(g.dtype)));
  }
  const bool rounded = p.dk->dtype != DType::kFp32 || p.dv->dtype != DType::kFp32;
  if (g.group() > 1 && rounded) {
    return refuse("dk.dtype", to_string(p.dk->dtype),
                  "fp32 where query heads share a key head: their sum would be rounded each time");
  }
  return {};
}

void add_step(CublasPlan& plan, PlanStep::Kind kind, std::string name, std::string configuration) {
  PlanStep step;
  step.kind = kind;
  step.name = std::move(name);
  step.configuration = std::move(configuration);
  if (!plan.steps.empty()) step.depends_on = {static_cast<int>(plan.steps.size()) - 1};
  plan.steps.push_back(std::move(step));
}

// By the mask or the bounds. (A row whose visible scores are all -inf is empty too: inputs hold
// infinities, and a V that is not finite beside them is not worth a launch.) A dq that is added to
// cannot be mended: there such a row beside a K that is not finite becomes NaN.
bool clears_empty_rows(const Problem& p, const Geometry& g) {
  const bool accumulates =
      p.pass == Pass::kBackward && p.options.gradient_mode == GradientMode::kAccumulate;
  if (accumulates) return false;
  return p.mask.has_value() || cuda::shape_of(g).right < 0;
}

std::string times(const Geometry& g) {
  return fmt::format("{} products of {} heads", g.batch * g.group(), g.heads_k);
}

void add_empty_rows(CublasPlan& plan) {
  if (plan.empty_rows.source.empty()) return;
  add_step(plan, PlanStep::Kind::kKernel, "flash_cublas_empty_rows",
           fmt::format("{} launches", plan.geometry.batch));
}

void add_steps(CublasPlan& plan) {
  using enum PlanStep::Kind;
  const Geometry& g = plan.geometry;
  add_step(plan, kGemm, "S = Q K^T", times(g));
  if (plan.problem.pass == Pass::kForward) {
    add_step(plan, kKernel, "flash_fwd_cublas_softmax", fmt::format("{} launches", g.batch));
    add_step(plan, kGemm, "O = P V", times(g));
    add_empty_rows(plan);
    return;
  }
  add_step(plan, kGemm, "dP = dO V^T", times(g));
  add_step(plan, kKernel, "flash_bwd_cublas_scores", fmt::format("{} launches", g.batch));
  for (const char* name : {"dQ = scale dS K", "dK = scale dS^T Q", "dV = P^T dO"}) {
    add_step(plan, kGemm, name, times(g));
  }
  add_empty_rows(plan);
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem, const Geometry& g) {
  if (Status s = check_problem(problem, g); !s.ok()) return s;
  if (!context.gpu()->is_described()) {
    const cuda::ContextGuard current = context.gpu()->current();
    if (auto library = CublasLt::get(); !library.ok()) return library.status();
  }
  auto plan = std::make_shared<CublasPlan>();
  plan->problem = problem;
  plan->geometry = g;
  const bool backward = problem.pass == Pass::kBackward;
  const auto elements = static_cast<std::size_t>(g.heads_q) * static_cast<std::size_t>(g.seqlen_q) *
                        static_cast<std::size_t>(g.seqlen_k);
  const auto matrix = [&](const char* name, DType dtype) {
    return plan->add_region(fmt::format("{} of one batch element, {}", name, to_string(dtype)),
                            elements * size_of(dtype));
  };
  const bool in_place = g.dtype == DType::kFp32;
  plan->scores = matrix("scores", DType::kFp32);
  plan->probabilities = in_place ? plan->scores : matrix("probabilities", g.dtype);
  if (backward) {
    plan->d_probabilities = matrix("gradient of probabilities", DType::kFp32);
    plan->d_scores = in_place ? plan->d_probabilities : matrix("gradient of scores", g.dtype);
  }
  plan->library = plan->add_region("cuBLASLt", CublasLt::kWorkspaceBytes);
  cuda::ConfigPrinter config;
  cuda::print_call(config, problem, g);
  plan->kernel = backward ? cuda::KernelSpec{"peers/softmax_backward.cu",
                                             "flash_bwd_cublas_scores",
                                             config.text(),
                                             {}}
                          : cuda::KernelSpec{
                                "peers/softmax.cu", "flash_fwd_cublas_softmax", config.text(), {}};
  if (clears_empty_rows(problem, g)) {
    plan->empty =
        plan->add_region("marks of empty rows", static_cast<std::size_t>(g.heads_q * g.seqlen_q));
    plan->empty_rows = {"peers/empty_rows.cu", "flash_cublas_empty_rows", config.text(), {}};
  }
  add_steps(*plan);
  plan->reasons.push_back("asked for: a score matrix in memory and NVIDIA's matrix products");
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace

std::vector<cuda::KernelSpec> cublas_kernels(const internal::PlanState& plan) {
  const auto* own = dynamic_cast<const CublasPlan*>(&plan);
  if (own == nullptr) return {};
  std::vector<cuda::KernelSpec> out{own->kernel};
  if (!own->empty_rows.source.empty()) out.push_back(own->empty_rows);
  return out;
}

const internal::Implementation& cublas_implementation() {
  static const internal::Implementation implementation{
      "cublas",
      DeviceKind::kCuda,
      "the naive composition with NVIDIA's cuBLASLt, a rival to measure",
      {Feature::kForward, Feature::kBackward, Feature::kFp32, Feature::kTf32, Feature::kFp16,
       Feature::kBf16, Feature::kCausal, Feature::kBoolMask, Feature::kAdditiveMask,
       Feature::kGroupedQuery, Feature::kUnequalHeadDims, Feature::kLse, Feature::kLseGradient,
       Feature::kAccumulate},
      make_plan};
  return implementation;
}

}  // namespace flashlab::peers
