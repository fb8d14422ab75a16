#include "dist/start/join_gpu.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <vector>

#include "runtime/cuda/peers.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;

class ChosenCommunicator final : public Communicator {
 public:
  ChosenCommunicator(Communicator& control, Communicator* nccl, Communicator* copies,
                     const ChoiceOptions& options)
      : Communicator(control.rank(), control.size()),
        control_(control),
        nccl_(nccl),
        copies_(copies),
        options_(options) {}

  std::string_view transport() const noexcept override { return "auto"; }
  std::string_view way(const CollectiveCall& call) const noexcept override {
    return chosen(call).transport();
  }
  Status watch(const runtime::StreamProgress& progress) override {
    return control_.watch(progress);
  }
  Status failure() const override { return control_.failure(); }
  bool tells_of_failure() const noexcept override { return control_.tells_of_failure(); }
  Status share(void* memory, std::size_t bytes) override {
    return copies_ != nullptr ? copies_->share(memory, bytes) : Status();
  }
  Status unshare(void* memory) override {
    return copies_ != nullptr ? copies_->unshare(memory) : Status();
  }

 private:
  Status carry_out(const CollectiveCall& call) override { return chosen(call).run(call); }

  Communicator& chosen(const CollectiveCall& call) const noexcept {
    if (call.kind == Collective::kBarrier) return control_;
    if (nccl_ == nullptr || copies_ == nullptr) return copies_ != nullptr ? *copies_ : *nccl_;
    if (runtime::adds(call.kind) && !options_.sums_of_nccl) return *copies_;
    const bool parts = call.kind != Collective::kAllReduce && call.kind != Collective::kBroadcast;
    const std::size_t whole = call.bytes * (parts ? static_cast<std::size_t>(size()) : 1);
    constexpr std::size_t kBeside = std::size_t{1} << 20;
    const std::size_t from = options_.beside_kernels ? kBeside : copies_from(call.kind);
    return whole >= from ? *copies_ : *nccl_;
  }

  Communicator& control_;
  Communicator* nccl_;
  Communicator* copies_;
  ChoiceOptions options_;
};

}  // namespace

Result<int> gpu_of_rank(const World& world, int visible) {
  if (visible == 1 && world.local_size > 1) return 0;  // its starter has given it one
  if (world.local_rank < visible) return world.local_rank;
  return Status::invalid(
      {"--device cuda",
       fmt::format("{} ranks on {}, which has {} GPUs", world.local_size, world.host, visible),
       "a GPU for every rank", "start fewer ranks; see CUDA_VISIBLE_DEVICES"});
}

Status check_gpus(const cuda::GpuDevice& device, Communicator& control) {
  struct Told {
    cuda::CUuuid uuid;
    int ordinal, failed;
  } own{.uuid = {}, .ordinal = device.info().ordinal, .failed = 0};
  const auto api = cuda::PeerFunctions::get();
  Status mine = api.status();
  if (api.ok()) {
    mine =
        device.driver().check((*api)->cuDeviceGetUuid(&own.uuid, own.ordinal), "cuDeviceGetUuid");
  }
  own.failed = !mine.ok();
  std::vector<Told> all(static_cast<std::size_t>(control.size()));
  if (Status s = control.all_gather(&own, all.data(), sizeof own, "GPUs"); !s.ok()) return s;
  if (!mine.ok()) return mine;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      if (all[a].failed != 0 || all[b].failed != 0) continue;
      if (std::memcmp(&all[a].uuid, &all[b].uuid, sizeof own.uuid) != 0) continue;
      return Status::invalid({"--device",
                              fmt::format("one GPU for ranks {} and {} (cuda:{} and cuda:{})", a, b,
                                          all[a].ordinal, all[b].ordinal),
                              "a GPU of its own for every rank",
                              "--device cuda deals them out; start no more ranks than GPUs"});
    }
  }
  return {};
}

std::size_t copies_from(Collective kind) noexcept {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  switch (kind) {
    case Collective::kAllGather:
      return 4 * kMiB;
    case Collective::kAllToAll:
      return 16 * kMiB;
    case Collective::kBroadcast:
      return 64 * kMiB;
    case Collective::kReduceScatter:
      return 128 * kMiB;
    // All-reduces of 1 GiB take as long by either; smaller ones less by NCCL.
    default:
      return std::numeric_limits<std::size_t>::max();
  }
}

std::unique_ptr<Communicator> chosen_communicator(Communicator& control, Communicator* nccl,
                                                  Communicator* copies,
                                                  const ChoiceOptions& options) {
  return std::make_unique<ChosenCommunicator>(control, nccl, copies, options);
}

}  // namespace flashlab::dist
