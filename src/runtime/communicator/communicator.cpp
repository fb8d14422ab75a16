#include "runtime/communicator/communicator.h"

#include <fmt/format.h>

namespace flashlab::runtime {
namespace {

// Bytes that a call reads and writes on this rank.
struct Extents {
  std::size_t from = 0, to = 0;
};

Extents extents_of(const CollectiveCall& call, int ranks) {
  const std::size_t all = call.bytes * static_cast<std::size_t>(ranks);
  switch (call.kind) {
    case Collective::kReduceScatter:
      return {all, call.bytes};
    case Collective::kAllGather:
      return {call.bytes, all};
    case Collective::kAllToAll:
      return {all, all};
    case Collective::kBarrier:
      return {};
    default:
      return {call.bytes, call.bytes};
  }
}

// Where `from` and `to` share memory as the table of the header allows.
bool lies_in_place(const CollectiveCall& call, int rank) {
  const char* from = static_cast<const char*>(call.from);
  const char* to = static_cast<const char*>(call.to);
  const std::size_t mine = call.bytes * static_cast<std::size_t>(rank);
  switch (call.kind) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      return from == to;
    case Collective::kReduceScatter:
      return to == from + mine;
    case Collective::kAllGather:
      return from == to + mine;
    default:
      return false;
  }
}

Status invalid(const CollectiveCall& call, std::string_view what, std::string got,
               std::string expected, std::string remedy) {
  return Status::invalid({fmt::format("{} of {}", what, to_string(call.kind)), std::move(got),
                          std::move(expected), std::move(remedy)});
}

Status check(const CollectiveCall& call, int rank, int size) {
  const bool sums = adds(call.kind);
  const bool floating = call.dtype == DType::kFp64 || call.dtype == DType::kFp32 ||
                        call.dtype == DType::kFp16 || call.dtype == DType::kBf16;
  if (sums && !floating) {
    return invalid(call, "dtype", to_string(call.dtype), "fp64, fp32, fp16 or bf16",
                   "move other types with all-gather or all-to-all");
  }
  if (sums && call.bytes % size_of(call.dtype) != 0) {
    return invalid(call, "bytes", fmt::format("{}", call.bytes),
                   fmt::format("whole elements of {}", to_string(call.dtype)), "");
  }
  if (call.root < 0 || call.root >= size) {
    return invalid(call, "root", fmt::format("{}", call.root), fmt::format("0 to {}", size - 1),
                   "");
  }
  const Extents extents = extents_of(call, size);
  if (call.bytes == 0) return {};
  const bool reads = call.kind != Collective::kBroadcast || rank == call.root;
  if (extents.to > 0 && (call.to == nullptr || (reads && call.from == nullptr))) {
    return invalid(call, call.to == nullptr ? "to" : "from", "a null pointer",
                   fmt::format("{} bytes", call.to == nullptr ? extents.to : extents.from), "");
  }
  const auto from = reinterpret_cast<std::uintptr_t>(call.from);
  const auto to = reinterpret_cast<std::uintptr_t>(call.to);
  const bool overlap = reads && from < to + extents.to && to < from + extents.from;
  if (overlap && !lies_in_place(call, rank)) {
    return invalid(call, "to", "memory that overlaps from", "memory of its own, or in place",
                   "communicator.h says what in place means for each kind");
  }
  return {};
}

}  // namespace

const char* to_string(Collective kind) noexcept {
  switch (kind) {
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kAllToAll:
      return "all-to-all";
    case Collective::kBroadcast:
      return "broadcast";
    default:
      return "barrier";
  }
}

Status Communicator::run(const CollectiveCall& call) {
  if (Status status = check(call, rank_, size_); !status.ok()) return status;
  return carry_out(call);
}

Status Communicator::all_reduce(void* data, std::size_t count, DType dtype, std::string_view name) {
  return run({.kind = Collective::kAllReduce,
              .from = data,
              .to = data,
              .bytes = count * size_of(dtype),
              .dtype = dtype,
              .name = name});
}

Status Communicator::all_gather(const void* from, void* to, std::size_t bytes,
                                std::string_view name) {
  return run(
      {.kind = Collective::kAllGather, .from = from, .to = to, .bytes = bytes, .name = name});
}

Status Communicator::broadcast(void* data, std::size_t bytes, int root, std::string_view name) {
  return run({.kind = Collective::kBroadcast,
              .from = data,
              .to = data,
              .bytes = bytes,
              .root = root,
              .name = name});
}

Status Communicator::barrier(std::string_view name) {
  return run({.kind = Collective::kBarrier, .name = name});
}

}  // namespace flashlab::runtime
