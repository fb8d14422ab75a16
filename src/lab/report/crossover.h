#pragma once

// From which length on an implementation beats another, by head dim and batch x heads.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/tensor.h"
#include "lab/results/measurement.h"

namespace flashlab::lab::report {

struct Crossover {
  std::string implementation, device, pass;
  DType dtype = DType::kFp32;
  std::string variant;  ///< "causal, scale 1"; empty for plain attention
  std::int64_t head_dim = 0;
  std::int64_t batch_heads = 0;            ///< B * Hq
  std::int64_t shortest = 0, longest = 0;  ///< lengths that both were asked for

  /// The shortest length from which on it was faster at every length measured; empty: not at the
  /// longest. Where only the other ran out of memory, this one is faster.
  std::optional<std::int64_t> from;
  /// At the shortest and the longest length that both ran; 0: none.
  double shortest_speed_up = 0, longest_speed_up = 0;
};

/// One entry per implementation other than `relative_to`, pass, dtype, variant, head dim and B * H
/// measured at two lengths or more; problems with Sq != Sk or Dv != D take no part.
std::vector<Crossover> crossovers(const ResultFile& file, std::string_view relative_to);

/// "always (from S 256)", "from S 1k", "not up to S 16k".
std::string to_string(const Crossover& crossover);

}  // namespace flashlab::lab::report
