#pragma once

// Measured attention as a recording: the steps of every implementation, one after another.

#include <span>

#include "lab/results/measurement.h"
#include "profile/attention_instrument.h"
#include "profile/recording.h"

namespace flashlab::profile {

/// One call after the other, each of its kernels an event of the median time: those of `recorded`
/// where the call is among them, else the steps that the measurement timed in calls of their own,
/// so that nothing is known of what passes between them. A call of one kernel
/// has the pass' FLOPs and least bytes. Of a call in several, those that multiply matrices share
/// the FLOPs, softmax has five for every score, and bytes are those of the matrices of scores; or
/// else the longest kernel has all FLOPs and bytes. Measurements that are not ok are left out.
Recording recording_of(std::span<const lab::Measurement> measurements,
                       std::span<const CallKernels> recorded = {});

}  // namespace flashlab::profile
