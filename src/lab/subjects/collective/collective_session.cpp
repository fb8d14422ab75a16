#include "lab/subjects/collective/collective_session.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "dist/mpi/mpi_communicator.h"
#include "lab/machine/gpu_memory.h"

namespace flashlab::lab {
namespace {

bool has(const std::vector<std::string>& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

}  // namespace

std::vector<std::string> transports_of(Device device) {
  if (device.kind == DeviceKind::kCpu) return {"shared", "mpi"};
  return {"auto", "nccl", "copies"};
}

Status CollectiveSession::open_gpu(const Context& context, const BenchOptions& options) {
  auto gpu = gpu_of(context.device());
  if (!gpu.ok()) return gpu.status();
  gpu_ = *gpu;
  // Beside products `auto` chooses as a training step does.
  const bool beside = !options.setting("--beside").empty();
  auto between = dist::gpu_transports(context.device(), *options.group, {.beside_kernels = beside});
  if (!between.ok()) return between.status();
  between_ = std::move(*between);
  return {};
}

Status CollectiveSession::add(const std::string& name, const BenchOptions& options) {
  Transport out{.name = name, .group = options.group, .graph = false, .status = {}};
  if (gpu_ == nullptr) {
    if (name == "mpi") {
      auto mpi = dist::mpi_communicator(*options.group, nullptr, options.timeout_s);
      if (!mpi.ok()) return mpi.status();
      mpi_ = std::move(*mpi);
      out.group = mpi_.get();
    } else {
      out.name = out.group->transport();  // between hosts these are sockets
    }
    transports_.push_back(std::move(out));
    return {};
  }
  const auto& group = name == "nccl"     ? between_.nccl
                      : name == "copies" ? between_.copies
                                         : between_.chosen;
  out.group = group.get();
  if (group == nullptr) {
    out.status = name == "copies" ? between_.copies_status : between_.nccl_status;
  }
  std::vector<std::string> ways = options.setting("--enqueue");
  if (ways.empty()) ways = {"graph"};
  for (const std::string& way : ways) {
    out.graph = way == "graph";
    out.name = out.graph ? name : name + ".eager";
    transports_.push_back(out);
  }
  return {};
}

Status CollectiveSession::add_peer(const std::string& name, Device device,
                                   const BenchOptions& options) {
  if (name == "mpi" && device.kind != DeviceKind::kCpu) {
    return Status::invalid(
        {"--peers", "mpi on GPUs", "torch", "choose --device cpu to measure beside MPI"});
  }
  const std::vector<std::string> set = options.setting("--python");
  const std::string python = set.empty() ? "python3" : set.front();
  auto peer = name == "mpi"
                  ? PeerCollectives::start_mpi(python, options.group->rank(), options.group->size(),
                                               options.timeout_s)
                  : PeerCollectives::start_torch(python, to_string(device), options.timeout_s);
  Peer out{.name = name, .peer = nullptr, .status = peer.status()};
  if (peer.ok()) {
    out.name = (*peer)->name();
    out.peer = std::move(*peer);
  }
  const std::vector<std::string> ways = options.setting("--enqueue");
  out.graph = ways.empty() || has(ways, "graph");
  peers_.push_back(std::move(out));
  return {};
}

Result<std::unique_ptr<BenchSession>> CollectiveSession::start(const Context& context,
                                                               const BenchOptions& options) {
  auto out = std::make_unique<CollectiveSession>();
  const std::vector<std::string> here = transports_of(context.device());
  std::vector<std::string> wanted = options.setting("--transport");
  if (wanted.empty()) wanted = here;
  // MPI wants its own mpirun: only where it is asked for.
  if (options.setting("--transport").empty()) std::erase(wanted, "mpi");
  for (const std::string& name : wanted) {
    if (has(here, name)) continue;
    // The same words on every rank: they make one message.
    return Status::invalid({"--transport", name, base::join(here, ", ") + " on this device",
                            "choose another, or another --device"});
  }
  const bool on_gpu = context.device().kind == DeviceKind::kCuda;
  if (!on_gpu && !options.setting("--beside").empty()) {
    return Status::invalid({"--beside product", "processors", "--device cuda",
                            "a processor's ranks exchange on the cores that would compute"});
  }
  if (on_gpu) {
    if (Status status = out->open_gpu(context, options); !status.ok()) return status;
  }
  for (const std::string& name : wanted) {
    if (Status status = out->add(name, options); !status.ok()) return status;
  }
  for (const std::string& name : options.setting("--peers")) {
    if (Status status = out->add_peer(name, context.device(), options); !status.ok()) return status;
  }
  return std::unique_ptr<BenchSession>(std::move(out));
}

}  // namespace flashlab::lab
