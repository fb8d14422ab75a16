#include "train/data/windows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "train/cpu/random.h"

namespace flashlab::train {
namespace {

// Sources take turns in cycles of so many windows: in each they have exactly their shares, in an
// order of its own.
constexpr std::int64_t kCycle = 1 << 16;
// Apart from dropout's sites and window_start's.
constexpr std::uint64_t kShuffle = 0x73687566666c65, kTurns = 0x7475726e73,
                        kOffset = 0x6f6666736574;

std::uint64_t feistel(std::uint64_t x, int half, std::uint64_t seed, std::uint64_t round) {
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t left = x >> half, right = x & mask;
  for (std::uint64_t i = 0; i < 6; ++i) {
    const std::uint64_t turned = random_bits({seed, round, kShuffle}, i << 32 ^ right) & mask;
    left = std::exchange(right, left ^ turned);
  }
  return left << half | right;
}

}  // namespace

std::vector<std::string> window_order_names() {
  return {"random", "epochs"};
}

std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed,
                      std::uint64_t round) {
  const auto most = static_cast<std::uint64_t>(std::max<std::int64_t>(count - 1, 1));
  const int half = (static_cast<int>(std::bit_width(most)) + 1) / 2;
  // Outside of the count the walk goes on: the cycle through `index` comes back inside.
  auto x = static_cast<std::uint64_t>(index);
  do x = feistel(x, half, seed, round);
  while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

Windows::Windows(std::vector<WeightedTokens> sources, std::int64_t context, std::uint64_t seed,
                 WindowOrder order)
    : sources_(std::move(sources)), context_(context), seed_(seed), order_(order) {
  double sum = 0;
  for (const WeightedTokens& source : sources_) {
    sum += source.weight;
    ends_.push_back(std::llround(sum * static_cast<double>(kCycle)));
  }
  ends_.back() = kCycle;
}

Windows::Place Windows::of(std::int64_t step, std::int64_t index, std::int64_t windows) const {
  std::size_t source = 0;
  std::int64_t nth = step * windows + index;
  if (sources_.size() > 1) {
    const std::int64_t cycle = nth / kCycle;
    const std::int64_t turn =
        permuted(nth % kCycle, kCycle, seed_ ^ kTurns, static_cast<std::uint64_t>(cycle));
    source = static_cast<std::size_t>(std::ranges::upper_bound(ends_, turn) - ends_.begin());
    const std::int64_t begin = source > 0 ? ends_[source - 1] : 0;
    nth = cycle * (ends_[source] - begin) + turn - begin;
  }
  const Tokens& text = sources_[source].tokens;
  if (order_ == WindowOrder::kRandom) {
    return {&text, window_start(text, context_, seed_, step, index)};
  }
  const std::int64_t count = windows_of(text);
  const auto epoch = static_cast<std::uint64_t>(nth / count);
  const std::uint64_t own = mix(seed_ + source);
  // Each epoch cuts the text elsewhere, so that its end comes, too.
  const auto spare = static_cast<std::uint64_t>((text.size() - 1) % context_ + 1);
  const auto offset = static_cast<std::int64_t>(random_bits({own, epoch, kOffset}, 0) % spare);
  return {&text, permuted(nth % count, count, own, epoch) * context_ + offset};
}

double Windows::epochs(std::size_t source, std::int64_t taken) const {
  const std::int64_t begin = source > 0 ? ends_[source - 1] : 0;
  const double share = static_cast<double>(ends_[source] - begin) / static_cast<double>(kCycle);
  return static_cast<double>(taken) * share /
         static_cast<double>(windows_of(sources_[source].tokens));
}

}  // namespace flashlab::train
