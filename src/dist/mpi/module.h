#pragma once

// What the program asks of MPI. Binary interfaces of MPI differ between OpenMPI and MPICH, so a
// module of its own is compiled against the mpi.h that is there, and is opened at run time by this
// table: the program links no MPI and starts where there is none.

#include <cstddef>
#include <cstdint>

namespace flashlab::dist {

/// Bytes to another rank, or from it. Messages between two ranks arrive in their order.
struct MpiMessage {
  void* memory = nullptr;  ///< of a message that is sent, only read
  std::size_t bytes = 0;
  int rank = 0;
  bool sends = false;
};

struct MpiModule {
  int rank = 0, size = 0;
  int threads = 0;           ///< 0 to 3: single, funneled, serialized, multiple
  const char* library = "";  ///< its first line about itself: "Open MPI v4.1.4, ..."
  /// Sends and receives all of them. 0; an error of MPI's; kMpiLate after `timeout_s`.
  int (*exchange)(const MpiMessage* messages, int count, double timeout_s) = nullptr;
  /// Into `to`, which ends with a zero.
  void (*words_of)(int error, char* to, std::size_t bytes) = nullptr;
  /// Orderly: all ranks call it.
  void (*end)() = nullptr;
};

inline constexpr int kMpiLate = -1;
/// Changes with the table.
inline constexpr std::uint32_t kMpiModuleVersion = 1;
/// `extern "C" int flashlab_mpi_open(std::uint32_t version, MpiModule* out)`: starts MPI. 0; an
/// error of MPI's; kMpiOther for a module of another version, or MPI that was started before.
using MpiOpen = int(std::uint32_t version, MpiModule* out);
inline constexpr int kMpiOther = -2;
inline constexpr const char* kMpiOpenName = "flashlab_mpi_open";

}  // namespace flashlab::dist
