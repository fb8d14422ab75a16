#pragma once

// `sm90.loop`: the main loop of the Hopper forward kernel alone, in clocks
// (src/cuda/kernels/sm90/README.md, "The loop alone").

#include <string_view>
#include <vector>

#include "case.h"
#include "cuda/launch/sm90_forward.h"
#include "flashlab/context.h"
#include "lab/measure/measure.h"

namespace flashlab::lab {

/// What the command line calls it. It is no implementation: it computes no attention.
inline constexpr std::string_view kSm90LoopName = "sm90.loop";

/// Its launch for a problem, on a GPU that may be one that is only described. Errors: kUnsupported
/// (what `sm90` does not serve; softcap, ALiBi, masks), kInvalidArgument.
Result<cuda::Sm90Loop> sm90_loop(const cuda::DeviceInfo& device, const cases::Case& problem);

/// The only architecture that has it, and its launch on a GPU of that kind that is only described.
inline constexpr const char* kSm90LoopArchitecture = "sm_90a";
Result<cuda::Sm90Loop> described_sm90_loop(const cases::Case& problem);

struct LoopReading {
  cuda::Sm90ForwardTiling tiling;
  int steps = 0;            ///< of one launch
  double ideal_clocks = 0;  ///< of a step, by the tensor cores' rate
  /// Clocks of a step, of every multiprocessor and launch; median, quartiles.
  Statistics clocks;
};

/// Launches it `options.repeats` times behind `options.warmup` ones. Errors: those of sm90_loop,
/// kDeviceError, and kInternal for clocks that no loop can have.
Result<LoopReading> read_sm90_loop(const Context& context, const cases::Case& problem,
                                   const MeasureOptions& options);

/// From what the kernel wrote: [block, consumer, 2]. A block's time is from its first consumer's
/// beginning to its last one's end. Errors: kInternal (a consumer that did not end).
Result<std::vector<double>> loop_clocks(const std::vector<unsigned long long>& written,
                                        int consumers, int steps);

}  // namespace flashlab::lab
