#pragma once

// What a call's Python side remembers between calls: the plan, and how its results are made.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "arrays.h"
#include "flashlab/flashlab.h"

namespace flashlab::python {

/// Everything that a plan and the making of its results depend on, as bytes without holes. Hints at
/// lengths are left out: a plan serves all of them.
class CallKey {
 public:
  /// `place` is the framework's adapter, because results are made by it.
  CallKey(Pass pass, const Options& options, Device device, const void* place, bool with_lse);
  void add(const Argument& argument);
  /// Results are made in that order, too.
  void set_heads_first(bool heads_first) noexcept { head_.heads_first = heads_first ? 1 : 0; }

  static constexpr int kMaxTensors = 19;  ///< that a call of either pass may bring

  bool operator==(const CallKey& other) const noexcept;
  std::size_t hash() const noexcept;

 private:
  struct Head {
    const void* place;
    double scale;
    std::int64_t window_left, window_right, attention_chunk;
    float softcap, dropout;
    std::int32_t device;
    std::int32_t forks;
    std::uint8_t pass, causal, precision, deterministic, has_scale, with_lse, tensors,
        implementation;
    std::uint8_t heads_first, window_alignment, unused[2];
  };
  struct Tensor {
    std::int64_t shape[TensorSpec::kMaxRank];
    std::int64_t strides[TensorSpec::kMaxRank];
    std::uint8_t present, dtype, rank, alignment;
    std::int32_t device;
  };
  static_assert(std::has_unique_object_representations_v<Tensor>);

  std::size_t bytes() const noexcept;
  Head head_{};
  Tensor tensors_[kMaxTensors];
};

/// A result of a call: its layout, and the framework's function that makes it.
struct Made {
  TensorSpec spec;
  nb::object factory;
};

/// A result beside `like`; the caller sees one of `heads_first` as [batch, heads, seqlen,
/// head_dim].
Made result(const Framework& framework, nb::handle like, const TensorSpec& spec,
            bool heads_first = false);

/// A prepared plan with what its calls allocate.
struct PlannedCall {
  explicit PlannedCall(Plan prepared) : plan(std::move(prepared)) {}
  void add_result(const Framework& framework, nb::handle like, const TensorSpec& spec,
                  bool heads_first = false);
  void add_workspace(const Framework& framework, nb::handle like);

  Plan plan;
  std::vector<Made> results;     ///< in the order of the caller
  nb::object workspace_factory;  ///< none where the exchange's allocator serves, and on a CPU
};
using PlannedCallPointer = std::shared_ptr<const PlannedCall>;

/// The planned call of a key, or null. The GIL guards the cache.
PlannedCallPointer find_planned(const CallKey& key);
PlannedCallPointer remember(const CallKey& key, PlannedCallPointer call);

/// Plans and prepares with the GIL released: compiling a kernel takes seconds.
Result<Plan> prepared_plan(const Context& context, const Problem& problem);

/// Scratch memory of one call. GPU memory is the caller's framework's, on its current stream, and
/// goes back when the call is enqueued; on a CPU it is the context's own.
class Scratch {
 public:
  Scratch(const Framework& framework, const Context& context, const PlannedCall& call);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Workspace workspace() const noexcept { return workspace_; }

 private:
  Workspace workspace_;
  Memory memory_;
  dlpack::ManagedVersioned* managed_ = nullptr;
  Allocator* own_ = nullptr;
};

}  // namespace flashlab::python
