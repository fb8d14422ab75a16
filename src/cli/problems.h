#pragma once

// The problems that the flags describe.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "case.h"
#include "cli/flags.h"
#include "lab/lab.h"

namespace flashlab::cli {

/// One problem and the passes to run on it.
struct Job {
  cases::Case problem;
  std::vector<Pass> passes;
};

/// What a command runs when no flag says otherwise.
struct ProblemDefaults {
  cases::Case problem;
  std::vector<std::string> dtypes = {"fp32"};
  std::vector<Pass> passes = {Pass::kForward};
};

/// batch 2, 1024 tokens, 8 heads of 64, fp32, forward.
ProblemDefaults bench_defaults();
/// Forward and backward. On a CPU batch 1, 2048 tokens, 8 heads of 64, fp32 and bf16; on a GPU the
/// layer of a GPT decoder: batch 4, 4096 tokens, 16 heads of 128, causal, bf16.
ProblemDefaults compare_defaults(Device device);

struct ProblemSet {
  std::vector<Job> jobs;  ///< at least one
  /// With --input: the file's tensors, which every job's values view.
  std::shared_ptr<const lab::AttentionInputs> inputs;
  std::optional<lab::CaseValues> values;
  std::vector<cases::Ratio> ratios = {};  ///< of the jobs, where a sweep has them
};

/// Reads the problem flags: presets, sweeps, lists (their product), an input file. Throws Failure
/// for everything that can be told without running: head counts that do not divide, a bare causal
/// with two lengths, sizes whose product overflows, too many combinations.
ProblemSet problems_of(const Arguments& arguments, const ProblemDefaults& defaults);

/// Reads --input alone: one case per dtype.
ProblemSet problems_of_input(const Arguments& arguments, const ProblemDefaults& defaults);

/// Whether a flag describes a problem, other than --input and --dtype.
bool gives_problem(const Arguments& arguments);

/// "fp32", "tf32", "bf16", ... onto a case.
void apply_dtype(cases::Case& problem, std::string_view name);
std::string dtype_name(const cases::Case& problem);

/// The flags that select one problem again: "--batch 2 --heads 8 ... --causal=top-left".
std::string problem_flags(const cases::Case& problem);

}  // namespace flashlab::cli
