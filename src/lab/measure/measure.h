#pragma once

// The protocol by which a time becomes a number: warm-up, samples, statistics; and the alternation
// of a kernel with the machine's roof, which gives a share that survives a clock that wanders.

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "lab/measure/statistics.h"

namespace flashlab::lab {

/// The work under the clock: complete when it returns, or enqueued where a SampleClock waits for
/// it. A failure ends the measurement.
using TimedCall = std::function<Status()>;

/// What reads the time of a sample where the work runs on a device: calls are enqueued between
/// `start` and `stop`.
class SampleClock {
 public:
  virtual ~SampleClock() = default;
  /// Evicts the device's caches, before `start`.
  virtual Status flush() = 0;
  virtual Status start() = 0;
  /// Milliseconds from the start of the first to the end of the last call since `start`; waits for
  /// them. Errors: a failure of their work.
  virtual Result<double> stop() = 0;
  virtual double resolution_ms() const = 0;
  /// Whether the device failed for good, so that nothing further can be timed on it.
  virtual bool lost() = 0;
  /// "CUDA events around each sample, L2 flushed before it by writing 256 MiB".
  virtual std::string describe(bool cold_cache) const = 0;
};

/// Told after every sample: (samples done, samples planned). For progress bars.
using Progress = std::function<void(int done, int planned)>;

struct MeasureOptions {
  int warmup = 3;            ///< calls before the first sample, which also set the batch; 0: none
  int repeats = 30;          ///< samples
  double min_sample_ms = 1;  ///< short calls are repeated inside a sample until it lasts this long
  double max_total_ms = 0;   ///< no new sample after this long, once `min_repeats` exist; 0: never
  int min_repeats = 3;
  bool cold_cache = false;       ///< evict all caches before each sample; then one call per sample
  SampleClock* clock = nullptr;  ///< of the device that the calls run on; null: this machine's
  const std::atomic<bool>* cancel = nullptr;  ///< set by somebody else: stop, keep what there is
  Progress progress;
  /// Told what there is, one list of milliseconds per call, before a sample that will take long: a
  /// person who does not wait for its end loses nothing that was measured.
  std::function<void(const std::vector<std::span<const double>>&)> before_long_sample;
};

/// Few repeats ask for a look, not for figures to publish: what is measured beside them is short.
inline bool is_quick_look(const MeasureOptions& options) {
  return options.repeats < 9;
}

/// What the protocol saw. `ms` holds one time per call: sample duration / calls_per_sample.
struct Samples {
  std::vector<double> ms;
  int calls_per_sample = 1;
  int planned = 0;  ///< repeats asked for
  bool cold_cache = false;
  bool cancelled = false;
  bool out_of_time = false;  ///< max_total_ms ended it early
  double resolution_ms = 0;  ///< the clock's smallest step, per call

  std::optional<Statistics> statistics() const { return summarize(ms); }
  /// "3 warm-ups, 30 samples of 4 calls, warm caches".
  std::string protocol(const MeasureOptions& options) const;
};

/// Runs the protocol. Errors: kInvalidArgument (options), or the call's own failure.
Result<Samples> measure(const MeasureOptions& options, const TimedCall& call);

/// Times contestants in alternating rounds: every round takes one sample of each, in an order that
/// rotates, so that a drifting clock or a busy neighbour hits all alike. One entry per call; a
/// contestant that fails keeps its Status and drops out, the others go on.
std::vector<Result<Samples>> measure_interleaved(const MeasureOptions& options,
                                                 const std::vector<TimedCall>& calls);

/// Smallest step of the clock that `measure` reads (steady_clock), measured once per process.
double clock_resolution_ms() noexcept;

/// Evicts the caches of every core this process may use by streaming a buffer larger than they are
/// through each of them. False when the buffer could not be had.
bool flush_caches();

// ---------------------------------------------------------------------------------------------
// Share of the roof
// ---------------------------------------------------------------------------------------------

/// Runs the roof's loop for `seconds` on every thread and returns FLOP/s of all of them together.
using RoofWindow = std::function<double(double seconds)>;

struct RoofShareOptions {
  double window_ms = 50;    ///< roof and kernel windows last at least this long
  int pairs = 9;            ///< at least 9 for a share that is published
  double max_total_ms = 0;  ///< stop after this long once 3 pairs exist; 0: never
  const std::atomic<bool>* cancel = nullptr;
};

struct RoofShare {
  double share = 0;          ///< median over pairs, 0..1 (above 1 only by noise)
  Interval interval;         ///< of that median
  double roof_gflops = 0;    ///< median over roof windows
  double kernel_gflops = 0;  ///< median over kernel windows
  std::vector<double> pair_shares;
  bool cancelled = false;
};

/// Alternates roof and kernel and takes the median of the pairwise shares. The order inside a pair
/// swaps from pair to pair, so that a steady drift cancels.
/// Errors: kInvalidArgument (options, flops_per_call <= 0), the kernel's failure, kInternal when
/// the roof's loop reports no progress.
Result<RoofShare> measure_against_roof(const RoofShareOptions& options, const RoofWindow& roof,
                                       const TimedCall& kernel, double flops_per_call);

// ---------------------------------------------------------------------------------------------
// The ruler: the instrument measured by itself
// ---------------------------------------------------------------------------------------------

/// One known quantity and what the instrument made of it.
struct RulerReading {
  std::string name;  ///< e.g. "spin of 1 ms"
  double expected = 0;
  double measured = 0;
  double tolerance = 0;  ///< relative
  std::string unit;      ///< "ms", "share", "bytes"
  bool ok = false;
  bool wrong = false;  ///< not ok, and no other program can be the reason
  std::string note;    ///< e.g. that other programs delayed the median
};

/// Measures calls of known duration (spins until a deadline: 0.002, 0.1, 5 ms), a kernel that does
/// the roof's work half of the time (share 0.5), and allocations of known size. A duration passes
/// when its fastest sample is within tolerance and no sample is shorter than possible; when only
/// the median is off, the note says that other programs interfered. A duration that is too long, or
/// a share that is off, is not ok and yet not wrong: a busy machine does that to a right ruler. A
/// duration shorter than possible and bytes that differ are wrong. Cost: about 0.6 s.
std::vector<RulerReading> check_ruler();

/// One of these durations: what the instrument makes of `call`, which lasts `ms`.
RulerReading read_duration(double ms, const TimedCall& call);

/// Busy-waits until `ms` have passed since the call. The call of known duration.
void spin_for(double ms) noexcept;

}  // namespace flashlab::lab
