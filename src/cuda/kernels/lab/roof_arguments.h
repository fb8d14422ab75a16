#pragma once

namespace flashlab::device {

/// What the roof's kernel is launched with, on host and device.
struct RoofArguments {
  float* out;     ///< [threads of the launch]
  int turns = 0;  ///< of the loop
};

/// What the reading kernel is launched with.
struct ReadArguments {
  const void* data;
  float* out;        ///< [threads of the launch]
  long long pieces;  ///< of 16 bytes
  int passes;        ///< over all of them
};

/// What the kernel that reads the clock is launched with.
struct ClockArguments {
  unsigned long long* out;  ///< clocks, nanoseconds
  unsigned long long nanoseconds;
};

}  // namespace flashlab::device
