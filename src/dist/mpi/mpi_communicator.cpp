#include "dist/mpi/mpi_communicator.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "dist/mpi/module.h"
#include "dist/sums/tree_sum.h"
#include "runtime/library/library.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;

constexpr const char* kModuleFile = "libflashlab_mpi.so";
constexpr const char* kModuleRemedy =
    "build FlashLab where mpi.h is found (Debian: libopenmpi-dev or libmpich-dev); FLASHLAB_MPI "
    "names a file";
// What other ranks' parts need while they are added.
constexpr std::size_t kMpiPiece = std::size_t{1} << 20;

// Beside what holds this function (the library, or a program that has it inside), and where an
// installed program has its library.
std::vector<std::string> module_candidates() {
  if (const char* named = std::getenv("FLASHLAB_MPI"); named != nullptr && *named != '\0') {
    return {named};
  }
  namespace fs = std::filesystem;
  static const char kHere = 0;
  std::vector<std::string> out;
  std::error_code error;
  Dl_info info{};
  for (int i = 0; i < 2; ++i) {
    fs::path path = fs::read_symlink("/proc/self/exe", error);
    if (i == 0) {
      if (::dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) continue;
      path = fs::canonical(info.dli_fname, error);
    }
    if (error) continue;
    for (const fs::path& folder : {path.parent_path(), path.parent_path().parent_path() / "lib"}) {
      std::string file = folder / kModuleFile;
      if (std::find(out.begin(), out.end(), file) == out.end()) out.push_back(std::move(file));
    }
  }
  out.emplace_back(kModuleFile);
  return out;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const MpiModule& mpi, Communicator& control, std::unique_ptr<Communicator> owned,
                  double timeout_s)
      : Communicator(control.rank(), control.size()),
        mpi_(mpi),
        control_(control),
        owned_(std::move(owned)),
        timeout_s_(timeout_s) {}
  ~MpiCommunicator() override {
    // After a failure its end would wait for a rank that is gone.
    if (failure().ok()) mpi_.end();
  }

  std::string_view transport() const noexcept override { return "mpi"; }
  void begin_step(std::int64_t step, double timeout_s) noexcept override {
    timeout_s_ = timeout_s;
    control_.begin_step(step, timeout_s);
  }
  Status failure() const override { return failed_.ok() ? control_.failure() : failed_; }
  bool tells_of_failure() const noexcept override {
    return failed_.ok() ? control_.tells_of_failure() : rank() == 0;
  }

 private:
  Status carry_out(const CollectiveCall& call) override;
  Status meet(const CollectiveCall& call);
  Status exchange(const CollectiveCall& call, const std::vector<MpiMessage>& messages);
  Status add(const CollectiveCall& call);

  char* piece_of(std::size_t rank) { return pieces_.data() + rank * kMpiPiece; }

  const MpiModule mpi_;
  Communicator& control_;
  std::unique_ptr<Communicator> owned_;
  double timeout_s_;
  Status failed_;
  std::vector<char> pieces_;
};

// All say what they came with: a call that differs would leave MPI waiting for ever.
Status MpiCommunicator::meet(const CollectiveCall& call) {
  struct Said {
    std::uint64_t bytes;
    std::int32_t kind, dtype, root, unused;
  };
  const Said mine{call.bytes, static_cast<std::int32_t>(call.kind),
                  runtime::adds(call.kind) ? static_cast<std::int32_t>(call.dtype) : 0, call.root,
                  0};
  std::vector<Said> all(static_cast<std::size_t>(size()));
  Status status = control_.all_gather(&mine, all.data(), sizeof mine, call.name);
  for (std::size_t other = 0; other < all.size() && status.ok(); ++other) {
    if (std::memcmp(&all[other], &all[0], sizeof mine) == 0) continue;
    const auto words = [](const Said& said) {
      return fmt::format("{} of {} bytes", to_string(static_cast<Collective>(said.kind)),
                         said.bytes);
    };
    status = failed_ = {StatusCode::kDeviceError,
                        {fmt::format("ranks call different collectives ({})", call.name),
                         fmt::format("rank 0 came with {}, rank {} with {}", words(all[0]), other,
                                     words(all[other])),
                         "the same call on every rank", ""}};
  }
  return status;
}

Status MpiCommunicator::exchange(const CollectiveCall& call,
                                 const std::vector<MpiMessage>& messages) {
  const int error = mpi_.exchange(messages.data(), static_cast<int>(messages.size()), timeout_s_);
  if (error == 0) return {};
  std::string words = fmt::format("not ended within {} s", timeout_s_);
  if (error != kMpiLate) {
    char text[512];
    mpi_.words_of(error, text, sizeof text);
    words = text;
  }
  failed_ = {StatusCode::kDeviceError,
             {fmt::format("{} \"{}\" over MPI, rank {} of {}", to_string(call.kind), call.name,
                          rank(), size()),
              std::move(words), "an exchange that ends", ""}};
  return failed_;
}

// The part that this rank adds: its own of a reduce-scatter, a slice of an all-reduce, whose sums
// all send to all afterwards. Pieces of all ranks come here and are added in the order of ranks.
Status MpiCommunicator::add(const CollectiveCall& call) {
  const auto count = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  const bool scatters = call.kind == Collective::kReduceScatter;
  const std::size_t element = size_of(call.dtype), elements = call.bytes / element;
  auto* from = static_cast<char*>(const_cast<void*>(call.from));
  auto* to = static_cast<char*>(call.to);
  const std::size_t slice = scatters ? call.bytes : (elements + count - 1) / count * element;
  // Where a rank's slice begins in what it is a slice of, and how long it is.
  const auto begin = [&](std::size_t rank) {
    return scatters ? rank * call.bytes : std::min(rank * slice, call.bytes);
  };
  const auto length = [&](std::size_t rank) {
    return scatters ? slice : std::min(slice, call.bytes - begin(rank));
  };
  pieces_.resize(count * kMpiPiece);
  std::vector<const void*> parts(count);
  std::vector<MpiMessage> messages;
  for (std::size_t at = 0; at < slice; at += kMpiPiece) {
    const auto piece = [&](std::size_t rank) {
      return at < length(rank) ? std::min(kMpiPiece, length(rank) - at) : 0;
    };
    messages.clear();
    for (std::size_t other = 0; other < count; ++other) {
      parts[other] = other == me ? from + begin(me) + at : piece_of(other);
      if (other == me) continue;
      const int rank = static_cast<int>(other);
      messages.push_back({piece_of(other), piece(me), rank, /*sends=*/false});
      messages.push_back({from + begin(other) + at, piece(other), rank, /*sends=*/true});
    }
    Status status = exchange(call, messages);
    if (!status.ok()) return status;
    // Nobody reads this rank's slice of its own part, and what it sends of others' slices has left.
    if (piece(me) > 0) {
      tree_sum(parts, to + (scatters ? 0 : begin(me)) + at, piece(me) / element, call.dtype);
    }
  }
  if (scatters) return {};
  messages.clear();
  for (std::size_t other = 0; other < count; ++other) {
    if (other == me) continue;
    const int rank = static_cast<int>(other);
    messages.push_back({to + begin(other), length(other), rank, /*sends=*/false});
    messages.push_back({to + begin(me), length(me), rank, /*sends=*/true});
  }
  return exchange(call, messages);
}

Status MpiCommunicator::carry_out(const CollectiveCall& call) {
  if (!failed_.ok()) return failed_;
  Status status = meet(call);
  if (!status.ok() || call.bytes == 0 || call.kind == Collective::kBarrier) return status;
  if (runtime::adds(call.kind)) return add(call);
  const auto count = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
  auto* from = static_cast<char*>(const_cast<void*>(call.from));
  auto* to = static_cast<char*>(call.to);
  std::vector<MpiMessage> messages;
  if (call.kind == Collective::kBroadcast) {
    if (rank() != call.root) {
      messages.push_back({to, call.bytes, call.root, /*sends=*/false});
    } else {
      for (int other = 0; other < size(); ++other) {
        if (other != rank()) messages.push_back({from, call.bytes, other, /*sends=*/true});
      }
      if (to != from) std::memcpy(to, from, call.bytes);
    }
    return exchange(call, messages);
  }
  // An all-gather sends one part to all, an all-to-all to each its own.
  const std::size_t step = call.kind == Collective::kAllToAll ? call.bytes : 0;
  for (std::size_t other = 0; other < count; ++other) {
    char* part = from + other * step;
    char* into = to + other * call.bytes;
    if (other == me) {
      if (part != into) std::memcpy(into, part, call.bytes);
      continue;
    }
    messages.push_back({into, call.bytes, static_cast<int>(other), /*sends=*/false});
    messages.push_back({part, call.bytes, static_cast<int>(other), /*sends=*/true});
  }
  return exchange(call, messages);
}

Result<MpiOpen*> open_module() {
  auto library = cuda::Library::open("MPI", module_candidates(), kModuleRemedy);
  if (!library.ok()) return library.status();
  auto* open = reinterpret_cast<MpiOpen*>(library->symbol(kMpiOpenName));
  if (open != nullptr) return open;
  return Status::unsupported(
      {"MPI", library->path() + " without " + kMpiOpenName, "FlashLab's module", kModuleRemedy});
}

Status start_mpi(MpiOpen& open, const Communicator& control, MpiModule& out) {
  const int error = open(kMpiModuleVersion, &out);
  if (error != 0) {
    return Status::unsupported(
        {"MPI",
         error == kMpiOther ? std::string("a module of another build, or MPI that runs already")
                            : fmt::format("error {} of MPI_Init_thread", error),
         "MPI that starts", "build module and program together"});
  }
  if (out.size != control.size() || out.rank != control.rank()) {
    return Status::unsupported({"MPI",
                                fmt::format("rank {} of {} by {}", out.rank, out.size, out.library),
                                fmt::format("rank {} of {}", control.rank(), control.size()),
                                "start the ranks by this MPI's mpirun (or srun --mpi=...)"});
  }
  constexpr int kSerialized = 2;
  if (out.threads < kSerialized) {
    return Status::unsupported({"MPI", fmt::format("{} for one thread alone", out.library),
                                "MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE",
                                "collectives come from a thread of their own: use a build of MPI "
                                "with threads"});
  }
  return {};
}

// Who has none does not leave the others waiting: all hear of it first, and say the same.
Status agree_on_mpi(const Status& mine, Communicator& control, std::string_view what) {
  struct Said {
    char words[1000];
  } said{};
  if (!mine.ok()) mine.message().copy(said.words, sizeof said.words - 1);
  std::vector<Said> all(static_cast<std::size_t>(control.size()));
  if (Status s = control.all_gather(&said, all.data(), sizeof said, what); !s.ok()) return s;
  const auto first =
      std::find_if(all.begin(), all.end(), [](const Said& each) { return each.words[0] != '\0'; });
  if (first == all.end()) return {};
  return Status::unsupported({fmt::format("--transport mpi on rank {}", first - all.begin()),
                              first->words, "MPI on every rank", ""});
}

}  // namespace

Result<std::unique_ptr<Communicator>> mpi_communicator(Communicator& control,
                                                       std::unique_ptr<Communicator> owned,
                                                       double timeout_s) {
  const Result<MpiOpen*> open = open_module();
  if (Status s = agree_on_mpi(open.status(), control, "MPI's module"); !s.ok()) return s;
  MpiModule mpi;
  if (Status s = agree_on_mpi(start_mpi(**open, control, mpi), control, "MPI's start"); !s.ok())
    return s;
  return std::unique_ptr<Communicator>(
      std::make_unique<MpiCommunicator>(mpi, control, std::move(owned), timeout_s));
}

}  // namespace flashlab::dist
