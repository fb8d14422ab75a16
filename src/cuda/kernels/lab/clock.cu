// The clock of a multiprocessor as it is now: one block counts clocks until the device's timer has
// moved on, from one step of the timer to another.

#include "lab/roof_arguments.h"
#include "ptx/timer.h"

/// Launched with one block; its first thread counts. `out` gets clocks and nanoseconds.
extern "C" __global__ void __launch_bounds__(32) lab_clock(flashlab::device::ClockArguments given) {
  using flashlab::ptx::global_timer_ns;
  if (threadIdx.x != 0) return;
  const unsigned long long before = global_timer_ns();
  unsigned long long start = before;
  while (start == before) start = global_timer_ns();
  const unsigned long long clocks = flashlab::ptx::clock();
  // The step that ends the wait is read with the clock right behind it, like the first one.
  unsigned long long end = start;
  while (end - start < given.nanoseconds) end = global_timer_ns();
  given.out[0] = flashlab::ptx::clock() - clocks;
  given.out[1] = end - start;
}
