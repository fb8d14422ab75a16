#include "dist/shared/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

#include "runtime/cpu/processors.h"

namespace flashlab::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMagic = 0x464c5332;  // changes with the layout
constexpr int kLookMs = 50;                   // between looks at whether the others live
constexpr int kMeetMs = 2;                    // between looks for rank 0's segment
constexpr std::size_t kHeadBytes = 4096;

// A processor each: others come within the spins. Fewer processors than ranks: they cannot.
constexpr int kSpins = 2000, kSpinsCrowded = 100;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t seen, int at_most_ms) {
  const timespec limit{at_most_ms / 1000, (at_most_ms % 1000) * 1'000'000L};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

bool reached(std::uint32_t now, std::uint32_t tick) noexcept {
  return static_cast<std::int32_t>(now - tick) >= 0;
}

double waited_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One byte a rank. A lock belongs to an open file, so it ends when its process does, even by a
// signal, and even while nobody has waited for the process yet.
struct flock byte_of(int rank, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

Status system_error(StatusCode code, const std::string& what, int error, std::string remedy) {
  return {code, {what, std::strerror(error), "shared memory", std::move(remedy)}};
}

Status reserve(int descriptor, std::size_t bytes) {
  // Without it a full /dev/shm would be a bus error at the first write.
  const int error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (error == 0) return {};
  return system_error(StatusCode::kOutOfMemory, fmt::format("{} bytes of /dev/shm", bytes), error,
                      "free some of it, or give a container more: docker run --shm-size 1g");
}

bool is_stopped(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t behind_name = text.rfind(')');
  return behind_name != std::string::npos && behind_name + 2 < text.size() &&
         (text[behind_name + 2] == 'T' || text[behind_name + 2] == 't');
}

std::string list_of(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    out += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  return out;
}

}  // namespace

struct Segment::Head {
  std::atomic<std::uint32_t> magic;  // written last by rank 0
  std::uint32_t size;
  std::uint64_t chunk_bytes;
  char build[64];
  std::atomic<std::uint32_t> come;
  std::atomic<std::uint32_t> ended;  // 0: no, 1: the reason is being written, 2: it stands there
  std::int32_t told_by;
  char reason[1024];
};

Segment::Segment(const SegmentOptions& options) : options_(options) {
  if (options_.chunk_bytes == 0) options_.chunk_bytes = usual_piece_bytes(options_.size);
}

std::size_t Segment::bytes_of(const SegmentOptions& options) noexcept {
  const auto ranks = static_cast<std::size_t>(options.size);
  const std::size_t piece =
      options.chunk_bytes != 0 ? options.chunk_bytes : usual_piece_bytes(options.size);
  return 2 * kHeadBytes + ranks * (sizeof(RankSlot) + kStagingPieces * piece);
}

Status Segment::map(int descriptor) {
  mapped_bytes_ = bytes_of(options_);
  void* memory = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    mapped_bytes_ = 0;
    return system_error(StatusCode::kOutOfMemory, "mapping the ranks' segment", error, "");
  }
  char* bytes = static_cast<char*>(memory);
  static_assert(sizeof(Head) <= kHeadBytes);
  head_ = reinterpret_cast<Head*>(bytes);
  slots_ = reinterpret_cast<RankSlot*>(bytes + kHeadBytes);
  const std::size_t slots = static_cast<std::size_t>(options_.size) * sizeof(RankSlot);
  staging_ = bytes + kHeadBytes + (slots + kHeadBytes - 1) / kHeadBytes * kHeadBytes;
  return {};
}

// This process becomes its rank.
Status Segment::claim(int descriptor) {
  // An open file of its own: a forked child shares its parent's, and with it the locks.
  lock_ = ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock = byte_of(options_.rank, F_WRLCK);
  if (lock_ < 0 || ::fcntl(lock_, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    if (lock_ >= 0 && (error == EAGAIN || error == EACCES)) {
      return Status::invalid({"rank", fmt::format("{} twice", options_.rank),
                              "one process for each rank",
                              "look at the variables that say which "
                              "rank a process is"});
    }
    return system_error(StatusCode::kDeviceError, "locking a byte of the ranks' segment", error,
                        "");
  }
  ::sched_getaffinity(0, sizeof(cpu_set_t), &slots_[options_.rank].processors);
  slots_[options_.rank].pid = ::getpid();
  head_->come.fetch_add(1);
  wake_all(head_->come);
  return {};
}

Status Segment::wait_for_all() {
  const Clock::time_point begin = Clock::now();
  const auto size = static_cast<std::uint32_t>(options_.size);
  while (true) {
    if (Status status = failure(); !status.ok()) return status;
    const std::uint32_t come = head_->come;
    if (come == size) break;
    for (int rank = 0; rank < options_.size; ++rank) {
      const bool other = rank != options_.rank && slots_[rank].pid != 0;
      if (other && !is_alive(rank)) return fail(words(rank) + " has ended");
    }
    if (waited_since(begin) > options_.timeout_s) {
      std::vector<int> missing;
      for (int rank = 0; rank < options_.size; ++rank) {
        if (slots_[rank].pid == 0) missing.push_back(rank);
      }
      return fail(fmt::format("{} of {} never started within {:g} s", list_of(missing),
                              options_.size, options_.timeout_s));
    }
    sleep_while(head_->come, come, kLookMs);
  }
  // Ranks may be bound to processors of their own.
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < options_.size; ++rank) CPU_OR(&all, &all, &slots_[rank].processors);
  const double processors = std::min<double>(CPU_COUNT(&all), internal::cpu_quota().value_or(1e9));
  spins_ = processors >= options_.size ? kSpins : kSpinsCrowded;
  return {};
}

Result<int> Segment::descriptor_for(const SegmentOptions& options) {
  const int descriptor = ::memfd_create("flashlab-ranks", MFD_CLOEXEC);
  if (descriptor < 0) {
    return system_error(StatusCode::kOutOfMemory, "memory for the ranks", errno, "");
  }
  if (Status status = reserve(descriptor, bytes_of(options)); !status.ok()) {
    ::close(descriptor);
    return status;
  }
  return descriptor;
}

Result<std::unique_ptr<Segment>> Segment::enter(int descriptor, const SegmentOptions& options) {
  std::unique_ptr<Segment> out(new Segment(options));
  if (Status status = out->map(descriptor); !status.ok()) return status;
  if (Status status = out->claim(descriptor); !status.ok()) return status;
  if (Status status = out->wait_for_all(); !status.ok()) return status;
  return out;
}

namespace {

// A descriptor that closes itself.
struct File {
  int descriptor = -1;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

bool is_held(int descriptor, int rank) {
  struct flock lock = byte_of(rank, F_WRLCK);
  return ::fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string path_of(const std::string& name) {
  return "/flashlab-" + name;
}

}  // namespace

// Rank 0 makes the segment, and waits for the others.
Status Segment::create(const std::string& path) {
  if (File old{::shm_open(path.c_str(), O_RDWR, 0)}; old.descriptor >= 0) {
    if (is_held(old.descriptor, 0)) {
      return Status::invalid({"the name of this run", path.substr(1), "one that no other run has",
                              "wait for the other run, or start with another MASTER_PORT"});
    }
    ::shm_unlink(path.c_str());
  }
  const File file{::shm_open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)};
  if (file.descriptor < 0) {
    return system_error(StatusCode::kDeviceError, "/dev/shm" + path, errno,
                        "two processes may be rank 0 of this run");
  }
  Status status = reserve(file.descriptor, bytes_of(options_));
  if (status.ok()) status = map(file.descriptor);
  if (status.ok()) {
    head_->size = static_cast<std::uint32_t>(options_.size);
    head_->chunk_bytes = options_.chunk_bytes;
    options_.build.copy(head_->build, sizeof head_->build - 1);
    status = claim(file.descriptor);
  }
  if (status.ok()) {
    head_->magic.store(kMagic, std::memory_order_release);
    status = wait_for_all();
  }
  // From here on nobody can find it, and it goes with the last process that has it.
  ::shm_unlink(path.c_str());
  return status;
}

// Whether rank 0's segment lies behind the descriptor, ready, and this rank goes with it.
Result<bool> Segment::fits(int descriptor) {
  struct stat about {};
  // What a dead run left has nobody who holds rank 0's lock.
  if (descriptor < 0 || ::fstat(descriptor, &about) != 0 ||
      about.st_size < static_cast<off_t>(kHeadBytes) || !is_held(descriptor, 0)) {
    return false;
  }
  void* memory = ::mmap(nullptr, kHeadBytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return false;
  const Head& head = *static_cast<const Head*>(memory);
  const bool ready = head.magic.load(std::memory_order_acquire) == kMagic;
  const auto size = static_cast<int>(head.size);
  const std::string build(head.build, ::strnlen(head.build, sizeof head.build));
  options_.chunk_bytes = head.chunk_bytes;
  ::munmap(memory, kHeadBytes);
  if (!ready) return false;
  if (size != options_.size) {
    return Status::invalid({fmt::format("number of ranks that rank {} knows", options_.rank),
                            fmt::format("{}", options_.size),
                            fmt::format("{} as rank 0 has it", size),
                            "start all ranks by one command"});
  }
  if (build != options_.build.substr(0, sizeof head.build - 1)) {
    return Status::invalid({fmt::format("build of rank {}", options_.rank), options_.build,
                            fmt::format("{} as rank 0 has it", build),
                            "start the same program on all ranks"});
  }
  return true;
}

Result<std::unique_ptr<Segment>> Segment::meet(const std::string& name,
                                               const SegmentOptions& options) {
  const std::string path = path_of(name);
  std::unique_ptr<Segment> out(new Segment(options));
  if (options.rank == 0) {
    if (Status status = out->create(path); !status.ok()) return status;
    return out;
  }
  const Clock::time_point begin = Clock::now();
  while (true) {
    const File file{::shm_open(path.c_str(), O_RDWR, 0)};
    const Result<bool> fits = out->fits(file.descriptor);
    if (!fits.ok()) return fits.status();
    if (*fits) {
      Status status = out->map(file.descriptor);
      if (status.ok()) status = out->claim(file.descriptor);
      if (status.ok()) status = out->wait_for_all();
      if (!status.ok()) return status;
      return out;
    }
    if (waited_since(begin) > options.timeout_s) {
      return Status(
          StatusCode::kDeviceError,
          {fmt::format("rank {} looks for rank 0 on {}", options.rank, options.host),
           fmt::format("nothing within {:g} s", options.timeout_s), "memory that rank 0 opens",
           "see what rank 0 says, and whether all ranks run on one host"});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kMeetMs));
  }
}

void Segment::forget(const std::string& name) {
  ::shm_unlink(path_of(name).c_str());
}

Segment::~Segment() {
  if (head_ != nullptr) {
    if (lock_ >= 0) slots_[options_.rank].has_left = 1;
    ::munmap(head_, mapped_bytes_);
  }
  if (lock_ >= 0) ::close(lock_);
}

void Segment::advance(Count count, std::uint32_t value) noexcept {
  RankSlot& mine = slots_[options_.rank];
  std::atomic<std::uint32_t>& word = mine.counts[static_cast<int>(count)];
  word.store(value);  // sequentially consistent, as is the look at who waits
  if (mine.waiters.load() != 0) wake_all(word);
}

bool Segment::has_reached(int rank, Count count, std::uint32_t value) noexcept {
  const std::atomic<std::uint32_t>& word = slots_[rank].counts[static_cast<int>(count)];
  return reached(word.load(std::memory_order_acquire), value);
}

Status Segment::wait_for(int rank, Count count, std::uint32_t value) {
  for (int i = 0; i < spins_; ++i) {
    if (has_reached(rank, count, value)) return {};
    relax();
  }
  // It may be about to come and only lack this processor.
  ::sched_yield();
  if (has_reached(rank, count, value)) return {};
  RankSlot& other = slots_[rank];
  std::atomic<std::uint32_t>& word = other.counts[static_cast<int>(count)];
  const Clock::time_point begin = Clock::now();
  Status status;
  other.waiters.fetch_add(1);
  while (status.ok()) {
    const std::uint32_t now = word.load();
    if (reached(now, value)) break;
    sleep_while(word, now, kLookMs);
    if (word.load() == now) status = look_around(rank, waited_since(begin));
  }
  other.waiters.fetch_sub(1);
  return status;
}

bool Segment::is_alive(int rank) const noexcept {
  struct flock lock = byte_of(rank, F_WRLCK);
  return ::fcntl(lock_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

Status Segment::look_around(int awaited, double waited_s) {
  if (Status status = failure(); !status.ok()) return status;
  for (int rank = 0; rank < options_.size; ++rank) {
    // Who has left in good order is missed by nobody but who waits for it.
    const bool left = slots_[rank].has_left != 0 && rank != awaited;
    if (rank == options_.rank || left || is_alive(rank)) continue;
    return fail(fmt::format("{} has ended; {}", words(rank), who_is_where()));
  }
  if (waited_s < options_.timeout_s) return {};
  if (awaited == options_.rank) {
    return fail(fmt::format("{} waits for its GPU, where nothing went on for {:g} s; {}",
                            words(awaited), options_.timeout_s, who_is_where()));
  }
  return fail(fmt::format("{} did not come within {:g} s{}; {}", words(awaited), options_.timeout_s,
                          is_stopped(slots_[awaited].pid) ? ", it is stopped (SIGSTOP)" : "",
                          who_is_where()));
}

// Who has begun the fewest collectives is waited for.
Status Segment::look(double waited_s) {
  int last = options_.rank;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (!reached(slots_[rank].entered, slots_[last].entered)) last = rank;
  }
  return look_around(last, waited_s);
}

std::string Segment::words(int rank) const {
  return fmt::format("rank {} (process {} on {})", rank, slots_[rank].pid.load(), options_.host);
}

// "step 3, all-reduce 17 \"gradients\": ranks 0 and 2 came, rank 1 never did".
std::string Segment::who_is_where() const {
  const RankSlot& mine = slots_[options_.rank];
  const std::uint32_t here = mine.entered;
  std::vector<int> inside, missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    (reached(slots_[rank].entered, here) ? inside : missing).push_back(rank);
  }
  std::string out;
  if (mine.step > 0) out = fmt::format("step {}, ", mine.step.load());
  out += fmt::format("{} {}", runtime::to_string(mine.kind), here);
  if (mine.name[0] != '\0') out += fmt::format(" \"{}\"", mine.name);
  if (missing.empty()) return out + ": all ranks had begun it";
  return out + fmt::format(": {} came, {} never did", list_of(inside), list_of(missing));
}

Status Segment::fail(const std::string& why) {
  std::uint32_t running = 0;
  if (head_->ended.compare_exchange_strong(running, 1)) {
    head_->told_by = options_.rank;
    const std::size_t length = why.copy(head_->reason, sizeof head_->reason - 1);
    head_->reason[length] = '\0';
    head_->ended = 2;
    // Who sleeps looks up at once.
    for (int rank = 0; rank < options_.size; ++rank) {
      for (std::atomic<std::uint32_t>& count : slots_[rank].counts) wake_all(count);
    }
    wake_all(head_->come);
  }
  return failure();
}

Status Segment::failure() const {
  if (head_->ended == 0) return {};
  while (head_->ended == 1) ::sched_yield();
  return {StatusCode::kDeviceError, {head_->reason, "", "", ""}};
}

bool Segment::tells_of_failure() const noexcept {
  return head_->ended == 2 && head_->told_by == options_.rank;
}

}  // namespace flashlab::dist
