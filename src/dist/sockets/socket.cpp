#include "dist/sockets/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace flashlab::dist {
namespace {

// A host that is gone without a word is found by this.
constexpr unsigned kSilenceMs = 20'000;

struct FoundAddresses {
  addrinfo* first = nullptr;
  FoundAddresses(const std::string& host, int port, bool listens) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0);
    if (::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints,
                      &first) != 0) {
      first = nullptr;
    }
  }
  ~FoundAddresses() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  FoundAddresses(const FoundAddresses&) = delete;
  FoundAddresses& operator=(const FoundAddresses&) = delete;
};

Socket opened(const addrinfo& address) {
  return Socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
}

bool wait_for(int descriptor, short events, Deadline deadline) {
  pollfd one{.fd = descriptor, .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&one, 1, milliseconds_to(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// What recv says, in receive_some's words.
long received(ssize_t got) {
  if (got > 0) return got;
  return got < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

Socket bound(const std::string& host, int port) {
  const FoundAddresses addresses(host, port, true);
  for (const addrinfo* each = addresses.first; each != nullptr; each = each->ai_next) {
    Socket out = opened(*each);
    if (!out) continue;
    const int yes = 1;
    ::setsockopt(out.descriptor(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (::bind(out.descriptor(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::listen(out.descriptor(), SOMAXCONN) == 0) {
      return out;
    }
  }
  return {};
}

}  // namespace

Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

int milliseconds_to(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<long long>(left.count() + 1, 0, 1'000'000));
}

Socket::Socket(int descriptor) : descriptor_(descriptor) {}

Socket::~Socket() {
  close();
}

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Socket::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Socket::End Socket::send(const void* data, std::size_t bytes, Deadline deadline, bool listens) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(descriptor_, from, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
      from += sent;
      bytes -= static_cast<std::size_t>(sent);
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return End::kClosed;
    pollfd one{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (listens) one.events |= POLLIN;
    const int ready = ::poll(&one, 1, milliseconds_to(deadline));
    if (ready > 0 && (one.revents & POLLIN) != 0) return End::kOther;
    if (ready == 0) return End::kLate;
  }
  return End::kDone;
}

Socket::End Socket::receive(void* data, std::size_t bytes, Deadline deadline) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const long got = receive_some(to, bytes);
    if (got < 0) return End::kClosed;
    to += got;
    bytes -= static_cast<std::size_t>(got);
    if (got == 0 && !wait_for(descriptor_, POLLIN, deadline)) return End::kLate;
  }
  return End::kDone;
}

void Socket::finish(Deadline deadline) {
  ::shutdown(descriptor_, SHUT_WR);
  char nothing[4096];
  while (receive_some(nothing, sizeof nothing) >= 0) {
    if (!wait_for(descriptor_, POLLIN, deadline)) return;
  }
}

long Socket::receive_some(void* data, std::size_t bytes) {
  return received(::recv(descriptor_, data, bytes, 0));
}

long Socket::peek(void* data, std::size_t bytes) {
  return received(::recv(descriptor_, data, bytes, MSG_PEEK));
}

bool Socket::has_ended() const {
  pollfd one{.fd = descriptor_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) > 0;
}

Result<Socket> listen_behind(const std::string& host, int port) {
  for (int behind = 1; behind <= kPortsBehind; ++behind) {
    if (Socket out = bound(host, port + behind)) return out;
  }
  // An address that is another host's, or translated on the way.
  for (int behind = 1; behind <= kPortsBehind; ++behind) {
    if (Socket out = bound("", port + behind)) return out;
  }
  return Status(
      StatusCode::kDeviceError,
      {"MASTER_PORT",
       fmt::format("no free port from {} to {} on {}", port + 1, port + kPortsBehind, host),
       "one that rank 0 can listen on", "choose another MASTER_PORT"});
}

Socket accept_until(Socket& listener, Deadline deadline) {
  Socket out;
  do {  // again where one was gone before it was taken
    if (!wait_for(listener.descriptor(), POLLIN, deadline)) return {};
    out = Socket(::accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  } while (!out && (errno == ECONNABORTED || errno == EAGAIN || errno == EINTR));
  if (!out) return {};
  const int yes = 1;
  ::setsockopt(out.descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(out.descriptor(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(out.descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kSilenceMs, sizeof kSilenceMs);
  return out;
}

Socket connect_to(const std::string& host, int port, Deadline deadline) {
  const FoundAddresses addresses(host, port, false);
  for (const addrinfo* each = addresses.first; each != nullptr; each = each->ai_next) {
    Socket out = opened(*each);
    if (!out) continue;
    const int yes = 1;
    ::setsockopt(out.descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ::setsockopt(out.descriptor(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    ::setsockopt(out.descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kSilenceMs, sizeof kSilenceMs);
    if (::connect(out.descriptor(), each->ai_addr, each->ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !wait_for(out.descriptor(), POLLOUT, deadline)) continue;
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(out.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) continue;
    }
    return out;
  }
  return {};
}

}  // namespace flashlab::dist
