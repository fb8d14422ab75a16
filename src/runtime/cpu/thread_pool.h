#pragma once

// The CPU's own thread pool: tasks handed out by an atomic counter, the caller works too.

#include <cstdint>

#include "runtime/per_process.h"

namespace flashlab::internal {

/// A reference to a callable, valid for the duration of one call.
class TaskRef {
 public:
  template <class F>
  TaskRef(const F& f)  // NOLINT: implicit by design
      : object_(&f), call_([](const void* object, std::int64_t task, int worker) {
          (*static_cast<const F*>(object))(task, worker);
        }) {}
  void operator()(std::int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t, int);
};

/// Runs tasks on up to `threads` threads, the caller included.
///
/// Tasks are handed out in index order, so a caller that sorts them longest first gets a balanced
/// finish. `worker` is in [0, max_workers) and unique among the threads inside one call: it selects
/// scratch memory. Several callers may run at once: each always makes progress by itself, so
/// nothing can deadlock. After fork() the child starts its own threads. Tasks must not throw.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept;

  /// Returns when all tasks have finished. max_workers <= 0 means threads().
  void run(std::int64_t tasks, TaskRef task, int max_workers = 0);

 private:
  struct State;
  State& current();  ///< the state of this process: a new one after fork()
  PerProcess<State> state_;
};

}  // namespace flashlab::internal
