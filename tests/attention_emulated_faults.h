#pragma once

// Faults planted in kernels that run as emulated blocks: what `check` says of them.

#include <string>
#include <vector>

#include "attention_emulated.h"

namespace flashlab::testing {

/// Several tiles for a block, more keys than a ring has places, scores that outgrow their
/// reference.
cases::Case rings();
/// Gradients of two heads that share keys.
cases::Case backward_rows();
/// Several tiles of queries for a block, of two heads that share keys; of two batches, with tiles
/// of keys the last of which has some for every consumer.
cases::Case group();
cases::Case groups();
/// Head dims above 128: groups, a diagonal, more tiles of queries and of keys than places.
cases::Case wide_heads();

/// A deliberate fault of the kernels' text.
struct Planted {
  const char* name;
  std::vector<emulated::Edit> edits;
  bool always = false;                ///< without FLASHLAB_EMULATED too
  cases::Case (*problem)() = &rings;  ///< where it shows
};

/// Whether FLASHLAB_EMULATED asks for all faults.
bool plant_all();

/// What `check` says of a case with edited sources: empty if it is accepted.
std::string rejection(const cases::Case& problem, const std::vector<emulated::Edit>& edits,
                      const char* implementation, Pass pass,
                      device::Mutation fault = device::Mutation::kNone);

void expect_seen(const std::string& name, const std::string& seen);

/// Of each: the case without it is accepted, with it rejected.
void expect_all_are_seen(const char* implementation, Pass pass, const std::vector<Planted>& list);

}  // namespace flashlab::testing
