#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashlab/context.h"
#include "flashlab/status.h"
#include "flashlab/tensor.h"

namespace flashlab {

// ---------------------------------------------------------------------------------------------
// Options
// ---------------------------------------------------------------------------------------------

/// Which keys a query sees when attention is causal. Query i sees key j iff
///   kTopLeft      j <= i                          (PyTorch's is_causal)
///   kBottomRight  j <= i + seqlen_k - seqlen_q    (flash-attn's causal: the last query sees all)
/// A bare kCausal is accepted only when both lengths agree, and is then recorded as kTopLeft.
enum class Causal : std::uint8_t { kNone, kCausal, kTopLeft, kBottomRight };

/// How fp32 tensors are multiplied. kIeee keeps plain fp32's error; kTf32 rounds operands to tf32
/// where the device has tensor cores for it (a CPU has none and refuses it).
enum class Precision : std::uint8_t { kIeee, kTf32 };

/// Whether backward replaces dq, dk, dv or adds to what they hold.
enum class GradientMode : std::uint8_t { kOverwrite, kAccumulate };

/// The diagonal that a window is measured from. kOfCausal: that of Options::causal; without causal
/// the lengths must agree.
enum class Alignment : std::uint8_t { kOfCausal, kTopLeft, kBottomRight };

/// A sliding window. Query i sees key j iff  -left <= j - (i + offset) <= right,  offset = 0
/// (kTopLeft) or seqlen_k - seqlen_q (kBottomRight: flash-attn's window_size). Bounds have a sign:
/// a window with left = -3 begins three keys behind the diagonal, one with right = -1 ends before
/// it. With causal, right is at most 0 and both have one alignment. Time is proportional to the
/// visible pairs.
struct Window {
  std::optional<std::int64_t> left{};  ///< keys before the aligned position; empty: unbounded
  std::optional<std::int64_t> right{};
  Alignment alignment = Alignment::kOfCausal;
};

/// What a call's dropout is drawn by: the pattern is a function of both numbers and of batch, head,
/// query and key alone, the same in forward and backward and on every device. It changes from call
/// to call, so it is no part of a plan.
struct DropoutSeed {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

/// Tile sizes of the implementations that let you choose (the ladder, `fa2-plain`).
struct TileOptions {
  int tile_q = 0;  ///< queries per tile; 0: the implementation's default
  int tile_k = 0;  ///< keys per tile
};

/// Everything about the computation that is not a tensor. Members marked "to come" are refused with
/// kUnsupported until a kernel implements them.
struct Options {
  /// Default 1/sqrt(head_dim); any finite number, 0 and negative too. Rounded to fp32 unless the
  /// tensors are fp64.
  std::optional<double> scale{};
  Causal causal = Causal::kNone;
  Precision precision = Precision::kIeee;
  GradientMode gradient_mode = GradientMode::kOverwrite;
  bool deterministic = false;    ///< bitwise equal for any thread count and SM count
  std::string implementation{};  ///< empty: the device's production kernels; or e.g. "naive"
  TileOptions tiles{};
  std::optional<Window> window{};  ///< keys around the aligned position
  /// Chunks of c keys: query i sees the keys of the chunk that its aligned key lies in, [n c, n c +
  /// c) with n = floor((i + offset) / c), offset as a window's. Where the lengths differ, causal or
  /// window names the alignment (flash-attn's attention_chunk has kBottomRight).
  std::optional<std::int64_t> attention_chunk{};
  std::optional<float> softcap{};  ///< cap > 0: scores become cap * tanh(score / cap)
  std::optional<float> dropout{};  ///< probability p in [0, 1) of dropping a probability
  /// Hints beside tensors of lengths: about the longest sequence. They may choose a kernel and
  /// never change a result, so a wrong one costs time alone.
  std::optional<std::int64_t> max_seqlen_q{}, max_seqlen_k{};
};

// ---------------------------------------------------------------------------------------------
// Tensors
// ---------------------------------------------------------------------------------------------

/// Tensors of a forward call. tensor_table.h has the same as a table: shapes, dtypes, directions.
///
/// Ragged: with cu_seqlens_q the queries of all sequences are rows of one tensor, q [total_q,
/// heads_q, head_dim], o [total_q, heads_q, head_dim_v], lse [heads_q, total_q]; with cu_seqlens_k
/// k and v are [total_k, heads_k, ...]. Sequence b has the rows from cu_seqlens[b] on; it is
/// seqused[b] rows long, or ends where the next one begins. Either side may be ragged by itself,
/// and seqused_* may shorten the sequences of dense tensors. Cu_seqlens and seqused are int32 or
/// int64, of the tensors' device, and read when the call runs.
///
/// Caches: queries dense or ragged, keys and values in memory that is larger than what is read. The
/// keys of sequence b are the rows [leftpad_k[b], seqused_k[b]) of its cache, of as many rows as
/// the cache has where either is absent. Its cache is
///   entry b, or entry cache_batch_idx[b], of k and v [entries, capacity, heads_k, ...]: entries
///   may be chosen twice, or never; with block_table row r of page block_table[b, r / page_size],
///   at r % page_size, of k and v [pages, page_size, heads_k, ...]: any page size and any strides,
///   so that one pool may hold both, and heads may come first. Pages may be anywhere and shared.
///   Entries of the table that no key lies in are not read. Without seqused_k it is an error.
struct ForwardTensors {
  ConstTensor q;                      ///< [batch, seqlen_q, heads_q, head_dim]
  ConstTensor k;                      ///< [batch, seqlen_k, heads_k, head_dim]
  ConstTensor v;                      ///< [batch, seqlen_k, heads_k, head_dim_v]
  Tensor o;                           ///< [batch, seqlen_q, heads_q, head_dim_v], q's dtype or fp32
  std::optional<Tensor> lse{};        ///< [batch, heads_q, seqlen_q] fp32 (fp64 inputs: or fp64)
  std::optional<ConstTensor> mask{};  ///< [batch|1, heads_q|1, seqlen_q|1, seqlen_k|1]; see below
  std::optional<ConstTensor> alibi_slopes{};  ///< [batch|1, heads_q|1] fp32; see below
  DropoutSeed dropout_seed{};                 ///< read where Options::dropout is set
  std::optional<ConstTensor> sinks{};         ///< [heads_q] fp32; see below
  std::optional<ConstTensor> cu_seqlens_q{};  ///< [batch + 1]: where sequences begin and end
  std::optional<ConstTensor> cu_seqlens_k{};  ///< [batch + 1]
  std::optional<ConstTensor> block_table{};   ///< [batch, pages_per_sequence] int32
  std::optional<Tensor> row_statistics{};     ///< to come: [batch, heads_q, seqlen_q, 2] fp32
  /// [2] int64, seed and offset, read in place of dropout_seed when the call runs: a replayed graph
  /// draws another pattern.
  std::optional<ConstTensor> dropout_state{};
  std::optional<ConstTensor> seqused_q{};  ///< [batch]: queries of each sequence
  std::optional<ConstTensor> seqused_k{};  ///< [batch]: keys of each sequence, padding included
  std::optional<ConstTensor> cache_batch_idx{};  ///< [batch]: entries of k and v
  std::optional<ConstTensor> leftpad_k{};        ///< [batch]: rows before a sequence's first key
};

/// Tensors of a backward call. o and lse are what forward gave for the same inputs.
struct BackwardTensors {
  ConstTensor q, k, v;                 ///< as in forward
  ConstTensor o;                       ///< [batch, seqlen_q, heads_q, head_dim_v]
  ConstTensor lse;                     ///< [batch, heads_q, seqlen_q]
  ConstTensor d_o;                     ///< gradient of o: shape of o, dtype of q (or fp32)
  std::optional<ConstTensor> d_lse{};  ///< gradient of lse, or absent for zero: shape, dtype of lse
  std::optional<ConstTensor> mask{};   ///< as in forward
  Tensor dq, dk, dv;                   ///< shapes of q, k, v; the inputs' dtype or fp32
  std::optional<ConstTensor> alibi_slopes{};   ///< as in forward
  DropoutSeed dropout_seed{};                  ///< forward's
  std::optional<ConstTensor> dropout_state{};  ///< with the numbers that forward read
  std::optional<ConstTensor> sinks{};          ///< as in forward
  std::optional<Tensor> d_sinks{};             ///< gradient of sinks: [heads_q] fp32
  /// As in forward.
  std::optional<ConstTensor> cu_seqlens_q{}, cu_seqlens_k{}, seqused_q{}, seqused_k{};
  std::optional<ConstTensor> row_statistics{};  ///< to come
};

/// Scratch memory of one call: uninitialised on entry, 256-byte aligned, reusable once the stream
/// has passed the call, used by one call at a time.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// ---------------------------------------------------------------------------------------------
// Problem -> Plan
// ---------------------------------------------------------------------------------------------

enum class Pass : std::uint8_t { kForward, kBackward };
/// "forward", "backward".
const char* to_string(Pass pass) noexcept;

/// What is asked, without addresses: equal Problems get equal Plans. Built by `describe` from
/// tensors (whose data may be null), or filled by hand.
struct Problem {
  Pass pass = Pass::kForward;
  TensorSpec q, k, v, o;
  std::optional<TensorSpec> lse{}, mask{};
  std::optional<TensorSpec> d_o{}, d_lse{}, dq{}, dk{}, dv{};  ///< backward only
  std::optional<TensorSpec> alibi_slopes{};
  std::optional<TensorSpec> sinks{}, d_sinks{};
  std::optional<TensorSpec> cu_seqlens_q{}, cu_seqlens_k{}, seqused_q{}, seqused_k{};
  std::optional<TensorSpec> cache_batch_idx{}, leftpad_k{}, block_table{};  ///< forward only
  std::optional<TensorSpec> row_statistics{};                               ///< to come
  std::optional<TensorSpec> dropout_state{};  ///< seed and offset, as in ForwardTensors
  Options options{};
};

Problem describe(const ForwardTensors& tensors, const Options& options);
Problem describe(const BackwardTensors& tensors, const Options& options);

/// A named part of a workspace.
struct WorkspaceRegion {
  std::string name;
  std::size_t offset_bytes = 0;
  std::size_t bytes = 0;
};

/// One step of a plan, in launch order.
struct PlanStep {
  enum class Kind : std::uint8_t { kKernel, kMemset, kGemm };
  Kind kind = Kind::kKernel;
  std::string name{};             ///< e.g. "flash_fwd_avx512_fp32"
  std::string configuration{};    ///< e.g. "query tile 48 x key block 256, 86 tasks, longest first"
  std::vector<int> depends_on{};  ///< indices of earlier steps
};

namespace internal {
class PlanState;
}

/// What will run: immutable, cheap to copy, usable by several threads at once.
class Plan {
 public:
  explicit Plan(std::shared_ptr<const internal::PlanState> state) : state_(std::move(state)) {}

  const Problem& problem() const noexcept;
  const std::string& implementation() const noexcept;  ///< "cpu", "naive", ...
  std::span<const PlanStep> steps() const noexcept;
  std::span<const WorkspaceRegion> regions() const noexcept;
  std::span<const std::string> reasons() const noexcept;  ///< why this plan, what was rejected
  std::size_t workspace_bytes() const noexcept;
  /// Queries and keys of a tile of the scores; 0 where none is cut, or a library cuts them.
  std::int64_t tile_q() const noexcept;
  std::int64_t tile_k() const noexcept;

  /// Several lines for a person: steps, workspace, reasons.
  std::string to_string() const;

  const internal::PlanState& state() const noexcept { return *state_; }

 private:
  std::shared_ptr<const internal::PlanState> state_;
};

/// Validates the problem and chooses kernels. Pure: equal problems on equal contexts give equal
/// plans. Plans are cached in the Context.
/// With lengths a plan is for a class of calls: it serves all that differ in total_q, total_k,
/// batch, pages, pages_per_sequence or cache entries and have at most its own (more than none), so
/// that calls of any totals share a few plans, and no size is read from the device. Its problem()
/// is the largest of the class: tokens and pages of a sequence at most a quarter more than asked,
/// the others and the hints (beyond 16) up to a power of two; its workspace is that problem's.
/// Errors: kInvalidArgument (shapes, strides, dtypes, scale, heads, causal without alignment),
/// kUnsupported (what the implementation lacks, what is required and supported, and which
/// implementation of the device has it).
Result<Plan> plan(const Context& context, const Problem& problem);

std::size_t workspace_bytes(const Plan& plan) noexcept;

/// Compiles and loads what the plan needs (nothing on a CPU), so that later calls only launch.
Status prepare(const Context& context, const Plan& plan);

// ---------------------------------------------------------------------------------------------
// The calls
// ---------------------------------------------------------------------------------------------

/// Exact softmax attention, forward.
///
/// Computes    S = scale Q K^T,  then softcap, ALiBi and mask;  P = softmax(S) over visible keys,
///             O = P V (with dropout: P keep / (1 - p) V),
///             LSE = log(sum over visible keys of exp(S)), natural logarithm
/// Shapes      q [B, Sq, Hq, D]  k [B, Sk, Hk, D]  v [B, Sk, Hk, Dv]  o [B, Sq, Hq, Dv]
///             lse [B, Hq, Sq];  Hq a multiple of Hk: query head h reads key head h / (Hq / Hk)
/// Types       fp64, fp32, fp16, bf16; q, k, v agree; o has their dtype or fp32; sums in fp32
///             (fp64 for fp64)
/// Strides     any (TensorSpec says which); o and lse overlap nothing
/// Mask        bool: true is visible, a masked score is replaced, never added. Floating (fp32 or
///             q's dtype): added to the scaled score; a value at or below half of the type's
///             lowest finite number (-inf included) hides. Extents of 1 and strides of 0
///             broadcast. Combines with causal.
/// Window      Options::window, beside causal. Hidden tiles cost no time
/// Softcap     S becomes cap tanh(S / cap), before ALiBi and mask
/// ALiBi       alibi_slopes adds -slope |i + Sk - Sq - j| to the score of query i and key j, as
///             flash-attn does; extents of 1 broadcast
/// Sinks       sinks[h] is one more score of every row of head h, to a key whose value is 0: LSE' =
///             log(exp(LSE) + exp(sink)) is what lse gets, O' = O exp(LSE - LSE'). A row without a
///             key has o = 0, lse = sink; a sink of -inf changes nothing
/// Sequences   cu_seqlens_*, seqused_*: each sequence is a dense call of its own, whose length is
///             Sq or Sk above: causal, windows, chunks and ALiBi are aligned by its own lengths,
///             masks [batch or 1, heads or 1, queries or 1, keys or 1] lie at its own positions
///             (extents of at least the longest sequence), dropout's pattern is that of entry b of
///             a batch. Bare kCausal, and windows and chunks without an alignment, are errors.
///             What lies in other sequences, between them and behind the last changes nothing; rows
///             of no sequence get o = 0, lse = -inf. On a CPU a sequence's bits are the same alone,
///             in any batch and by any number of threads, and offsets that decrease or leave the
///             tensor are errors. On a GPU such offsets are clamped, so that nothing outside of a
///             tensor is read or written, and a sequence that is longer than its mask gets NaN.
///             FLASHLAB_CHECK_SEQUENCES=1 in the environment reads lengths back before each call on
///             a GPU, which waits for its stream, and judges them as on a CPU.
///             CPUs have them, and GPUs but for fp64. Where a GPU's sm80 or sm90 is named and k
///             is dense, a seqused_k beyond k is clamped, not NaN as in a cache
/// Caches      as Sequences, with the keys that ForwardTensors says; forward alone. Positions count
///             from a sequence's first key: padding, and where pages lie, change nothing. On a CPU
///             a page outside of k, an entry outside of it, a length beyond the cache and padding
///             beyond the length are errors with sequence, index and value. On a GPU such a
///             sequence gets NaN in o and lse, and nothing outside of a tensor is read
/// Dropout     P of a pair is kept with probability 1 - p (rounded to a multiple of 2^-16) and
///             multiplied by 1 / (1 - p), or dropped; LSE is that without dropout. NaN or Inf in v
///             at a dropped key may make the row non-finite
/// Empty rows  a row with no visible key, or whose visible scores are all -inf: o = 0, lse = -inf
/// Non-finite  a row that sees NaN or +inf in a score becomes NaN (o and lse). Keys beyond the
///             length are never read. NaN or Inf in v at a masked key may make that row non-finite.
/// Sizes       B, Hq or Sq = 0: success, nothing written. Sk = 0: empty rows. D = 0 is an error.
/// Workspace   plan.workspace_bytes(); Sq x Sk in `naive` and `cublas` alone. CPU: packed K and V,
///             O(B Hk Sk (D + Dv)). GPU: in 16 bits a counter, and parts of O where keys are split;
///             fp32: K and V in 16-bit terms.
/// Stream      enqueued on `stream`, never synchronises; on the CPU complete on return
/// Repeat      bitwise repeatable on one context; with Options::deterministic on any number of
///             threads or multiprocessors
/// Errors      kInvalidArgument, kUnsupported, kOutOfMemory, kDeviceError; on error nothing was
///             written
/// Cost        2 B Hq pairs (D + Dv) FLOPs, pairs = visible (query, key) pairs per head
/// Source      FlashAttention-2 (Dao 2023), algorithm 1
Status forward(const Context& context, Stream stream, const Plan& plan,
               const ForwardTensors& tensors, Workspace workspace);

/// One call: plans (cached), takes the workspace from the context's allocator, runs.
Status forward(const Context& context, Stream stream, const ForwardTensors& tensors,
               const Options& options = {});

/// Exact softmax attention, backward.
///
/// Computes    P = exp(S - LSE),  delta = rowsum(dO * O) - dLSE,  dP = dO V^T,
///             dS = P * (dP - delta),  dV = P^T dO,  dQ = scale dS K,  dK = scale dS^T Q
///             (with softcap dS is also multiplied by 1 - tanh^2; with dropout dP and the P of dV
///             by keep / (1 - p))
///             (dK, dV summed over the query heads of a group)
///             d_sinks[h] = -sum over rows of head h of exp(sink - LSE) delta, rows in order
/// Shapes      d_o as o, dq as q, dk as k, dv as v, d_lse as lse
/// Types       as forward; gradients have the inputs' dtype or fp32; sums in fp32 (fp64 for fp64)
/// Empty rows  contribute nothing and get dq = 0; their dLSE is ignored
/// Mode        Options::gradient_mode: overwrite, or add to dq, dk, dv
/// Sizes       without a query (B, Hq or Sq = 0) dk and dv are zeros (accumulate: unchanged)
/// Workspace   O((B Hq Sq + B Hk Sk) (D + Dv)); Sq x Sk in `naive` and `cublas` alone (`sm90` above
///             head dim 128: at most 1 GiB of it)
/// Stream      as forward
/// Repeat      bitwise repeatable on a CPU context; on a GPU dQ is summed by atomic additions in
///             an order that varies, unless Options::deterministic is set
/// Errors      as forward
/// Cost        2 B Hq pairs (3 D + 2 Dv) FLOPs
/// Source      FlashAttention-2 (Dao 2023), algorithm 2
Status backward(const Context& context, Stream stream, const Plan& plan,
                const BackwardTensors& tensors, Workspace workspace);
Status backward(const Context& context, Stream stream, const BackwardTensors& tensors,
                const Options& options = {});

/// One part of an attention split along the keys: what forward gives with an fp32 `o` and `lse`.
struct Partial {
  ConstTensor o;    ///< [batch, seqlen_q, heads_q, head_dim_v] fp32
  ConstTensor lse;  ///< [batch, heads_q, seqlen_q] fp32
};

/// Merges attentions over disjoint sets of keys into the attention over their union.
///
/// Computes    LSE = log(sum_i exp(LSE_i)),  O = sum_i exp(LSE_i - LSE) O_i, in the order given
/// Shapes      every part as the outputs; o in fp32, fp16 or bf16; lse fp32 (may be absent)
/// Empty rows  a part with lse = -inf contributes nothing; all parts empty: o = 0, lse = -inf
/// Aliasing    outputs overlap nothing
/// Errors      kInvalidArgument (no parts, shapes, dtypes), kUnsupported (device)
/// Source      FlashAttention (Dao et al. 2022), section 3.1; Flash-Decoding
Status merge(const Context& context, Stream stream, std::span<const Partial> parts, Tensor o,
             std::optional<Tensor> lse);

/// Names accepted by Options::implementation on a device, e.g. {"cpu", "fa2-plain", "naive",
/// "reference"}, production first. The list is the same for every GPU; sm90 runs on Hopper alone.
std::vector<std::string> implementations(Device device);

}  // namespace flashlab
