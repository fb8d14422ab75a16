#pragma once

// What a profiled run saw: one event for every operation that ran, in the order of time. The
// ledger, the trace, the pictures and the advice read this and know nothing of what was run.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flashlab::profile {

/// How a kernel was launched on a GPU, and what its multiprocessors hold of it.
struct LaunchFacts {
  std::int64_t blocks = 0;
  int threads = 0, registers = 0;  ///< of a block; of a thread
  std::int64_t shared_bytes = 0;   ///< of a block
  double occupancy = 0;            ///< resident warps over the most there can be
  double waves = 0;                ///< blocks over those that are resident at once
};

/// One operation, one call: on a GPU one of its kernels.
struct Event {
  std::string name;         ///< place and operation: "layer 7 / attention / scores"
  std::string kernel;       ///< what ran: "product", "flash_fwd_sm80"
  std::string event_class;  ///< "product", "attention", "softmax", "norm", ...
  std::string phase;        ///< "forward", "backward", "optimizer"
  int layer = -1;           ///< -1: outside the blocks
  bool again = false;       ///< a forward operation made again for backward
  double flops = 0;         ///< by the formula
  double bytes = 0;         ///< least traffic: each operand once
  int step = 0;             ///< which of the recorded steps
  int stream = 0;
  int operation = -1;   ///< its number in the step's list; -1: not known
  double start_ms = 0;  ///< from the beginning of the recording
  double duration_ms = 0;
  std::optional<LaunchFacts> launch{};
  /// Of a GPU: the host's time to enqueue it where operations are launched one by one. Of an
  /// operation in several kernels the first has it.
  double host_ms = 0;
};

/// One step from its call to its end.
struct StepSpan {
  std::string name;  ///< "warm-up 1", "step 3"
  bool warmup = false;
  double start_ms = 0;
  double duration_ms = 0;
  std::optional<double> device_ms{};  ///< on a GPU: between events before and after it
};

/// Where a step's time went by the clock of the instrument itself, from the beginning of the first
/// event to the end of the last: medians over the recorded steps.
struct TimeAccount {
  double span_ms = 0;
  double covered_ms = 0;  ///< at least one event was under way
  double gaps_ms = 0;     ///< none was
  double gaps = 0;        ///< their number
  double longest_gap_ms = 0;
  std::string longest_gap_after;  ///< the event before the longest of all
  /// covered_ms over the whole of the same step: what the GPU needed for it, else its wall time.
  double filled = 0;
  /// span_ms over the time between events before and after the same step, which another clock
  /// measured: what the account explains of it. Empty without those.
  std::optional<double> explained;
};

/// What the machine can do at most, measured beside the run. Absent: not known for this type.
struct Roofs {
  std::optional<double> gflops;
  std::optional<double> gb_per_s;
  std::string source;     ///< "fp32 FMA on all threads, copy between buffers beyond the caches"
  bool of_units = false;  ///< `gflops` is of a GPU's units at their clock, not of a loop
};

struct Recording {
  std::string title;            ///< "tiny · batch 4 x 64 · fp32"
  std::string device;           ///< "avx512 · 2 threads"
  std::vector<StepSpan> spans;  ///< warm-ups first
  std::vector<Event> events;    ///< of the steps that are no warm-up
  Roofs roofs;
  std::string clock;  ///< what took the times: "CUPTI", "event pairs", ...
  /// Medians over steps that nobody recorded: the GPU's time of one by a pair of events around it,
  /// and how long the host took to enqueue it.
  std::optional<double> device_step_ms, enqueue_ms;
  std::optional<double> plain_step_ms;  ///< median of steps that nobody recorded
  std::optional<double> batch_ms;       ///< median time of drawing a step's batch before it
  double first_step_ms = 0;             ///< with what happens only once
  bool interrupted = false;             ///< fewer steps than asked for

  /// Steps that are no warm-up.
  int steps() const;
  /// Median wall time of those; 0 without any.
  double step_ms() const;
  /// Sum of all events' times over the number of steps.
  double busy_ms() const;
  /// The time that operations could fill: a step's, of a GPU that of the GPU.
  double whole_ms() const { return device_step_ms.value_or(step_ms()); }
  /// What recording costs: a recorded step's time over another's, less 1. Of a GPU its own times of
  /// steps launched behind others, as training launches them: a step alone begins later while CUPTI
  /// listens to its launch (step_ms, plain_step_ms). Empty: nothing to compare with.
  std::optional<double> overhead() const;
  /// Empty without events.
  std::optional<TimeAccount> account() const;
};

/// "layer 7 / attention / scores" -> its parts.
std::vector<std::string> path_of(const std::string& name);

/// The time that the roofs allow for the work, in ms, and which of them sets it.
struct LeastTime {
  double ms = 0;
  const char* bound = "";  ///< "arithmetic", "memory"; empty without roofs
};
LeastTime least_time(double flops, double bytes, const Roofs& roofs);

}  // namespace flashlab::profile
