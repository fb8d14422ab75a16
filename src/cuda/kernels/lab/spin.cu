// A kernel of known duration: what the measuring instrument is tested with. One thread reads the
// device's timer until the time has passed, so the kernel lasts as long as it is told to and a
// launch longer.

#include "ptx/timer.h"

extern "C" __global__ void lab_spin(unsigned long long nanoseconds) {
  const unsigned long long start = flashlab::ptx::global_timer_ns();
  while (flashlab::ptx::global_timer_ns() - start < nanoseconds) {
  }
}
