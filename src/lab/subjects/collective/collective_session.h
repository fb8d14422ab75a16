#pragma once

// What `bench collective` keeps between its problems: the transports of its ranks, and peers.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/gpus/transports.h"
#include "lab/results/subject.h"
#include "lab/subjects/collective/collective_ranks.h"
#include "lab/subjects/collective/torch_collectives.h"
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

  std::size_t results() const override { return transports_.size() + (asked_torch_ ? 1 : 0); }
  const std::vector<Transport>& transports() const { return transports_; }
  TorchCollectives* torch() const { return torch_.get(); }
  const Status& torch_status() const { return torch_status_; }
  bool has_torch() const { return asked_torch_; }
  bool torch_graph() const { return torch_graph_; }
  /// null: processors.
  cuda::GpuDevice* gpu() const { return gpu_; }

 private:
  Status open_gpu(const Context& context, const BenchOptions& options);
  Status add(const std::string& name, const BenchOptions& options);

  cuda::GpuDevice* gpu_ = nullptr;
  dist::GpuTransports between_;  ///< GPUs
  std::unique_ptr<runtime::Communicator> mpi_;
  std::vector<Transport> transports_;
  std::unique_ptr<TorchCollectives> torch_;
  Status torch_status_;
  bool asked_torch_ = false, torch_graph_ = true;
};

/// Those of the device, the usual first: "auto", "nccl", "copies"; "shared", "mpi".
std::vector<std::string> transports_of(Device device);

}  // namespace flashlab::lab
