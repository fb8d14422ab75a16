#include "dist/shared/shared_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "dist/sums/tree_sum.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;

// Pieces start at whole cache lines, so that no two ranks write into one.
constexpr std::size_t kLine = 128;

// Ticks of a round. A rank's staging memory of a round is free again two rounds later, once all
// others have said kDone of this one.
enum Tick : std::uint32_t { kDone = 0, kWritten = 1, kSummed = 2, kTicks = 3 };

std::size_t whole_lines(std::size_t bytes) {
  return std::max(bytes / kLine * kLine, kLine);
}

class SharedCommunicator final : public runtime::Communicator {
 public:
  SharedCommunicator(std::unique_ptr<Segment> segment, int rank, int size)
      : Communicator(rank, size), segment_(std::move(segment)) {}

  std::string_view transport() const noexcept override { return "shared"; }
  Status failure() const override { return segment_->failure(); }
  bool tells_of_failure() const noexcept override { return segment_->tells_of_failure(); }

 private:
  Status carry_out(const CollectiveCall& call) override;

  // What one kind does: which bytes of a part fit into a round, and its rounds.
  Status meet(const CollectiveCall& call);
  Status all_reduce(const CollectiveCall& call);
  Status reduce_scatter(const CollectiveCall& call);
  Status all_gather(const CollectiveCall& call);
  Status all_to_all(const CollectiveCall& call);
  Status broadcast(const CollectiveCall& call);

  /// The staging memory of this round is this rank's to write.
  Status begin_round(const CollectiveCall& call);
  /// What this rank wrote may be read, and once this returns, what the others wrote.
  Status exchange(Tick tick);
  void end_round();

  char* mine() { return segment_->staging(rank(), turn()); }
  char* of(int rank) { return segment_->staging(rank, turn()); }
  unsigned turn() const { return round_ % 2; }
  static std::uint32_t tick_of(std::uint64_t round, Tick tick) {
    return static_cast<std::uint32_t>(round * kTicks + tick);
  }
  Status check_others(const CollectiveCall& call);

  std::unique_ptr<Segment> segment_;
  std::uint64_t round_ = 0;
  std::uint32_t collectives_ = 0;
  bool first_round_ = false;  // of the collective: the others' announcements are compared
};

Status SharedCommunicator::begin_round(const CollectiveCall& call) {
  if (round_ >= 2) {
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      Status status = segment_->wait_for(other, tick_of(round_ - 1, kDone));
      if (!status.ok()) return status;
    }
  }
  segment_->slot(rank()).announced[turn()] = {call.bytes, call.root, call.kind, call.dtype};
  return {};
}

Status SharedCommunicator::exchange(Tick tick) {
  const std::uint32_t now = tick_of(round_, tick);
  segment_->advance(now);
  // Each begins behind itself, so that not all read one rank's memory at once.
  for (int step = 1; step < size(); ++step) {
    Status status = segment_->wait_for((rank() + step) % size(), now);
    if (!status.ok()) return status;
  }
  return {};
}

void SharedCommunicator::end_round() {
  ++round_;
  segment_->advance(tick_of(round_, kDone));
}

Status SharedCommunicator::check_others(const CollectiveCall& call) {
  const auto words = [&](int rank) {
    const Announcement& a = segment_->slot(rank).announced[turn()];
    std::string out = fmt::format("{} of {} bytes", to_string(a.kind), a.bytes);
    if (runtime::adds(a.kind)) out += fmt::format(" of {}", flashlab::to_string(a.dtype));
    if (a.kind == Collective::kBroadcast) out += fmt::format(" from rank {}", a.root);
    return out;
  };
  const Announcement& own = segment_->slot(rank()).announced[turn()];
  for (int other = 0; other < size(); ++other) {
    if (segment_->slot(other).announced[turn()] == own) continue;
    return segment_->fail(
        fmt::format("ranks call different collectives ({}): {} came with {}, {} with {}",
                    call.name.empty() ? "no name" : call.name, segment_->words(rank()),
                    words(rank()), segment_->words(other), words(other)));
  }
  return {};
}

Status SharedCommunicator::meet(const CollectiveCall& call) {
  if (Status status = begin_round(call); !status.ok()) return status;
  if (Status status = exchange(kWritten); !status.ok()) return status;
  if (Status status = check_others(call); !status.ok()) return status;
  end_round();
  return {};
}

// Every rank stages its piece. Of few ranks or few bytes each adds all of the piece itself: one
// meeting instead of two. Otherwise each adds a slice and all copy the slices of the others.
Status SharedCommunicator::all_reduce(const CollectiveCall& call) {
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const std::size_t element = size_of(call.dtype);
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  constexpr std::size_t kSmall = 4096;
  const bool sliced = size() > 2 && call.bytes > kSmall;
  std::array<const void*, kMaxSharedRanks> parts;
  const auto count = static_cast<std::size_t>(size());
  for (std::size_t at = 0; at < call.bytes; at += piece) {
    const std::size_t bytes = std::min(piece, call.bytes - at);
    if (Status status = begin_round(call); !status.ok()) return status;
    std::memcpy(mine(), from + at, bytes);
    if (Status status = exchange(kWritten); !status.ok()) return status;
    if (std::exchange(first_round_, false)) {
      if (Status status = check_others(call); !status.ok()) return status;
    }
    const std::size_t slice = sliced ? (bytes / count + kLine) / kLine * kLine : bytes;
    const std::size_t begin =
        sliced ? std::min(slice * static_cast<std::size_t>(rank()), bytes) : 0;
    const std::size_t end = std::min(begin + slice, bytes);
    for (std::size_t other = 0; other < count; ++other) {
      parts[other] = of(static_cast<int>(other)) + begin;
    }
    // A slice of the sum replaces the same slice of this rank's staged piece, which nobody else
    // reads: they read their own slices.
    char* sum = sliced ? mine() + begin : to + at;
    tree_sum({parts.data(), count}, sum, (end - begin) / element, call.dtype);
    if (sliced) {
      if (Status status = exchange(kSummed); !status.ok()) return status;
      for (std::size_t step = 0; step < count; ++step) {
        const std::size_t other = (static_cast<std::size_t>(rank()) + step) % count;
        const std::size_t first = std::min(slice * other, bytes);
        std::memcpy(to + at + first, of(static_cast<int>(other)) + first,
                    std::min(slice, bytes - first));
      }
    }
    end_round();
  }
  return {};
}

// A round stages a piece of every part.
Status SharedCommunicator::reduce_scatter(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size());
  const std::size_t piece = whole_lines(segment_->chunk_bytes() / count);
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  std::array<const void*, kMaxSharedRanks> parts;
  const auto me = static_cast<std::size_t>(rank());
  for (std::size_t at = 0; at < call.bytes; at += piece) {
    const std::size_t bytes = std::min(piece, call.bytes - at);
    if (Status status = begin_round(call); !status.ok()) return status;
    for (std::size_t part = 0; part < count; ++part) {
      if (part == me) continue;
      std::memcpy(mine() + part * piece, from + part * call.bytes + at, bytes);
    }
    if (Status status = exchange(kWritten); !status.ok()) return status;
    if (std::exchange(first_round_, false)) {
      if (Status status = check_others(call); !status.ok()) return status;
    }
    for (std::size_t other = 0; other < count; ++other) {
      parts[other] =
          other == me ? from + me * call.bytes + at : of(static_cast<int>(other)) + me * piece;
    }
    tree_sum({parts.data(), count}, to + at, bytes / size_of(call.dtype), call.dtype);
    end_round();
  }
  return {};
}

Status SharedCommunicator::all_to_all(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size());
  const std::size_t piece = whole_lines(segment_->chunk_bytes() / count);
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  const auto me = static_cast<std::size_t>(rank());
  for (std::size_t at = 0; at < call.bytes; at += piece) {
    const std::size_t bytes = std::min(piece, call.bytes - at);
    if (Status status = begin_round(call); !status.ok()) return status;
    for (std::size_t part = 0; part < count; ++part) {
      char* where = part == me ? to + me * call.bytes + at : mine() + part * piece;
      std::memcpy(where, from + part * call.bytes + at, bytes);
    }
    if (Status status = exchange(kWritten); !status.ok()) return status;
    if (std::exchange(first_round_, false)) {
      if (Status status = check_others(call); !status.ok()) return status;
    }
    for (std::size_t step = 1; step < count; ++step) {
      const std::size_t other = (me + step) % count;
      std::memcpy(to + other * call.bytes + at, of(static_cast<int>(other)) + me * piece, bytes);
    }
    end_round();
  }
  return {};
}

Status SharedCommunicator::all_gather(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size());
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  const auto me = static_cast<std::size_t>(rank());
  for (std::size_t at = 0; at < call.bytes; at += piece) {
    const std::size_t bytes = std::min(piece, call.bytes - at);
    if (Status status = begin_round(call); !status.ok()) return status;
    std::memcpy(mine(), from + at, bytes);
    if (Status status = exchange(kWritten); !status.ok()) return status;
    if (std::exchange(first_round_, false)) {
      if (Status status = check_others(call); !status.ok()) return status;
    }
    if (to + me * call.bytes != from) std::memcpy(to + me * call.bytes + at, from + at, bytes);
    for (std::size_t step = 1; step < count; ++step) {
      const std::size_t other = (me + step) % count;
      std::memcpy(to + other * call.bytes + at, of(static_cast<int>(other)), bytes);
    }
    end_round();
  }
  return {};
}

// The root runs ahead by the two rounds that there is memory for.
Status SharedCommunicator::broadcast(const CollectiveCall& call) {
  const std::size_t piece = whole_lines(segment_->chunk_bytes());
  const auto* from = static_cast<const char*>(call.from);
  auto* to = static_cast<char*>(call.to);
  const bool root = rank() == call.root;
  for (std::size_t at = 0; at < call.bytes; at += piece) {
    const std::size_t bytes = std::min(piece, call.bytes - at);
    if (Status status = begin_round(call); !status.ok()) return status;
    if (root) std::memcpy(mine(), from + at, bytes);
    if (std::exchange(first_round_, false)) {
      if (Status status = exchange(kWritten); !status.ok()) return status;
      if (Status status = check_others(call); !status.ok()) return status;
    } else if (root) {
      segment_->advance(tick_of(round_, kWritten));
    } else {
      Status status = segment_->wait_for(call.root, tick_of(round_, kWritten));
      if (!status.ok()) return status;
    }
    if (!root) std::memcpy(to + at, of(call.root), bytes);
    if (root && to != from) std::memcpy(to + at, from + at, bytes);
    end_round();
  }
  return {};
}

Status SharedCommunicator::carry_out(const CollectiveCall& call) {
  if (Status status = segment_->failure(); !status.ok()) return status;
  RankSlot& slot = segment_->slot(rank());
  slot.kind = call.kind;
  const std::size_t length = call.name.copy(slot.name, sizeof slot.name - 1);
  slot.name[length] = '\0';
  slot.entered = ++collectives_;
  first_round_ = true;
  if (call.bytes == 0) return meet(call);
  switch (call.kind) {
    case Collective::kAllReduce:
      return all_reduce(call);
    case Collective::kReduceScatter:
      return reduce_scatter(call);
    case Collective::kAllGather:
      return all_gather(call);
    case Collective::kAllToAll:
      return all_to_all(call);
    case Collective::kBroadcast:
      return broadcast(call);
    default:
      return meet(call);
  }
}

}  // namespace

std::unique_ptr<runtime::Communicator> shared_communicator(std::unique_ptr<Segment> segment,
                                                           int rank, int size) {
  return std::make_unique<SharedCommunicator>(std::move(segment), rank, size);
}

}  // namespace flashlab::dist
