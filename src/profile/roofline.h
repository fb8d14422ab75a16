#pragma once

// Where every kernel stands under the machine's roofs.

#include <string>

#include "profile/recording.h"

namespace flashlab::profile {

/// FLOP/s over FLOPs per byte, both logarithmic: one dot for each kernel, its area in proportion to
/// its share of the time; a pointer shows its name and figures. The roofs are the lines above.
/// Empty where a roof is not known or no kernel has FLOPs and bytes.
std::string roofline_picture(const Recording& recording, bool inline_in_page);

}  // namespace flashlab::profile
