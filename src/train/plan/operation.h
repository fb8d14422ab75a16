#pragma once

// One operation of a training step: what it computes, on which tensors, at what cost.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "flashlab/attention.h"
#include "train/plan/rope_scaling.h"
#include "train/plan/tensor.h"

namespace flashlab::train {

enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer };
inline constexpr int kPhases = 3;
const char* to_string(Phase phase) noexcept;

/// Classes of the kernel ledger.
enum class OperationClass : std::uint8_t {
  kProduct,
  kAttention,
  kSoftmax,
  kNorm,
  kElementwise,
  kLoss,
  kOptimizer,
  kCopy,
  kCommunication,
};
const char* to_string(OperationClass operation_class) noexcept;

/// How much of a layer's forward is made again for its backward, from nothing to everything; each
/// rung makes again what the ones before it do, too.
enum class Rung : std::uint8_t {
  kKeep,   ///< everything is kept
  kNorms,  ///< outputs of norms and activations: no product is repeated
  kMlp,    ///< and the product into the MLP (gate and up)
  kQkv,    ///< and q, k and v
  kBlock,  ///< everything: only the block's input is kept
};
/// "keep", "norms", "mlp", "qkv", "block".
const char* to_string(Rung rung) noexcept;

/// What an executor has a function for: the rows of operations.inc.
enum class OperationKind : std::uint8_t {
#define FLASHLAB_OPERATION(kind, ...) kind,
#include "train/plan/operations.inc"
#undef FLASHLAB_OPERATION
};

/// What an operand is to its operation. Of a backward operation, an output with the name of a
/// learned tensor is the gradient of that tensor.
enum class Slot : std::uint8_t {
  kA,
  kB,
  kC,
  kBias,
  kAddend,
  kX,
  kY,
  kDX,
  kDY,
  kWeight,
  kKeyWeight,
  kMean,
  kRstd,
  kSum,
  kTokens,
  kTable,
  kPositions,
  kScalars,
  kCosine,
  kSine,
  kQkv,
  kDQkv,
  kO,
  kDO,
  kLse,
  kDocuments,
  kCache,
  kLengths,
  kScores,
  kDScores,
  kMax,
  kArgmax,
  kP,
  kDP,
  kLogits,
  kDLogits,
  kTargets,
  kLosses,
  kLoss,
  kLossScale,
  kNorm,
  kGradient,
  kValue,
  kFirstMoment,
  kSecondMoment,
  kCopy,
};

struct Operand {
  Slot slot = Slot::kX;
  TensorId tensor = kNoTensor;
  operator TensorId() const noexcept { return tensor; }
};

/// The row of a kind: its name and the operands that it may have, in order.
struct OperationRow {
  const char* name;
  std::vector<Slot> inputs, outputs;
};
const OperationRow& row_of(OperationKind kind);
inline const char* to_string(OperationKind kind) {
  return row_of(kind).name;
}

/// C = alpha op(A) op(B) [+ bias of the columns] [+ addend], or C += with `accumulate`.
/// op(A) [m, k], op(B) [k, n], C [m, n], row-major with leading dimensions in elements; `batch`
/// such products side by side, each matrix `inner` at a time along one stride and then the other
/// (heads of a sequence, then sequences).
struct ProductAttributes {
  struct Matrix {
    std::int64_t offset = 0;        ///< elements from the tensor's beginning
    std::int64_t leading = 0;       ///< elements from row to row
    std::int64_t inner_stride = 0;  ///< elements from head to head
    std::int64_t outer_stride = 0;  ///< elements from sequence to sequence
    bool transposed = false;
  };
  std::int64_t m = 0, n = 0, k = 0;
  Matrix a, b, c;
  std::int64_t inner = 1, outer = 1;
  double alpha = 1;
  bool accumulate = false;
};

/// Rows of `width`; the leading dimensions of both sides are `width`.
struct RowsAttributes {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  double epsilon = 0;
  bool accumulate = false;             ///< into the gradient of the input
  bool accumulate_parameters = false;  ///< into sums over rows: the gradients of weight and bias
  bool one_plus_weight = false;        ///< a norm multiplies by 1 + weight
};

/// Rows of q, k and v side by side, of which every head of q and k is normed.
struct HeadNormAttributes {
  std::int64_t rows = 0, heads = 0, keys = 0, head_dim = 0;
  double epsilon = 0;
  bool accumulate_parameters = false;
  std::int64_t row_elements() const { return (heads + 2 * keys) * head_dim; }
};

/// Rows of one share after the other: each share's losses are added apart.
struct MeanLossAttributes {
  std::int64_t rows = 0;
  std::int64_t shares = 1;
};

/// What the unfused set of operations computes one element at a time.
enum class Pointwise : std::uint8_t {
  kAdd,              ///< a + b
  kAddRow,           ///< a + b with b [width] added to every row
  kMultiply,         ///< a b
  kSilu,             ///< a / (1 + exp(-a))
  kSiluBackward,     ///< a silu'(b): a is the gradient, b silu's input
  kCopy,             ///< a; on CPUs alone
  kScale,            ///< factor a
  kSoftcap,          ///< factor tanh(a / factor)
  kSoftcapBackward,  ///< a (1 - (b / factor)^2): a is the gradient, b softcap's result
};

/// Tensors of [rows, width].
struct PointwiseAttributes {
  Pointwise function = Pointwise::kAdd;
  std::int64_t rows = 0, width = 0;
  double factor = 1;
};

/// Tokens are rows `first` .. `first + rows` of the batch; `context` of them make a sequence.
struct EmbeddingAttributes {
  std::int64_t rows = 0, width = 0, vocabulary = 0, context = 0, first = 0;
  std::int64_t table_positions = 0;  ///< rows of the table of positions
  bool accumulate = false;
  bool accumulate_positions = false;
};

/// Which dropout of a run: its pattern is a function of these, of the step and of places alone, so
/// that backward and a recomputed forward drop the same.
struct DropoutSite {
  std::uint64_t seed = 0;
  std::int64_t site = 0;  ///< of the model; micro-batches have sites of their own
  friend bool operator==(const DropoutSite&, const DropoutSite&) = default;
};

/// q, k and v lie side by side in rows of qkv_width() elements. Each operation's attention is
/// planned as a Problem of its own, so that layers may differ in all of this.
struct AttentionAttributes {
  std::int64_t batch = 0, context = 0, heads = 0, head_dim = 0;
  bool causal = true;
  std::int64_t heads_kv = 0;       ///< of k and v, each for heads / heads_kv of q; 0: as many
  std::optional<Window> window{};  ///< beside the mask; as heads_kv, of fused attention alone
  std::optional<double> scale{};   ///< of scores; none: 1 / sqrt(head_dim)
  double softcap = 0;          ///< scores become cap tanh(score / cap); of fused attention alone
  std::string implementation;  ///< empty: the device's production kernels
  double dropout = 0;          ///< of probabilities: by the library's pattern, see DropoutSite
  DropoutSite site{};
  /// Sequences that the rows of the micro-batch may have, by its offsets in StepPlan::documents; 0:
  /// each row is one.
  std::int64_t documents = 0, micro = 0;
  std::int64_t cached = 0;  ///< rows of the cache that holds k and v; 0: they lie beside q
  std::int64_t width() const { return heads * head_dim; }
  std::int64_t width_kv() const { return (heads_kv > 0 ? heads_kv : heads) * head_dim; }
  std::int64_t qkv_width() const { return width() + 2 * width_kv(); }
};

/// Frequency i of RoPE is theta^(-2i / head_dim), scaled where `scaling` says so.
struct RopeAttributes {
  std::int64_t batch = 0, context = 0, heads = 0, head_dim = 0;
  double theta = 10000;
  bool inverse = false;   ///< backward: the transposed rotation
  bool halves = false;    ///< element i turns with i + head_dim / 2, not 2i with 2i + 1
  std::int64_t keys = 0;  ///< heads of k and of v; 0: as many
  RopeScaling scaling{};
  std::int64_t kv() const { return keys > 0 ? keys : heads; }
};

/// Mask of element i: kept iff random(seed, step, site, i) >= probability.
struct DropoutAttributes {
  std::int64_t elements = 0;
  double probability = 0;
  DropoutSite site{};
};

struct CrossEntropyAttributes {
  std::int64_t rows = 0, vocabulary = 0, first = 0;  ///< first: row of targets and losses
  double gradient_scale = 0;                         ///< of dlogits; 0: logits stay as they are
};

/// Where the epsilon of AdamW stands; trajectories are compared with both. SGD is AdamW's update
/// with a denominator of 1: no second moment.
enum class AdamWConvention : std::uint8_t {
  kTorch,  ///< m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), decay before
  kCs336,  ///< lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps), decay before
  kSgd,    ///< lr / (1 - b1) * m, b1 the momentum, b2 = eps = 1; decay before
};

struct AdamWAttributes {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double max_norm = 0;  ///< gradients are scaled to at most this norm; 0: never
  AdamWConvention convention = AdamWConvention::kTorch;
  /// Ranges of the arenas in order, each with its weight decay.
  struct Range {
    std::int64_t begin = 0, end = 0;
    double weight_decay = 0;
    std::int64_t local = 0;  ///< where it begins in arenas of owned elements
  };
  std::vector<Range> ranges;
};

/// The loss is multiplied by a scale so that fp16 gradients neither vanish nor overflow; where the
/// norm of all gradients is no number, the optimizer leaves everything as it is.
/// The tensor is fp32 [4]: scale, steps since it last changed, steps skipped, 0.
struct LossScaleAttributes {
  double first = 65536;  ///< the scale of the first step
  bool dynamic = true;   ///< halved after a skipped step, doubled after `interval` good ones
  std::int64_t interval = 2000;
};
inline constexpr int kLossScaleNumbers = 4;

/// What all ranks do in place with a range of an arena, in elements; empty: with the operand. Of a
/// reduce-scatter or an all-gather the range is the parts of all ranks, in order.
struct CollectiveAttributes {
  std::int64_t begin = 0, end = 0;
  enum class Arena : std::uint8_t { kGradients, kValues, kCopies } arena = Arena::kGradients;
};

using Attributes =
    std::variant<std::monostate, ProductAttributes, RowsAttributes, MeanLossAttributes,
                 HeadNormAttributes, EmbeddingAttributes, AttentionAttributes, RopeAttributes,
                 PointwiseAttributes, DropoutAttributes, CrossEntropyAttributes, AdamWAttributes,
                 LossScaleAttributes, CollectiveAttributes>;

struct Operation {
  std::string name;  ///< "layer 7 / attention / scores"
  OperationKind kind = OperationKind::kProduct;
  OperationClass operation_class = OperationClass::kProduct;
  Phase phase = Phase::kForward;
  int layer = -1;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  Attributes attributes;
  double flops = 0;
  std::int64_t bytes = 0;  ///< least traffic: each operand once
  int stream = 0;
  Rung rung = Rung::kBlock;     ///< the lowest one that makes it again
  int generation = 0;           ///< above 0: a forward operation that runs again for backward
  std::vector<int> depends_on;  ///< earlier operations whose results or reads it must wait for

  /// The first operand of the name; kNoTensor where it is absent.
  TensorId in(Slot slot) const noexcept { return find(inputs, slot); }
  TensorId out(Slot slot) const noexcept { return find(outputs, slot); }
  bool has(Slot slot) const noexcept { return in(slot) != kNoTensor; }

 private:
  static TensorId find(const std::vector<Operand>& operands, Slot slot) noexcept {
    for (const Operand& each : operands) {
      if (each.slot == slot) return each.tensor;
    }
    return kNoTensor;
  }
};

}  // namespace flashlab::train
