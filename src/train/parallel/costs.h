#pragma once

// What parallel training sends, takes and holds, by formula. N ranks, C FLOP/s of one, W bytes a
// second that one sends, B tokens of all ranks together, D and F the width and the hidden width of
// a feed-forward block of three matrices, S bytes. All of it is arithmetic: nothing is measured.

#include <cstdint>
#include <string_view>
#include <vector>

namespace flashlab::train {

struct ParallelMachine {
  std::string_view name;
  double flops = 0;             ///< C
  double link_bytes_per_s = 0;  ///< W
  double memory_bytes = 0;      ///< of one rank
  double call_s = 20e-6;        ///< o: what one collective costs beside its bytes
};

/// S to all by passing whole copies around: (N-1) S / W.
double alternate_ring_seconds(double bytes, int ranks, double link_bytes_per_s);
/// By reduce-scatter and all-gather: 2 (N-1)/N S / W.
double ring_seconds(double bytes, int ranks, double link_bytes_per_s);

struct FeedForward {
  double width = 0;   ///< D
  double hidden = 0;  ///< F
  double tokens = 0;  ///< B, of all ranks
};

/// A part of a step on one rank: what it computes beside what it sends.
struct Beside {
  double compute_s = 0, communication_s = 0;
  /// Up to so many ranks the communication takes no longer.
  double most_ranks = 0;
  bool hides() const noexcept { return communication_s <= compute_s; }
};
/// Values and gradients of 16 bits. Compute 12 B D F / (N C); all-reduce 12 D F (N-1) / (N W).
Beside data_parallel_backward(const FeedForward& block, int ranks, const ParallelMachine& machine);
/// Compute 6 B D F / (N C); all-gather 6 D F (N-1) / (N W).
Beside fsdp_forward(const FeedForward& block, int ranks, const ParallelMachine& machine);
/// Both twice: gathers again, and scatters gradients.
Beside fsdp_backward(const FeedForward& block, int ranks, const ParallelMachine& machine);
/// Compute 6 B D F / (N C); all-reduce of y 4 B D (N-1) / (N W).
Beside tensor_forward(const FeedForward& block, int ranks, const ParallelMachine& machine);
/// Twice the compute; all-reduce of dx, as large as y.
Beside tensor_backward(const FeedForward& block, int ranks, const ParallelMachine& machine);

/// FSDP on one axis of a mesh and tensor parallel on the other, forward, (N-1)/N taken as 1.
struct MeshCost {
  double compute_s = 0;
  double fsdp_s = 0, tensor_s = 0;  ///< 6 D F / (N_TP W), 4 B D / (N_FSDP W)
  double most_ranks = 0;            ///< both at once: 1.5 B F W^2 / C^2
  double most_ranks_in_turn = 0;    ///< one behind the other: a quarter of it
  double best_fsdp = 0;             ///< N_FSDP at which the two take equally long, for this N
};
MeshCost fsdp_tensor_forward(const FeedForward& block, int fsdp_ranks, int tensor_ranks,
                             const ParallelMachine& machine);

/// A stack of blocks of two matrices: fp32 masters, gradients and two moments, 16-bit activations.
struct StackAccount {
  double parameters = 0;
  double state_bytes = 0;                 ///< 16 a parameter
  double activation_bytes_per_token = 0;  ///< 2 (D + F) a block
  /// Per device where states and half of the activations of `tokens` are sharded over N:
  /// (states + A / 2) / N + A / 2.
  double device_bytes(double tokens, int ranks) const;
  /// The least N for which that fits; 0: none does.
  int ranks_to_fit(double tokens, double device_bytes) const;
};
StackAccount stack_account(double width, double hidden, double blocks);
/// Tokens per device from which a mesh of FSDP (over M_X axes of links) and tensor parallel of Y
/// ranks computes longer than it gathers: C / (Y M_X W). And whether tensor parallel itself hides:
/// F >= Y C / (M_Y W).
double tokens_per_device_to_hide(int tensor_ranks, int fsdp_axes, const ParallelMachine& machine);
bool tensor_hides(double hidden, int tensor_ranks, int tensor_axes, const ParallelMachine& machine);

/// n = sqrt(S / (W o)) buckets make S / (W n) + n o least: buckets of sqrt(S W o) bytes.
double best_bucket_bytes(double bytes, const ParallelMachine& machine);

/// A model's training state, in bytes a parameter.
struct StateBytes {
  double value = 4;     ///< what a step computes with, and what is gathered
  double master = 0;    ///< beside it
  double gradient = 4;  ///< and what is sent of it
  double moments = 8;
};

/// One way of data parallel training, of one rank and one step.
struct ModeCost {
  std::string_view mode;
  double sent_bytes = 0;
  double calls = 0;
  double communication_s = 0;  ///< sent_bytes / W + calls o
  double exposed_s = 0;        ///< what cannot hide behind the computation that it runs beside
  double state_bytes = 0;      ///< values, gradients, optimizer states; with what is gathered
  double most_ranks = 0;       ///< up to which it hides; 0: it runs beside nothing
};
struct ModelSizes {
  double parameters = 0;
  double largest_unit = 0;  ///< parameters of the largest unit that is gathered
  double tensors = 0;       ///< parameters as things that have a gradient each
  double tokens = 0;        ///< of all ranks, of a step
  double units = 1;
};
/// naive, flat, overlap, bucket, sharded, zero1, zero2, fsdp. Compute: 2 P B / C forward, twice
/// that backward, over N.
std::vector<ModeCost> mode_costs(const ModelSizes& model, const StateBytes& bytes, int ranks,
                                 double bucket_bytes, const ParallelMachine& machine);

}  // namespace flashlab::train
