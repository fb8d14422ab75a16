#include "lab/machine/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <sstream>

namespace flashlab::lab {
namespace {

/// The value of a line "key value" or "key: value kB", in bytes where it has that unit.
std::optional<std::int64_t> field_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, unit;
    std::int64_t value = 0;
    if (!(words >> name >> value) || name != key) continue;
    words >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return {};
}

std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;  // "max" (no limit) is no number
  return {};
}

/// The memory limit of the control group this process sees as its root: containers mount theirs
/// there. v2 first, then v1 (whose "no limit" is a number near 2^63).
std::optional<std::int64_t> group_limit() {
  std::optional<std::int64_t> limit = number_in("/sys/fs/cgroup/memory.max");
  if (!limit) limit = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;
  return limit && *limit < kNoLimit ? limit : std::optional<std::int64_t>();
}

}  // namespace

std::size_t TrackingAllocator::entry_of(Tag tag) {
  const char* role = tag.role == nullptr ? "" : tag.role;
  const char* place = tag.place == nullptr ? "" : tag.place;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].role == role && entries_[i].place == place) return i;
  }
  entries_.push_back({role, place, 0, 0, 0});
  return entries_.size() - 1;
}

Status TrackingAllocator::refusal(std::size_t bytes, Tag tag) const {
  const char* role = tag.role == nullptr || *tag.role == '\0' ? "memory" : tag.role;
  return Status::out_of_memory({role,
                                fmt::format("{} asked for, with {} held already",
                                            format_bytes(bytes), format_bytes(current_)),
                                fmt::format("at most {} in all", format_bytes(limit_)),
                                "choose a smaller batch, fewer heads or shorter sequences"});
}

Result<void*> TrackingAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream stream,
                                          Tag tag) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (limit_ > 0 && (static_cast<double>(current_) + static_cast<double>(bytes) >
                         static_cast<double>(limit_))) {
        return refusal(bytes, tag);
      }
    }
    Result<void*> memory = inner_.allocate(bytes, alignment, stream, tag);
    if (!memory.ok()) return memory;

    const std::lock_guard lock(mutex_);
    const std::size_t index = entry_of(tag);
    // A zero-byte allocation may share its address with another: it is counted, not remembered.
    if (bytes > 0) blocks_[*memory] = {bytes, index};
    const auto size = static_cast<std::int64_t>(bytes);
    current_ += size;
    peak_ = std::max(peak_, current_);
    ++allocations_;
    LedgerEntry& entry = entries_[index];
    entry.current_bytes += size;
    entry.peak_bytes = std::max(entry.peak_bytes, entry.current_bytes);
    ++entry.allocations;
    return memory;
  } catch (const std::exception&) {
    return Status::out_of_memory(
        {"ledger", "no memory to account for an allocation", "a few bytes", "free some memory"});
  }
}

void TrackingAllocator::deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept {
  if (pointer != nullptr) {
    const std::lock_guard lock(mutex_);
    if (const auto found = blocks_.find(pointer); found != blocks_.end()) {
      const auto size = static_cast<std::int64_t>(found->second.bytes);
      current_ -= size;
      entries_[found->second.entry].current_bytes -= size;
      blocks_.erase(found);
    }
  }
  inner_.deallocate(pointer, bytes, stream);
}

std::int64_t TrackingAllocator::current_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return current_;
}

std::int64_t TrackingAllocator::peak_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::int64_t TrackingAllocator::allocations() const noexcept {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

void TrackingAllocator::reset_peak() noexcept {
  const std::lock_guard lock(mutex_);
  peak_ = current_;
  allocations_ = 0;
  for (LedgerEntry& entry : entries_) {
    entry.peak_bytes = entry.current_bytes;
    entry.allocations = 0;
  }
}

void TrackingAllocator::set_limit(std::int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  limit_ = std::max<std::int64_t>(bytes, 0);
}

std::vector<LedgerEntry> TrackingAllocator::ledger() const {
  std::vector<LedgerEntry> out;
  {
    const std::lock_guard lock(mutex_);
    out = entries_;
  }
  std::ranges::stable_sort(
      out, [](const LedgerEntry& a, const LedgerEntry& b) { return a.peak_bytes > b.peak_bytes; });
  return out;
}

std::string format_bytes(double bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  if (std::abs(bytes) >= 100) return fmt::format("{:.0f} {}", bytes, kUnits[unit]);
  std::string digits = fmt::format("{:.{}f}", bytes, std::abs(bytes) >= 10 ? 1 : 2);
  while (digits.back() == '0') digits.pop_back();
  if (digits.back() == '.') digits.pop_back();
  return fmt::format("{} {}", digits, kUnits[unit]);
}

std::int64_t available_memory_bytes() {
  std::int64_t available =
      field_in("/proc/meminfo", "MemAvailable:").value_or(std::numeric_limits<std::int64_t>::max());
  struct Group {
    const char *limit, *used, *statistics;
  };
  const Group groups[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat"}};
  for (const Group& group : groups) {
    const auto limit = number_in(group.limit), used = number_in(group.used);
    if (!limit || !used) continue;
    // Cached file pages count as used but give way.
    const std::int64_t cached = field_in(group.statistics, "inactive_file").value_or(0);
    available = std::min(available, std::max<std::int64_t>(0, *limit - (*used - cached)));
  }
  return available;
}

std::optional<std::int64_t> total_memory_bytes() {
  std::optional<std::int64_t> total = field_in("/proc/meminfo", "MemTotal:");
  if (const auto limit = group_limit()) total = total ? std::min(*total, *limit) : *limit;
  return total;
}

std::optional<std::int64_t> process_peak_bytes() {
  return field_in("/proc/self/status", "VmHWM:");
}

bool reset_process_peak() {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  // "5" resets the peak resident set size (proc(5), Linux 4.0).
  const bool written = write(file, "5", 1) == 1;
  close(file);
  if (!written) return false;
  // Some kernels accept the write and ignore it: believe only what can be seen.
  const auto peak = process_peak_bytes();
  const auto now = field_in("/proc/self/status", "VmRSS:");
  constexpr std::int64_t kSlack = 16 * 1024 * 1024;
  return peak && now && *peak <= *now + kSlack;
}

}  // namespace flashlab::lab
