#include "train/run/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace flashlab::train {
namespace {

// Probabilities below exp(-kFar) of the likeliest are lost in a sum's last bit, however many there
// are of them.
constexpr double kFar = 80;

template <class Candidate>
bool stands_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

template <class Candidate>
struct Found {
  const Candidate* at;
  double sum;  ///< of the weights up to it, its own included
};

// Where the weights, added from the likeliest on, first exceed `target` (reach it where
// `inclusive`): each round keeps the side of a pivot in which that is. The last one, where rounding
// leaves none.
template <class Candidate>
Found<Candidate> find(std::span<Candidate> all, double target, bool inclusive) {
  const auto passes = [&](double sum) { return inclusive ? sum >= target : sum > target; };
  double before = 0;
  while (true) {
    Candidate* const first = all.data();
    Candidate* const last = first + all.size() - 1;
    Candidate* const middle = first + all.size() / 2;
    if (stands_before(*middle, *first)) std::swap(*middle, *first);
    if (stands_before(*last, *middle)) std::swap(*last, *middle);
    if (stands_before(*middle, *first)) std::swap(*middle, *first);
    const Candidate pivot = *middle;
    Candidate* const behind = std::partition(
        first, last + 1, [&](const Candidate& each) { return stands_before(each, pivot); });
    double sum = before;
    for (const Candidate* each = first; each != behind; ++each) sum += each->weight;
    if (behind != first && passes(sum)) {
      all = {first, behind};
      continue;
    }
    // The pivot itself is the first of the others.
    Candidate* const own = std::find_if(
        behind, last + 1, [&](const Candidate& each) { return each.token == pivot.token; });
    std::swap(*behind, *own);
    before = sum + pivot.weight;
    if (passes(before) || behind == last) return {behind, before};
    all = {behind + 1, last + 1};
  }
}

}  // namespace

// Compilers make the comparison of eight lanes one instruction, and that of one number a jump.
std::int32_t likeliest(std::span<const double> logits) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> most;
  most.fill(logits[0]);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      most[lane] = logits[i + lane] > most[lane] ? logits[i + lane] : most[lane];
    }
  }
  for (; i < logits.size(); ++i) most[0] = std::max(most[0], logits[i]);
  const double largest = *std::ranges::max_element(most);
  const auto at = std::ranges::find(logits, largest);
  return at == logits.end() ? 0 : static_cast<std::int32_t>(at - logits.begin());
}

void Sampler::penalize(std::span<double> logits, std::span<const std::int32_t> text) {
  const double penalty = options_.repetition_penalty;
  if (penalty == 1) return;
  seen_.assign(logits.size(), false);
  for (const std::int32_t token : text) {
    const auto at = static_cast<std::size_t>(token);
    if (at >= logits.size() || seen_[at]) continue;
    seen_[at] = true;
    logits[at] = logits[at] > 0 ? logits[at] / penalty : logits[at] * penalty;
  }
}

// A few likeliest ones come by a heap, whose worst one most logits do not pass: one comparison
// each.
void Sampler::take_candidates(std::span<const double> logits, double most) {
  constexpr std::int64_t kFew = 1024;
  const double least = most - kFar * options_.temperature;
  const bool few = options_.top_k > 0 && options_.top_k <= kFew;
  const auto wanted = few ? static_cast<std::size_t>(options_.top_k) : logits.size();
  candidates_.clear();
  double bar = least;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > bar)) continue;
    if (candidates_.size() == wanted) {
      std::ranges::pop_heap(candidates_, stands_before<Candidate>);
      candidates_.pop_back();
    }
    candidates_.push_back({logits[i], 0, static_cast<std::int32_t>(i)});
    if (!few) continue;
    std::ranges::push_heap(candidates_, stands_before<Candidate>);
    if (candidates_.size() == wanted) bar = std::max(least, candidates_.front().logit);
  }
}

std::int32_t Sampler::draw(std::span<double> logits, std::span<const std::int32_t> text,
                           double unit) {
  if (options_.vocabulary > 0) {
    logits = logits.first(std::min(logits.size(), static_cast<std::size_t>(options_.vocabulary)));
  }
  penalize(logits, text);
  const std::int32_t top = likeliest(logits);
  if (options_.temperature == 0) return top;
  const double most = logits[static_cast<std::size_t>(top)];
  take_candidates(logits, most);
  if (candidates_.empty()) return top;  // a temperature that rounds to nothing
  std::span<Candidate> kept = candidates_;
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (k > 0 && k < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + options_.top_k - 1, kept.end(),
                     stands_before<Candidate>);
    kept = kept.first(k);
  }
  double all = 0;
  for (Candidate& each : kept) {
    each.weight = std::exp((each.logit - most) / options_.temperature);
    all += each.weight;
  }
  if (options_.top_p < 1) {
    const Found<Candidate> cut = find(kept, options_.top_p * all, /*inclusive=*/true);
    all = cut.sum;
    kept = kept.first(static_cast<std::size_t>(cut.at - kept.data()) + 1);
  }
  return find(kept, unit * all, /*inclusive=*/false).at->token;
}

}  // namespace flashlab::train
