#pragma once

// State with locks that a forked child must not share with its parent.

#include <atomic>
#include <utility>

namespace flashlab::internal {

/// Counts the forks that this process is the child of. The first call registers the counter: make
/// it before any state that depends on it.
int fork_generation();

/// A `State` of which every process has its own.
///
/// A child has none of its parent's threads, and a lock that another thread held at the fork stays
/// locked for ever. So the child leaves the parent's state alone, locks and memory included, and
/// makes a new one on first use.
template <class State>
class PerProcess {
 public:
  explicit PerProcess(State* first) : entry_(new Entry{first, fork_generation()}) {}
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  /// Deletes the state unless it is a parent's.
  ~PerProcess() {
    if (!is_own()) return;
    delete entry_.load()->state;
    delete entry_.load();
  }

  /// Whether the state was made by this process.
  bool is_own() const { return entry_.load()->generation == fork_generation(); }

  /// The state as it is, a parent's included: for members that never change.
  const State& as_made() const { return *entry_.load()->state; }

  /// This process's state; `make(const State& parents)` returns a new State* after a fork.
  template <class Make>
  State& current(const Make& make) {
    Entry* entry = entry_.load();
    const int generation = fork_generation();
    while (entry->generation != generation) {
      Entry* fresh = new Entry{make(std::as_const(*entry->state)), generation};
      if (entry_.compare_exchange_strong(entry, fresh)) return *fresh->state;
      delete fresh->state;
      delete fresh;
    }
    return *entry->state;
  }

 private:
  struct Entry {
    State* state;
    int generation;
  };
  std::atomic<Entry*> entry_;
};

}  // namespace flashlab::internal
