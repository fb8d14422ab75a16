#pragma once

// A connection to another rank, which may be on another host: bytes with a deadline.

#include <chrono>
#include <cstddef>
#include <string>

#include "flashlab/status.h"

namespace flashlab::dist {

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(double seconds);
/// Milliseconds left, for poll; 0 when it has passed.
int milliseconds_to(Deadline deadline);

class Socket {
 public:
  enum class End : std::uint8_t { kDone, kClosed, kLate, kOther };

  Socket() = default;
  explicit Socket(int descriptor);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  int descriptor() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  void close();

  /// All of them. kOther: the other side said something while this one was sending.
  End send(const void* data, std::size_t bytes, Deadline deadline, bool listens = false);
  End receive(void* data, std::size_t bytes, Deadline deadline);
  /// Nothing more will be sent; reads on until the other side has closed. A connection that is
  /// closed with bytes in it that nobody read takes back what it sent last.
  void finish(Deadline deadline);
  /// What is there by now, at most `bytes`: how many; 0: nothing, -1: closed.
  long receive_some(void* data, std::size_t bytes);
  /// As receive_some, but it stays there.
  long peek(void* data, std::size_t bytes);
  /// Whether the other side sends nothing more than what is there.
  bool has_ended() const;

 private:
  int descriptor_ = -1;
};

/// Listens on the first free of the ports behind `port`, at that host's address or at any.
/// Errors: kDeviceError when none is free.
Result<Socket> listen_behind(const std::string& host, int port);
/// A connection that came before the deadline, or none.
Socket accept_until(Socket& listener, Deadline deadline);
/// Empty where nobody listens there.
Socket connect_to(const std::string& host, int port, Deadline deadline);

/// Ports behind the one that the starter names: its own agent listens there.
inline constexpr int kPortsBehind = 8;

}  // namespace flashlab::dist
