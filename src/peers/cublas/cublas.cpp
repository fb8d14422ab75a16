#include "peers/cublas/cublas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "api/context_state.h"
#include "cuda/kernels/composed_arguments.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/gpu_plan.h"
#include "runtime/kernel_store/config.h"
#include "runtime/products/cublas_lt.h"

namespace flashlab::peers {
namespace {

using internal::Feature;
using internal::Geometry;

using runtime::Matrix;
using runtime::ParameterBlock;
using runtime::Place;
using runtime::Product;

constexpr std::int64_t kMaxHeads = 65535;  // of a launch's grid in y
constexpr unsigned kThreads = 256;

// A tensor [batch, seqlen, heads, dim] as one matrix per head of one batch element: rows are
// tokens. Heads `step` apart make the batch of a product.
struct HeadMatrices {
  TensorRole role;
  Matrix matrix;
  std::int64_t batch_stride = 0, head_stride = 0;
  std::int64_t element_bytes = 4;

  HeadMatrices(const Problem& problem, TensorRole tensor, std::int64_t step) : role(tensor) {
    const TensorSpec& spec = *row_of(tensor).problem.get(problem);
    matrix.dtype = spec.dtype;
    // One row has no stride; cuBLASLt wants one that spans the row.
    matrix.row_stride = std::max(spec.strides[1], spec.shape[3]);
    matrix.batch_stride = spec.strides[2] * step;
    matrix.alignment_bytes = cuda::row_alignment_bytes(spec);
    batch_stride = spec.strides[0];
    head_stride = spec.strides[2];
    element_bytes = static_cast<std::int64_t>(size_of(spec.dtype));
  }
  Place at(std::int64_t b, std::int64_t h) const {
    return {cuda::buffer_of(role), (b * batch_stride + h * head_stride) * element_bytes};
  }
};

Matrix transposed(Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}

// Workspace regions by their index in the plan; for fp32 the probabilities lie where the scores
// lay.
struct Regions {
  int scores = -1, probabilities = -1, d_probabilities = -1, d_scores = -1, library = -1;
  int empty = -1;  ///< a mark per row of one batch element; -1 where no row can be empty
};

// Appends the composition's steps for every batch element in turn.
class Composer {
 public:
  Composer(cuda::GpuPlan& plan, const Regions& regions, const cuda::ConfigPrinter& config)
      : plan_(plan), p_(plan.problem), g_(plan.geometry), regions_(regions), config_(config) {
    score_.row_stride = g_.seqlen_k;
    score_.batch_stride = g_.group() * g_.seqlen_q * g_.seqlen_k;
    // Rows of scores are packed: an odd length leaves element alignment only.
    score_.alignment_bytes = static_cast<int>(std::gcd<std::int64_t>(16, g_.seqlen_k * 4));
    weight_ = score_;
    weight_.dtype = g_.dtype;
    const auto size = static_cast<std::int64_t>(size_of(g_.dtype));
    weight_.alignment_bytes = static_cast<int>(std::gcd<std::int64_t>(16, g_.seqlen_k * size));
  }

  void forward() {
    const std::int64_t group = g_.group();
    const HeadMatrices q(p_, TensorRole::kQ, group), k(p_, TensorRole::kK, 1),
        v(p_, TensorRole::kV, 1), o(p_, TensorRole::kO, group);
    const Product s{.m = g_.seqlen_q,
                    .n = g_.seqlen_k,
                    .k = g_.head_dim,
                    .a = q.matrix,
                    .b = transposed(k.matrix),
                    .c = score_};
    const Product pv{.m = g_.seqlen_q,
                     .n = g_.head_dim_v,
                     .k = g_.seqlen_k,
                     .a = weight_,
                     .b = v.matrix,
                     .c = o.matrix};
    const device::ForwardArguments call = cuda::forward_arguments(p_, g_);
    for (std::int64_t b = 0; b < g_.batch; ++b) {
      for (std::int64_t m = 0; m < group; ++m) {
        add("S = Q K^T", s, q.at(b, m), k.at(b, 0), scores(m));
      }
      using Arguments = device::ComposedSoftmax;
      ParameterBlock block(Arguments{.scores = nullptr,
                                     .probabilities = nullptr,
                                     .lse = call.lse,
                                     .mask = call.mask,
                                     .shape = call.shape,
                                     .batch = static_cast<int>(b),
                                     .empty = nullptr});
      block.pointer(offsetof(Arguments, scores), scores(0))
          .pointer(offsetof(Arguments, probabilities), probabilities(0));
      patch(block, offsetof(Arguments, lse), TensorRole::kLse);
      patch(block, offsetof(Arguments, mask), TensorRole::kMask);
      add_kernel("peers/softmax.cu", "flash_fwd_cublas_softmax", std::move(block),
                 offsetof(Arguments, empty));
      for (std::int64_t m = 0; m < group; ++m) {
        add("O = P V", pv, probabilities(m), v.at(b, 0), o.at(b, m));
      }
      clear_empty_rows(call.o, TensorRole::kO, call.shape.head_dim_v, b);
    }
  }

  void backward() {
    const std::int64_t group = g_.group();
    const HeadMatrices q(p_, TensorRole::kQ, group), k(p_, TensorRole::kK, 1),
        v(p_, TensorRole::kV, 1), d_o(p_, TensorRole::kDO, group), dq(p_, TensorRole::kDQ, group),
        dk(p_, TensorRole::kDK, 1), dv(p_, TensorRole::kDV, 1);
    const float kept = p_.options.gradient_mode == GradientMode::kAccumulate ? 1.0f : 0.0f;
    const auto scale = static_cast<float>(g_.scale);
    const Product s{.m = g_.seqlen_q,
                    .n = g_.seqlen_k,
                    .k = g_.head_dim,
                    .a = q.matrix,
                    .b = transposed(k.matrix),
                    .c = score_};
    const Product dp{.m = g_.seqlen_q,
                     .n = g_.seqlen_k,
                     .k = g_.head_dim_v,
                     .a = d_o.matrix,
                     .b = transposed(v.matrix),
                     .c = score_};
    const Product of_q{.m = g_.seqlen_q,
                       .n = g_.head_dim,
                       .k = g_.seqlen_k,
                       .a = weight_,
                       .b = k.matrix,
                       .c = dq.matrix,
                       .alpha = scale,
                       .beta = kept};
    Product of_k{.m = g_.seqlen_k,
                 .n = g_.head_dim,
                 .k = g_.seqlen_q,
                 .a = transposed(weight_),
                 .b = q.matrix,
                 .c = dk.matrix,
                 .alpha = scale};
    Product of_v{.m = g_.seqlen_k,
                 .n = g_.head_dim_v,
                 .k = g_.seqlen_q,
                 .a = transposed(weight_),
                 .b = d_o.matrix,
                 .c = dv.matrix};
    const device::BackwardArguments call = cuda::backward_arguments(p_, g_);
    for (std::int64_t b = 0; b < g_.batch; ++b) {
      for (std::int64_t m = 0; m < group; ++m) {
        add("S = Q K^T", s, q.at(b, m), k.at(b, 0), scores(m));
        add("dP = dO V^T", dp, d_o.at(b, m), v.at(b, 0), d_probabilities(m));
      }
      add_gradient(call, b);
      for (std::int64_t m = 0; m < group; ++m) {
        of_k.beta = of_v.beta = m > 0 ? 1.0f : kept;  // the group's members add up
        add("dQ = scale dS K", of_q, d_scores(m), k.at(b, 0), dq.at(b, m));
        add("dK = scale dS^T Q", of_k, d_scores(m), q.at(b, m), dk.at(b, 0));
        add("dV = P^T dO", of_v, probabilities(m), d_o.at(b, m), dv.at(b, 0));
      }
      clear_empty_rows(call.dq, TensorRole::kDQ, call.shape.head_dim, b);
    }
  }

 private:
  // The scores of a group's member in a region, for all key heads.
  Place region(int index, DType dtype, std::int64_t member) const {
    return {cuda::buffer_of_region(index),
            member * g_.seqlen_q * g_.seqlen_k * static_cast<std::int64_t>(size_of(dtype))};
  }
  Place scores(std::int64_t m) const { return region(regions_.scores, DType::kFp32, m); }
  Place d_probabilities(std::int64_t m) const {
    return region(regions_.d_probabilities, DType::kFp32, m);
  }
  Place probabilities(std::int64_t m) const { return region(regions_.probabilities, g_.dtype, m); }
  Place d_scores(std::int64_t m) const { return region(regions_.d_scores, g_.dtype, m); }

  void add(const char* name, Product product, Place a, Place b, Place c) {
    product.batch = static_cast<int>(g_.heads_k);
    product.tf32 = p_.options.precision == Precision::kTf32;
    plan_.append({.name = name,
                  .work = runtime::ProductWork{
                      product, a, b, c, {cuda::buffer_of_region(regions_.library)}}});
  }

  // A block per row. `empty` is the offset of the pointer to the marks of empty rows.
  void add_kernel(const char* source, const char* entry, ParameterBlock block, std::size_t empty) {
    if (regions_.empty >= 0) block.pointer(empty, {cuda::buffer_of_region(regions_.empty)});
    cuda::LaunchShape shape;
    shape.grid_x = static_cast<unsigned>(g_.seqlen_q);
    shape.grid_y = static_cast<unsigned>(g_.heads_q);
    shape.threads = kThreads;
    plan_.append({.name = entry,
                  .work = runtime::KernelWork{
                      {source, entry, config_.text(), {}}, shape, std::move(block)}});
  }

  void patch(ParameterBlock& block, std::size_t offset, TensorRole role) const {
    if (row_of(role).problem.get(p_) != nullptr) block.pointer(offset, {cuda::buffer_of(role)});
  }

  void add_gradient(const device::BackwardArguments& call, std::int64_t b) {
    using Arguments = device::ComposedGradient;
    ParameterBlock block(Arguments{.scores = nullptr,
                                   .d_probabilities = nullptr,
                                   .probabilities = nullptr,
                                   .d_scores = nullptr,
                                   .o = call.o,
                                   .d_o = call.d_o,
                                   .lse = call.lse,
                                   .d_lse = call.d_lse,
                                   .mask = call.mask,
                                   .shape = call.shape,
                                   .batch = static_cast<int>(b),
                                   .empty = nullptr});
    block.pointer(offsetof(Arguments, scores), scores(0))
        .pointer(offsetof(Arguments, d_probabilities), d_probabilities(0))
        .pointer(offsetof(Arguments, probabilities), probabilities(0))
        .pointer(offsetof(Arguments, d_scores), d_scores(0));
    patch(block, offsetof(Arguments, o), TensorRole::kO);
    patch(block, offsetof(Arguments, d_o), TensorRole::kDO);
    patch(block, offsetof(Arguments, lse), TensorRole::kLse);
    patch(block, offsetof(Arguments, d_lse), TensorRole::kDLse);
    patch(block, offsetof(Arguments, mask), TensorRole::kMask);
    add_kernel("peers/softmax_backward.cu", "flash_bwd_cublas_scores", std::move(block),
               offsetof(Arguments, empty));
  }

  void clear_empty_rows(const device::Rows& rows, TensorRole role, int width, std::int64_t b) {
    if (regions_.empty < 0) return;
    using Arguments = device::ComposedEmptyRows;
    ParameterBlock block(Arguments{.empty = nullptr,
                                   .rows = rows,
                                   .seqlen_q = static_cast<int>(g_.seqlen_q),
                                   .width = width,
                                   .batch = static_cast<int>(b)});
    patch(block, offsetof(Arguments, rows), role);
    add_kernel("peers/empty_rows.cu", "flash_cublas_empty_rows", std::move(block),
               offsetof(Arguments, empty));
  }

  cuda::GpuPlan& plan_;
  const Problem& p_;
  const Geometry& g_;
  const Regions& regions_;
  const cuda::ConfigPrinter& config_;
  Matrix score_, weight_;  ///< fp32 scores; probabilities in the inputs' type
};

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

// What is shown: the products of all batch elements are one line.
void show(cuda::GpuPlan& plan, PlanStep::Kind kind, std::string name, std::string configuration) {
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

void show_steps(cuda::GpuPlan& plan, bool clears_rows) {
  using enum PlanStep::Kind;
  const Geometry& g = plan.geometry;
  const std::string launches = fmt::format("{} launches", g.batch);
  show(plan, kGemm, "S = Q K^T", times(g));
  if (plan.problem.pass == Pass::kForward) {
    show(plan, kKernel, "flash_fwd_cublas_softmax", launches);
    show(plan, kGemm, "O = P V", times(g));
  } else {
    show(plan, kGemm, "dP = dO V^T", times(g));
    show(plan, kKernel, "flash_bwd_cublas_scores", launches);
    for (const char* name : {"dQ = scale dS K", "dK = scale dS^T Q", "dV = P^T dO"}) {
      show(plan, kGemm, name, times(g));
    }
  }
  if (clears_rows) show(plan, kKernel, "flash_cublas_empty_rows", launches);
}

Regions add_regions(cuda::GpuPlan& plan) {
  const Geometry& g = plan.geometry;
  const auto elements = static_cast<std::size_t>(g.heads_q) * static_cast<std::size_t>(g.seqlen_q) *
                        static_cast<std::size_t>(g.seqlen_k);
  const auto matrix = [&](const char* name, DType dtype) {
    return plan.add_gpu_region(fmt::format("{} of one batch element, {}", name, to_string(dtype)),
                               elements * size_of(dtype));
  };
  const bool in_place = g.dtype == DType::kFp32;
  Regions out;
  out.scores = matrix("scores", DType::kFp32);
  out.probabilities = in_place ? out.scores : matrix("probabilities", g.dtype);
  if (plan.problem.pass == Pass::kBackward) {
    out.d_probabilities = matrix("gradient of probabilities", DType::kFp32);
    out.d_scores = in_place ? out.d_probabilities : matrix("gradient of scores", g.dtype);
  }
  out.library = plan.add_gpu_region("cuBLASLt", cuda::CublasLt::kWorkspaceBytes);
  if (clears_empty_rows(plan.problem, g)) {
    out.empty = plan.add_gpu_region("marks of empty rows",
                                    static_cast<std::size_t>(g.heads_q * g.seqlen_q));
  }
  return out;
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem, const Geometry& g) {
  if (Status s = check_problem(problem, g); !s.ok()) return s;
  if (!context.gpu()->is_described()) {
    if (auto library = cuda::CublasLt::of(*context.gpu()); !library.ok()) return library.status();
  }
  auto plan = std::make_shared<cuda::GpuPlan>(*context.gpu(), problem, g);
  const Regions regions = add_regions(*plan);
  cuda::ConfigPrinter config;
  cuda::print_call(config, problem, g);
  Composer composer(*plan, regions, config);
  if (problem.pass == Pass::kForward) {
    composer.forward();
  } else {
    composer.backward();
  }
  show_steps(*plan, regions.empty >= 0);
  plan->reasons.push_back("asked for: a score matrix in memory and NVIDIA's matrix products");
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace

const internal::Implementation& cublas_implementation() {
  static const internal::Implementation implementation{
      "cublas",
      DeviceKind::kCuda,
      "the naive composition with NVIDIA's cuBLASLt, a peer to measure",
      {Feature::kForward, Feature::kBackward, Feature::kFp32, Feature::kTf32, Feature::kFp16,
       Feature::kBf16, Feature::kCausal, Feature::kWindow, Feature::kBoolMask,
       Feature::kAdditiveMask, Feature::kGroupedQuery, Feature::kUnequalHeadDims, TensorRole::kLse,
       TensorRole::kDLse, Feature::kAccumulate},
      make_plan};
  return implementation;
}

}  // namespace flashlab::peers
