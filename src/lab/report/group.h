#pragma once

// Results arranged as a person reads them: one group per problem, one row per implementation, one
// column block per pass; and what stands out in a group.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"
#include "lab/results/subject.h"

namespace flashlab::lab::report {

/// One implementation on one problem.
struct Row {
  std::string label;           ///< the implementation, and what tells it from its namesakes
  std::string implementation;  ///< as in the results
  /// One per pass of the group; null where it was not run.
  std::vector<const Measurement*> by_pass;

  const Measurement* ok(std::size_t pass) const;  ///< null unless it ran to its end
  std::size_t passes_ok() const;
  /// The worst of the passes that ran: the larger peak, the larger error.
  std::optional<double> worst(const Column& column) const;
};

/// One problem. Pointers lead into the ResultFile it was made from.
struct Group {
  const Subject* subject;
  Labels labels;
  std::vector<std::string> passes;  ///< forward, backward, then others as they came
  std::vector<Row> rows;            ///< as they came

  std::string title(std::string_view separator = " · ") const;
  const Row* find(std::string_view implementation) const;
  std::vector<const Measurement*> all() const;  ///< null where a row lacks a pass
};

/// Results of equal problems (name and seed aside) come together, in order of appearance.
std::vector<Group> group_by_problem(const ResultFile& file);

/// "Attention", "Attention and Weighted sum": what the file's results are about.
std::string heading_of(const ResultFile& file);

/// The columns of its subject that stand there, in order; of a problem that reading bounds, bytes a
/// second in the place of FLOP/s.
std::vector<Column> columns_at(const Group& group, Place place);

/// The implementation that ratios refer to: the requested one; without a request "naive" where
/// there is one, else none (empty). Errors: kInvalidArgument for a name that has no result.
Result<std::string> resolve_relative_to(const ResultFile& file, std::string_view requested);

/// base / other median: above 1 `other` is faster.
std::optional<double> speed_up(const Measurement* base, const Measurement* other);

/// Peak memory of `other` as a multiple of base's, over the passes that both ran.
std::optional<double> memory_ratio(const Row& base, const Row& other);

/// Rows that share the best value, the best first. Times that differ by no more than the noise of
/// both are one value.
struct Best {
  std::vector<const Row*> rows;
  double value = 0;
  bool has(const Row& row) const;
};

/// Of one pass. Empty: nobody has it.
Best best_of(const Group& group, const Column& column, std::size_t pass);
/// Of the worst passes, among the rows that ran most passes: a row is not lean because it skipped
/// the backward pass. "reference" is not the most accurate where others are: it is the yardstick.
Best best_of(const Group& group, const Column& column);

/// The worst error of one implementation, dtype and pass, and the naive formula's beside it.
struct Accuracy {
  std::string label, dtype, pass, sample;
  double error = 0;
  std::optional<double> naive, ratio;
  std::size_t problems = 0;
};

std::vector<Accuracy> accuracies(const std::vector<Group>& groups);

std::string labels(const Best& best);  ///< "cpu", "cpu and fa2-plain alike"

/// Geometric mean; empty for no values.
std::optional<double> geometric_mean(const std::vector<double>& values);

/// Which roof a share above 100% is of and what passes it; empty where none is above.
std::string roof_words(const Group& group);

/// "out of memory: ...", "unsupported: ...", "error: ...": why a result has no figures.
std::string failure_words(const Measurement& result);

}  // namespace flashlab::lab::report
