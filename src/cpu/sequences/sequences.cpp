#include "cpu/sequences/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "api/sequences.h"
#include "flashlab/tensor_table.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/guard.h"

namespace flashlab::internal {
namespace {

// A sequence is one thread's where it is at most such a share of what a thread has to do: the first
// share by which the threads end together (but for kUnbalanced), else the last, by which no
// sequence unbalances them much. Or where it takes less time (pairs times heads times head dims)
// than the threads take to meet.
constexpr double kSharesOfThread[] = {1, 1.0 / 4, 1.0 / 16};
constexpr double kUnbalanced = 1.03;
constexpr double kLittleWork = 1 << 20;
// Workspace of a thread's own sequences; a longer one is all threads'.
constexpr std::size_t kOwnBytes = std::size_t{4} << 20;

// What a sequence costs beside its pairs, in pairs of a row.
constexpr double kRowOverhead = 16;

Status launch_sequence(const PlanState& plan, ContextState& context, const ForwardTensors& tensors,
                       Workspace workspace) {
  return plan.forward(context, Stream{}, tensors, workspace);
}
Status launch_sequence(const PlanState& plan, ContextState& context, const BackwardTensors& tensors,
                       Workspace workspace) {
  return plan.backward(context, Stream{}, tensors, workspace);
}

// Tensors that say where sequences lie: a sequence alone has none.
bool is_of_list(const TensorRow& row) {
  return row.dtype == DTypeRule::kIndex || row.role == TensorRole::kBlockTable;
}

// The problem of one sequence, or of the longest that a call can have.
Problem problem_of(const Problem& call, const Sequence& sequence, std::int64_t page_size) {
  Problem p = call;
  for (const TensorRow& row : kTensors) {
    const TensorSpec* spec = row.problem.get(call);
    // Of keys and values a planner asks only whether a processor's caches hold them: all of them.
    const bool keys = row.role == TensorRole::kK || row.role == TensorRole::kV;
    if (spec == nullptr || is_of_list(row) || keys) continue;
    row.problem.set(p, part_of(row, {nullptr, spec}, sequence, page_size).spec);
  }
  for (auto* list : {&p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_q, &p.seqused_k,
                     &p.cache_batch_idx, &p.leftpad_k, &p.block_table}) {
    list->reset();
  }
  p.options.max_seqlen_q.reset();
  p.options.max_seqlen_k.reset();
  p.options.deterministic = true;
  return p;
}

Geometry geometry_of(const Geometry& call, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  Geometry g = call;
  g.batch = 1;
  g.seqlen_q = seqlen_q;
  g.seqlen_k = seqlen_k;
  g.has_lengths = g.ragged_q = false;
  g.is_sequence = true;
  return g;
}

// Zeros, or -inf in an LSE, over rows of a part.
void fill_part(const Tensor& part, bool lse) {
  const TensorSpec& s = part.spec;
  const bool wide = s.rank == 4;
  const std::int64_t width = wide ? s.shape[3] : 1;
  const auto size = size_of(s.dtype);
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  constexpr float kLowestFloat = -std::numeric_limits<float>::infinity();
  for (std::int64_t a = 0; a < s.shape[1]; ++a) {
    for (std::int64_t b = 0; b < s.shape[2]; ++b) {
      char* row = static_cast<char*>(part.data) +
                  (a * s.strides[1] + b * s.strides[2]) * static_cast<std::int64_t>(size);
      if (!lse) {
        std::memset(row, 0, static_cast<std::size_t>(width) * size);
      } else if (s.dtype == DType::kFp64) {
        std::memcpy(row, &kLowest, sizeof kLowest);
      } else {
        std::memcpy(row, &kLowestFloat, sizeof kLowestFloat);
      }
    }
  }
}

// The plans of a sequence's lengths: by one thread, and by all.
struct LengthPlans {
  std::shared_ptr<PlanState> alone, team;
  double work = 0;
};

// The longest work of a sequence that one thread takes. `sorted`: of all, longest first.
double longest_own(const std::vector<double>& sorted, int threads) {
  const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  double longest = 0;
  for (const double share : kSharesOfThread) {
    longest = std::max(kLittleWork, total * share / threads);
    std::priority_queue<double, std::vector<double>, std::greater<>> busy_until;
    for (int t = 0; t < threads; ++t) busy_until.push(0);
    double own = 0, last = 0;
    for (const double work : sorted) {
      if (work > longest) continue;
      const double end = busy_until.top() + work;
      busy_until.pop();
      busy_until.push(end);
      last = std::max(last, end);
      own += work;
    }
    if (last * threads <= own * kUnbalanced) break;
  }
  return longest;
}

class SequencesPlan final : public PlanState {
 public:
  Status forward(ContextState& context, Stream, const ForwardTensors& tensors,
                 Workspace workspace) const override {
    return run(context, tensors, workspace);
  }
  Status backward(ContextState& context, Stream, const BackwardTensors& tensors,
                  Workspace workspace) const override {
    return run(context, tensors, workspace);
  }

  SequencePlanner planner;
  std::unique_ptr<ContextState>
      single;  ///< of one thread: runs what it is given where it is called
  std::size_t team_offset = 0, team_bytes = 0;
  std::size_t own_offset = 0, own_bytes = 0;  ///< of one thread
  std::size_t sinks_offset = 0;               ///< [batch, heads_q]: d_sinks of each sequence

 private:
  using Plans = std::map<std::pair<std::int64_t, std::int64_t>, LengthPlans>;

  template <class Tensors>
  Status run(ContextState& context, const Tensors& tensors, Workspace workspace) const;
  template <class Tensors>
  void fill_gaps(ThreadPool& pool, const Tensors& tensors, const SequenceList& list) const;
  template <class Tensors>
  Status run_one(ContextState& context, const PlanState& plan, const Tensors& tensors,
                 const Sequence& sequence, float* sink_gradients, Workspace workspace) const;
  Result<std::shared_ptr<PlanState>> plan_one(const ContextState& context,
                                              const Sequence& sequence) const;
  Result<Plans> plan_all(const std::vector<Sequence>& sequences) const;
  void add_sink_gradients(const BackwardTensors& tensors, const float* of_sequences,
                          std::int64_t batch) const;
};

Result<std::shared_ptr<PlanState>> SequencesPlan::plan_one(const ContextState& context,
                                                           const Sequence& sequence) const {
  const Geometry g = geometry_of(geometry, sequence.q.length, sequence.k.length);
  Problem p = problem_of(problem, sequence, geometry.page_size);
  auto plan = planner.plan(context, p, g);
  if (plan.ok()) {
    (*plan)->problem = std::move(p);
    (*plan)->geometry = g;
  }
  return plan;
}

// One plan for each pair of lengths.
Result<SequencesPlan::Plans> SequencesPlan::plan_all(const std::vector<Sequence>& sequences) const {
  Plans plans;
  for (const Sequence& s : sequences) {
    if (s.q.length == 0) continue;
    LengthPlans& of = plans[{s.q.length, s.k.length}];
    if (of.alone != nullptr) continue;
    auto plan = plan_one(*single, s);
    if (!plan.ok()) return plan.status();
    of.alone = std::move(*plan);
    const Geometry& g = of.alone->geometry;
    of.work = (g.visible_pairs() + kRowOverhead * static_cast<double>(g.seqlen_q + g.seqlen_k)) *
              static_cast<double>(g.heads_q * (g.head_dim + g.head_dim_v));
  }
  return plans;
}

template <class Tensors>
void SequencesPlan::fill_gaps(ThreadPool& pool, const Tensors& tensors,
                              const SequenceList& list) const {
  const bool adds = problem.options.gradient_mode == GradientMode::kAccumulate;
  if (problem.pass == Pass::kBackward && adds) return;
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    if (!given || row.template member<Tensors>().access() != Access::kWrite) return;
    const auto has = [&](Extent extent) {
      const auto* end = row.shape.extents.data() + row.shape.rank;
      return std::find(row.shape.extents.data(), end, extent) != end;
    };
    const std::vector<Sequence>* gaps = has(Extent::kSeqlenQ)   ? &list.gaps_q
                                        : has(Extent::kSeqlenK) ? &list.gaps_k
                                                                : nullptr;
    if (gaps == nullptr) return;
    pool.run(static_cast<std::int64_t>(gaps->size()), [&](std::int64_t n, int) {
      fill_part(part_of(row, given, (*gaps)[static_cast<std::size_t>(n)], geometry.page_size),
                row.role == TensorRole::kLse);
    });
  });
}

template <class Tensors>
Status SequencesPlan::run_one(ContextState& context, const PlanState& plan, const Tensors& tensors,
                              const Sequence& sequence, float* sink_gradients,
                              Workspace workspace) const {
  Tensors own = tensors;
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    if (!given || is_of_list(row)) return;
    row.template member<Tensors>().set(own, part_of(row, given, sequence, geometry.page_size));
  });
  for (auto* lengths : {&own.cu_seqlens_q, &own.cu_seqlens_k, &own.seqused_q, &own.seqused_k}) {
    lengths->reset();
  }
  std::int64_t row_of_page = 0;  // that the first key lies in
  if constexpr (std::is_same_v<Tensors, ForwardTensors>) {
    own.cache_batch_idx.reset();
    own.leftpad_k.reset();
    if (own.block_table) {
      row_of_page = sequence.k.row % geometry.page_size;
      own.block_table = pages_of(*tensors.block_table, sequence, geometry.page_size);
      own.leftpad_k = tensor(&row_of_page, {1});
    }
  } else {
    if (own.d_sinks) own.d_sinks->data = sink_gradients + sequence.index * geometry.heads_q;
  }
  std::array<std::int64_t, 3> words{};  // see dropout_seed_of
  if (problem.options.dropout) {
    DropoutSeed seed = tensors.dropout_seed;
    if (tensors.dropout_state) std::memcpy(&seed, tensors.dropout_state->data, sizeof seed);
    words = {static_cast<std::int64_t>(seed.seed), static_cast<std::int64_t>(seed.offset),
             sequence.index * geometry.heads_q};
    own.dropout_state = {words.data(), contiguous_spec(DType::kInt64, {3}, problem.q.device)};
  }
  if (plan.workspace_bytes > workspace.bytes) {
    return Status(StatusCode::kInternal,
                  {"workspace",
                   fmt::format("{} bytes for a sequence of {} queries and {} keys",
                               plan.workspace_bytes, sequence.q.length, sequence.k.length),
                   fmt::format("at most {} bytes, as planned", workspace.bytes), ""});
  }
  return launch_sequence(plan, context, own, workspace);
}

// In the order of the sequences.
void SequencesPlan::add_sink_gradients(const BackwardTensors& tensors, const float* of_sequences,
                                       std::int64_t batch) const {
  if (!tensors.d_sinks) return;
  auto* gradients = static_cast<float*>(tensors.d_sinks->data);
  const bool adds = problem.options.gradient_mode == GradientMode::kAccumulate;
  for (std::int64_t h = 0; h < geometry.heads_q; ++h) {
    double sum = adds ? static_cast<double>(gradients[h]) : 0.0;
    for (std::int64_t s = 0; s < batch; ++s) {
      sum += static_cast<double>(of_sequences[s * geometry.heads_q + h]);
    }
    gradients[h] = static_cast<float>(sum);
  }
}

template <class Tensors>
Status SequencesPlan::run(ContextState& context, const Tensors& tensors,
                          Workspace workspace) const {
  const Geometry call = geometry_of_call(geometry, problem, tensors);
  auto list = read_sequences(call, tensors);
  if (!list.ok()) return list.status();
  auto plans = plan_all(list->sequences);
  if (!plans.ok()) return plans.status();
  for (const Sequence& s : list->sequences) {  // keys that no query sees
    if (s.q.length == 0 && s.k.length > 0) list->gaps_k.push_back(s);
  }

  std::vector<std::pair<const Sequence*, LengthPlans*>> order;  // longest first
  for (const Sequence& s : list->sequences) {
    if (s.q.length > 0) order.emplace_back(&s, &plans->at({s.q.length, s.k.length}));
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second->work > b.second->work; });
  std::vector<double> work;
  for (const auto& each : order) work.push_back(each.second->work);
  const double longest = longest_own(work, context.threads);
  const auto is_own = [&](const LengthPlans& of) {
    return of.work <= longest && of.alone->workspace_bytes <= own_bytes;
  };
  const auto own = std::stable_partition(order.begin(), order.end(),
                                         [&](const auto& each) { return !is_own(*each.second); });

  ThreadPool& pool = context.pool();
  fill_gaps(pool, tensors, *list);
  auto* memory = static_cast<std::byte*>(workspace.data);
  auto* sink_gradients = reinterpret_cast<float*>(memory + sinks_offset);
  if constexpr (std::is_same_v<Tensors, BackwardTensors>) {
    if (tensors.d_sinks) std::fill_n(sink_gradients, call.batch * call.heads_q, 0.0f);
  }
  for (auto each = order.begin(); each != own; ++each) {
    LengthPlans& of = *each->second;
    if (of.team == nullptr) {
      auto plan = plan_one(context, *each->first);
      if (!plan.ok()) return plan.status();
      of.team = std::move(*plan);
    }
    const Status status = run_one(context, *of.team, tensors, *each->first, sink_gradients,
                                  {memory + team_offset, team_bytes});
    if (!status.ok()) return status;
  }
  Status first;
  std::mutex mutex;
  pool.run(order.end() - own, [&](std::int64_t task, int worker) {
    const Sequence& sequence = *own[task].first;
    const PlanState& alone = *own[task].second->alone;
    std::byte* scratch = memory + own_offset + static_cast<std::size_t>(worker) * own_bytes;
    const Status status = guard<Status>([&] {
      return run_one(*single, alone, tensors, sequence, sink_gradients, {scratch, own_bytes});
    });
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (first.ok()) first = status;
  });
  if constexpr (std::is_same_v<Tensors, BackwardTensors>) {
    add_sink_gradients(tensors, sink_gradients, call.batch);
  }
  return first;
}

}  // namespace

Result<std::shared_ptr<PlanState>> plan_sequences(const ContextState& context,
                                                  const Problem& problem, const Geometry& g,
                                                  const SequencePlanner& planner) {
  auto plan = std::make_shared<SequencesPlan>();
  plan->planner = planner;
  plan->single = std::make_unique<ContextState>(ContextOptions{.device = context.device,
                                                               .threads = 1,
                                                               .cpu_isa = context.cpu_isa,
                                                               .allocator = context.allocator});
  if (g.nothing_to_write()) {
    plan->reasons.push_back("no rows: nothing runs");
    return std::shared_ptr<PlanState>(std::move(plan));
  }
  const Sequence longest{.index = 0, .q = {0, g.seqlen_q}, .k = {0, g.seqlen_k}, .entry_k = 0};
  const Geometry most = geometry_of(g, g.seqlen_q, g.seqlen_k);
  const Problem of_longest = problem_of(problem, longest, g.page_size);
  auto capacity = planner.plan(context, of_longest, most);
  if (!capacity.ok()) return capacity.status();
  const auto bytes = [&](const ContextState& of) -> std::size_t {
    if (planner.most_bytes != nullptr) return planner.most_bytes(of, of_longest, most);
    auto made = planner.plan(of, of_longest, most);
    return made.ok() ? (*made)->workspace_bytes : 0;
  };
  plan->team_bytes = bytes(context);
  plan->team_offset = plan->add_region("one_sequence", plan->team_bytes);
  if (context.threads > 1) {
    constexpr std::size_t kLine = 256;
    plan->own_bytes = (std::min(bytes(*plan->single), kOwnBytes) + kLine - 1) / kLine * kLine;
    plan->own_offset = plan->add_region(
        "threads_sequences", plan->own_bytes * static_cast<std::size_t>(context.threads));
  }
  if (problem.d_sinks) {
    plan->sinks_offset = plan->add_region(
        "sink_gradients", sizeof(float) * static_cast<std::size_t>(g.batch * g.heads_q));
  }
  plan->tile_q = (*capacity)->tile_q;
  plan->tile_k = (*capacity)->tile_k;
  for (PlanStep step : (*capacity)->steps) {
    step.configuration = "of each sequence, longest first";
    plan->steps.push_back(std::move(step));
  }
  plan->reasons.push_back(fmt::format(
      "up to {} sequences, each a dense call of its own: long ones by {} threads, others one "
      "to a thread",
      g.batch, context.threads));
  if (g.page_size > 0) {
    plan->reasons.push_back(
        fmt::format("pages of {} rows are read where they lie: nothing is gathered", g.page_size));
  }
  plan->reasons.push_back(
      "a sequence is cut by its own lengths alone: its bits are the same alone "
      "and in any batch");
  return std::shared_ptr<PlanState>(std::move(plan));
}

}  // namespace flashlab::internal
