// `bench step`: a training step under the clock, over sizes, contexts, types and ways to make it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/ranks.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "train/plan/recompute.h"
#include "train/step/fit.h"

namespace flashlab::cli {
namespace {

// With more lines than this the table alone is easier to read.
constexpr std::size_t kDetailedSteps = 9;

std::vector<std::string> list_or(const Arguments& arguments, std::string_view flag,
                                 std::string fallback) {
  std::vector<std::string> out = arguments.list(flag);
  return out.empty() ? std::vector<std::string>{std::move(fallback)} : out;
}

std::vector<train::StepMode> modes_of(const Arguments& arguments) {
  std::vector<train::StepMode> out;
  for (const std::string& name : arguments.list("--mode")) {
    out.push_back(name == "forward"    ? train::StepMode::kForward
                  : name == "backward" ? train::StepMode::kBackward
                                       : train::StepMode::kFull);
  }
  return out;
}

// "production" is no name of an implementation: it is what a call takes that names none.
std::string attention_of(const std::string& word) {
  return word == "production" ? "" : word;
}

// One model and types: all ways of making its step, and PyTorch's.
struct Group {
  std::vector<lab::StepProblem> ways;
};

class Sweep {
 public:
  Sweep(const Arguments& arguments, const Context& context, const train::Ranks& ranks)
      : arguments_(arguments), context_(context) {
    base_.ranks = ranks;
    base_.options.ranks = ranks.size();
    base_.options.rank = ranks.rank();
    base_.options.shares = ranks.size();
    base_.options.batch = whole(arguments, "--batch", 4, 1, kMaxSize);
    base_.options.gpu = context.device().kind == DeviceKind::kCuda;
    base_.options.accumulate = whole(arguments, "--accumulate", 1, 1, 64);
    limit_bytes_ = arguments.has("--memory-limit")
                       ? parse_bytes("--memory-limit", *arguments.value("--memory-limit"))
                       : lab::bytes_for_a_step(context);
  }

  std::int64_t limit_bytes() const { return limit_bytes_; }

  std::vector<Group> groups() {
    const bool gpu = context_.device().kind == DeviceKind::kCuda;
    std::vector<Group> out;
    for (const std::string& size : list_or(arguments_, "--size", gpu ? "small" : "tiny")) {
      Result<train::ModelConfig> named = train::find_model(size);
      if (!named.ok()) fail_usage("--" + named.status().message());
      base_.model = sized_model(arguments_, *named);
      if (base_.model.layers != named->layers || base_.model.width != named->width) {
        base_.model.name += fmt::format(".{}x{}", base_.model.layers, base_.model.width);
      }
      for (const std::string& name : list_or(arguments_, "--precision", "fp32")) {
        base_.options.precision = *train::parse_precision(name);
        for (const std::int64_t context : contexts()) {
          base_.model.context = context;
          for (const std::int64_t warmup : whole_list(arguments_, "--warmup", {5}, 0, 1000)) {
            base_.warmup = static_cast<int>(warmup);
            out.push_back({ways()});
          }
        }
      }
    }
    return out;
  }

 private:
  // --context's, and the longest that fits where it is asked for.
  std::vector<std::int64_t> contexts() {
    std::vector<std::int64_t> out;
    for (const std::string& word : list_or(arguments_, "--context", "")) {
      if (word.empty()) {
        out.push_back(base_.model.context);
      } else if (word != "largest") {
        out.push_back(parse_whole("--context", word, 1, std::int64_t{1} << 30));
      } else if (const std::int64_t longest = say_largest()) {
        out.push_back(longest);
      }
    }
    return out;
  }

  std::int64_t say_largest() {
    const lab::StepProblem first = ways().front();
    const std::int64_t longest = lab::largest_context(first, limit_bytes_);
    note(fmt::format(
        "{} {}{}: the largest context that fits {} is {}", first.model.name,
        train::to_string(first.options.precision), first.variant.empty() ? "" : " " + first.variant,
        lab::format_bytes(limit_bytes_), longest > 0 ? fmt::format("{}", longest) : "none"));
    return longest;
  }

  std::vector<lab::StepProblem> ways() {
    std::vector<lab::StepProblem> out;
    for (const std::string& attention : list_or(arguments_, "--attention", "production")) {
      for (const std::string& operators : list_or(arguments_, "--operators", "fused")) {
        lab::StepProblem way = base_;
        std::vector<std::string> words;
        if (way.options.ranks > 1) {
          words.push_back(
              fmt::format("{}={}", train::to_string(way.ranks.parallel.mode), way.options.ranks));
        }
        way.options.attention = attention_of(attention);
        if (!way.options.attention.empty()) words.push_back(attention);
        way.options.fused = operators == "fused";
        if (!way.options.fused) words.push_back(operators);
        for (const std::string& groups : checkpoints(way)) {
          way.options.checkpoint.clear();
          std::vector<std::string> all = words;
          if (groups != "none") {
            auto parsed = train::parse_checkpoint(groups, way.model.layers);
            if (!parsed.ok()) fail_usage("--" + parsed.status().message());
            way.options.checkpoint = std::move(*parsed);
            all.push_back("checkpoint=" + groups);
          }
          way.variant = fmt::format("{}", fmt::join(all, "."));
          out.push_back(way);
        }
      }
    }
    return out;
  }

  std::vector<std::string> checkpoints(const lab::StepProblem& way) const {
    const auto fit = arguments_.value("--fit");
    if (!fit) return list_or(arguments_, "--checkpoint", "none");
    if (arguments_.has("--checkpoint")) {
      fail_usage("--fit chooses what --checkpoint says; leave one of them out");
    }
    const std::int64_t limit = fit->empty() ? limit_bytes_ : parse_bytes("--fit", *fit);
    const Result<train::Fit> found =
        train::fit_step(way.model, way.options, limit, builder_of(way.ranks.parallel));
    // What no checkpointing makes fit is a result, too.
    const bool all = !found.ok() || found->checkpoint.empty();
    return {all ? std::string("none") : found->checkpoint};
  }

  const Arguments& arguments_;
  const Context& context_;
  lab::StepProblem base_;
  std::int64_t limit_bytes_ = 0;
};

std::unique_ptr<lab::TorchSteps> start_torch(const Arguments& arguments, const Context& context) {
  if (!arguments.has("--peers")) return nullptr;
  lab::TorchStepOptions options;
  options.python = arguments.value("--python").value_or("python3");
  options.device = to_string(context.device());
  options.threads = context.device().kind == DeviceKind::kCpu ? context.threads() : 0;
  options.silence_s = static_cast<double>(whole(arguments, "--python-timeout", 600, 1, 1'000'000));
  options.cancel = &interrupted();
  ProgressLine progress;
  progress.show(0, 1, "starting " + options.python);
  auto torch = lab::TorchSteps::start(options);
  progress.clear();
  if (!torch.ok()) fail_usage(torch.status().message());
  return std::move(*torch);
}

std::vector<lab::Labels> labels_of(const std::vector<Group>& groups) {
  std::vector<lab::Labels> out;
  for (const Group& group : groups) {
    for (const lab::StepProblem& way : group.ways) {
      out.push_back(lab::empty_step(way, "", "", "").labels);
    }
  }
  return out;
}

void print_details(const lab::Measurement& r) {
  using lab::report::format_ms;
  if (r.status != lab::RunStatus::kOk) return;
  std::string line = fmt::format("  {:<24} {:<17} mean {} ms, std {}, first step {}",
                                 r.implementation, r.pass, format_ms(r[lab::kMeanMs]),
                                 format_ms(r[lab::kStdMs]), format_ms(r[lab::kFirstMs]));
  if (r[lab::kFirstLoss]) {
    line += fmt::format(", first loss {:.4f} (ln V {:.4f})", *r[lab::kFirstLoss],
                        std::log(static_cast<double>(r.labels.whole("vocabulary"))));
  }
  if (r[lab::kStepRate]) line += fmt::format(", rate {:g}", *r[lab::kStepRate]);
  for (const auto& part : r.parts) {
    line += fmt::format(", {} {}", part.name, format_ms(part.median_ms));
  }
  print_line(line);
}

// Of the ranks beside rank 0: the same steps, and nothing said.
int take_part(const Context& context, const std::vector<Group>& groups,
              const lab::StepBenchOptions& options) {
  for (const Group& group : groups) {
    for (const lab::StepProblem& way : group.ways) {
      static_cast<void>(lab::bench_step(context, way, options));
    }
  }
  return kExitOk;
}

}  // namespace

int run_bench_step(const Arguments& arguments) {
  TrainingRanks started = training_ranks(arguments);
  const train::Ranks& ranks = started.ranks;
  if (ranks.size() > 1 && arguments.has("--peers")) {
    fail_usage("--peers with several ranks; bench step compares one device with PyTorch");
  }
  const Context context =
      make_context(arguments, ranks.size() > 1 ? DefaultDevice::kCpu : DefaultDevice::kGpuIfThere);
  connect_gpus(started, context, {.beside_kernels = true});
  Sweep sweep(arguments, context, ranks);
  const std::vector<Group> groups = sweep.groups();
  lab::StepBenchOptions options;
  options.repeats = static_cast<int>(whole(arguments, "--repeats", 10, 1, 1'000'000));
  options.seed = static_cast<std::uint64_t>(whole(arguments, "--seed", 1, 0, INT64_MAX));
  options.limit_bytes = sweep.limit_bytes();
  options.modes = modes_of(arguments);
  // Several ranks end together: the launcher sees to it.
  if (ranks.size() == 1) options.cancel = &interrupted();
  if (!ranks.leads()) return take_part(context, groups, options);
  const std::unique_ptr<lab::TorchSteps> torch = start_torch(arguments, context);
  Outputs outputs(arguments, /*report=*/false);
  std::size_t planned = 0;
  for (const Group& group : groups) planned += group.ways.size() + (torch ? 2 : 0);
  outputs.begin(
      environment_of(context,
                     fmt::format("{} samples of one step, each waited for, wall clock; the first "
                                 "step of a fresh executor apart{}",
                                 options.repeats, torch ? "; " + torch->words() : "")),
      planned * lab::modes_of(options).size());
  const bool text = !outputs.stdout_taken();
  const auto unit = context.device().kind == DeviceKind::kCuda ? lab::report::RateUnit::kTflops
                                                               : lab::report::RateUnit::kGflops;
  lab::report::SharedLabels shared =
      shared_on_terminal(lab::step_subject(), labels_of(groups), context.device());
  for (const Group& group : groups) {
    for (const lab::StepProblem& way : group.ways) {
      shared.name_width = std::max(shared.name_width, static_cast<int>(name_of(way).size()));
    }
  }
  if (text) {
    print_line(fmt::format("training step · {}{}\n", device_words(context),
                           torch ? " · " + torch->words() : ""));
    print(lab::report::bench_table_header(lab::step_subject(), unit, shared));
  }
  ProgressLine progress;
  const auto add = [&](const std::vector<lab::Measurement>& results) {
    progress.clear();
    for (const lab::Measurement& result : results) {
      if (interrupted() && result.samples == 0) continue;
      if (text) print(lab::report::bench_table_line(result, unit, shared));
      outputs.add(result);
    }
  };
  for (const Group& group : groups) {
    for (const lab::StepProblem& way : group.ways) {
      if (interrupted()) break;
      options.stage = [&](std::string_view what, int done, int of) {
        progress.show(done, of, fmt::format("{} · {}", what, way.model.name));
      };
      add(lab::bench_step(context, way, options));
    }
    for (const bool compiled : {false, true}) {
      if (torch && !interrupted()) add(torch->bench(group.ways.front(), options, compiled));
    }
  }
  progress.clear();
  const std::vector<lab::Measurement>& results = outputs.file().results;
  if (text && results.size() <= kDetailedSteps) {
    print_line("");
    for (const lab::Measurement& result : results) print_details(result);
  }
  if (text && results.size() > lab::modes_of(options).size()) {
    print("\n" + lab::report::comparison_table(
                     outputs.file(), {.relative_to = arguments.value("--relative-to").value_or(""),
                                      .width = terminal_width(),
                                      .colours = colours()}));
  }
  return finish_run(outputs, /*complete=*/true);
}

}  // namespace flashlab::cli
