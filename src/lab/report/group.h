#pragma once

// Results arranged as a person reads them: one group per problem, one row per implementation, one
// column block per pass; and what stands out in a group.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "lab/results/result.h"

namespace flashlab::lab::report {

/// One implementation on one problem.
struct Row {
  std::string label;           ///< the implementation, and what tells it from its namesakes
  std::string implementation;  ///< as in the results
  /// One per pass of the group; null where it was not run.
  std::vector<const BenchResult*> by_pass;

  const BenchResult* ok(std::size_t pass) const;  ///< null unless it ran to its end
  std::size_t passes_ok() const;
  std::optional<std::int64_t> peak_bytes() const;  ///< the larger of the passes that ran
  std::optional<double> error() const;             ///< the largest of the passes that ran
};

/// One problem. Pointers lead into the ResultFile it was made from.
struct Group {
  cases::Case problem;
  std::vector<std::string> passes;  ///< forward, backward, then others as they came
  std::vector<Row> rows;            ///< as they came

  const Row* find(std::string_view implementation) const;
};

/// Results with equal problems (name and seed aside) come together, in order of appearance.
std::vector<Group> group_by_problem(const ResultFile& file);

/// "fp32 · batch 1 · heads 8 · S 2048 · d 64 · causal", with the preset's name before it and
/// everything that is not the default behind it.
std::string problem_title(const cases::Case& problem, std::string_view separator = " · ");

/// "B1_H8_d64_fp32_causal-top-left_scale1": everything of the problem but its lengths.
std::string family_slug(const cases::Case& problem);
/// The same for a person, without lengths: "fp32 · batch 1 · heads 8 · d 64 · causal".
std::string family_title(const cases::Case& problem);

/// "causal", "causal, bottom-right + boolean mask", "" for none.
std::string mask_words(const cases::Case& problem);
/// The mask and everything else that is not the default: "causal, scale 1".
std::string variant_words(const cases::Case& problem);

/// The implementation that ratios refer to: the requested one; without a request "naive" where
/// there is one, else none (empty). Errors: kInvalidArgument for a name that has no result.
Result<std::string> resolve_relative_to(const ResultFile& file, std::string_view requested);

/// base / other median: above 1 `other` is faster.
std::optional<double> speed_up(const BenchResult* base, const BenchResult* other);

/// Peak memory of `other` as a multiple of base's, over the passes that both ran.
std::optional<double> memory_ratio(const Row& base, const Row& other);

/// Rows that share the best value.
struct Best {
  std::vector<const Row*> rows;
  double value = 0;
};

/// Smallest median of one pass. Empty: nobody ran it.
Best fastest(const Group& group, std::size_t pass);
/// Among the rows that ran most passes: a row is not lean because it skipped the backward pass.
Best least_memory(const Group& group);
/// The same; "reference" takes no part where others do: it is the yardstick.
Best most_accurate(const Group& group);

std::string labels(const Best& best);  ///< "cpu, fa2-plain"

/// Geometric mean; empty for no values.
std::optional<double> geometric_mean(const std::vector<double>& values);

/// "out of memory: ...", "unsupported: ...", "error: ...": why a result has no figures.
std::string failure_words(const BenchResult& result);

}  // namespace flashlab::lab::report
