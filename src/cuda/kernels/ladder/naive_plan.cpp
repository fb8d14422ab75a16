#include "cuda/kernels/ladder/plan.h"

#include <fmt/format.h>

#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/ladder/steps_plan.h"

namespace flashlab::cuda {
namespace {

using internal::Feature;

constexpr std::int64_t kTile = 64;         // ladder/sliced_product.h
constexpr std::int64_t kRowsPerBlock = 8;  // softmax, delta: one warp per row
constexpr unsigned kThreads = 256;

constexpr std::int64_t tiles(std::int64_t count) {
  return divide_up(count, kTile);
}

std::size_t matrix_bytes(const internal::Geometry& g, std::size_t element_bytes) {
  std::size_t bytes = element_bytes;
  for (std::int64_t extent : {g.batch, g.heads_q, g.seqlen_q, g.seqlen_k}) {
    // Saturates far beyond any memory: it must fail in the allocator, not look small.
    constexpr std::size_t kHuge = std::size_t{1} << 62;
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes) || bytes > kHuge) {
      bytes = kHuge;
    }
  }
  return bytes;
}

class Planner : public RungPlan {
 public:
  Planner(const GpuDevice& device, const Problem& problem, const internal::Geometry& g)
      : RungPlan(device, problem, g, "naive") {
    if (problem.pass == Pass::kForward) config.boolean("kLse", problem.lse.has_value());
  }
  int add(const char* source, const char* entry, std::int64_t blocks, const char* formula,
          std::vector<int> after) {
    return RungPlan::add(source, entry, blocks, kThreads, 0, formula, std::move(after));
  }
  void region(const char* what, std::size_t bytes) {
    const internal::Geometry& g = geometry();
    plan().add_gpu_region(
        fmt::format("{} [{}, {}, {}, {}]", what, g.batch, g.heads_q, g.seqlen_q, g.seqlen_k),
        bytes);
  }
  void row_region(const char* what, std::size_t bytes) {
    const internal::Geometry& g = geometry();
    plan().add_gpu_region(fmt::format("{} [{}, {}, {}]", what, g.batch, g.heads_q, g.seqlen_q),
                          bytes);
  }
};

void plan_forward(Planner& plan, const internal::Geometry& g) {
  const char* source = "ladder/naive.cu";
  const std::int64_t heads = g.batch * g.heads_q;
  plan.region("scores in fp32, then probabilities", matrix_bytes(g, sizeof(float)));
  plan.row_region("lse", static_cast<std::size_t>(heads * g.seqlen_q) * sizeof(float));
  const int scores =
      plan.add(source, "flash_fwd_naive_scores", heads * tiles(g.seqlen_q) * tiles(g.seqlen_k),
               "S = scale Q K^T + mask", {});
  const int softmax = plan.add(source, "flash_fwd_naive_softmax",
                               heads * ((g.seqlen_q + kRowsPerBlock - 1) / kRowsPerBlock),
                               "P = softmax(S)", {scores});
  plan.add(source, "flash_fwd_naive_values", heads * tiles(g.seqlen_q) * tiles(g.head_dim_v),
           "O = P V", {softmax});
}

void plan_backward(Planner& plan, const internal::Geometry& g) {
  const char* source = "ladder/naive_backward.cu";
  const std::int64_t heads = g.batch * g.heads_q, heads_k = g.batch * g.heads_k;
  const std::int64_t pairs = tiles(g.seqlen_q) * tiles(g.seqlen_k);
  plan.row_region("delta", static_cast<std::size_t>(heads * g.seqlen_q) * sizeof(float));
  plan.region("probabilities, then score gradients", matrix_bytes(g, size_of(g.dtype)));
  const int delta = plan.add("ladder/fa2_backward_rows.cu", "flash_bwd_delta",
                             heads * ((g.seqlen_q + kRowsPerBlock - 1) / kRowsPerBlock),
                             "delta = rowsum(dO * O) - dLSE", {});
  const int p = plan.add(source, "flash_bwd_naive_probabilities", heads * pairs,
                         "P = exp(scale Q K^T + mask - LSE)", {});
  const int dv = plan.add(source, "flash_bwd_naive_dv",
                          heads_k * tiles(g.seqlen_k) * tiles(g.head_dim_v), "dV = P^T dO", {p});
  // In the place of P, which dV has read.
  const int ds = plan.add(source, "flash_bwd_naive_ds", heads * pairs, "dS = P * (dO V^T - delta)",
                          {delta, dv});
  plan.add(source, "flash_bwd_naive_dq", heads * tiles(g.seqlen_q) * tiles(g.head_dim),
           "dQ = scale dS K", {ds});
  plan.add(source, "flash_bwd_naive_dk", heads_k * tiles(g.seqlen_k) * tiles(g.head_dim),
           "dK = scale dS^T Q", {ds});
}

Result<std::shared_ptr<internal::PlanState>> make_plan(const internal::ContextState& context,
                                                       const Problem& problem,
                                                       const internal::Geometry& geometry) {
  Planner plan(*context.gpu(), problem, geometry);
  if (problem.pass == Pass::kForward) {
    plan_forward(plan, geometry);
  } else {
    plan_backward(plan, geometry);
  }
  return plan.take();
}

}  // namespace

const internal::Implementation& naive_implementation() {
  static const internal::Implementation implementation{
      "naive",
      DeviceKind::kCuda,
      "scores, softmax and values as separate kernels over a score matrix in memory",
      {Feature::kForward, Feature::kBackward, Feature::kFp32, Feature::kFp16, Feature::kBf16,
       Feature::kCausal, Feature::kWindow, Feature::kBoolMask, Feature::kAdditiveMask,
       Feature::kGroupedQuery, Feature::kUnequalHeadDims, TensorRole::kLse, TensorRole::kDLse,
       Feature::kAccumulate, Feature::kDeterministic},
      make_plan};
  return implementation;
}

}  // namespace flashlab::cuda
