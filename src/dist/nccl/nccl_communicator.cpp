#include "dist/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <vector>

#include "dist/nccl/nccl.h"

namespace flashlab::dist {
namespace {

using cuda::GpuDevice;
using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
      return kNcclFp64;
    case DType::kFp16:
      return kNcclFp16;
    case DType::kBf16:
      return kNcclBf16;
    default:
      return kNcclFp32;
  }
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const Nccl& api, NcclComm comm, GpuDevice& device, Communicator& control)
      : Communicator(control.rank(), control.size()),
        api_(api),
        comm_(comm),
        device_(device),
        control_(control) {}
  ~NcclCommunicator() override {
    // After a failure its end would wait for a rank that is gone.
    if (!control_.failure().ok()) return;
    const cuda::ContextGuard current = device_.current();
    api_.ncclCommDestroy(comm_);
  }

  std::string_view transport() const noexcept override { return "nccl"; }
  Status failure() const override { return control_.failure(); }
  bool tells_of_failure() const noexcept override { return control_.tells_of_failure(); }

 private:
  Status carry_out(const CollectiveCall& call) override {
    if (call.kind == Collective::kBarrier || call.bytes == 0) return control_.barrier(call.name);
    const cuda::ContextGuard current = device_.current();
    const auto stream = static_cast<CUstream>(call.stream);
    const std::size_t count = call.bytes / size_of(call.dtype);
    const int type = type_of(call.dtype);
    switch (call.kind) {
      case Collective::kAllReduce:
        return api_.check(
            api_.ncclAllReduce(call.from, call.to, count, type, kNcclSum, comm_, stream),
            "ncclAllReduce");
      case Collective::kReduceScatter:
        return api_.check(
            api_.ncclReduceScatter(call.from, call.to, count, type, kNcclSum, comm_, stream),
            "ncclReduceScatter");
      case Collective::kAllGather:
        return api_.check(
            api_.ncclAllGather(call.from, call.to, call.bytes, kNcclUint8, comm_, stream),
            "ncclAllGather");
      case Collective::kBroadcast:
        return api_.check(api_.ncclBroadcast(call.from, call.to, call.bytes, kNcclUint8, call.root,
                                             comm_, stream),
                          "ncclBroadcast");
      default:
        return all_to_all(call, stream);
    }
  }

  Status all_to_all(const CollectiveCall& call, CUstream stream) {
    Status status = api_.check(api_.ncclGroupStart(), "ncclGroupStart");
    for (int other = 0; other < size() && status.ok(); ++other) {
      const std::size_t at = static_cast<std::size_t>(other) * call.bytes;
      status = api_.check(api_.ncclSend(static_cast<const char*>(call.from) + at, call.bytes,
                                        kNcclUint8, other, comm_, stream),
                          "ncclSend");
      if (!status.ok()) break;
      status = api_.check(api_.ncclRecv(static_cast<char*>(call.to) + at, call.bytes, kNcclUint8,
                                        other, comm_, stream),
                          "ncclRecv");
    }
    const Status end = api_.check(api_.ncclGroupEnd(), "ncclGroupEnd");
    return status.ok() ? end : status;
  }

  const Nccl& api_;
  NcclComm comm_;
  GpuDevice& device_;
  Communicator& control_;
};

// Who has none does not leave the others waiting: all hear of it first.
Status agree_on(const Result<const Nccl*>& nccl, Communicator& control) {
  const int mine = nccl.ok() ? (*nccl)->version() : 0;
  std::vector<int> all(static_cast<std::size_t>(control.size()));
  Status status = control.all_gather(&mine, all.data(), sizeof mine, "NCCL's version");
  if (!status.ok()) return status;
  if (!nccl.ok()) return nccl.status();
  for (std::size_t other = 0; other < all.size(); ++other) {
    if (all[other] == mine) continue;
    return Status::unsupported(
        {fmt::format("NCCL of rank {}", other),
         all[other] == 0 ? std::string("none") : fmt::format("version {}", all[other]),
         fmt::format("version {} as on rank {}", mine, control.rank()),
         "install one NCCL for all ranks, or name a file by FLASHLAB_NCCL"});
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Communicator>> nccl_communicator(GpuDevice& device, Communicator& control) {
  const Result<const Nccl*> found = Nccl::get();
  if (Status status = agree_on(found, control); !status.ok()) return status;
  const Nccl& api = **found;
  struct {
    NcclUniqueId id;
    int result;
  } start{};
  if (control.rank() == 0) start.result = api.ncclGetUniqueId(&start.id);
  Status status = control.broadcast(&start, sizeof start, 0, "NCCL's identifier");
  if (status.ok()) status = api.check(start.result, "ncclGetUniqueId");
  if (!status.ok()) return status;
  const cuda::ContextGuard current = device.current();
  NcclComm comm = nullptr;
  status = api.check(api.ncclCommInitRank(&comm, control.size(), start.id, control.rank()),
                     "ncclCommInitRank");
  if (!status.ok()) return status;
  return std::unique_ptr<Communicator>(
      std::make_unique<NcclCommunicator>(api, comm, device, control));
}

}  // namespace flashlab::dist
