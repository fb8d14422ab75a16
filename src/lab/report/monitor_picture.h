#pragma once

// A device over the time of a run, as a picture.

#include <string>
#include <vector>

#include "lab/machine/machine.h"
#include "lab/report/svg.h"

namespace flashlab::lab::report {

/// A lane for every figure that is known, each from 0 (temperatures: from 20) to its highest; hover
/// says a sample's value. Empty without two samples.
std::string monitor_picture(const std::vector<MonitorSample>& samples, SvgUse use);

/// "clock 1410 to 1980 MHz, 700 W, 61 °C, slowed by power limit": lowest to highest, or empty.
std::string monitor_words(const std::vector<MonitorSample>& samples);

}  // namespace flashlab::lab::report
