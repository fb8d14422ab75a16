#pragma once

// Memory that the ranks of one host share: where they meet, how they wait for one another, and how
// one learns that another has died.

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "flashlab/status.h"
#include "runtime/communicator/communicator.h"

namespace flashlab::dist {

inline constexpr int kMaxSharedRanks = 64;
/// Pieces of staging memory that a rank has: so far it may be ahead of the slowest. Where ranks
/// share processors with other programs each is away for milliseconds at a time, and the others go
/// on meanwhile: all-reduce of 64 MiB between two ranks on two cores with a load of 20, 430 ms with
/// two pieces, 220 with 8 (EPYC, 2026-11-28).
inline constexpr unsigned kStagingPieces = 32;

/// What a rank counts, in rounds.
enum class Count : std::uint8_t {
  kWritten,  ///< its piece may be read
  kSummed,   ///< its slice of the sum may be read
  kDone,     ///< it reads nothing of the round any more
};

/// What one rank shows the others of the collective that it is in, beside its piece of the first
/// round.
struct Announcement {
  std::uint64_t bytes = 0;
  std::int32_t root = 0;
  runtime::Collective kind = runtime::Collective::kBarrier;
  DType dtype = DType::kFp32;
  bool operator==(const Announcement&) const = default;
};

/// Where a rank has what the others read of it in its own memory.
struct Addresses {
  std::uint64_t from = 0, to = 0;
};

/// A rank's part of the segment's head: a line of its own for what others wait for.
struct alignas(128) RankSlot {
  std::atomic<std::uint32_t> counts[3];  ///< by Count; they go up (and around)
  std::atomic<std::uint32_t> waiters;    ///< that sleep until one of them changes
  std::atomic<std::int32_t> pid;         ///< 0: has not come yet
  std::atomic<std::uint32_t> entered;    ///< collectives, for messages
  std::atomic<std::uint32_t> has_left;   ///< 1: in good order
  std::atomic<std::int64_t> step;        ///< that it is in, for messages; 0: none
  Announcement announced[kStagingPieces];
  Addresses addresses;       ///< of a collective that is read directly
  runtime::Collective kind;  ///< of the last one entered
  char name[47];             ///< of it, for messages
  cpu_set_t processors;      ///< where it may run
};

struct SegmentOptions {
  int rank = 0, size = 1;
  /// Of a piece of staging memory.
  std::size_t chunk_bytes = 0;  ///< 0: what usual_piece_bytes says
  double timeout_s = 120;       ///< for the others to come, and later for each thing waited for
  std::string host;             ///< for messages
  std::string build;            ///< ranks of different builds do not go together
};

/// 256 KiB, which two levels of cache hold beside what is copied; less of more than four ranks, so
/// that all of them stay within the 64 MB that containers give.
constexpr std::size_t usual_piece_bytes(int ranks) noexcept {
  const std::size_t share = (std::size_t{1} << 20) / static_cast<std::size_t>(ranks);
  return share < (std::size_t{256} << 10) ? share / 4096 * 4096 : std::size_t{256} << 10;
}

class Segment {
 public:
  /// Where processes meet by a name that all of them know. Nothing of that name is left once all
  /// have come. A segment that a dead run left is replaced.
  /// Errors: kInvalidArgument (the name is in use, ranks disagree about size or build, two
  /// processes are one rank), kOutOfMemory, kDeviceError (somebody did not come in time, named).
  static Result<std::unique_ptr<Segment>> meet(const std::string& name,
                                               const SegmentOptions& options);

  /// For processes that will be forked: the parent makes it, each child enters by `enter`.
  static Result<int> descriptor_for(const SegmentOptions& options);
  /// Rank `options.rank` of the segment behind the descriptor, which stays the caller's.
  static Result<std::unique_ptr<Segment>> enter(int descriptor, const SegmentOptions& options);

  /// Removes what a run that was killed while its ranks met left of this name.
  static void forget(const std::string& name);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  RankSlot& slot(int rank) noexcept { return slots_[rank]; }
  char* staging(int rank, unsigned piece) noexcept {
    return staging_ +
           (static_cast<std::size_t>(rank) * kStagingPieces + piece) * options_.chunk_bytes;
  }
  std::size_t chunk_bytes() const noexcept { return options_.chunk_bytes; }

  /// See Communicator::begin_step.
  void begin_step(std::int64_t step, double timeout_s) noexcept {
    slots_[options_.rank].step = step;
    options_.timeout_s = timeout_s;
  }

  /// This rank has come so far; wakes who sleeps.
  void advance(Count count, std::uint32_t value) noexcept;
  bool has_reached(int rank, Count count, std::uint32_t value) noexcept;
  /// Until `rank` has come so far. Errors: those of `failure`.
  Status wait_for(int rank, Count count, std::uint32_t value);

  /// For who waits elsewhere, for so long: all ranks are there, none is late. Errors: those of
  /// `failure`.
  Status look(double waited_s);

  /// Ends the group, once: the first rank that calls it tells why. Gives what was told.
  Status fail(const std::string& why);
  /// Not ok once the group has ended.
  Status failure() const;
  bool tells_of_failure() const noexcept;

  /// "rank 1 (process 4711 on host)".
  std::string words(int rank) const;

 private:
  struct Head;
  explicit Segment(const SegmentOptions& options);
  static std::size_t bytes_of(const SegmentOptions& options) noexcept;
  Status create(const std::string& path);
  Result<bool> fits(int descriptor);
  Status map(int descriptor);
  Status claim(int descriptor);
  Status wait_for_all();
  bool is_alive(int rank) const noexcept;
  Status look_around(int awaited, double waited_s);
  std::string who_is_where() const;

  SegmentOptions options_;
  int lock_ = -1;  // an open file of its own, whose locks end with this process
  Head* head_ = nullptr;
  RankSlot* slots_ = nullptr;
  char* staging_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  int spins_ = 0;
};

}  // namespace flashlab::dist
