#pragma once

namespace flashlab::device {

/// What the roof's kernel is launched with, on host and device.
struct RoofArguments {
  float* out;     ///< [threads of the launch]
  int turns = 0;  ///< of the loop
};

}  // namespace flashlab::device
