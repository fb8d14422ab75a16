#include "dist/shared/shared_communicator.h"

#include <fmt/format.h>

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "dist/sums/tree_sum.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;

// Pieces start at whole cache lines, so that no two ranks write into one.
constexpr std::size_t kLine = 128;
// Of each rank at once, so that what was read is still in a cache when it is added.
constexpr std::size_t kDirectPiece = std::size_t{128} << 10;
// Rounds that a rank always writes ahead of what it reads.
constexpr std::size_t kLead = 1;

std::size_t whole_lines(std::size_t bytes) {
  return std::max(bytes / kLine * kLine, kLine);
}

std::size_t rounds_of(std::size_t bytes, std::size_t piece) {
  return (bytes + piece - 1) / piece;
}

std::size_t bytes_in(std::size_t round, std::size_t piece, std::size_t bytes) {
  return std::min(piece, bytes - round * piece);
}

class SharedCommunicator final : public runtime::Communicator {
 public:
  SharedCommunicator(std::unique_ptr<Segment> segment, int rank, int size, std::size_t direct_bytes)
      : Communicator(rank, size), segment_(std::move(segment)), direct_bytes_(direct_bytes) {}

  std::string_view transport() const noexcept override { return "shared"; }
  void begin_step(std::int64_t step, double timeout_s) noexcept override {
    segment_->begin_step(step, timeout_s);
  }
  Status watch(const runtime::StreamProgress& progress) override;
  Status failure() const override { return segment_->failure(); }
  bool tells_of_failure() const noexcept override { return segment_->tells_of_failure(); }

 private:
  Status carry_out(const CollectiveCall& call) override;
  void enter(Collective kind, std::string_view name, std::uint32_t more);

  /// `write(i, staged)` copies this rank's piece of round i to where the others read it, `read(i)`
  /// takes what all have written. A rank writes ahead of what it reads as far as there is room.
  template <class Write, class Read>
  Status in_rounds(const CollectiveCall& call, std::size_t rounds, const Write& write,
                   const Read& read);
  Status all_reduce(const CollectiveCall& call);
  Status all_reduce_sliced(const CollectiveCall& call);
  Status reduce_scatter(const CollectiveCall& call);
  Status all_gather(const CollectiveCall& call);
  Status all_to_all(const CollectiveCall& call);
  Status broadcast(const CollectiveCall& call);

  /// Whether all ranks may read one another's memory; all ask at the same collective.
  Result<bool> may_read();
  Status directly(const CollectiveCall& call);
  Status add_directly(const CollectiveCall& call, std::size_t begin, std::size_t bytes, char* to);
  Status move_directly(const CollectiveCall& call);
  /// `bytes` of another rank's memory.
  Status read_from(int other, std::uint64_t address, void* to, std::size_t bytes);

  /// A rank's piece of a round of the collective under way.
  char* staged(int rank, std::size_t round) {
    return segment_->staging(rank, (first_ + round) % kStagingPieces);
  }
  /// What counts say once round `round` of it is over.
  std::uint32_t count_of(std::size_t round) const {
    return static_cast<std::uint32_t>(first_ + round + 1);
  }
  bool all_have(Count count, std::uint32_t value);
  bool is_free(std::size_t round);
  Status wait_for_all(Count count, std::uint32_t value);
  Status check_others(const CollectiveCall& call);

  std::unique_ptr<Segment> segment_;
  const std::size_t direct_bytes_;
  std::uint64_t first_ = 0;  // rounds of all collectives before
  std::uint32_t collectives_ = 0;
  enum class Reading : std::uint8_t { kUnknown, kYes, kNo } reading_ = Reading::kUnknown;
  std::vector<char> pieces_;  // of the other ranks, while they are added
};

bool SharedCommunicator::all_have(Count count, std::uint32_t value) {
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && !segment_->has_reached(other, count, value)) return false;
  }
  return true;
}

// Whether all have read what this rank's piece of that round held before.
bool SharedCommunicator::is_free(std::size_t round) {
  const std::uint64_t number = first_ + round;
  return number < kStagingPieces ||
         all_have(Count::kDone, static_cast<std::uint32_t>(number - kStagingPieces + 1));
}

Status SharedCommunicator::wait_for_all(Count count, std::uint32_t value) {
  // Each begins behind itself, so that not all look at one rank's memory at once.
  for (int step = 1; step < size(); ++step) {
    Status status = segment_->wait_for((rank() + step) % size(), count, value);
    if (!status.ok()) return status;
  }
  return {};
}

template <class Write, class Read>
Status SharedCommunicator::in_rounds(const CollectiveCall& call, std::size_t rounds,
                                     const Write& write, const Read& read) {
  std::size_t written = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    if (written == round && !is_free(round)) {
      Status status = wait_for_all(Count::kDone, count_of(round) - kStagingPieces);
      if (!status.ok()) return status;
    }
    while (written < rounds && (written == round || is_free(written))) {
      // What can be read is still in a cache: further ahead only while there is nothing to read.
      if (written > round + kLead && all_have(Count::kWritten, count_of(round))) break;
      if (written == 0) {
        segment_->slot(rank()).announced[first_ % kStagingPieces] = {call.bytes, call.root,
                                                                     call.kind, call.dtype};
      }
      write(written, staged(rank(), written));
      segment_->advance(Count::kWritten, count_of(written));
      ++written;
    }
    Status status = wait_for_all(Count::kWritten, count_of(round));
    if (status.ok() && round == 0) status = check_others(call);
    if (status.ok()) status = read(round);
    if (!status.ok()) return status;
    segment_->advance(Count::kDone, count_of(round));
  }
  first_ += rounds;
  return {};
}

Status SharedCommunicator::check_others(const CollectiveCall& call) {
  const auto words = [&](int rank) {
    const Announcement& a = segment_->slot(rank).announced[first_ % kStagingPieces];
    std::string out = fmt::format("{} of {} bytes", to_string(a.kind), a.bytes);
    if (runtime::adds(a.kind)) out += fmt::format(" of {}", flashlab::to_string(a.dtype));
    if (a.kind == Collective::kBroadcast) out += fmt::format(" from rank {}", a.root);
    return out;
  };
  const Announcement& own = segment_->slot(rank()).announced[first_ % kStagingPieces];
  for (int other = 0; other < size(); ++other) {
    if (segment_->slot(other).announced[first_ % kStagingPieces] == own) continue;
    return segment_->fail(
        fmt::format("ranks call different collectives ({}): {} came with {}, {} with {}",
                    call.name.empty() ? "no name" : call.name, segment_->words(rank()),
                    words(rank()), segment_->words(other), words(other)));
  }
  return {};
}

// Every rank stages its pieces. Of few ranks or few bytes each adds all of them itself: one meeting
// instead of two.
Status SharedCommunicator::all_reduce(const CollectiveCall& call) {
  constexpr std::size_t kSmall = 4096;
  if (size() > 2 && call.bytes > kSmall) return all_reduce_sliced(call);
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const auto count = static_cast<std::size_t>(size());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  return in_rounds(
      call, rounds_of(call.bytes, piece),
      [&](std::size_t round, char* staged) {
        std::memcpy(staged, from + round * piece, bytes_in(round, piece, call.bytes));
      },
      [&](std::size_t round) -> Status {
        std::array<const void*, kMaxSharedRanks> parts;
        for (std::size_t other = 0; other < count; ++other) {
          parts[other] = staged(static_cast<int>(other), round);
        }
        const std::size_t bytes = bytes_in(round, piece, call.bytes);
        tree_sum({parts.data(), count}, to + round * piece, bytes / size_of(call.dtype),
                 call.dtype);
        return {};
      });
}

// Each adds a slice of every piece, and all copy the others' slices.
Status SharedCommunicator::all_reduce_sliced(const CollectiveCall& call) {
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const auto count = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  return in_rounds(
      call, rounds_of(call.bytes, piece),
      [&](std::size_t round, char* staged) {
        std::memcpy(staged, from + round * piece, bytes_in(round, piece, call.bytes));
      },
      [&](std::size_t round) -> Status {
        const std::size_t bytes = bytes_in(round, piece, call.bytes);
        const std::size_t slice = (bytes / count + kLine) / kLine * kLine;
        const std::size_t begin = std::min(slice * me, bytes);
        const std::size_t end = std::min(begin + slice, bytes);
        std::array<const void*, kMaxSharedRanks> parts;
        for (std::size_t other = 0; other < count; ++other) {
          parts[other] = staged(static_cast<int>(other), round) + begin;
        }
        // It replaces the same slice of this rank's own piece, which nobody else reads.
        tree_sum({parts.data(), count}, staged(rank(), round) + begin,
                 (end - begin) / size_of(call.dtype), call.dtype);
        segment_->advance(Count::kSummed, count_of(round));
        Status status = wait_for_all(Count::kSummed, count_of(round));
        for (std::size_t step = 0; step < count && status.ok(); ++step) {
          const std::size_t other = (me + step) % count;
          const std::size_t first = std::min(slice * other, bytes);
          std::memcpy(to + round * piece + first, staged(static_cast<int>(other), round) + first,
                      std::min(slice, bytes - first));
        }
        return status;
      });
}

// A round stages a piece of every part.
Status SharedCommunicator::reduce_scatter(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  const std::size_t piece = whole_lines(segment_->chunk_bytes() / count);
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  return in_rounds(
      call, rounds_of(call.bytes, piece),
      [&](std::size_t round, char* staged) {
        for (std::size_t part = 0; part < count; ++part) {
          if (part == me) continue;
          std::memcpy(staged + part * piece, from + part * call.bytes + round * piece,
                      bytes_in(round, piece, call.bytes));
        }
      },
      [&](std::size_t round) -> Status {
        std::array<const void*, kMaxSharedRanks> parts;
        for (std::size_t other = 0; other < count; ++other) {
          parts[other] = other == me ? from + me * call.bytes + round * piece
                                     : staged(static_cast<int>(other), round) + me * piece;
        }
        const std::size_t bytes = bytes_in(round, piece, call.bytes);
        tree_sum({parts.data(), count}, to + round * piece, bytes / size_of(call.dtype),
                 call.dtype);
        return {};
      });
}

Status SharedCommunicator::all_to_all(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  const std::size_t piece = whole_lines(segment_->chunk_bytes() / count);
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  return in_rounds(
      call, rounds_of(call.bytes, piece),
      [&](std::size_t round, char* staged) {
        for (std::size_t part = 0; part < count; ++part) {
          const std::size_t at = part * call.bytes + round * piece;
          std::memcpy(part == me ? to + at : staged + part * piece, from + at,
                      bytes_in(round, piece, call.bytes));
        }
      },
      [&](std::size_t round) -> Status {
        for (std::size_t step = 1; step < count; ++step) {
          const std::size_t other = (me + step) % count;
          std::memcpy(to + other * call.bytes + round * piece,
                      staged(static_cast<int>(other), round) + me * piece,
                      bytes_in(round, piece, call.bytes));
        }
        return {};
      });
}

Status SharedCommunicator::all_gather(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size());
  const auto me = static_cast<std::size_t>(rank());
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  const bool in_place = from == to + me * call.bytes;
  return in_rounds(
      call, rounds_of(call.bytes, piece),
      [&](std::size_t round, char* staged) {
        const std::size_t at = round * piece, bytes = bytes_in(round, piece, call.bytes);
        std::memcpy(staged, from + at, bytes);
        if (!in_place) std::memcpy(to + me * call.bytes + at, from + at, bytes);
      },
      [&](std::size_t round) -> Status {
        for (std::size_t step = 1; step < count; ++step) {
          const std::size_t other = (me + step) % count;
          std::memcpy(to + other * call.bytes + round * piece,
                      staged(static_cast<int>(other), round), bytes_in(round, piece, call.bytes));
        }
        return {};
      });
}

// Those who stage nothing say so at once.
Status SharedCommunicator::broadcast(const CollectiveCall& call) {
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  const bool root = rank() == call.root;
  return in_rounds(
      call, rounds_of(call.bytes, piece),
      [&](std::size_t round, char* staged) {
        if (!root) return;
        const std::size_t at = round * piece, bytes = bytes_in(round, piece, call.bytes);
        std::memcpy(staged, from + at, bytes);
        if (to != from) std::memcpy(to + at, from + at, bytes);
      },
      [&](std::size_t round) -> Status {
        if (!root) {
          std::memcpy(to + round * piece, staged(call.root, round),
                      bytes_in(round, piece, call.bytes));
        }
        return {};
      });
}

bool read_memory(pid_t process, std::uint64_t address, void* to, std::size_t bytes) {
  while (bytes > 0) {
    const iovec local{to, bytes}, remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = ::process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    address += static_cast<std::uint64_t>(got);
    to = static_cast<char*>(to) + got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

Result<bool> SharedCommunicator::may_read() {
  if (reading_ != Reading::kUnknown) return reading_ == Reading::kYes;
  // Where processes may be read by their ancestors alone, this one says that others may, too.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const auto count = static_cast<std::size_t>(size());
  constexpr std::uint64_t kSign = 0x666c6173686c6162;
  const std::uint64_t sign = kSign + static_cast<std::uint64_t>(rank());
  const auto address = reinterpret_cast<std::uint64_t>(&sign);
  std::array<std::uint64_t, kMaxSharedRanks> addresses{};
  Status status = all_gather(
      {.kind = Collective::kAllGather, .from = &address, .to = addresses.data(), .bytes = 8});
  unsigned char good = 1;
  for (std::size_t other = 0; other < count && status.ok(); ++other) {
    std::uint64_t found = 0;
    const pid_t process = segment_->slot(static_cast<int>(other)).pid;
    if (static_cast<int>(other) == rank()) continue;
    good &= read_memory(process, addresses[other], &found, sizeof found) && found == kSign + other;
  }
  std::array<unsigned char, kMaxSharedRanks> all{};
  if (status.ok()) {
    status =
        all_gather({.kind = Collective::kAllGather, .from = &good, .to = all.data(), .bytes = 1});
  }
  if (!status.ok()) return status;
  const bool yes = std::all_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count),
                               [](unsigned char each) { return each != 0; });
  reading_ = yes ? Reading::kYes : Reading::kNo;
  return yes;
}

Status SharedCommunicator::read_from(int other, std::uint64_t address, void* to,
                                     std::size_t bytes) {
  if (read_memory(segment_->slot(other).pid, address, to, bytes)) return {};
  // Its process is gone, maybe behind its own part of this call. It comes to no other call before
  // this rank has read: the wait ends with its death or in time, and never well.
  return segment_->wait_for(other, Count::kDone, count_of(1));
}

// The sum over ranks of `bytes` of their `from`, `begin` bytes in.
Status SharedCommunicator::add_directly(const CollectiveCall& call, std::size_t begin,
                                        std::size_t bytes, char* to) {
  const auto count = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  pieces_.resize(kDirectPiece * count);
  std::array<const void*, kMaxSharedRanks> parts;
  for (std::size_t at = 0; at < bytes; at += kDirectPiece) {
    const std::size_t piece = std::min(kDirectPiece, bytes - at);
    for (std::size_t other = 0; other < count; ++other) {
      char* read = pieces_.data() + other * kDirectPiece;
      parts[other] = other == me ? static_cast<const char*>(call.from) + begin + at : read;
      if (other == me) continue;
      const int rank = static_cast<int>(other);
      Status status =
          read_from(rank, segment_->slot(rank).addresses.from + begin + at, read, piece);
      if (!status.ok()) return status;
    }
    tree_sum({parts.data(), count}, to + at, piece / size_of(call.dtype), call.dtype);
  }
  return {};
}

// What is no sum: each reads its results where they lie.
Status SharedCommunicator::move_directly(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  if (call.kind == Collective::kBroadcast) {
    if (rank() != call.root) {
      return read_from(call.root, segment_->slot(call.root).addresses.from, to, call.bytes);
    }
    if (to != from) std::memcpy(to, from, call.bytes);
    return {};
  }
  const std::size_t mine = call.kind == Collective::kAllToAll ? me * call.bytes : 0;
  if (from + mine != to + me * call.bytes) {
    std::memcpy(to + me * call.bytes, from + mine, call.bytes);
  }
  for (std::size_t step = 1; step < count; ++step) {
    const std::size_t other = (me + step) % count;
    const std::uint64_t address = segment_->slot(static_cast<int>(other)).addresses.from;
    Status status =
        read_from(static_cast<int>(other), address + mine, to + other * call.bytes, call.bytes);
    if (!status.ok()) return status;
  }
  return {};
}

// Nothing is staged: all say where they have it, read, and go on when all have read. Of an
// all-reduce each adds a slice, and all read the others' slices of the sum.
Status SharedCommunicator::directly(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  if (!is_free(0)) {
    Status status = wait_for_all(Count::kDone, count_of(0) - kStagingPieces);
    if (!status.ok()) return status;
  }
  RankSlot& slot = segment_->slot(rank());
  slot.announced[first_ % kStagingPieces] = {call.bytes, call.root, call.kind, call.dtype};
  slot.addresses = {reinterpret_cast<std::uint64_t>(call.from),
                    reinterpret_cast<std::uint64_t>(call.to)};
  segment_->advance(Count::kWritten, count_of(0));
  Status status = wait_for_all(Count::kWritten, count_of(0));
  if (status.ok()) status = check_others(call);
  if (!status.ok()) return status;
  auto* to = static_cast<char*>(call.to);
  if (call.kind == Collective::kReduceScatter) {
    status = add_directly(call, me * call.bytes, call.bytes, to);
  } else if (call.kind == Collective::kAllReduce) {
    const std::size_t slice = (call.bytes / count + kLine) / kLine * kLine;
    const std::size_t begin = std::min(slice * me, call.bytes);
    status = add_directly(call, begin, std::min(slice, call.bytes - begin), to + begin);
    segment_->advance(Count::kSummed, count_of(0));
    if (status.ok()) status = wait_for_all(Count::kSummed, count_of(0));
    for (std::size_t step = 1; step < count && status.ok(); ++step) {
      const std::size_t other = (me + step) % count, at = std::min(slice * other, call.bytes);
      status = read_from(static_cast<int>(other),
                         segment_->slot(static_cast<int>(other)).addresses.to + at, to + at,
                         std::min(slice, call.bytes - at));
    }
  } else {
    status = move_directly(call);
  }
  if (!status.ok()) return status;
  segment_->advance(Count::kDone, count_of(0));
  status = wait_for_all(Count::kDone, count_of(0));
  ++first_;
  return status;
}

// For messages: this rank has begun so many more.
void SharedCommunicator::enter(Collective kind, std::string_view name, std::uint32_t more) {
  RankSlot& slot = segment_->slot(rank());
  slot.kind = kind;
  const std::size_t length = name.copy(slot.name, sizeof slot.name - 1);
  slot.name[length] = '\0';
  slot.entered = collectives_ += more;
}

Status SharedCommunicator::watch(const runtime::StreamProgress& progress) {
  // Looks at locks are calls of the system.
  constexpr double kLookAfterS = 0.05;
  if (progress.entered > 0) enter(progress.kind, progress.name, progress.entered);
  return progress.waited_s < kLookAfterS ? failure() : segment_->look(progress.waited_s);
}

Status SharedCommunicator::carry_out(const CollectiveCall& call) {
  if (Status status = segment_->failure(); !status.ok()) return status;
  enter(call.kind, call.name, 1);
  const auto nothing = [](std::size_t) { return Status(); };
  if (call.bytes == 0 || call.kind == Collective::kBarrier) {
    return in_rounds(
        call, 1, [](std::size_t, char*) {}, nothing);
  }
  if (size() > 1 && call.bytes >= direct_bytes_) {
    const Result<bool> reads = may_read();
    if (!reads.ok()) return reads.status();
    if (*reads) return directly(call);
  }
  switch (call.kind) {
    case Collective::kAllReduce:
      return all_reduce(call);
    case Collective::kReduceScatter:
      return reduce_scatter(call);
    case Collective::kAllGather:
      return all_gather(call);
    case Collective::kAllToAll:
      return all_to_all(call);
    default:
      return broadcast(call);
  }
}

}  // namespace

std::unique_ptr<runtime::Communicator> shared_communicator(std::unique_ptr<Segment> segment,
                                                           int rank, int size,
                                                           std::size_t direct_bytes) {
  return std::make_unique<SharedCommunicator>(std::move(segment), rank, size, direct_bytes);
}

}  // namespace flashlab::dist
