#pragma once

// Which rank of how many this process is: what started it says so by variables.

#include <functional>
#include <optional>
#include <string>

#include "flashlab/status.h"

namespace flashlab::dist {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< among those of this host
  std::string starter;                 ///< "torchrun", "mpirun (OpenMPI)", ...; empty: nobody
  std::string job;                     ///< a name that all ranks of this run know, and no other run
  std::string host;
  std::string address;  ///< MASTER_ADDR: where ranks of several hosts meet; empty: nobody said so
  int port = 0;         ///< MASTER_PORT

  bool alone() const noexcept { return size == 1; }
};

/// The value of a variable of the environment; empty where it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;
const Variables& environment();

/// Reads the variables of `flashlab launch` and torchrun, OpenMPI's mpirun, Hydra's (MPICH, Intel),
/// and srun. Without any of them the process is alone.
/// Errors: kInvalidArgument for variables that are half there, are no numbers, or contradict one
/// another, with what to unset or how to start.
Result<World> world_of(const Variables& variables = environment());

/// A variable that a process gets, and its value.
struct Setting {
  const char* name;
  const char* value;
};
/// NCCL, PyTorch and NVSHMEM use no multicast of NVLink where these are set: its sums do not
/// repeat, and a crash can take all GPUs of a host with it. No flag turns it on.
inline constexpr Setting kMulticastOff[] = {{"NCCL_NVLS_ENABLE", "0"},
                                            {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"},
                                            {"NVSHMEM_DISABLE_NVLS", "1"}};
/// Sets them in this process, whatever they were.
void turn_multicast_off();

}  // namespace flashlab::dist
