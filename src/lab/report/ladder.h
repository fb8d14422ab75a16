#pragma once

// The rungs of the ladder on one page: what each idea brought, on the same problem in the same run.

#include <string>
#include <string_view>
#include <vector>

#include "flashlab/tensor.h"
#include "lab/results/subject.h"

namespace flashlab::lab::report {

struct Rung {
  std::string_view name;
  std::string_view idea;  ///< what it does that the one below does not
};

/// Bottom first, production last. What a machine lacks is left out by who measures.
std::vector<Rung> rungs_of(DeviceKind kind);

/// What an implementation or a peer is, in a few words; empty for a name that nobody knows.
std::string idea_of(std::string_view name, DeviceKind kind);

/// One block per problem and pass: a line per rung with its time, its gain over the rung below and
/// over the bottom, and its idea. A rung that did not run is left out.
std::string ladder_table(const ResultFile& file, const std::vector<Rung>& rungs);

}  // namespace flashlab::lab::report
