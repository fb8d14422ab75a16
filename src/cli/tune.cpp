// `tune`: the legal tilings of the Hopper forward kernel, measured, and the table of the fastest.

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/problems.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/machine/environment.h"
#include "lab/subjects/attention/attention_subject.h"
#include "lab/tune/tune.h"
#include "train/data/files.h"

namespace flashlab::cli {
namespace {

ProblemDefaults tune_defaults() {
  ProblemDefaults out;
  out.problem.batch = 4;
  out.problem.heads_q = out.problem.heads_k = 16;
  out.problem.seqlen_q = out.problem.seqlen_k = 4096;
  out.problem.head_dim = out.problem.head_dim_v = 128;
  out.dtypes = {"bf16"};
  return out;
}

std::string title(const cases::Case& problem) {
  return lab::attention_subject().title(lab::labels_of(problem), " · ");
}

void print_tilings(const lab::TilingCandidates& all, const lab::TunedProblem* times) {
  print_line(title(all.problem));
  print_line(
      fmt::format("  queries  keys  places Q K V  turns   registers      shared  warps of 64{}",
                  times != nullptr ? "     median ms (quartiles)" : ""));
  for (std::size_t i = 0; i < all.tilings.size(); ++i) {
    const auto& t = all.tilings[i];
    const lab::TilingBudget budget = lab::budget_of(all, i);
    std::string line =
        fmt::format("  {:7}  {:4}  {:8} {} {}  {:>5}  {:3} of {}  {:10}  {:11}", t.tile_q(),
                    t.block_keys, t.stages_q, t.stages_k, t.stages_v, t.turns ? "yes" : "no",
                    budget.registers, budget.register_limit, budget.shared_bytes, budget.warps);
    if (times != nullptr && times->times[i]) {
      const lab::Statistics& ms = *times->times[i];
      line += fmt::format("  {:12.4f} ({:.4f} {:.4f})", ms.median, ms.q1, ms.q3);
    } else if (times != nullptr) {
      line += "  " + times->failures[i];
    }
    if (i == all.rule) line += "  the rule's";
    if (times != nullptr && i == times->best && i != all.rule) line += "  faster";
    print_line(line);
  }
}

std::vector<lab::TilingCandidates> candidates_of(const Context* context,
                                                 const ProblemSet& problems) {
  std::vector<lab::TilingCandidates> out;
  for (const Job& job : problems.jobs) {
    if (job.passes.front() != Pass::kForward) continue;
    auto candidates = lab::tiling_candidates(context, job.problem);
    if (!candidates.ok()) fail(candidates.status());
    out.push_back(std::move(*candidates));
  }
  return out;
}

// A folder that is not there yet is made only for the default: it is the library's own.
std::string output_path(const Arguments& arguments) {
  if (const auto named = arguments.value("--output")) return *named;
  const std::string path = lab::users_tuning_path();
  if (path.empty()) fail_usage("there is no HOME and no XDG_CACHE_HOME; name a file by --output");
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (error) fail(fmt::format("{}: {}; name another file by --output", path, error.message()));
  return path;
}

// The library refuses a table that others may write to, whatever the user's mask lets them.
void write_table(const std::string& path, const std::string& text) {
  if (const Status written = train::write_file(path, text); !written.ok()) fail(written);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    using std::filesystem::perms;
    std::filesystem::permissions(path, perms::group_write | perms::others_write,
                                 std::filesystem::perm_options::remove, ignored);
  }
}

}  // namespace

int run_tune(const Arguments& arguments) {
  const ProblemSet problems = problems_of(arguments, tune_defaults());
  lab::MeasureOptions options;
  options.warmup = static_cast<int>(whole(arguments, "--warmup", 3, 0, 1'000'000));
  options.repeats = static_cast<int>(whole(arguments, "--repeats", 30, 1, 1'000'000));
  options.cancel = &interrupted();
  if (arguments.has("--dry-run")) {
    for (const auto& each : candidates_of(nullptr, problems)) {
      print_tilings(each, nullptr);
    }
    return kExitOk;
  }
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  if (context.device().kind != DeviceKind::kCuda) {
    fail_usage("tune measures on a GPU, and there is none; --dry-run lists what it would measure");
  }
  const std::vector<lab::TilingCandidates> all = candidates_of(&context, problems);
  const std::string path = output_path(arguments);
  lab::EnvironmentRequest request;
  request.command = typed_command();
  request.protocol = fmt::format("{} rounds in turns behind {} warm-ups, L2 flushed before each",
                                 options.repeats, options.warmup);
  request.device = context.device();
  const lab::Environment environment = lab::collect_environment(request);

  std::vector<lab::TunedProblem> rows;
  for (const lab::TilingCandidates& each : all) {
    auto row = lab::tune(each, [&](const lab::TilingCandidates& candidates) {
      return lab::measure_tilings(context, options, candidates);
    });
    if (interrupted()) return kExitInterrupted;
    if (!row.ok()) fail(row.status());
    print_tilings(row->candidates, &*row);
    rows.push_back(std::move(*row));
    write_table(path, lab::tuning_table(environment, rows));
  }
  print_line(fmt::format("{} rows in {}", rows.size(), path));
  return kExitOk;
}

}  // namespace flashlab::cli
