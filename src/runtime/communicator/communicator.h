#pragma once

// Ranks that exchange memory: what a collective is, whoever carries its bytes. Transports live in
// src/dist; the interface stands here because a step of a program will be a collective, too.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flashlab/status.h"
#include "flashlab/tensor.h"

namespace flashlab::runtime {

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kBarrier
};

/// "all-reduce", "reduce-scatter", ...
const char* to_string(Collective kind) noexcept;

/// Whether ranks' parts are added, so that the call's dtype matters; the others move bytes.
constexpr bool adds(Collective kind) noexcept {
  return kind == Collective::kAllReduce || kind == Collective::kReduceScatter;
}

/// One call. `bytes` is the size of one part, N the number of ranks, `me` this rank. What `from`
/// and `to` hold, what `to` gets, and where both may share memory:
///
///   all-reduce      part -> part        the sum of all ranks' `from`      to == from
///   reduce-scatter  N parts -> part     the sum of all ranks' part `me`   to == from + me * bytes
///   all-gather      part -> N parts     all ranks' `from`, in order       from == to + me * bytes
///   all-to-all      N parts -> N parts  part `me` of every rank           nowhere
///   broadcast       part -> part        the root's `from`                 to == from on the root
///   barrier         nothing
///
/// `from` of a broadcast is read on the root alone. All ranks call the same collectives in the same
/// order with the same kind, bytes, dtype and root.
struct CollectiveCall {
  Collective kind = Collective::kBarrier;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  DType dtype = DType::kFp32;  ///< of sums: fp64, fp32, fp16 or bf16
  int root = 0;
  std::string_view name{};  ///< for messages: "gradients of layer 3"
  void* stream = nullptr;   ///< of a GPU, where the call is enqueued; a processor has returned
};

/// How far the collectives of a GPU's stream are, as its host sees it.
struct StreamProgress {
  std::uint32_t entered = 0;  ///< since the last look
  Collective kind = Collective::kBarrier;
  std::string_view name{};  ///< of the last one entered
  double waited_s = 0;      ///< since anything went on
};

/// The ranks of one group, seen by one of them. One call at a time. On GPUs a call is enqueued on
/// its stream, and may be captured once one of its kind and size has run before.
///
/// Sums are those of a binary tree over ranks, ((0 + 1) + (2 + 3)) + 4, in fp32 (fp64 for fp64),
/// rounded once: they depend neither on timing nor on who carried the bytes.
class Communicator {
 public:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// "shared".
  virtual std::string_view transport() const noexcept = 0;
  /// The transport that carries out this call, where there is a choice.
  virtual std::string_view way(const CollectiveCall& /*call*/) const noexcept {
    return transport();
  }

  /// Errors: kInvalidArgument for a call that cannot be right, kDeviceError when a rank died, did
  /// not come in time or came with another call; then every later call fails alike.
  Status run(const CollectiveCall& call);

  Status all_reduce(void* data, std::size_t count, DType dtype, std::string_view name);
  Status all_gather(const void* from, void* to, std::size_t bytes, std::string_view name);
  Status broadcast(void* data, std::size_t bytes, int root, std::string_view name);
  Status barrier(std::string_view name);

  /// Memory of a GPU that calls will name. All ranks call it in the same order with equal sizes,
  /// and their calls name equal offsets in it; `unshare` before it is freed, when no call is under
  /// way. A transport that needs no such thing does nothing.
  virtual Status share(void* /*memory*/, std::size_t /*bytes*/) { return {}; }
  virtual Status unshare(void* /*memory*/) { return {}; }

  /// From here on: the step under way, which messages name (0: none), and how long a rank may keep
  /// the others waiting. All ranks call it between collectives.
  virtual void begin_step(std::int64_t /*step*/, double /*timeout_s*/) noexcept {}

  /// While this process waits for a stream with collectives: says how far it is and looks whether
  /// all ranks are there. Errors: those of `failure`.
  virtual Status watch(const StreamProgress& /*progress*/) { return failure(); }

  /// Not ok once a rank was lost, or came with another call.
  virtual Status failure() const = 0;
  /// After a failure: of the ranks that see it one tells of it, the others only end.
  virtual bool tells_of_failure() const noexcept = 0;

 private:
  virtual Status carry_out(const CollectiveCall& call) = 0;

  int rank_, size_;
};

}  // namespace flashlab::runtime
