#include "dist/gpus/transports.h"

#include "dist/copies/copies_communicator.h"
#include "dist/nccl/nccl_communicator.h"
#include "runtime/cuda/device.h"

namespace flashlab::dist {

using runtime::Communicator;

Result<GpuTransports> gpu_transports(Device where, Communicator& control,
                                     const ChoiceOptions& options) {
  auto opened = cuda::GpuDevice::open(where.index);
  if (!opened.ok()) return opened.status();
  cuda::GpuDevice& device = **opened;
  if (Status status = check_gpus(device, control); !status.ok()) return status;
  GpuTransports out;
  auto nccl = nccl_communicator(device, control);
  out.nccl_status = nccl.status();
  if (nccl.ok()) out.nccl = std::move(*nccl);
  if (control.transport() == "sockets") {
    out.copies_status = Status::unsupported({"copies", "ranks of several hosts",
                                             "GPUs of one host, whose memory processes share",
                                             "NCCL carries bytes between hosts"});
  } else {
    auto copies = copies_communicator(device, control);
    out.copies_status = copies.status();
    if (copies.ok()) out.copies = std::move(*copies);
  }
  if (out.nccl != nullptr || out.copies != nullptr) {
    out.chosen = chosen_communicator(control, out.nccl.get(), out.copies.get(), options);
  }
  if (Status status = control.failure(); !status.ok()) return status;
  return out;
}

}  // namespace flashlab::dist
