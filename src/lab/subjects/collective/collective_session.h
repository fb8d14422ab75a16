#pragma once

// What `bench collective` keeps between its problems: the transports of its ranks, and peers.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/gpus/transports.h"
#include "lab/results/subject.h"
#include "lab/subjects/collective/collective_ranks.h"
#include "lab/subjects/collective/peer_collectives.h"
#include "runtime/cuda/device.h"

namespace flashlab::lab {

class CollectiveSession final : public BenchSession {
 public:
  /// A transport that was asked for, or why it is not to be had.
  struct Transport {
    std::string name;  ///< "nccl", and "nccl.eager" where calls are enqueued one by one
    runtime::Communicator* group = nullptr;
    bool graph = false;
    Status status;
  };

  /// All ranks of `options.group` call it. Settings: --transport, --enqueue, --peers, --python,
  /// --beside.
  /// Errors: kInvalidArgument (a GPU for two ranks, a transport that the device does not have),
  /// kUnsupported (no MPI).
  static Result<std::unique_ptr<BenchSession>> start(const Context& context,
                                                     const BenchOptions& options);

  /// A peer that was asked for, or why it is not to be had.
  struct Peer {
    std::string name;
    std::unique_ptr<PeerCollectives> peer;
    Status status;
    bool graph = false;
  };

  std::size_t results() const override { return transports_.size() + peers_.size(); }
  const std::vector<Transport>& transports() const { return transports_; }
  const std::vector<Peer>& peers() const { return peers_; }
  /// null: processors.
  cuda::GpuDevice* gpu() const { return gpu_; }

 private:
  Status open_gpu(const Context& context, const BenchOptions& options);
  Status add(const std::string& name, const BenchOptions& options);
  Status add_peer(const std::string& name, Device device, const BenchOptions& options);

  cuda::GpuDevice* gpu_ = nullptr;
  dist::GpuTransports between_;  ///< GPUs
  std::unique_ptr<runtime::Communicator> mpi_;
  std::vector<Transport> transports_;
  std::vector<Peer> peers_;
};

/// Those of the device, the usual first: "auto", "nccl", "copies"; "shared", "mpi".
std::vector<std::string> transports_of(Device device);

}  // namespace flashlab::lab
