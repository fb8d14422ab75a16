#pragma once

// One token drawn from logits, without sorting them.

#include <cstdint>
#include <span>
#include <vector>

namespace flashlab::train {

struct SamplingOptions {
  double temperature = 1;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;  ///< only the k likeliest; 0: all
  double top_p = 1;        ///< only the likeliest that together have this probability
  /// Logits of tokens that stand in the text are divided by this where they are above 0, and
  /// multiplied where they are below, once each. 1: they are as they are.
  double repetition_penalty = 1;
  std::uint64_t seed = 1;
  /// Only the first so many tokens: a table may have rows that no word has. 0: all.
  std::int64_t vocabulary = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  /// A draw from softmax(logits / temperature) cut by top_k, then by top_p: the token at which
  /// the probabilities, added from the likeliest on, first exceed `unit` (in [0, 1)) of what is
  /// left. Of equally likely tokens the lower number stands before. The logits of `text` are
  /// changed by the penalty. Cost: linear in the vocabulary, on average.
  std::int32_t draw(std::span<double> logits, std::span<const std::int32_t> text, double unit);

 private:
  struct Candidate {
    double logit, weight;
    std::int32_t token;
  };
  void take_candidates(std::span<const double> logits, double most);
  void penalize(std::span<double> logits, std::span<const std::int32_t> text);

  SamplingOptions options_;
  std::vector<Candidate> candidates_;
  std::vector<bool> seen_;
};

/// The first of the largest. Precondition: there is one.
std::int32_t likeliest(std::span<const double> logits);

}  // namespace flashlab::train
