#pragma once

// The learned numbers of a model on the CPU: flat arenas in backward order, shared by every step
// (training, validation, generation) of the same model.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "flashlab/status.h"
#include "runtime/cpu/thread_pool.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

class DeviceParameters;

/// What a store has of every parameter.
enum class StoreArena : std::uint8_t { kValues, kFirstMoments, kSecondMoments };

/// Memory on 64-byte lines, zero at first.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// Errors: kOutOfMemory, naming `what`.
  static Result<AlignedBytes> allocate(std::int64_t bytes, const char* what);
  std::byte* data() const { return data_; }
  std::int64_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* p) const noexcept;
  };
  std::unique_ptr<void, Free> block_;
  std::byte* data_ = nullptr;  // inside it
  std::int64_t bytes_ = 0;
};

/// One arena for each of values, their copies and moments; the plan's parameters say where things
/// lie. Gradients belong to the executor that makes them.
class ParameterStore {
 public:
  /// Arenas for `plan`: moments only where it has them.
  static Result<ParameterStore> create(const StepPlan& plan);

  /// What create() takes.
  static std::int64_t planned_bytes(const StepPlan& plan);

  /// Fills the values as the plan's initializers say. The numbers of a parameter depend on the seed
  /// and its name only. At most `most` of a parameter are drawn, and then come again: for steps
  /// that are timed, where drawing a billion takes longer than they do.
  void initialize(std::uint64_t seed, std::int64_t most = INT64_MAX);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  Element element() const { return element_; }
  std::int64_t elements() const { return elements_; }
  /// Of all arenas together.
  std::int64_t bytes() const {
    return values_.size() + copies_.size() + first_.size() + second_.size();
  }
  /// Whether another plan has the same parameters, the same part of each, in the same places.
  bool matches(const StepPlan& plan) const;

  /// Rounds the values to what forward reads, where that is a copy in another type.
  void round_copies(internal::ThreadPool& pool) const;
  void round_copies() const;

  std::byte* values() const { return values_.data(); }
  /// Copies of the values in the 16-bit type that forward reads, in the same order;
  /// null where it reads the values themselves.
  std::byte* copies() const { return copies_.data(); }
  /// Of the elements in owned() alone, and so are the values where owns_values().
  std::byte* first_moments() const { return first_.data(); }
  std::byte* second_moments() const { return second_.data(); }
  const std::vector<OwnedRange>& owned() const { return owned_; }
  std::int64_t moment_bytes() const { return first_.size(); }
  bool owns_values() const { return owned_values_; }
  /// StepPlan::follow_from_halves of its plan.
  bool follow_from_halves() const { return follow_from_halves_; }
  /// Whether moments are of everything that learns.
  bool owns_all() const { return !shared_; }
  bool is_whole(StoreArena arena) const {
    return owns_all() || (arena == StoreArena::kValues && !owned_values_);
  }
  std::byte* data(StoreArena arena) const {
    const AlignedBytes* arenas[] = {&values_, &first_, &second_};
    return arenas[static_cast<std::size_t>(arena)]->data();
  }
  /// Of elements [begin, end) of everything those that an arena has: visit(first of them, their
  /// number, where they begin there).
  template <class Visit>
  void each_piece(StoreArena arena, std::int64_t begin, std::int64_t end,
                  const Visit& visit) const {
    if (is_whole(arena)) return visit(begin, end - begin, begin);
    for (const OwnedRange& range : owned_) {
      const std::int64_t first = std::max(begin, range.begin), last = std::min(end, range.end);
      if (first < last) visit(first, last - first, range.local + first - range.begin);
    }
  }
  /// Of one arena.
  std::int64_t arena_bytes(bool copies) const { return copies ? copies_.size() : values_.size(); }

  /// The arenas on a GPU, which the executors of this store share; null on a CPU.
  std::shared_ptr<DeviceParameters>& on_device() { return on_device_; }

 private:
  std::vector<Parameter> parameters_;
  Element element_ = Element::kFp32;
  Element copy_element_ = Element::kBf16;
  std::int64_t elements_ = 0;
  std::vector<OwnedRange> owned_;
  bool shared_ = false;
  bool owned_values_ = false;
  bool follow_from_halves_ = false;
  AlignedBytes values_, copies_, first_, second_;
  std::shared_ptr<DeviceParameters> on_device_;
};

inline std::int64_t elements_of(const ParameterPart& part) {
  std::int64_t count = 1;
  for (const std::int64_t extent : part.shape) count *= extent;
  return count;
}

/// visit(part, its first element of all) for every part of every parameter that the arena has.
template <class Visit>
void each_part(const ParameterStore& store, StoreArena arena, const Visit& visit) {
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.frozen && arena != StoreArena::kValues) continue;
    for (const ParameterPart& part : parameter.parts) {
      visit(part, parameter.offset + part.first_row * elements_of(part) / part.shape[0]);
    }
  }
}

}  // namespace flashlab::train
