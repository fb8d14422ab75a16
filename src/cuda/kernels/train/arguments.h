#pragma once

// What the kernels of a training step are launched with, the same text on host and device. No
// include here: device code has no library headers. Elements are those of the kernel's Config; what
// a kernel does not use is null.

namespace flashlab::device {

/// x, y, dy, dx [rows, width], weight, bias [width], mean, rstd [rows].
struct NormArguments {
  const void* x{};
  const void* weight{};
  const void* bias{};
  void* y{};
  float* mean{};
  float* rstd{};
  const void* dy{};
  void* dx{};
  float* partials{};  ///< [blocks, width] of d weight, of d bias, of the columns of dx
  long long rows{};
  float epsilon{};
};

/// Sums over rows: x [rows, width] -> partials [blocks, width].
struct ColumnArguments {
  const void* x{};
  float* partials{};
  long long rows{};
};

/// The end of a sum over rows: partials [blocks, width] -> out [width].
struct FinishedSum {
  const float* partials{};
  void* out{};
  int width{}, blocks{};
};
inline constexpr int kMostFinishedSums = 160;  // parameters of a kernel end at 4096 bytes
struct FinishArguments {
  FinishedSum sums[kMostFinishedSums]{};
};

struct ZeroArguments {
  void* to{};
  long long bytes{};
};

/// gate_up, dgate_up [rows, 2 hidden] with the gate first; y, dy [rows, hidden]. GELU has x and dx
/// [rows, hidden] in their place, and partial sums of dx [blocks along the rows, hidden].
struct ActivationArguments {
  const void* x{};
  const void* dy{};
  void* out{};
  float* partials{};
  long long rows{};
};

/// a, b, y [elements], b of kAddRow [width]
struct PointwiseArguments {
  const void* a{};
  const void* b{};
  void* y{};
  long long elements{};
};

/// scores, p, dp [rows, context], max, argmax, sum [rows]; backward writes its result to p.
struct SoftmaxArguments {
  const void* scores{};
  const void* dp{};
  void* p{};
  float* max{};
  long long* argmax{};
  float* sum{};
  long long rows{};
};

/// cosine, sine [context, head_dim / 2]; qkv [rows, 3 width] is turned in place. Angles of one
/// position where one is given.
struct RopeArguments {
  const double* position{};
  float* cosine{};
  float* sine{};
  void* qkv{};
  long long rows{};
  double theta{};
};

/// The same of rows of q, k and v with heads of their own numbers, and of scaled frequencies.
struct RopeHalvesArguments {
  const double* position{};
  float* cosine{};
  float* sine{};
  void* qkv{};
  long long rows{};
  double theta{};
  double factor{}, low{}, high{}, original{};
};

/// x, y, dy [rows, (heads + 2 keys) head_dim], weights [head_dim], rstd [rows, heads + keys].
/// Backward turns dy in place; partials [blocks, head_dim] of d weight, then of d key weight.
/// Where RoPE goes along: cosine, sine [positions, head_dim / 2].
struct HeadNormArguments {
  const void* x{};
  const void* weight{};
  const void* key_weight{};
  void* y{};
  float* rstd{};
  float* partials{};
  const float* cosine{};
  const float* sine{};
  long long rows{};
  float epsilon{};
};

/// tokens [rows], table [vocabulary, width], positions [context, width], x [rows, width].
/// Backward: `order` holds the rows sorted by token, the group of the g-th distinct token begins at
/// starts[g] and ends at starts[g + 1]; groups that are not there are empty. With a position given
/// there is one row, which stands there.
struct EmbeddingArguments {
  const double* position{};
  const int* tokens{};
  const void* table{};
  const void* positions{};
  void* x{};
  const int* order{};
  const int* starts{};
  const void* dx{};
  void* dtable{};
  void* dpositions{};
  long long rows{};
};

/// scalars: the step's; y = keep(x) / (1 - p) + addend over `elements`.
struct DropoutArguments {
  const double* scalars{};
  const void* x{};
  const void* addend{};
  void* y{};
  long long elements{};
  unsigned long long seed{}, site{}, limit{};
  float scale{};
};

/// logits, gradient [rows, vocabulary], which may be the same; targets, losses [rows].
struct CrossEntropyArguments {
  void* logits{};
  void* gradient{};
  const int* targets{};
  float* losses{};
  const float* loss_scale{};  ///< what else multiplies the gradient; null: nothing
  long long rows{};
  float gradient_scale{};
};

/// losses [rows] -> loss [1]
struct MeanLossArguments {
  const float* losses{};
  double* sum{};
  float* loss{};
  long long rows{};  ///< of a sum: those of one share
  int shares{};
};

/// So many squares have a sum of their own where parts of the arenas are no part of the norm's
/// bits.
inline constexpr int kNormChunk = 1024;

/// What the update of a step depends on, made from the scalars and the norm.
struct AdamWFactors {
  float gradient_scale{}, rate{}, denominator_scale{}, keep{};
  bool skips{};  ///< the scaled gradients were no numbers: everything stays
};

/// The flat arenas, `elements` each. Elements 64 i .. 64 i + 63 decay iff bit i of `decays` is set.
struct OptimizerArguments {
  const double* scalars{};
  void* gradients{};
  void* parameters{};
  void* copies{};
  void* first{};
  void* second{};
  double* sums{};    ///< [blocks of the norm]
  double* chunks{};  ///< of every kNormChunk elements, where the norm's bits know no parts
  float* norm{};
  AdamWFactors* factors{};
  const unsigned* decays{};
  float* loss_scale{};  ///< [4]: scale, steps since it changed, steps skipped, 0
  long long elements{};
  long long scale_interval{};  ///< good steps after which the scale is doubled; 0: it stays
  double beta1{}, beta2{}, weight_decay{}, max_norm{};
  float epsilon{};
};

}  // namespace flashlab::device
