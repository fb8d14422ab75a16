#pragma once

// How much memory a call took: an allocator that counts, and what the system says of the process.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "flashlab/context.h"

namespace flashlab::lab {

/// What one Tag holds and held.
struct LedgerEntry {
  std::string role;
  std::string place;
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t allocations = 0;
};

/// Counts what passes through it to another allocator: current bytes, high-water mark, a ledger by
/// Tag; and refuses what would exceed a limit, with the accounts, before the system has to.
/// Thread-safe. Bytes are those asked for, so that figures do not depend on the system's rounding.
class TrackingAllocator final : public Allocator {
 public:
  /// `inner` outlives this object.
  explicit TrackingAllocator(Allocator& inner = default_cpu_allocator()) : inner_(inner) {}

  Result<void*> allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                         Tag tag) noexcept override;
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override;

  std::int64_t current_bytes() const noexcept;
  std::int64_t peak_bytes() const noexcept;  ///< since construction or reset_peak()
  std::int64_t allocations() const noexcept;

  /// The high-water marks restart at what is held now; counts of allocations restart at 0.
  void reset_peak() noexcept;

  /// Refuse what would make current_bytes() exceed this; 0: no limit.
  void set_limit(std::int64_t bytes) noexcept;

  /// Largest peak first.
  std::vector<LedgerEntry> ledger() const;

 private:
  struct Block {
    std::size_t bytes = 0;
    std::size_t entry = 0;
  };
  std::size_t entry_of(Tag tag);
  Status refusal(std::size_t bytes, Tag tag) const;

  Allocator& inner_;
  mutable std::mutex mutex_;
  std::int64_t current_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t allocations_ = 0;
  std::int64_t limit_ = 0;
  std::vector<LedgerEntry> entries_;
  std::unordered_map<void*, Block> blocks_;
};

/// "256 GiB", "1.5 MiB", "512 B": three significant digits.
std::string format_bytes(double bytes);

/// What there is at all: the least of the system's memory and the control group's limit.
std::optional<std::int64_t> total_memory_bytes();

/// What this process may still take without being killed: the kernel's estimate of available
/// memory, and the control group's limit where there is one.
std::int64_t available_memory_bytes();

/// Highest resident size of this process since it began or since the last successful reset.
std::optional<std::int64_t> process_peak_bytes();

/// Restarts process_peak_bytes. False where the system does not allow it (some containers): then a
/// peak of one case cannot be told from an earlier one's, and must not be reported.
bool reset_process_peak();

}  // namespace flashlab::lab
