#include "dist/copies/copies_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cuda/kernels/dist/arguments.h"
#include "dist/copies/peer_memory.h"
#include "dist/sums/gpu_sum.h"

namespace flashlab::dist {
namespace {

using cuda::CUdeviceptr;
using cuda::CUevent;
using cuda::CUstream;
using cuda::GpuDevice;
using device::kMaxParts;
using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;

// A sum goes through slots of scratch memory: while one is added others are on their way.
constexpr std::size_t kSlots = 4;
constexpr std::size_t kPiecesOfCall = 8;
constexpr std::size_t kAlignment = 256;

// The words that order ranks' streams. A word lies with who waits for it and is 0 or 1: who waits
// takes it back to 0, so that a graph can be replayed. The next 1 comes only after that: between
// two of a pair's words there is always an answer of the other direction.
enum Word : std::size_t {
  kReady = 0,                          // the other's result may be written to
  kDone = kReady + kMaxParts,          // the other has written here
  kFree = kDone + kMaxParts,           // by slot: the other has added what was there
  kFull = kFree + kSlots * kMaxParts,  // by slot: the other has filled it
  kWords = kFull + kSlots * kMaxParts,
};

class CopiesCommunicator final : public Communicator {
 public:
  CopiesCommunicator(GpuDevice& device, Communicator& control, std::unique_ptr<PeerMemory> memory,
                     const CopiesOptions& options)
      : Communicator(control.rank(), control.size()),
        device_(device),
        api_(device.api()),
        peer_api_(memory->api()),
        control_(control),
        memory_(std::move(memory)),
        options_(options) {}
  ~CopiesCommunicator() override;

  Status create();

  std::string_view transport() const noexcept override { return "copies"; }
  Status failure() const override { return control_.failure(); }
  bool tells_of_failure() const noexcept override { return control_.tells_of_failure(); }
  Status share(void* memory, std::size_t bytes) override {
    return memory_->share(cuda::pointer_of(memory), bytes);
  }
  Status unshare(void* memory) override { return memory_->unshare(cuda::pointer_of(memory)); }

 private:
  using Places = std::vector<CUdeviceptr>;

  // The part of every rank, in elements of the call's type.
  struct Parts {
    std::size_t elements = 0, part = 0, element_bytes = 0;
    std::size_t begin(std::size_t rank) const { return std::min(rank * part, elements); }
    std::size_t count(std::size_t rank) const { return std::min(part, elements - begin(rank)); }
  };
  struct Piece {
    std::size_t first = 0, count = 0, slot = 0;  // elements of each part
  };

  Status carry_out(const CollectiveCall& call) override;
  Status exchange(const CollectiveCall& call, CUstream stream);
  Status broadcast(const CollectiveCall& call, CUstream stream);
  Status reduce(const CollectiveCall& call, CUstream stream, const Parts& parts, CUdeviceptr own_to,
                const Places* gathered);
  Status push(const CollectiveCall& call, const Parts& parts, const Piece& piece);
  Status add(const CollectiveCall& call, CUstream stream, const Parts& parts, const Piece& piece,
             CUdeviceptr own_to);
  Status gather_piece(const Parts& parts, const Piece& piece, const Places& to, CUstream stream);
  std::vector<Piece> pieces_of(const Parts& parts) const;

  // One rank after the other, each behind itself, so that not all write to one at once.
  template <class F>
  Status for_others(const F& f) {
    for (int step = 1; step < size(); ++step) {
      Status status = f((rank() + step) % size());
      if (!status.ok()) return status;
    }
    return {};
  }
  // Words by rank, and in rank `where`'s memory.
  CUdeviceptr word(int where, std::size_t kind, int of, std::size_t slot = 0) const {
    return words_at_[static_cast<std::size_t>(where)] +
           (kind + slot * kMaxParts + static_cast<std::size_t>(of)) * sizeof(std::uint32_t);
  }
  Status tell(int other, std::size_t kind, CUstream stream, std::size_t slot = 0) {
    return check(peer_api_.cuStreamWriteValue32(stream, word(other, kind, rank(), slot), 1, 0),
                 "cuStreamWriteValue32");
  }
  Status await(int other, std::size_t kind, CUstream stream, std::size_t slot = 0) {
    const CUdeviceptr at = word(rank(), kind, other, slot);
    Status status = check(peer_api_.cuStreamWaitValue32(stream, at, 1, cuda::kWaitEqual),
                          "cuStreamWaitValue32");
    if (!status.ok()) return status;
    return check(peer_api_.cuStreamWriteValue32(stream, at, 0, 0), "cuStreamWriteValue32");
  }
  Status copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    if (bytes == 0 || to == from) return {};
    return check(api_.cuMemcpyAsync(to, from, bytes, stream), "cuMemcpyAsync");
  }
  // What is enqueued on `later` from here on comes after what is on `earlier`.
  Status order(CUstream earlier, CUstream later, CUevent event) {
    Status status = check(api_.cuEventRecord(event, earlier), "cuEventRecord");
    if (!status.ok()) return status;
    return check(api_.cuStreamWaitEvent(later, event, 0), "cuStreamWaitEvent");
  }
  Status check(cuda::CUresult result, const char* call) const {
    return device_.driver().check(result, call);
  }
  CUdeviceptr scratch(int where, std::size_t slot, int from) const {
    return scratch_at_[static_cast<std::size_t>(where)] + slot * slot_bytes_ +
           static_cast<std::size_t>(from) * piece_bytes_;
  }
  Status make_scratch();

  GpuDevice& device_;
  const cuda::DriverFunctions& api_;
  const cuda::PeerFunctions& peer_api_;
  Communicator& control_;
  std::unique_ptr<PeerMemory> memory_;
  CopiesOptions options_;
  CUdeviceptr words_ = 0, scratch_ = 0;
  Places words_at_, scratch_at_;
  std::size_t slot_bytes_ = 0, piece_bytes_ = 0;
  CUstream pushes_ = nullptr, gathers_ = nullptr;
  std::array<CUevent, 3> events_{};
  std::array<bool, 16> prepared_{};  // sums, by type
};

CopiesCommunicator::~CopiesCommunicator() {
  // After a failure streams may wait for a rank that is gone: the process's end frees all.
  if (!control_.failure().ok()) return;
  {
    const cuda::ContextGuard current = device_.current();
    for (CUevent event : events_) {
      if (event != nullptr) api_.cuEventDestroy(event);
    }
    for (CUstream stream : {pushes_, gathers_}) {
      if (stream != nullptr) api_.cuStreamDestroy(stream);
    }
  }
  for (const CUdeviceptr each : {words_, scratch_}) {
    if (each != 0) (void)memory_->unshare(each);
  }
  const cuda::ContextGuard current = device_.current();
  for (const CUdeviceptr each : {words_, scratch_}) {
    if (each != 0) api_.cuMemFree(each);
  }
}

Status CopiesCommunicator::create() {
  const cuda::ContextGuard current = device_.current();
  Status status;
  for (CUevent& event : events_) {
    if (status.ok()) {
      status = check(api_.cuEventCreate(&event, cuda::kEventDisableTiming), "cuEventCreate");
    }
  }
  for (CUstream* stream : {&pushes_, &gathers_}) {
    if (status.ok()) {
      status = check(api_.cuStreamCreate(stream, cuda::kStreamNonBlocking), "cuStreamCreate");
    }
  }
  constexpr std::size_t kBytes = kWords * sizeof(std::uint32_t);
  if (status.ok()) status = check(api_.cuMemAlloc(&words_, kBytes), "cuMemAlloc");
  // Nothing is in any slot yet.
  std::array<std::uint32_t, kWords> begin{};
  std::fill(begin.begin() + kFree, begin.begin() + kFull, 1);
  if (status.ok()) {
    status =
        check(api_.cuMemcpyHtoDAsync(words_, begin.data(), kBytes, pushes_), "cuMemcpyHtoDAsync");
  }
  if (status.ok()) status = check(api_.cuStreamSynchronize(pushes_), "cuStreamSynchronize");
  if (!status.ok()) return status;
  if (Status shared = memory_->share(words_, kBytes); !shared.ok()) return shared;
  const auto at = memory_->everywhere(reinterpret_cast<const void*>(words_), kBytes, {});
  if (!at.ok()) return at.status();
  words_at_ = *at;
  return control_.barrier("words");
}

Status CopiesCommunicator::make_scratch() {
  if (scratch_ != 0) return {};
  const auto ranks = static_cast<std::size_t>(size());
  piece_bytes_ = options_.slot_bytes / ranks / kAlignment * kAlignment;
  slot_bytes_ = piece_bytes_ * ranks;
  Status status = check(api_.cuMemAlloc(&scratch_, kSlots * slot_bytes_), "cuMemAlloc");
  if (!status.ok()) return status;
  if (Status shared = memory_->share(scratch_, kSlots * slot_bytes_); !shared.ok()) return shared;
  const auto at =
      memory_->everywhere(reinterpret_cast<const void*>(scratch_), kSlots * slot_bytes_, {});
  if (!at.ok()) return at.status();
  scratch_at_ = *at;
  return {};
}

Status CopiesCommunicator::carry_out(const CollectiveCall& call) {
  if (call.kind == Collective::kBarrier || call.bytes == 0) return control_.barrier(call.name);
  const cuda::ContextGuard current = device_.current();
  const auto stream = static_cast<CUstream>(call.stream);
  switch (call.kind) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return exchange(call, stream);
    case Collective::kBroadcast:
      return broadcast(call, stream);
    default:
      break;
  }
  const std::size_t element = size_of(call.dtype);
  const auto ranks = static_cast<std::size_t>(size());
  if (size() == 1) {
    return copy(cuda::pointer_of(call.to), cuda::pointer_of(call.from), call.bytes, stream);
  }
  if (!gpu_sums(device_.info(), call.dtype)) {
    return Status::unsupported(
        {fmt::format("{} by copies", to_string(call.kind)),
         fmt::format("{} on {}", flashlab::to_string(call.dtype), device_.info().name),
         "fp64 or fp32; from compute capability 8.0 on also fp16 or bf16",
         "the transport nccl adds it"});
  }
  bool& prepared = prepared_[static_cast<std::size_t>(call.dtype)];
  if (!prepared) {
    Status status = prepare_gpu_sum(device_, size(), call.dtype);
    if (status.ok()) status = make_scratch();
    if (!status.ok()) return status;
    prepared = true;
  }
  if (call.kind == Collective::kReduceScatter) {
    const std::size_t part = call.bytes / element;
    return reduce(call, stream, {part * ranks, part, element}, cuda::pointer_of(call.to), nullptr);
  }
  // Whole accesses of the adding kernel in every part but the last.
  const std::size_t count = call.bytes / element, whole = kAlignment / element;
  const std::size_t part = ((count + ranks - 1) / ranks + whole - 1) / whole * whole;
  const Parts parts{count, part, element};
  const auto to = memory_->everywhere(call.to, call.bytes, call);
  if (!to.ok()) return to.status();
  const auto me = static_cast<std::size_t>(rank());
  return reduce(call, stream, parts, cuda::pointer_of(call.to) + parts.begin(me) * element, &*to);
}

// Everybody's result is written by the others: first each says that they may. An all-gather sends
// one part to all, an all-to-all to each its own.
Status CopiesCommunicator::exchange(const CollectiveCall& call, CUstream stream) {
  const auto me = static_cast<std::size_t>(rank());
  const std::size_t step = call.kind == Collective::kAllToAll ? call.bytes : 0;
  const CUdeviceptr from = cuda::pointer_of(call.from), own = from + me * step;
  const auto to =
      memory_->everywhere(static_cast<const char*>(call.to) + me * call.bytes, call.bytes, call);
  if (!to.ok()) return to.status();
  Status status = for_others([&](int other) { return tell(other, kReady, stream); });
  // This rank's own part goes beside what it sends. In place it lies there already.
  const bool copies = (*to)[me] != own;
  if (copies && status.ok()) status = order(stream, gathers_, events_[0]);
  if (copies && status.ok()) status = copy((*to)[me], own, call.bytes, gathers_);
  if (!status.ok()) return status;
  status = for_others([&](int other) {
    const auto part = static_cast<std::size_t>(other);
    Status s = await(other, kReady, stream);
    if (s.ok()) s = copy((*to)[part], from + part * step, call.bytes, stream);
    return s.ok() ? tell(other, kDone, stream) : s;
  });
  if (status.ok()) {
    status = for_others([&](int other) { return await(other, kDone, stream); });
  }
  return copies && status.ok() ? order(gathers_, stream, events_[1]) : status;
}

Status CopiesCommunicator::broadcast(const CollectiveCall& call, CUstream stream) {
  const auto to = memory_->everywhere(call.to, call.bytes, call);
  if (!to.ok()) return to.status();
  if (rank() != call.root) {
    Status status = tell(call.root, kReady, stream);
    return status.ok() ? await(call.root, kDone, stream) : status;
  }
  const CUdeviceptr from = cuda::pointer_of(call.from);
  Status status = copy(cuda::pointer_of(call.to), from, call.bytes, stream);
  if (!status.ok()) return status;
  return for_others([&](int other) {
    Status s = await(other, kReady, stream);
    if (s.ok()) s = copy((*to)[static_cast<std::size_t>(other)], from, call.bytes, stream);
    return s.ok() ? tell(other, kDone, stream) : s;
  });
}

std::vector<CopiesCommunicator::Piece> CopiesCommunicator::pieces_of(const Parts& parts) const {
  const std::size_t whole = kAlignment / parts.element_bytes;
  std::size_t most =
      std::max(parts.part / kPiecesOfCall, options_.least_piece_bytes / parts.element_bytes);
  most = std::min(most, piece_bytes_ / parts.element_bytes);
  most = (most + whole - 1) / whole * whole;
  most = std::min(most, piece_bytes_ / parts.element_bytes / whole * whole);
  std::vector<Piece> out;
  for (std::size_t first = 0; first < parts.part; first += most) {
    out.push_back({first, std::min(most, parts.part - first), out.size() % kSlots});
  }
  return out;
}

// What others will add, into their slots.
Status CopiesCommunicator::push(const CollectiveCall& call, const Parts& parts,
                                const Piece& piece) {
  return for_others([&](int other) {
    const auto part = static_cast<std::size_t>(other);
    const std::size_t there = parts.count(part);
    const std::size_t count = piece.first < there ? std::min(piece.count, there - piece.first) : 0;
    Status s = await(other, kFree, pushes_, piece.slot);
    if (s.ok()) {
      s = copy(
          scratch(other, piece.slot, rank()),
          cuda::pointer_of(call.from) + (parts.begin(part) + piece.first) * parts.element_bytes,
          count * parts.element_bytes, pushes_);
    }
    return s.ok() ? tell(other, kFull, pushes_, piece.slot) : s;
  });
}

// This rank's part of a piece: its own elements and what lies in the slot.
Status CopiesCommunicator::add(const CollectiveCall& call, CUstream stream, const Parts& parts,
                               const Piece& piece, CUdeviceptr own_to) {
  const auto me = static_cast<std::size_t>(rank());
  const std::size_t mine = parts.count(me);
  const std::size_t count = piece.first < mine ? std::min(piece.count, mine - piece.first) : 0;
  Status status = for_others([&](int other) { return await(other, kFull, stream, piece.slot); });
  if (!status.ok()) return status;
  if (count > 0) {
    std::array<CUdeviceptr, kMaxParts> from{};
    for (int part = 0; part < size(); ++part) {
      from[static_cast<std::size_t>(part)] = scratch(rank(), piece.slot, part);
    }
    from[me] = cuda::pointer_of(call.from) + (parts.begin(me) + piece.first) * parts.element_bytes;
    status = gpu_sum(device_, {from.data(), static_cast<std::size_t>(size())},
                     own_to + piece.first * parts.element_bytes, count, call.dtype, stream);
    if (!status.ok()) return status;
  }
  return for_others([&](int other) { return tell(other, kFree, stream, piece.slot); });
}

// The summed piece of this rank's part, into the others' results.
Status CopiesCommunicator::gather_piece(const Parts& parts, const Piece& piece, const Places& to,
                                        CUstream stream) {
  const auto me = static_cast<std::size_t>(rank());
  const std::size_t mine = parts.count(me);
  const std::size_t count = piece.first < mine ? std::min(piece.count, mine - piece.first) : 0;
  const std::size_t at = (parts.begin(me) + piece.first) * parts.element_bytes;
  return for_others([&](int other) {
    return copy(to[static_cast<std::size_t>(other)] + at, to[me] + at, count * parts.element_bytes,
                stream);
  });
}

// Pieces of everybody's part travel on one stream, are added on the call's, and, of an all-reduce,
// return on a third. A result is written to by others only after this rank has sent what was there:
// they add it first.
Status CopiesCommunicator::reduce(const CollectiveCall& call, CUstream stream, const Parts& parts,
                                  CUdeviceptr own_to, const Places* gathered) {
  Status status = order(stream, pushes_, events_[0]);
  const std::vector<Piece> pieces = pieces_of(parts);
  for (std::size_t i = 0; i < pieces.size() && status.ok(); ++i) {
    status = push(call, parts, pieces[i]);
    if (status.ok()) status = add(call, stream, parts, pieces[i], own_to);
    if (gathered == nullptr || !status.ok()) continue;
    status = order(stream, gathers_, events_[1]);
    if (status.ok()) status = gather_piece(parts, pieces[i], *gathered, gathers_);
  }
  if (status.ok()) status = order(pushes_, stream, events_[0]);
  if (gathered == nullptr || !status.ok()) return status;
  status = for_others([&](int other) { return tell(other, kDone, gathers_); });
  if (status.ok()) status = order(gathers_, stream, events_[2]);
  if (!status.ok()) return status;
  return for_others([&](int other) { return await(other, kDone, stream); });
}

}  // namespace

Result<std::unique_ptr<Communicator>> copies_communicator(GpuDevice& device, Communicator& control,
                                                          const CopiesOptions& options) {
  if (control.size() > kMaxParts) {
    return Status::unsupported({"copies between GPUs", fmt::format("{} ranks", control.size()),
                                fmt::format("at most {}", kMaxParts),
                                "the transport nccl takes more"});
  }
  auto memory = PeerMemory::create(device, control);
  if (!memory.ok()) return memory.status();
  auto out =
      std::make_unique<CopiesCommunicator>(device, control, std::move(memory).value(), options);
  if (Status status = out->create(); !status.ok()) return status;
  return std::unique_ptr<Communicator>(std::move(out));
}

}  // namespace flashlab::dist
