#pragma once

// The ranks of a run for flashlab.Communicator, which knows arrays: here they are addresses.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "dist/start/world.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::python {

/// One rank's end of a group. Calls may come from any thread; they run one after the other.
/// Precondition of the constructor and of `run`: the GIL is held; it is released while ranks wait.
class Ranks {
 public:
  /// Meets the other ranks, which the starter's variables name.
  /// Errors: ValueError for variables that contradict each other, those of dist::join.
  Ranks(const std::string& group, const std::string& transport, double timeout_s);

  int rank() const noexcept { return world_.rank; }
  int size() const noexcept { return world_.size; }
  const std::string& host() const noexcept { return world_.host; }
  const std::string& transport() const noexcept { return transport_; }

  /// One collective by its name ("all-reduce"). Memory: what CollectiveCall says of `kind`.
  /// Errors: ValueError, or RuntimeError when a rank is gone, late, or calls something else.
  void run(const std::string& kind, std::uintptr_t from, std::uintptr_t to, std::size_t bytes,
           const std::string& dtype, int root, const std::string& name);

  /// Leaves the group in good order; `run` then refuses.
  void close();

 private:
  dist::World world_;
  std::string transport_;
  std::unique_ptr<runtime::Communicator> communicator_;
  std::mutex one_at_a_time_;
};

/// The class of the module.
void define_ranks(nanobind::module_& module);

}  // namespace flashlab::python
