#pragma once

// A recording for other programs' viewers.

#include <string>

#include "profile/recording.h"

namespace flashlab::profile {

/// Chrome's trace event format (JSON object form), which ui.perfetto.dev and chrome://tracing open:
/// complete events ("X") with microseconds. Steps, phases, layers and blocks are ranges around the
/// operations inside them. Ranges on one thread are nested or apart, and no duration is negative.
/// `memory`, one value for each event of the first recorded step, becomes a counter; empty: none.
std::string chrome_trace(const Recording& recording, const std::vector<double>& memory_bytes);

/// Brendan Gregg's folded stacks: "forward;layer 0;attention;scores 1234", microseconds of one
/// step. flamegraph.pl, speedscope and inferno read it.
std::string folded_stacks(const Recording& recording);

/// The same as a picture: phases, layers, blocks and operations as nested bars, width in proportion
/// to time. Self-contained SVG; a pointer shows name, time and share.
std::string flame_graph(const Recording& recording, bool inline_in_page);

}  // namespace flashlab::profile
