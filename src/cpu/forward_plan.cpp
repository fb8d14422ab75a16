#include "cpu/forward_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "api/context_state.h"
#include "cpu/score_views.h"
#include "cpu/sequences/key_rows.h"
#include "cpu/sequences/sequence_cut.h"
#include "cpu/simd/kernels.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {
namespace {

using simd::ForwardCall;
using simd::ForwardTask;
using simd::KernelTable;

// Deterministic plans are split as if for this many threads, whatever there are.
constexpr int kDeterministicThreads = 8;
// More splits than this cost more to merge than they bring.
constexpr std::int64_t kMaxSplits = 64;
// Tasks per thread that leave a balanced finish.
constexpr std::int64_t kTasksPerThread = 3;
// Packed K and V of a head up to which each thread packs its own: its L2 and its part of L3 hold
// them. Measured: gains up to 2 MiB, none at 4.
constexpr std::size_t kOwnHeadBytes = std::size_t{2} << 20;
// Bytes of K and V beyond which their next rows are fetched while others are packed: with less, a
// call before may have left them in cache. A decode step does little but pack: fetching cost it up
// to 10% at 4 MiB (two threads), and halves its time at 32.
constexpr std::size_t kFarBytes = std::size_t{2} << 20;
constexpr std::size_t kFarBytesByTask = std::size_t{16} << 20;
// The longest block of keys that a plan takes.
constexpr int kMostKeyBlock = 512;
// Keys that one packing task takes: enough to amortise handing it out, a multiple of every panel.
constexpr std::int64_t kPackKeys = 1024;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return ceil_div(n, to) * to;
}

// Bytes of a region of 4-byte elements; an absurd size saturates, so that the allocator refuses it.
std::size_t region_bytes(std::initializer_list<std::int64_t> factors) {
  std::size_t bytes = sizeof(float);
  for (std::int64_t f : factors) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(f), &bytes)) return SIZE_MAX;
  }
  return bytes;
}

simd::RowsView rows_view(const void* data, const TensorSpec& spec) {
  return {data, spec.dtype, spec.strides[0], spec.strides[1], spec.strides[2]};
}

// The part of a key head's rows that packing task `chunk` takes.
simd::MatrixView chunk_view(const simd::RowsView& rows, std::int64_t batch, std::int64_t head,
                            std::int64_t begin, std::int64_t end, std::int64_t columns) {
  const bool listed = rows.offsets != nullptr;
  const std::int64_t offset =
      batch * rows.batch_stride + (listed ? 0 : begin * rows.row_stride) + head * rows.head_stride;
  const auto* data =
      static_cast<const char*>(rows.data) + offset * static_cast<std::int64_t>(size_of(rows.dtype));
  return {data,
          rows.dtype,
          end - begin,
          columns,
          rows.row_stride,
          rows.far,
          listed ? rows.offsets + begin : nullptr};
}

class ForwardPlan final : public PlanState {
 public:
  Status forward(ContextState& context, Stream stream, const ForwardTensors& tensors,
                 Workspace workspace) const override;

  std::int64_t heads() const { return call.batches * call.heads_k; }
  std::int64_t rows_per_head() const { return call.group * call.seqlen_q; }

  const KernelTable* table = nullptr;
  ForwardCall call{};  ///< without pointers
  /// Who packs K and V: a task the blocks it visits, all threads every head before the tasks, or a
  /// thread the head whose tiles it takes.
  enum class Packing { kByTask, kAhead, kOwnHead } packing = Packing::kByTask;
  bool fetches_rows = false;  ///< of K and V while others are packed: caches do not hold them
  std::int64_t tiles = 0;     ///< query tiles of a key head
  std::int64_t splits = 1;    ///< along the keys
  std::int64_t split_keys = 0;
  int workers = 1;
  std::size_t scratch_bytes = 0;  ///< of one worker
  std::size_t keys_offset = 0, values_offset = 0, scratch_offset = 0;
  std::size_t partial_o_offset = 0, partial_max_offset = 0, partial_sum_offset = 0;

 private:
  /// Keys [begin, end) of (batch, key head) `head`, to a place among the packed heads.
  void pack(const ForwardCall& c, std::int64_t head, std::int64_t begin, std::int64_t end,
            std::int64_t place) const;
  void pack_ahead(ThreadPool& pool, const ForwardCall& c) const;
  void run_tasks(ThreadPool& pool, const ForwardCall& c, std::byte* scratch) const;
  void run_own_heads(ThreadPool& pool, const ForwardCall& c, std::byte* scratch) const;
  ForwardTask task_at(std::int64_t index) const;
};

void ForwardPlan::pack(const ForwardCall& c, std::int64_t head, std::int64_t begin,
                       std::int64_t end, std::int64_t place) const {
  auto* keys = static_cast<char*>(const_cast<void*>(c.packed_keys));
  auto* values = static_cast<char*>(const_cast<void*>(c.packed_values));
  const std::int64_t key_depth = ceil_div(c.head_dim, table->depth_per);
  const std::int64_t b = head / c.heads_k, h = head % c.heads_k;
  table->pack.transposed(
      chunk_view(c.k, b, h, begin, end, c.head_dim),
      keys + (place * c.packed_keys_stride + begin * key_depth) * simd::kElementBytes);
  table->pack.straight(
      chunk_view(c.v, b, h, begin, end, c.head_dim_v),
      values + (place * c.packed_values_stride + begin / table->depth_per * table->panel) *
                   simd::kElementBytes,
      c.packed_values_panel_stride);
}

void ForwardPlan::pack_ahead(ThreadPool& pool, const ForwardCall& c) const {
  const std::int64_t chunks = ceil_div(c.seqlen_k, kPackKeys);
  pool.run(
      heads() * chunks,
      [&](std::int64_t task, int) {
        const std::int64_t head = task / chunks, begin = task % chunks * kPackKeys;
        pack(c, head, begin, std::min(begin + kPackKeys, c.seqlen_k), head);
      },
      workers);
}

// Each thread packs a head, which its own cache keeps, and takes the head's tiles. When no head is
// left, it helps the others with their last ones. INVARIANT: a thread packs over its place only
// while heads are left, and others read from there only when none is.
void ForwardPlan::run_own_heads(ThreadPool& pool, const ForwardCall& c, std::byte* scratch) const {
  constexpr std::int64_t kTiles = std::int64_t{1} << 32;  // more than a head has
  struct alignas(64) Place {
    std::atomic<std::int64_t> next;  ///< head * kTiles + its next tile
  };
  std::vector<Place> places(static_cast<std::size_t>(workers));
  for (Place& place : places) place.next.store(tiles);  // nothing to take
  std::atomic<std::int64_t> next_head{0}, packed_heads{0};

  const auto take_tiles = [&](std::size_t index, int worker) {
    std::atomic<std::int64_t>& next = places[index].next;
    while (next.load() % kTiles < tiles) {
      const std::int64_t taken = next.fetch_add(1);
      if (taken % kTiles >= tiles) return;
      ForwardTask task = task_at(taken / kTiles * tiles + taken % kTiles);
      task.packed = static_cast<std::int64_t>(index);
      table->forward.run(c, task, scratch + static_cast<std::size_t>(worker) * scratch_bytes);
    }
  };
  pool.run(
      workers,
      [&](std::int64_t, int worker) {
        const auto own = static_cast<std::size_t>(worker);
        for (std::int64_t head; (head = next_head.fetch_add(1)) < heads();) {
          pack(c, head, 0, c.seqlen_k, worker);
          places[own].next.store(head * kTiles);
          packed_heads.fetch_add(1);
          take_tiles(own, worker);
        }
        for (bool all = false; !all; std::this_thread::yield()) {
          all = packed_heads.load() == heads();
          for (std::size_t index = 0; index < places.size(); ++index) take_tiles(index, worker);
        }
      },
      workers);
}

// Head by head, so that the threads share the panels of one or two heads in cache; inside a head
// the last rows first, which see most keys when attention is causal. What is left for the end is
// then short.
ForwardTask ForwardPlan::task_at(std::int64_t index) const {
  const std::int64_t split = index % splits;
  const std::int64_t tile = tiles - 1 - index / splits % tiles;
  const std::int64_t head = index / splits / tiles;
  ForwardTask task{};
  task.batch = head / call.heads_k;
  task.key_head = head % call.heads_k;
  task.row_begin = tile * call.tile_rows;
  task.row_end = std::min(task.row_begin + call.tile_rows, rows_per_head());
  task.key_begin = std::min(split * split_keys, call.seqlen_k);
  task.key_end = std::min(task.key_begin + split_keys, call.seqlen_k);
  task.split = splits > 1 ? split : -1;
  task.packed = head;
  task.rows_before = packing == Packing::kOwnHead ? std::min(task.row_begin, call.tile_rows) : 0;
  return task;
}

void ForwardPlan::run_tasks(ThreadPool& pool, const ForwardCall& c, std::byte* scratch) const {
  pool.run(
      heads() * tiles * splits,
      [&](std::int64_t task, int worker) {
        table->forward.run(c, task_at(task),
                           scratch + static_cast<std::size_t>(worker) * scratch_bytes);
      },
      workers);
}

Status ForwardPlan::forward(ContextState& context, Stream, const ForwardTensors& t,
                            Workspace workspace) const {
  ForwardCall c = call;
  c.q = rows_view(t.q.data, t.q.spec);
  c.k = rows_view(t.k.data, t.k.spec);
  c.v = rows_view(t.v.data, t.v.spec);
  // The hardware fetches rows that lie one after the other.
  c.k.far = fetches_rows && c.k.row_stride != c.head_dim;
  c.v.far = fetches_rows && c.v.row_stride != c.head_dim_v;
  const KeyRows rows(geometry, t);
  c.k.offsets = rows.k();
  c.v.offsets = rows.v();
  c.o = rows_view(t.o.data, t.o.spec);
  if (t.lse) {
    c.lse = static_cast<float*>(t.lse->data);
    c.lse_batch_stride = t.lse->spec.strides[0];
    c.lse_head_stride = t.lse->spec.strides[1];
    c.lse_row_stride = t.lse->spec.strides[2];
  }
  if (t.mask) {
    // Extents of 1 broadcast: validation has set their strides to 0.
    const auto& s = t.mask->spec.strides;
    c.mask = {t.mask->data, t.mask->spec.dtype, s[0], s[1], s[2], s[3]};
  }
  c.scores = score_view(geometry, t.alibi_slopes);
  const DropoutMask dropout = dropout_mask_of(geometry, t);
  c.dropout = dropout_view(dropout);
  if (t.sinks) c.sinks = static_cast<const float*>(t.sinks->data);
  auto* memory = static_cast<std::byte*>(workspace.data);
  ThreadPool& pool = context.pool();
  if (packing != Packing::kByTask) {
    c.packed_keys = memory + keys_offset;
    c.packed_values = memory + values_offset;
  }
  if (splits > 1) {
    c.partial_o = reinterpret_cast<float*>(memory + partial_o_offset);
    c.partial_max = reinterpret_cast<float*>(memory + partial_max_offset);
    c.partial_sum = reinterpret_cast<float*>(memory + partial_sum_offset);
  }
  std::byte* scratch = memory + scratch_offset;
  if (packing == Packing::kOwnHead) {
    run_own_heads(pool, c, scratch);
  } else {
    if (packing == Packing::kAhead) pack_ahead(pool, c);
    run_tasks(pool, c, scratch);
  }
  if (splits > 1) {
    pool.run(
        heads() * tiles,
        [&](std::int64_t index, int) {
          const std::int64_t head = index / tiles, row = index % tiles * call.tile_rows;
          table->forward.merge(c, head / c.heads_k, head % c.heads_k, row,
                               std::min(row + call.tile_rows, rows_per_head()), splits);
        },
        workers);
  }
  return {};
}

// Rows of a query tile and keys of a block. Measured (see README.md): 48 rows on Zen 4 and 96 on
// Zen 3 keep Q, the sums and a key block in L2 while K and V stream from L3 once per tile; blocks
// of 256 fp32 scores per row keep six rows of S in L1, bf16 pairs leave room for 512. AVX2's panels
// of 16 columns cost more per strip, so small heads, whose blocks L2 holds, take more keys.
void choose_tiles(ForwardPlan& plan, const Geometry& g) {
  const bool pairs = plan.table->depth_per == 2;
  const std::int64_t strip = plan.table->strip_rows;
  plan.call.key_block = pairs ? kMostKeyBlock : 256;
  // AMX's strips of 32 rows are so fast that four of them have to share what a key block costs.
  const std::int64_t rows = plan.table->lanes >= 16 ? 48 : 96;
  const std::int64_t strips = std::max<std::int64_t>(4, rows / strip);
  plan.call.tile_rows = std::min(strips * strip, round_up(plan.rows_per_head(), strip));
  const bool several_tiles = plan.rows_per_head() > plan.call.tile_rows;
  if (plan.table->lanes == 8 && several_tiles && g.head_dim + g.head_dim_v <= 128) {
    plan.call.key_block = 384;
  }
}

// With fewer tiles than threads want, first smaller tiles, then splits along the keys.
void spread(ForwardPlan& plan, const Geometry& g, int threads) {
  const std::int64_t strip = plan.table->strip_rows;
  const std::int64_t wanted = kTasksPerThread * threads;
  const auto count = [&] {
    plan.tiles = ceil_div(plan.rows_per_head(), plan.call.tile_rows);
    return plan.heads() * plan.tiles;
  };
  while (count() < wanted && plan.call.tile_rows > 2 * strip && threads > 1) {
    plan.call.tile_rows = round_up(plan.call.tile_rows / 2, strip);
  }
  const std::int64_t blocks = ceil_div(g.seqlen_k, plan.call.key_block);
  if (threads > 1 && count() < threads && blocks > 1) {
    const std::int64_t parts = std::min({ceil_div(wanted, count()), blocks, kMaxSplits});
    plan.split_keys = ceil_div(blocks, parts) * plan.call.key_block;
    plan.splits = ceil_div(g.seqlen_k, plan.split_keys);
  }
  if (plan.splits == 1) plan.split_keys = g.seqlen_k;
}

void set_scale(ForwardPlan& plan, const Geometry& g) {
  plan.call.query_factor = g.scale > 0 ? 1.0f : (g.scale < 0 ? -1.0f : 0.0f);
  plan.call.score_factor = g.scale == 0 ? 1.0f : std::fabs(static_cast<float>(g.scale));
}

void set_packed_strides(ForwardPlan& plan, const Geometry& g) {
  const KernelTable& table = *plan.table;
  ForwardCall& c = plan.call;
  c.packed_keys_stride = round_up(g.seqlen_k, table.panel) * ceil_div(g.head_dim, table.depth_per);
  c.packed_values_panel_stride = ceil_div(g.seqlen_k, table.depth_per) * table.panel;
  c.packed_values_stride = ceil_div(g.head_dim_v, table.panel) * c.packed_values_panel_stride;
}

void add_scratch(ForwardPlan& plan, bool packs, int workers) {
  constexpr std::size_t kPage = 4096;  // neighbours' scratch on other pages
  plan.scratch_bytes =
      (plan.table->forward.scratch_bytes(plan.call, packs) + kPage - 1) / kPage * kPage;
  plan.scratch_offset =
      plan.add_region("thread_scratch", plan.scratch_bytes * static_cast<std::size_t>(workers));
}

void add_regions(ForwardPlan& plan, const Geometry& g) {
  const KernelTable& table = *plan.table;
  ForwardCall& c = plan.call;
  set_packed_strides(plan, g);
  if (plan.tiles > 1) {
    const bool own = plan.splits == 1 && plan.heads() >= plan.workers &&
                     region_bytes({c.packed_keys_stride + c.packed_values_stride}) <= kOwnHeadBytes;
    plan.packing = own ? ForwardPlan::Packing::kOwnHead : ForwardPlan::Packing::kAhead;
    const std::int64_t packed = own ? plan.workers : plan.heads();
    plan.keys_offset = plan.add_region("packed_keys", region_bytes({packed, c.packed_keys_stride}));
    plan.values_offset =
        plan.add_region("packed_values", region_bytes({packed, c.packed_values_stride}));
  }
  if (plan.splits > 1) {
    const std::int64_t padded = round_up(g.head_dim_v, table.lanes);
    plan.partial_o_offset = plan.add_region(
        "partial_o", region_bytes({plan.splits, plan.heads(), plan.rows_per_head(), padded}));
    plan.partial_max_offset = plan.add_region(
        "partial_max", region_bytes({plan.splits, plan.heads(), plan.rows_per_head()}));
    plan.partial_sum_offset = plan.add_region(
        "partial_sum", region_bytes({plan.splits, plan.heads(), plan.rows_per_head()}));
  }
  add_scratch(plan, plan.packing == ForwardPlan::Packing::kByTask, plan.workers);
}

void describe_plan(ForwardPlan& plan, const Geometry& g, bool deterministic, int threads) {
  const KernelTable& table = *plan.table;
  const ForwardCall& c = plan.call;
  const bool pairs = table.depth_per == 2;
  int last = -1;
  const auto add = [&](std::string name, std::string configuration) {
    std::vector<int> after;
    if (last >= 0) after.push_back(last);
    plan.steps.push_back(
        {PlanStep::Kind::kKernel, std::move(name), std::move(configuration), after});
    ++last;
  };
  plan.tile_q = c.tile_rows;
  plan.tile_k = c.key_block;
  const std::string suffix = pairs ? table.name : fmt::format("{}_fp32", table.name);
  if (plan.packing != ForwardPlan::Packing::kByTask) {
    add("pack_" + suffix, fmt::format("K and V of {} (batch, key head), panels of {} columns",
                                      plan.heads(), table.panel));
  }
  add("flash_fwd_" + suffix,
      fmt::format(
          "query tile {} x key block {}, {} tasks = {} (batch, key head) x {} tiles x {} key "
          "splits, {} on {} threads",
          c.tile_rows, c.key_block, plan.heads() * plan.tiles * plan.splits, plan.heads(),
          plan.tiles, plan.splits, g.bounds.bounded() ? "longest first" : "equal work",
          plan.workers));
  if (plan.splits > 1) add("merge_" + suffix, "partial results in the order of their keys");

  if (!pairs && g.dtype != DType::kFp32) {
    plan.reasons.push_back(fmt::format("{} is widened to fp32 when packed: {}", to_string(g.dtype),
                                       g.dtype == DType::kFp16
                                           ? "no instruction multiplies fp16 into fp32 sums"
                                           : "this instruction set has no bf16 products"));
  }
  if (pairs) plan.reasons.push_back("P is rounded to bf16 for its product with V");
  switch (plan.packing) {
    case ForwardPlan::Packing::kByTask:
      plan.reasons.push_back("each key block is used by one query tile: its task packs it");
      break;
    case ForwardPlan::Packing::kAhead:
      plan.reasons.push_back("K and V are packed once: several query tiles use each block");
      break;
    case ForwardPlan::Packing::kOwnHead:
      plan.reasons.push_back(
          "K and V of a head are packed by the thread that takes its tiles: its cache keeps them");
      break;
  }
  if (plan.splits > 1) {
    plan.reasons.push_back(fmt::format(
        "{} query tiles are fewer than {} threads{}: the keys are split", plan.heads() * plan.tiles,
        threads, deterministic ? " (the number deterministic plans are cut for)" : ""));
  }
  plan.reasons.push_back(fmt::format("{} KiB of scratch per thread", plan.scratch_bytes >> 10));
}

void set_sizes(ForwardPlan& plan, const ContextState& context, const Geometry& g) {
  plan.table = &simd::forward_kernels_for(context.cpu_isa, g.dtype);
  ForwardCall& c = plan.call;
  c.batches = g.batch;
  c.heads_k = g.heads_k;
  c.group = g.group();
  c.seqlen_q = g.seqlen_q;
  c.seqlen_k = g.seqlen_k;
  c.head_dim = g.head_dim;
  c.head_dim_v = g.head_dim_v;
  c.band = band_of(g);
  set_scale(plan, g);
  choose_tiles(plan, g);
}

}  // namespace

Result<std::shared_ptr<PlanState>> plan_forward(const ContextState& context, const Problem& problem,
                                                const Geometry& g) {
  auto plan = std::make_shared<ForwardPlan>();
  if (g.nothing_to_write()) {
    plan->reasons.push_back("no rows: nothing runs");
    return std::shared_ptr<PlanState>(std::move(plan));
  }
  set_sizes(*plan, context, g);
  const bool deterministic = problem.options.deterministic;
  const int threads = g.is_sequence   ? threads_to_cut_sequence_for(g, kDeterministicThreads)
                      : deterministic ? kDeterministicThreads
                                      : std::max(1, context.threads);
  spread(*plan, g, threads);
  const std::int64_t tasks = plan->heads() * plan->tiles * plan->splits;
  plan->workers =
      static_cast<int>(std::clamp<std::int64_t>(tasks, 1, std::max(1, context.threads)));
  add_regions(*plan, g);
  const auto bytes = static_cast<std::size_t>(problem.k.bytes() + problem.v.bytes());
  const bool by_task = plan->packing == ForwardPlan::Packing::kByTask;
  plan->fetches_rows = bytes > (by_task ? kFarBytesByTask : kFarBytes);
  describe_plan(*plan, g, deterministic, threads);
  return std::shared_ptr<PlanState>(std::move(plan));
}

// The largest tiles and blocks, K and V of every head packed, and as many parts of rows as a cut
// makes.
std::size_t most_forward_bytes(const ContextState& context, const Geometry& g) {
  ForwardPlan plan;
  set_sizes(plan, context, g);
  set_packed_strides(plan, g);
  ForwardCall& c = plan.call;
  plan.add_region("packed_keys", region_bytes({plan.heads(), c.packed_keys_stride}));
  plan.add_region("packed_values", region_bytes({plan.heads(), c.packed_values_stride}));
  // Splits of all heads' tiles: at most kTasksPerThread a thread, rounded up in each; three
  // regions.
  constexpr std::int64_t kParts = (kTasksPerThread + 1) * kDeterministicThreads;
  const std::int64_t floats = round_up(g.head_dim_v, plan.table->lanes) + 2;
  plan.add_region("partials", region_bytes({kParts, c.tile_rows, floats}) + 3 * 256);
  c.key_block = kMostKeyBlock;
  add_scratch(plan, true, std::max(1, context.threads));
  return plan.workspace_bytes;
}

}  // namespace flashlab::internal
