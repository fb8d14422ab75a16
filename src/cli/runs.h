#pragma once

// What `bench` and `compare` share: settings out of flags, and running every job.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "cli/outputs.h"
#include "cli/problems.h"
#include "lab/lab.h"

namespace flashlab::cli {

/// A context whose memory is counted.
struct Engine {
  std::unique_ptr<Allocator> device_allocator;        ///< of a GPU; outlives the next one
  std::unique_ptr<lab::TrackingAllocator> allocator;  ///< outlives the context
  Context context;
};
/// On --device, else on the GPU where there is one.
Engine make_engine(const Arguments& arguments);

/// How long a measurement may take when --repeats does not say.
struct Budget {
  int repeats = 30;
  double max_total_ms = 0;  ///< per problem and pass; 0: as long as the repeats take
};

lab::ProblemRunOptions run_options(const Arguments& arguments, const ProblemSet& problems,
                                   Budget budget);

/// How long the machine's roofs are looked at: shortly where few repeats are asked for.
lab::RoofLook roof_look(const lab::ProblemRunOptions& options);

/// Refuses what can be told without running: invalid problems, tiles that do not fit. Throws
/// Failure.
void check_plans(const Arguments& arguments, const Context& context, const ProblemSet& problems,
                 const std::vector<std::string>& names);

/// The environment of a run, with the protocol in words.
lab::Environment run_environment(const Engine& engine, const lab::ProblemRunOptions& options);

/// What the lines of a table need not repeat on a terminal too narrow for them. In a file or a pipe
/// every line says all of its problem, for grep and diff.
lab::report::SharedLabels shared_on_terminal(const lab::Subject& subject,
                                             const std::vector<lab::Labels>& problems,
                                             Device device);

/// How many results the jobs give with so many implementations.
std::size_t planned_results(const ProblemSet& problems, std::size_t implementations);

/// Runs every job; `done` gets the results of each. Stops after the current sample on Ctrl-C, and
/// when the GPU cannot work any more: then it gives false.
bool run_jobs(const Engine& engine, const ProblemSet& problems,
              const std::vector<std::string>& names, const lab::ProblemRunOptions& options,
              Outputs& outputs,
              const std::function<void(const std::vector<lab::Measurement>&)>& done);

/// Whether reading may bound a problem: then its share is of the environment's read roof where that
/// is the larger one.
bool may_wait_for_reads(const cases::Case& problem);
bool any_may_wait_for_reads(const ProblemSet& problems);

/// What a sweep compares: the time of one of its calls over that of others, for every
/// implementation and pass that ran them all.
void print_ratios(const ProblemSet& problems, const lab::ResultFile& file);

/// The exit code of a run: of `outputs.finish()`, 130 when interrupted, 1 when no case ended ok or
/// `complete` is false.
int finish_run(Outputs& outputs, bool complete);

}  // namespace flashlab::cli
