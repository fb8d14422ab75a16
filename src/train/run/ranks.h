#pragma once

// The ranks of a training run, seen by one of them: what they tell each other outside of steps.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"
#include "train/parallel/data_parallel.h"
#include "train/run/parameters.h"

namespace flashlab::train {

struct Ranks {
  runtime::Communicator* group = nullptr;  ///< null: this process is alone
  /// Between the ranks' GPUs, for what steps exchange; null: `group` does it.
  runtime::Communicator* gpus = nullptr;
  ParallelOptions parallel{};  ///< a run's configuration says what is on the wire
  /// How long a rank may keep the others waiting, after the run's first step.
  double timeout_s = 120;
  /// Until then: text may take minutes to become tokens.
  double first_timeout_s = 600;

  int rank() const { return group == nullptr ? 0 : group->rank(); }
  int size() const { return group == nullptr ? 1 : group->size(); }
  runtime::Communicator* of_steps() const { return gpus != nullptr ? gpus : group; }
  /// Reads and writes the run's folder, prints, samples.
  bool leads() const { return rank() == 0; }

  /// What the ranks do from here on belongs to that step.
  void begin_step(std::int64_t step, bool first) const {
    if (group != nullptr) group->begin_step(step, first ? first_timeout_s : timeout_s);
  }
  /// The same on all ranks: that of the lowest rank that failed, which is named unless it is rank
  /// 0. All call it; so nobody waits for one that has given up.
  Status agree(const Status& own) const;
  /// Rank 0's text on all ranks.
  Status tell(std::string& text) const;
  /// Whether any rank says so.
  Result<bool> any(bool own) const;
  /// Over all ranks.
  Result<std::uint64_t> sum(std::uint64_t own) const;
  /// Every rank's `bytes`, in order. Alone: one's own.
  Result<std::vector<std::byte>> gather(const void* own, std::size_t bytes, const char* name) const;
};

/// Elements [begin, end) of all parameters as their arena has them, wherever they are kept.
using ReadElements =
    std::function<Status(StoreArena arena, std::int64_t begin, std::int64_t end, std::byte* to)>;
/// Reads elements on all ranks, whoever owns them: all call it alike. `store` outlives it. Errors:
/// a lost rank.
ReadElements whole_elements(const Ranks& ranks, const ParameterStore& store);

/// What must be the same on all ranks before the first step.
struct SameField {
  const char* name;  ///< "the configuration"
  std::uint64_t digest = 0;
};
/// FNV-1a over 8 bytes at a time.
std::uint64_t digest_of(const void* data, std::size_t bytes, std::uint64_t seed = 0);
/// Errors, the same on all ranks: kInvalidArgument, naming the first rank and field that differ
/// from rank 0's.
Status check_same(const Ranks& ranks, const std::vector<SameField>& fields);

}  // namespace flashlab::train
