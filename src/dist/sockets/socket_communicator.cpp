#include "dist/sockets/socket_communicator.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "dist/sockets/socket.h"
#include "dist/sums/tree_sum.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;

constexpr char kWord[8] = {'F', 'L', 'R', 'A', 'N', 'K', 'S', '1'};
// Of a rank that waits for rank 0's word: rank 0 names who is late before everybody gives up.
constexpr double kPatienceS = 5;
constexpr double kGreetingS = 2;

// What a rank says when it comes.
struct Hello {
  char word[8];
  std::int32_t rank, size, pid;
  char group[228], build[96], host[64];
};
enum class Reception : std::int32_t { kWelcome, kElsewhere, kRefused };
struct Answer {
  char word[8];
  Reception reception;
  char text[500];
};
/// Who a rank is, for messages.
struct Name {
  std::int32_t pid;
  char host[64];
};

// Before what a rank brings to a collective. The last one, rank 0's too, has the kind kLeaves.
constexpr std::int32_t kLeaves = -1;
struct Header {
  std::uint64_t bytes;
  std::int32_t kind, dtype, root, number;
  std::int64_t step;
  char name[48];
};
// Before what it gets, or the words of a failure.
struct Reply {
  std::uint64_t bytes;
  std::int32_t failed, unused;
};
static_assert(offsetof(Header, kind) == offsetof(Reply, failed));  // kLeaves is seen in both

template <std::size_t N>
void copy_text(std::string_view text, char (&to)[N]) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  std::memset(to + size, 0, N - size);
}

Status device_error(std::string text) {
  return {StatusCode::kDeviceError, {std::move(text), "", "", ""}};
}

class SocketCommunicator final : public runtime::Communicator {
 public:
  explicit SocketCommunicator(const SocketOptions& options)
      : Communicator(options.rank, options.size),
        options_(options),
        ranks_(static_cast<std::size_t>(options.size)),
        names_(ranks_.size()),
        parts_(ranks_.size()) {}
  ~SocketCommunicator() override {
    // In good order: who looks afterwards misses nobody.
    Header bye{};
    bye.kind = kLeaves;
    for (Socket& rank : ranks_) {
      if (rank && failed_.ok()) rank.send(&bye, sizeof bye, deadline_in(1));
    }
  }

  /// Rank 0's and the others' way of meeting.
  Status receive_all();
  Status go_to_rank_0();

  std::string_view transport() const noexcept override { return "sockets"; }
  void begin_step(std::int64_t step, double timeout_s) noexcept override {
    step_ = step;
    options_.timeout_s = timeout_s;
  }
  Status watch(const runtime::StreamProgress& progress) override;
  Status failure() const override { return failed_; }
  bool tells_of_failure() const noexcept override { return rank() == 0 || lost_rank_0_; }

 private:
  Status carry_out(const CollectiveCall& call) override;
  Status lead(const CollectiveCall& call);
  Status follow(const CollectiveCall& call);
  Status gather(const CollectiveCall& call, const Header& own);
  Status answer(int rank, const void* data, std::size_t bytes);
  void add(const CollectiveCall& call, std::size_t offset, void* to);
  Status greet(Socket socket, Reception& last);

  Header header_of(const CollectiveCall& call) const;
  std::size_t brought(const CollectiveCall& call, int rank) const;
  std::size_t taken(const CollectiveCall& call, int rank) const;
  std::string words(int rank) const {
    const Name& name = names_[static_cast<std::size_t>(rank)];
    return fmt::format("rank {} (process {} on {})", rank, name.pid, name.host);
  }
  Socket& to(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  std::vector<char>& part(int rank) { return parts_[static_cast<std::size_t>(rank)]; }
  Status fail(std::string why);
  Status lost(Socket::End end);
  Status told(Deadline deadline);

  SocketOptions options_;
  std::vector<Socket> ranks_;  // on rank 0 the others', elsewhere rank 0's alone
  std::vector<Name> names_;
  std::vector<std::vector<char>> parts_;  // what the others brought, on rank 0
  std::vector<char> sent_;
  std::int64_t step_ = 0;
  std::int32_t collectives_ = 0;
  Status failed_;
  bool lost_rank_0_ = false;
};

Hello hello_of(const SocketOptions& options) {
  Hello out{};
  std::memcpy(out.word, kWord, sizeof kWord);
  out.rank = options.rank;
  out.size = options.size;
  out.pid = ::getpid();
  copy_text(options.group, out.group);
  copy_text(options.build, out.build);
  copy_text(options.host, out.host);
  return out;
}

// One that came: a rank of this run, or what it hears instead.
Status SocketCommunicator::greet(Socket socket, Reception& last) {
  const Hello own = hello_of(options_);
  Hello hello{};
  const bool spoke =
      socket.receive(&hello, sizeof hello, deadline_in(kGreetingS)) == Socket::End::kDone &&
      std::memcmp(hello.word, kWord, sizeof kWord) == 0;
  // One that gave up meanwhile comes again.
  if (!spoke || socket.has_ended()) return {};
  hello.build[sizeof hello.build - 1] = hello.host[sizeof hello.host - 1] = '\0';
  Status wrong;
  Answer answer{};
  std::memcpy(answer.word, kWord, sizeof kWord);
  answer.reception = Reception::kWelcome;
  if (std::memcmp(hello.group, own.group, sizeof own.group) != 0) {
    answer.reception = Reception::kElsewhere;
  } else if (hello.size != own.size || hello.rank <= 0 || hello.rank >= own.size) {
    wrong = Status::invalid({"ranks", fmt::format("rank {} of {}", hello.rank, hello.size),
                             fmt::format("{} ranks, as rank 0 has it", own.size),
                             "start all ranks with the same number"});
  } else if (std::memcmp(hello.build, own.build, sizeof own.build) != 0) {
    wrong = Status::invalid({fmt::format("rank {}", hello.rank),
                             fmt::format("FlashLab {}", hello.build),
                             fmt::format("rank 0's, {}", own.build), "run one build everywhere"});
  } else if (to(hello.rank)) {
    wrong = Status::invalid(
        {"ranks", fmt::format("process {} on {} as rank {}", hello.pid, hello.host, hello.rank),
         fmt::format("another one: {} has come", words(hello.rank)),
         "give each process a rank of its own"});
  }
  if (!wrong.ok()) {
    answer.reception = Reception::kRefused;
    copy_text(wrong.message(), answer.text);
  }
  last = answer.reception;
  socket.send(&answer, sizeof answer, deadline_in(kGreetingS));
  if (last != Reception::kWelcome) return wrong;
  Name& name = names_[static_cast<std::size_t>(hello.rank)];
  name.pid = hello.pid;
  copy_text(hello.host, name.host);
  to(hello.rank) = std::move(socket);
  return {};
}

Status SocketCommunicator::receive_all() {
  names_[0].pid = ::getpid();
  copy_text(options_.host, names_[0].host);
  Result<Socket> listener = listen_behind(options_.address, options_.port);
  if (!listener.ok()) return listener.status();
  const Deadline deadline = deadline_in(options_.timeout_s);
  for (int here = 1; here < size();) {
    Socket socket = accept_until(*listener, deadline);
    if (!socket) {
      const auto missing =
          std::find_if(ranks_.begin() + 1, ranks_.end(), [](const Socket& one) { return !one; });
      return fail(fmt::format(
          "rank {} did not come within {:g} s; rank 0 waits for it at {}, "
          "behind port {}",
          missing - ranks_.begin(), options_.timeout_s, options_.address, options_.port));
    }
    Reception reception = Reception::kElsewhere;
    if (Status wrong = greet(std::move(socket), reception); !wrong.ok()) {
      static_cast<void>(fail(wrong.message()));
      return failed_ = wrong;
    }
    if (reception == Reception::kWelcome) ++here;
  }
  for (int rank = 1; rank < size(); ++rank) {
    if (Status status = answer(rank, names_.data(), names_.size() * sizeof(Name)); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status SocketCommunicator::go_to_rank_0() {
  const Deadline deadline = deadline_in(options_.timeout_s);
  const Hello hello = hello_of(options_);
  while (milliseconds_to(deadline) > 0) {
    for (int behind = 1; behind <= kPortsBehind; ++behind) {
      Socket socket = connect_to(options_.address, options_.port + behind, deadline_in(kGreetingS));
      if (!socket) continue;
      Answer answer{};
      if (socket.send(&hello, sizeof hello, deadline_in(kGreetingS)) != Socket::End::kDone ||
          socket.receive(&answer, sizeof answer, deadline_in(kGreetingS)) != Socket::End::kDone ||
          std::memcmp(answer.word, kWord, sizeof kWord) != 0) {
        continue;  // somebody else listens there
      }
      if (answer.reception == Reception::kElsewhere) continue;
      if (answer.reception == Reception::kRefused) {
        answer.text[sizeof answer.text - 1] = '\0';
        return failed_ = Status(StatusCode::kInvalidArgument, {answer.text, "", "", ""});
      }
      to(0) = std::move(socket);
      const Deadline all = deadline_in(options_.timeout_s + kPatienceS);
      if (Status status = told(all); !status.ok()) return status;
      const auto end = to(0).receive(names_.data(), names_.size() * sizeof(Name), all);
      return end == Socket::End::kDone ? Status() : lost(end);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  lost_rank_0_ = true;
  return failed_ = device_error(
             fmt::format("rank {} on {} found no rank 0 of this run within {:g} s at {}, ports {} "
                         "to {}",
                         rank(), options_.host, options_.timeout_s, options_.address,
                         options_.port + 1, options_.port + kPortsBehind));
}

// Rank 0 ends the group: everybody hears why.
Status SocketCommunicator::fail(std::string why) {
  if (!failed_.ok()) return failed_;
  const Reply reply{.bytes = why.size(), .failed = 1, .unused = 0};
  for (Socket& rank : ranks_) {
    if (!rank) continue;
    if (rank.send(&reply, sizeof reply, deadline_in(1)) == Socket::End::kDone) {
      rank.send(why.data(), why.size(), deadline_in(1));
    }
  }
  const Deadline heard = deadline_in(1);
  for (Socket& rank : ranks_) {
    if (rank) rank.finish(heard);
  }
  return failed_ = device_error(std::move(why));
}

// Another rank's way of learning that rank 0 is gone, or does not answer.
Status SocketCommunicator::lost(Socket::End end) {
  if (!failed_.ok()) return failed_;
  lost_rank_0_ = true;
  return failed_ = device_error(end == Socket::End::kLate
                                    ? fmt::format("{} gave no answer within {:g} s", words(0),
                                                  options_.timeout_s + kPatienceS)
                                    : fmt::format("{} has ended; {} was in collective {}", words(0),
                                                  words(rank()), collectives_));
}

// Rank 0's next word: a result follows, or why there is none.
Status SocketCommunicator::told(Deadline deadline) {
  Reply reply{};
  Socket::End end = to(0).receive(&reply, sizeof reply, deadline);
  if (end != Socket::End::kDone) return lost(end);
  if (reply.failed == 0) return {};
  if (reply.failed == kLeaves) return lost(Socket::End::kClosed);
  std::string why(std::min<std::size_t>(reply.bytes, 4096), '\0');
  end = to(0).receive(why.data(), why.size(), deadline);
  if (end != Socket::End::kDone) return lost(end);
  return failed_ = device_error(std::move(why));
}

Status SocketCommunicator::watch(const runtime::StreamProgress& progress) {
  if (!failed_.ok()) return failed_;
  for (int other = 0; other < size(); ++other) {
    if (!to(other)) continue;
    pollfd one{.fd = to(other).descriptor(), .events = POLLIN | POLLRDHUP, .revents = 0};
    if (::poll(&one, 1, 0) <= 0) continue;
    // What the others bring to a collective that this rank has yet to reach stays where it is.
    Header header{};
    const bool whole = to(other).peek(&header, sizeof header) == sizeof header;
    if (whole && header.kind == kLeaves) {
      to(other).close();
    } else if (rank() != 0) {
      return told(deadline_in(kGreetingS));
    } else if ((one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      return fail(fmt::format("{} has ended", words(other)));
    }
  }
  if (progress.waited_s < options_.timeout_s) return {};
  std::string late = fmt::format("{} waits for its GPU, where nothing went on for {:g} s",
                                 words(rank()), options_.timeout_s);
  if (rank() == 0) return fail(std::move(late));
  lost_rank_0_ = true;
  return failed_ = device_error(std::move(late));
}

Header SocketCommunicator::header_of(const CollectiveCall& call) const {
  Header out{};
  out.bytes = call.bytes;
  out.kind = static_cast<std::int32_t>(call.kind);
  out.dtype = runtime::adds(call.kind) ? static_cast<std::int32_t>(call.dtype) : 0;
  out.root = call.kind == Collective::kBroadcast ? call.root : 0;
  out.number = collectives_;
  out.step = step_;
  copy_text(call.name, out.name);
  return out;
}

std::size_t SocketCommunicator::brought(const CollectiveCall& call, int rank) const {
  const auto ranks = static_cast<std::size_t>(size());
  switch (call.kind) {
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return call.bytes * ranks;
    case Collective::kBroadcast:
      return rank == call.root ? call.bytes : 0;
    case Collective::kBarrier:
      return 0;
    default:
      return call.bytes;
  }
}

std::size_t SocketCommunicator::taken(const CollectiveCall& call, int rank) const {
  const auto ranks = static_cast<std::size_t>(size());
  switch (call.kind) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return call.bytes * ranks;
    case Collective::kBroadcast:
      return rank == call.root ? 0 : call.bytes;
    case Collective::kBarrier:
      return 0;
    default:
      return call.bytes;
  }
}

Status SocketCommunicator::carry_out(const CollectiveCall& call) {
  if (!failed_.ok()) return failed_;
  ++collectives_;
  return rank() == 0 ? lead(call) : follow(call);
}

Status SocketCommunicator::follow(const CollectiveCall& call) {
  const Header header = header_of(call);
  const Deadline deadline = deadline_in(options_.timeout_s + kPatienceS);
  auto end = to(0).send(&header, sizeof header, deadline, true);
  if (end == Socket::End::kDone) end = to(0).send(call.from, brought(call, rank()), deadline, true);
  // While it sends, rank 0 says nothing but that the group has ended.
  if (end == Socket::End::kClosed || end == Socket::End::kLate) return lost(end);
  if (Status status = told(deadline); !status.ok()) return status;
  end = to(0).receive(call.to, taken(call, rank()), deadline);
  if (end != Socket::End::kDone) return lost(end);
  const bool is_root = call.kind == Collective::kBroadcast && call.root == rank();
  if (is_root && call.to != call.from) std::memcpy(call.to, call.from, call.bytes);
  return {};
}

// What all ranks bring, into `parts_`, whoever comes first.
Status SocketCommunicator::gather(const CollectiveCall& call, const Header& own) {
  struct Coming {
    Header header{};
    std::size_t got = 0;  // of header and part together
  };
  std::vector<Coming> coming(ranks_.size());
  const auto whole = [&](int rank) { return sizeof(Header) + brought(call, rank); };
  const Deadline deadline = deadline_in(options_.timeout_s);
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<int> whose;
    int missing = 0;
    for (int rank = 1; rank < size(); ++rank) {
      if (!to(rank)) {  // it left while this rank waited for its GPU
        return fail(fmt::format("{} has ended; step {}, {} {} \"{}\": rank 0 came", words(rank),
                                step_, to_string(call.kind), collectives_, call.name));
      }
      const bool all = coming[static_cast<std::size_t>(rank)].got == whole(rank);
      const auto events = static_cast<short>(all ? POLLRDHUP : POLLIN);
      waits.push_back({.fd = to(rank).descriptor(), .events = events, .revents = 0});
      whose.push_back(rank);
      if (!all && missing == 0) missing = rank;
    }
    if (missing == 0) return {};
    if (::poll(waits.data(), waits.size(), milliseconds_to(deadline)) == 0) {
      return fail(fmt::format("{} did not come within {:g} s; step {}, {} {} \"{}\": rank 0 came",
                              words(missing), options_.timeout_s, step_, to_string(call.kind),
                              collectives_, call.name));
    }
    for (std::size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const int rank = whose[i];
      Coming& each = coming[static_cast<std::size_t>(rank)];
      const bool in_header = each.got < sizeof(Header);
      char* place = in_header ? reinterpret_cast<char*>(&each.header) + each.got
                              : part(rank).data() + (each.got - sizeof(Header));
      const std::size_t room = (in_header ? sizeof(Header) : whole(rank)) - each.got;
      const long got = to(rank).receive_some(place, room);
      const bool leaves = in_header && got > 0 &&
                          each.got + static_cast<std::size_t>(got) == sizeof(Header) &&
                          each.header.kind == kLeaves;
      if (got < 0 || leaves) {
        return fail(fmt::format("{} has ended; step {}, {} {} \"{}\": rank 0 came", words(rank),
                                step_, to_string(call.kind), collectives_, call.name));
      }
      each.got += static_cast<std::size_t>(got);
      if (!in_header || each.got < sizeof(Header)) continue;
      const Header& theirs = each.header;
      if (theirs.kind != own.kind || theirs.bytes != own.bytes || theirs.dtype != own.dtype ||
          theirs.root != own.root || theirs.number != own.number) {
        return fail(fmt::format(
            "ranks call different collectives ({}): rank 0 came with {} of {} bytes, {} with {} of "
            "{} bytes",
            call.name, to_string(call.kind), call.bytes, words(rank),
            to_string(static_cast<Collective>(theirs.kind)), theirs.bytes));
      }
      part(rank).resize(brought(call, rank));
    }
  }
}

Status SocketCommunicator::answer(int rank, const void* data, std::size_t bytes) {
  const Deadline deadline = deadline_in(options_.timeout_s);
  const Reply reply{.bytes = bytes, .failed = 0, .unused = 0};
  if (to(rank).send(&reply, sizeof reply, deadline) == Socket::End::kDone &&
      to(rank).send(data, bytes, deadline) == Socket::End::kDone) {
    return {};
  }
  return fail(fmt::format("{} has ended, or takes no answer", words(rank)));
}

// The sum of all ranks' bytes from `offset` on.
void SocketCommunicator::add(const CollectiveCall& call, std::size_t offset, void* to) {
  std::vector<const void*> parts = {static_cast<const char*>(call.from) + offset};
  for (int rank = 1; rank < size(); ++rank) parts.push_back(part(rank).data() + offset);
  tree_sum(parts, to, call.bytes / size_of(call.dtype), call.dtype);
}

Status SocketCommunicator::lead(const CollectiveCall& call) {
  if (Status status = gather(call, header_of(call)); !status.ok()) return status;
  char* own = static_cast<char*>(call.to);
  const auto* given = static_cast<const char*>(call.from);
  const auto answer_all = [&](const void* data) {
    for (int rank = 1; rank < size(); ++rank) {
      if (Status status = answer(rank, data, taken(call, rank)); !status.ok()) return status;
    }
    return Status();
  };
  switch (call.kind) {
    case Collective::kAllReduce:
      add(call, 0, own);
      return answer_all(own);
    case Collective::kAllGather:
      if (own != given) std::memcpy(own, given, call.bytes);
      for (int rank = 1; rank < size(); ++rank) {
        std::memcpy(own + call.bytes * static_cast<std::size_t>(rank), part(rank).data(),
                    call.bytes);
      }
      return answer_all(own);
    case Collective::kBroadcast: {
      const char* data = call.root == 0 ? given : part(call.root).data();
      if (own != data && call.bytes > 0) std::memcpy(own, data, call.bytes);
      return answer_all(own);
    }
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      break;
    default:
      return answer_all(nullptr);
  }
  const bool sums = call.kind == Collective::kReduceScatter;
  for (int rank = size() - 1; rank >= 0; --rank) {
    const std::size_t offset = call.bytes * static_cast<std::size_t>(rank);
    sent_.resize(sums ? call.bytes : call.bytes * ranks_.size());
    if (sums) {
      add(call, offset, sent_.data());
    } else {
      for (int from = 0; from < size(); ++from) {
        const char* source = from == 0 ? given : part(from).data();
        std::memcpy(sent_.data() + call.bytes * static_cast<std::size_t>(from), source + offset,
                    call.bytes);
      }
    }
    if (rank == 0) {
      std::memcpy(own, sent_.data(), sent_.size());
    } else if (Status status = answer(rank, sent_.data(), sent_.size()); !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<runtime::Communicator>> socket_communicator(const SocketOptions& options) {
  auto out = std::make_unique<SocketCommunicator>(options);
  const Status met = options.rank == 0 ? out->receive_all() : out->go_to_rank_0();
  if (!met.ok()) return met;
  return std::unique_ptr<runtime::Communicator>(std::move(out));
}

}  // namespace flashlab::dist
