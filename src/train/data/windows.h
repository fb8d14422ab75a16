#pragma once

// Which windows of a text a step takes, as a function of seed and step alone: a run is resumed
// anywhere, and every rank finds its own without a table or a word to the others.

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/token_file.h"

namespace flashlab::train {

enum class WindowOrder : std::uint8_t {
  kRandom,  ///< each window begins anywhere
  kEpochs,  ///< each of a text's windows once, shuffled, before any comes again
};
/// "random", "epochs", in the order of the enumeration.
std::vector<std::string> window_order_names();

/// A text and its share of the windows; shares sum up to 1.
struct WeightedTokens {
  Tokens tokens;
  double weight = 1;
};

/// Place `index` of a permutation of 0 .. count - 1, another one for each key. It takes no memory:
/// a Feistel network on the next even number of bits, walked until it is inside.
/// Precondition: 0 <= index < count.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed,
                      std::uint64_t round);

class Windows {
 public:
  struct Place {
    const Tokens* text = nullptr;
    std::int64_t start = 0;
  };

  Windows() = default;
  /// Precondition: sources, each longer than `context`.
  Windows(std::vector<WeightedTokens> sources, std::int64_t context, std::uint64_t seed,
          WindowOrder order);

  /// Window `index` of `windows` of `step`, whoever asks. Of one source in random order it is
  /// window_start's.
  Place of(std::int64_t step, std::int64_t index, std::int64_t windows) const;
  /// How often all windows of source `source` have come when so many were taken.
  double epochs(std::size_t source, std::int64_t taken) const;
  const std::vector<WeightedTokens>& sources() const { return sources_; }

 private:
  std::int64_t windows_of(const Tokens& text) const { return (text.size() - 1) / context_; }

  std::vector<WeightedTokens> sources_;
  std::vector<std::int64_t> ends_;  ///< of each source's windows among kCycle
  std::int64_t context_ = 0;
  std::uint64_t seed_ = 0;
  WindowOrder order_ = WindowOrder::kRandom;
};

}  // namespace flashlab::train
