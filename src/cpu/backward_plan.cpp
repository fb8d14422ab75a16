#include "cpu/backward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "cpu/backward_schedule.h"
#include "cpu/score_views.h"
#include "cpu/sequences/sequence_cut.h"
#include "cpu/simd/backward_kernels.h"
#include "cpu/simd/kernels.h"
#include "cpu/terms/sinks.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {
namespace {

using simd::BackwardCall;
using simd::BackwardTiles;
using simd::KernelTable;

// Deterministic plans are cut as if for this many threads, whatever there are: enough tasks for
// small machines, at most so many partial dQ.
constexpr int kDeterministicThreads = 8;
constexpr int kDeterministicSplits = 8;
constexpr int kMaxSplits = 32;

// A task of the row passes touches at least this many rows, so that handing it out costs nothing.
constexpr std::int64_t kMinRowsPerTask = 64;
constexpr std::int64_t kRowTasksPerThread = 8;

// Scratch of one thread that still leaves room in a 1 MiB L2 for what streams through it.
constexpr std::size_t kScratchGoalBytes = 832 << 10;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// bytes of a region; an absurd size saturates, so that the allocator refuses it.
std::size_t region_bytes(std::initializer_list<std::int64_t> factors) {
  std::size_t bytes = sizeof(float);
  for (std::int64_t f : factors) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(f), &bytes)) return SIZE_MAX;
  }
  return bytes;
}

simd::RowsView rows_view(const void* data, const TensorSpec& spec) {
  simd::RowsView view;
  view.data = data;
  view.dtype = spec.dtype;
  view.batch_stride = spec.strides[0];
  view.row_stride = spec.strides[1];
  view.head_stride = spec.strides[2];
  return view;
}

simd::StatisticsView statistics_view(const ConstTensor& tensor) {
  simd::StatisticsView view;
  view.data = static_cast<const float*>(tensor.data);
  view.batch_stride = tensor.spec.strides[0];
  view.head_stride = tensor.spec.strides[1];
  view.row_stride = tensor.spec.strides[2];
  return view;
}

simd::MaskView mask_view(const ConstTensor& tensor) {
  // Extents of 1 broadcast: validation has set their strides to 0.
  simd::MaskView view;
  view.data = tensor.data;
  view.dtype = tensor.spec.dtype;
  view.batch_stride = tensor.spec.strides[0];
  view.head_stride = tensor.spec.strides[1];
  view.query_stride = tensor.spec.strides[2];
  view.key_stride = tensor.spec.strides[3];
  return view;
}

class BackwardPlan final : public PlanState {
 public:
  Status backward(ContextState& context, Stream stream, const BackwardTensors& tensors,
                  Workspace workspace) const override;

  const KernelTable* table = nullptr;
  BackwardCall call{};  ///< without pointers
  std::vector<simd::KeySplit> splits;
  int workers = 1;
  std::size_t scratch_bytes = 0;  ///< of one worker
  std::size_t delta_offset = 0, dq_offset = 0, scratch_offset = 0;
  bool additive_mask = false;  ///< LSE is taken in two numbers
  std::size_t lse_parts_offset = 0;
};

// Of a row: LSE in the numbers that its gradients were made with.
SinkStatistics sink_statistics(const BackwardCall& c, std::int64_t batch, std::int64_t head,
                               std::int64_t i, std::int64_t flat) {
  const auto delta = static_cast<double>(c.delta[flat]);
  if (c.lse_main != nullptr) {
    return {static_cast<double>(c.lse_main[flat]), static_cast<double>(c.lse_rest[flat]), delta};
  }
  const std::int64_t at =
      batch * c.lse.batch_stride + head * c.lse.head_stride + i * c.lse.row_stride;
  return {static_cast<double>(c.lse.data[at]), 0, delta};
}

Status BackwardPlan::backward(ContextState& context, Stream, const BackwardTensors& t,
                              Workspace workspace) const {
  BackwardCall c = call;
  c.q = rows_view(t.q.data, t.q.spec);
  c.k = rows_view(t.k.data, t.k.spec);
  c.v = rows_view(t.v.data, t.v.spec);
  c.o = rows_view(t.o.data, t.o.spec);
  c.d_o = rows_view(t.d_o.data, t.d_o.spec);
  c.dq = rows_view(t.dq.data, t.dq.spec);
  c.dk = rows_view(t.dk.data, t.dk.spec);
  c.dv = rows_view(t.dv.data, t.dv.spec);
  c.lse = statistics_view(t.lse);
  if (t.d_lse) c.d_lse = statistics_view(*t.d_lse);
  if (t.mask) c.mask = mask_view(*t.mask);
  c.scores = score_view(geometry, t.alibi_slopes);
  const DropoutMask dropout = dropout_mask_of(geometry, t);
  c.dropout = dropout_view(dropout);
  if (t.sinks) c.sinks = static_cast<const float*>(t.sinks->data);
  c.splits = splits.data();
  auto* memory = static_cast<std::byte*>(workspace.data);
  c.delta = reinterpret_cast<float*>(memory + delta_offset);
  c.dq_accumulators = reinterpret_cast<float*>(memory + dq_offset);
  const std::int64_t rows = c.batch * c.heads_q * c.seqlen_q;
  if (additive_mask) {
    c.lse_main = reinterpret_cast<float*>(memory + lse_parts_offset);
    c.lse_rest = c.lse_main + rows;
  }

  const simd::BackwardKernels& kernels = *table->backward;
  ThreadPool& pool = context.pool();
  const std::int64_t chunk =
      std::max(kMinRowsPerTask, ceil_div(rows, kRowTasksPerThread * workers));
  const auto in_chunks = [&](void (*pass)(const BackwardCall&, std::int64_t, std::int64_t)) {
    pool.run(
        ceil_div(rows, chunk),
        [&](std::int64_t task, int) { pass(c, task * chunk, std::min(rows, (task + 1) * chunk)); },
        workers);
  };
  in_chunks(kernels.row_delta);
  const auto scratch_of = [&](int worker) {
    return memory + scratch_offset + static_cast<std::size_t>(worker) * scratch_bytes;
  };
  if (additive_mask) {
    pool.run(
        c.batch * c.heads_q,
        [&](std::int64_t task, int worker) {
          kernels.row_statistics(c, task / c.heads_q, task % c.heads_q, scratch_of(worker));
        },
        workers);
  }
  const std::int64_t heads = c.batch * c.heads_k;
  pool.run(
      c.split_count * heads,
      [&](std::int64_t task, int worker) {
        const std::int64_t head = task % heads;
        kernels.key_split(c, head / c.heads_k, head % c.heads_k, task / heads, scratch_of(worker));
      },
      workers);
  in_chunks(kernels.finish_dq);
  write_sink_gradients(pool, geometry, t, c.accumulate,
                       [&c](std::int64_t b, std::int64_t head, std::int64_t i) {
                         const std::int64_t flat = (b * c.heads_q + head) * c.seqlen_q + i;
                         return sink_statistics(c, b, head, i, flat);
                       });
  return {};
}

// The largest tiles of the list whose scratch stays in L2.
BackwardTiles choose_tiles(const KernelTable& table, const Geometry& g) {
  constexpr BackwardTiles kChoices[] = {{96, 192}, {96, 128}, {48, 128}, {48, 64}};
  for (const BackwardTiles& tiles : kChoices) {
    if (table.backward->scratch_bytes(tiles, g.head_dim, g.head_dim_v) <= kScratchGoalBytes) {
      return tiles;
    }
  }
  return {24, 64};
}

int threads_to_cut_for(const ContextState& context, const Geometry& g, bool deterministic) {
  if (g.is_sequence) return threads_to_cut_sequence_for(g, kDeterministicThreads);
  return deterministic ? kDeterministicThreads : std::max(1, context.threads);
}

// A sequence's splits make a task for each thread, so that its shares of dQ take no more than those
// of a call with as many heads.
int most_splits(const ContextState& context, const Geometry& g, bool deterministic) {
  if (!g.is_sequence) return deterministic ? kDeterministicSplits : kMaxSplits;
  const int threads = threads_to_cut_for(context, g, deterministic);
  return static_cast<int>(ceil_div(threads, std::clamp<std::int64_t>(g.heads_k, 1, threads)));
}

// Regions of a plan whose tiles and splits are chosen.
void add_regions(BackwardPlan& plan, const Problem& problem, const Geometry& g) {
  const BackwardCall& c = plan.call;
  constexpr std::size_t kLine = 256;
  plan.scratch_bytes =
      (plan.table->backward->scratch_bytes(c.tiles, g.head_dim, g.head_dim_v) + kLine - 1) / kLine *
      kLine;
  const std::int64_t padded_dim = ceil_div(g.head_dim, plan.table->lanes) * plan.table->lanes;
  plan.delta_offset = plan.add_region("delta", region_bytes({g.batch, g.heads_q, g.seqlen_q}));
  plan.additive_mask = problem.mask && problem.mask->dtype != DType::kBool;
  if (plan.additive_mask) {
    plan.lse_parts_offset =
        plan.add_region("lse_parts", region_bytes({2, g.batch, g.heads_q, g.seqlen_q}));
  }
  plan.dq_offset = plan.add_region(
      "dq_accumulators", region_bytes({c.split_count, g.batch, g.heads_q, g.seqlen_q, padded_dim}));
  plan.scratch_offset = plan.add_region(
      "thread_scratch", plan.scratch_bytes * static_cast<std::size_t>(plan.workers));
}

void describe_plan(BackwardPlan& plan, const Geometry& g, const BackwardSchedule& schedule,
                   bool deterministic, int threads) {
  const KernelTable& table = *plan.table;
  const BackwardCall& c = plan.call;
  const bool pairs = table.depth_per == 2;
  const std::int64_t heads = c.batch * c.heads_k;
  plan.steps.push_back(
      {PlanStep::Kind::kKernel,
       fmt::format("row_delta_{}", table.name),
       fmt::format("{} rows of head_dim_v {}", c.batch * c.heads_q * c.seqlen_q, c.head_dim_v),
       {}});
  if (plan.additive_mask) {
    plan.steps.push_back({PlanStep::Kind::kKernel,
                          fmt::format("row_statistics_{}", table.name),
                          "LSE in two numbers for rows where it is large",
                          {0}});
  }
  const int statistics = static_cast<int>(plan.steps.size()) - 1;
  plan.tile_q = c.tiles.query_rows;
  plan.tile_k = c.tiles.block_keys;
  plan.steps.push_back(
      {PlanStep::Kind::kKernel,
       pairs ? fmt::format("flash_bwd_{}", table.name)
             : fmt::format("flash_bwd_{}_fp32", table.name),
       fmt::format("query tile {} x key block {}, {} tasks = {} (batch, key head) x {} key splits, "
                   "{} on {} threads",
                   c.tiles.query_rows, c.tiles.block_keys, c.split_count * heads, heads,
                   c.split_count, g.bounds.bounded() ? "longest first" : "equal work",
                   plan.workers),
       {statistics}});
  plan.steps.push_back({PlanStep::Kind::kKernel,
                        fmt::format("finish_dq_{}", table.name),
                        fmt::format("adds {} share{} in fixed order, scales, rounds", c.split_count,
                                    c.split_count == 1 ? "" : "s"),
                        {statistics + 1}});

  if (!pairs && g.dtype != DType::kFp32) {
    plan.reasons.push_back(fmt::format("{} is widened to fp32 when packed: {}", to_string(g.dtype),
                                       g.dtype == DType::kFp16
                                           ? "no instruction multiplies fp16 into fp32 sums"
                                           : "fp32 products are the fastest that serve it here"));
  }
  if (pairs) plan.reasons.push_back("P and dS are rounded to bf16 for their products");
  plan.reasons.push_back(fmt::format(
      "{} key split{}: modelled thread balance {:.0f}%{}", c.split_count,
      c.split_count == 1 ? "" : "s", 100 * schedule.balance,
      deterministic ? fmt::format(" on {} threads, the number deterministic plans are cut for",
                                  kDeterministicThreads)
                    : fmt::format(" on {} thread{}", threads, threads == 1 ? "" : "s")));
  plan.reasons.push_back(fmt::format("{} KiB of scratch per thread (goal {} KiB of L2)",
                                     plan.scratch_bytes >> 10, kScratchGoalBytes >> 10));
}

}  // namespace

Result<std::shared_ptr<PlanState>> plan_backward(const ContextState& context,
                                                 const Problem& problem, const Geometry& g) {
  if (g.dtype != DType::kFp32 && g.dtype != DType::kFp16 && g.dtype != DType::kBf16) {
    return Status::unsupported({"q.dtype", to_string(g.dtype), "fp32, fp16 or bf16",
                                "use implementation 'fa2-plain' or 'reference' for fp64"});
  }
  auto plan = std::make_shared<BackwardPlan>();
  plan->table = &simd::kernels_for(context.cpu_isa, g.dtype);
  const bool deterministic = problem.options.deterministic;
  const int threads = std::max(1, context.threads);

  const BackwardTiles tiles = choose_tiles(*plan->table, g);
  BackwardSchedule schedule =
      schedule_backward(g, threads_to_cut_for(context, g, deterministic), tiles.block_keys,
                        plan->table->panel, most_splits(context, g, deterministic));
  plan->splits = std::move(schedule.splits);

  BackwardCall& c = plan->call;
  c.batch = g.batch;
  c.heads_q = g.heads_q;
  c.heads_k = g.heads_k;
  c.group = g.group();
  c.seqlen_q = g.seqlen_q;
  c.seqlen_k = g.seqlen_k;
  c.head_dim = g.head_dim;
  c.head_dim_v = g.head_dim_v;
  c.band = band_of(g);
  c.scale = static_cast<float>(g.scale);
  c.accumulate = problem.options.gradient_mode == GradientMode::kAccumulate;
  c.tiles = {tiles.query_rows, schedule.block_keys};
  c.split_count = static_cast<std::int64_t>(plan->splits.size());

  const std::int64_t tasks = c.split_count * c.batch * c.heads_k;
  plan->workers = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, threads));
  add_regions(*plan, problem, g);
  describe_plan(*plan, g, schedule, deterministic, threads);
  if (context.cpu_isa == CpuIsa::kAmx && g.dtype == DType::kBf16) {
    plan->reasons.push_back(
        "AMX serves forward alone: backward widens to fp32, twice as fast there as bf16 pairs");
  }
  return std::shared_ptr<PlanState>(std::move(plan));
}

std::size_t most_backward_bytes(const ContextState& context, const Problem& problem,
                                const Geometry& g) {
  BackwardPlan plan;
  plan.table = &simd::kernels_for(context.cpu_isa, g.dtype);
  plan.workers = std::max(1, context.threads);
  plan.call.tiles = choose_tiles(*plan.table, g);
  plan.call.split_count = most_splits(context, g, true);
  add_regions(plan, problem, g);
  return plan.workspace_bytes;
}

}  // namespace flashlab::internal
