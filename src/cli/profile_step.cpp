// `profile step`: where a training step's time and memory go.

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/outputs.h"
#include "cli/profile_output.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "profile/folder.h"
#include "profile/ledger.h"
#include "profile/step_run.h"
#include "train/step/step.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;
using lab::format_bytes;

struct Request : StepRequest {
  std::vector<std::int64_t> contexts;
};

Request request_of(const Arguments& arguments, DeviceKind device,
                   const train::Ranks* started = nullptr) {
  // A plan can be of any size; a run without a name is one that a CPU ends in seconds.
  const bool large = arguments.has("--dry-run") || device == DeviceKind::kCuda;
  Request out = {step_request_of(arguments, large ? "small" : "tiny", started), {}};
  out.contexts = whole_list(arguments, "--context", {out.model.context}, 1, std::int64_t{1} << 30);
  return out;
}

train::StepPlan plan_of(const train::ModelConfig& model, const train::StepOptions& options,
                        const train::ParallelOptions& parallel = {}) {
  Result<train::StepPlan> plan = train::build_parallel_step(model, options, parallel);
  if (!plan.ok()) fail_usage("--" + plan.status().message());
  return std::move(*plan);
}

train::ModelConfig with_context(train::ModelConfig model, std::int64_t context) {
  model.context = context;
  return model;
}

std::int64_t residual_elements(const Request& request, const train::ModelConfig& model) {
  return request.options.batch / request.options.ranks * model.context * model.width;
}

std::int64_t detail_bytes(const Arguments& arguments, const profile::MemoryTimeline& timeline) {
  return whole(arguments, "--detail", timeline.arena_bytes / 1000, 0, kMaxSize);
}

profile::Profile planned_profile(const Arguments& arguments, const Request& request,
                                 const train::ModelConfig& model, const train::StepPlan& plan) {
  profile::Profile out;
  out.command = typed_command();
  out.subject = "step";
  out.recording.title = plan.title;
  out.memory = profile::make_timeline(plan, train::plan_memory(plan));
  out.detail_bytes = detail_bytes(arguments, *out.memory);
  out.block = profile::block_memory(plan, static_cast<int>(model.layers / 2),
                                    residual_elements(request, model));
  return out;
}

void print_memory(const profile::Profile& p) {
  const profile::MemoryTimeline& m = *p.memory;
  print_line(fmt::format(
      "  memory     predicted peak {} at {}{}", format_bytes(m.peak_bytes()),
      m.operations[static_cast<std::size_t>(m.peak_operation)],
      p.measured_bytes
          ? fmt::format(" · memory grew by {}, planned {}", format_bytes(*p.measured_bytes),
                        format_bytes(m.persistent_bytes + m.arena_bytes))
          : ""));
}

void print_memory_details(const profile::Profile& p) {
  const profile::MemoryTimeline& m = *p.memory;
  for (const train::Phase phase :
       {train::Phase::kForward, train::Phase::kBackward, train::Phase::kOptimizer}) {
    if (m.peak_bytes(phase) == 0) continue;
    print_line(fmt::format("    {:<12}{:>10}", train::to_string(phase),
                           format_bytes(m.peak_bytes(phase))));
  }
  print_line("    largest allocations of the arena");
  for (const auto& [each, count] : profile::largest(m, 5)) {
    print_line(fmt::format("      {:>9}{:>6}  {}  {}", format_bytes(each.bytes),
                           count > 1 ? fmt::format(" x {}", count) : "", each.name, each.shape));
  }
  if (!p.block || p.block->saved_bytes == 0) return;
  print_line(fmt::format("    layer {} keeps {} for backward; residual stream {}; its gradients {}",
                         p.block->layer, format_bytes(p.block->saved_bytes),
                         format_bytes(p.block->residual_stream_bytes),
                         format_bytes(p.block->parameter_gradient_bytes)));
  for (std::size_t i = 0; i < p.block->saved.size() && i < 5; ++i) {
    const auto& part = p.block->saved[i];
    print_line(fmt::format("      {:>9} {:5.1f}%  {}", format_bytes(part.bytes), 100 * part.share,
                           part.name));
  }
}

// Each of several contexts has a folder of its own.
fs::path folder_for(const fs::path& parent, std::int64_t context, bool several) {
  if (!several) return parent;
  const fs::path folder = parent / fmt::format("context-{}", context);
  make_folder(folder);
  return folder;
}

int dry_run(const Arguments& arguments, const Request& request) {
  std::optional<fs::path> parent;
  if (arguments.has("--output")) parent = profile_folder(arguments);
  print_line(fmt::format("{} · {} layers, width {}, {} heads, {} parameters · batch {}",
                         request.model.name, request.model.layers, request.model.width,
                         request.model.heads, train::parameter_count(request.model),
                         request.options.batch));
  print_line(fmt::format("  {:>8}{:>11}{:>12}{:>12}{:>17}", "context", "precision", "forward",
                         "full step", "residual stream"));
  std::vector<train::Precision> precisions = {train::Precision::kFp32, train::Precision::kBf16};
  if (arguments.has("--precision")) precisions = {request.options.precision};
  bool complete = true;
  std::vector<profile::Profile> profiles;
  for (const std::int64_t context : request.contexts) {
    const train::ModelConfig model = with_context(request.model, context);
    for (const train::Precision precision : precisions) {
      train::StepOptions options = request.options;
      options.precision = precision;
      options.mode = train::StepMode::kForward;
      const train::StepPlan forward = plan_of(model, options);
      options.mode = request.options.mode;
      const train::StepPlan full = plan_of(model, options);
      const std::int64_t residual = residual_elements(request, model) *
                                    train::size_of(train::policy_of(precision).activation);
      print_line(fmt::format(
          "  {:>8}{:>11}{:>12}{:>12}{:>17}", context, train::to_string(precision),
          format_bytes(train::plan_memory(forward).device_bytes()),
          format_bytes(train::plan_memory(full).device_bytes()), format_bytes(residual)));
      if (precision != precisions.front()) continue;
      profiles.push_back(planned_profile(arguments, request, model, full));
      profiles.back().environment.date_utc = lab::utc_now();
      profiles.back().recording.device = "planned, not run";
    }
  }
  for (std::size_t i = 0; i < profiles.size(); ++i) {
    if (arguments.has("--memory")) {
      print_line(fmt::format("\n{}", profiles[i].recording.title));
      print_memory(profiles[i]);
      print_memory_details(profiles[i]);
    }
    if (!parent) continue;
    const fs::path folder = folder_for(*parent, request.contexts[i], profiles.size() > 1);
    complete = write_profile_folder(arguments, folder, profiles[i]) && complete;
  }
  return complete ? kExitOk : kExitFailure;
}

// What products are made in sets the roof; fp64 and tf32 have none here.
profile::Roofs roofs_of(const lab::Environment& environment, train::Precision precision, bool gpu) {
  profile::Roofs out;
  const bool half = train::size_of(train::policy_of(precision).activation) == 2;
  out.gb_per_s = environment.copy_gb_per_s;
  out.source = gpu ? environment.roof_source
                   : "fp32 multiply-adds on all threads, copy between buffers beyond the caches";
  if (gpu && half) {
    out.gflops = environment.roof_bf16_gflops;
    out.of_units = environment.loop_bf16_gflops.has_value();
  } else if (gpu && precision == train::Precision::kFp32 && environment.loop_fp32_gflops) {
    // A step's products are made by FMA: the tensor cores' roof is attention's alone.
    out.gflops = environment.loop_fp32_gflops;
    out.source = "a loop of fp32 FMA, device-to-device copy";
  } else if (precision != train::Precision::kFp64 && precision != train::Precision::kTf32) {
    // A CPU makes products of 16-bit steps in fp32.
    out.gflops = environment.roof_fp32_gflops;
  }
  return out;
}

profile::AdviceInput advice_input(const profile::Profile& p, const Request& request,
                                  const train::ModelConfig& model, const train::StepPlan& plan) {
  profile::AdviceInput in;
  in.recording = p.recording;
  in.data_wait_ms = p.recording.batch_ms;
  in.matrix_type = train::to_string(request.options.precision);
  in.peak_bytes = p.memory->persistent_bytes + p.memory->arena_bytes;
  in.gpu = !p.environment.gpu.empty();
  in.device_bytes = in.gpu ? p.environment.gpu_memory_bytes : lab::total_memory_bytes();
  if (in.gpu && request.options.precision == train::Precision::kFp32) {
    in.other_roof_gflops = p.environment.roof_bf16_gflops;
    in.other_type = "bf16";
  }
  if (const auto launch = profile::longest_launch(p.recording)) {
    in.occupancy = launch->occupancy;
    in.waves = launch->waves;
  }
  in.batch = request.options.batch;
  double recomputed = 0;
  for (const train::Operation& operation : plan.operations) {
    if (operation.generation > 0) recomputed += operation.flops;
  }
  if (recomputed > 0) {
    in.recomputed_flops = recomputed;
    train::StepOptions options = request.options;
    options.checkpoint.clear();
    in.peak_bytes_without_recomputation =
        train::plan_memory(plan_of(model, options, request.parallel)).device_bytes();
  }
  return in;
}

// Several ranks run equal numbers of steps, and end together: the launcher sees to it.
profile::StepRunOptions run_options_of(const Arguments& arguments, const train::Ranks& ranks) {
  const bool quick = arguments.has("--quick");
  profile::StepRunOptions out;
  out.warmup = static_cast<int>(whole(arguments, "--warmup", quick ? 1 : 2, 1, 1000));
  out.steps = static_cast<int>(whole(arguments, "--steps", quick ? 3 : 5, 1, 10000));
  out.seed = static_cast<std::uint64_t>(whole(arguments, "--seed", 1337, 0, kMaxSize));
  if (ranks.size() > 1) return out;
  out.max_total_ms = quick ? 10e3 : 0;
  out.cancel = &interrupted();
  return out;
}

// Of the ranks beside rank 0: the same steps, and nothing said.
int take_part(const Arguments& arguments, const Request& request, const Context& context,
              const train::Ranks& ranks) {
  for (const std::int64_t tokens : request.contexts) {
    const train::StepPlan plan =
        plan_of(with_context(request.model, tokens), request.options, request.parallel);
    const auto run =
        profile::record_step(context, plan, run_options_of(arguments, ranks), ranks.of_steps());
    if (!run.ok()) fail_among(ranks, run.status());
  }
  return kExitOk;
}

profile::Profile run_one(const Arguments& arguments, const Request& request,
                         const train::ModelConfig& model, const Context& context,
                         const lab::Environment& environment, const train::Ranks& ranks) {
  const train::StepPlan plan = plan_of(model, request.options, request.parallel);
  profile::StepRunOptions options = run_options_of(arguments, ranks);
  ProgressLine bar;
  options.progress = [&](int done, int planned, std::string_view what) {
    bar.show(done, planned, fmt::format("{} {}", plan.title, what));
  };
  lab::MonitorThread monitor(context.device(), kMonitorSeconds);
  Result<profile::StepRun> run = profile::record_step(context, plan, options, ranks.of_steps());
  bar.clear();
  if (!run.ok()) fail_among(ranks, run.status());
  profile::Profile out = planned_profile(arguments, request, model, plan);
  out.recording = std::move(run->recording);
  out.recording.device = device_words(context);
  const bool gpu = context.device().kind == DeviceKind::kCuda;
  out.recording.roofs = roofs_of(environment, request.options.precision, gpu);
  out.measured_bytes = run->measured_bytes;
  out.environment = environment;
  out.environment.monitor = monitor.stop();
  out.missing = missing_instruments(gpu, run->why_not_better, arguments);
  add_interruption(out);
  if (out.recording.steps() > 0) {
    profile::AdviceInput in = advice_input(out, request, model, plan);
    profile::add_monitor(out.environment, monitor.max_clock_mhz(), in);
    out.advice = profile::advise(in);
  }
  return out;
}

}  // namespace

int run_profile_step(const Arguments& arguments) {
  if (arguments.has("--dry-run")) {
    return dry_run(arguments, request_of(arguments, DeviceKind::kCpu));
  }
  // Which model a run without a name takes depends on the device; a bad flag is told before one is
  // opened.
  TrainingRanks started = training_ranks(arguments);
  const train::Ranks& ranks = started.ranks;
  static_cast<void>(request_of(arguments, DeviceKind::kCpu, &ranks));
  const Context context =
      make_context(arguments, ranks.size() > 1 ? DefaultDevice::kCpu : DefaultDevice::kGpuIfThere);
  connect_gpus(started, context, {.beside_kernels = true});
  Request request = request_of(arguments, context.device().kind, &ranks);
  if (ranks.size() > 1) request.options.gpu = context.device().kind == DeviceKind::kCuda;
  for (const std::int64_t tokens : request.contexts) {
    const train::StepPlan plan =
        plan_of(with_context(request.model, tokens), request.options, request.parallel);
    const Status admitted = ranks.agree(admit_step(context, plan));
    if (!admitted.ok()) fail_among(ranks, admitted);
  }
  if (!ranks.leads()) return take_part(arguments, request, context, ranks);
  // A folder that cannot be made is told before anything runs.
  const fs::path parent = profile_folder(arguments);
  const bool quick = arguments.has("--quick");
  lab::Environment environment =
      environment_of(context, "recorded steps beside steps without an instrument");
  lab::add_roofs(context, environment, lab::roof_look(quick));
  const bool to_stdout = arguments.value("--json") == "-";
  bool complete = true;
  for (const std::int64_t tokens : request.contexts) {
    const train::ModelConfig model = with_context(request.model, tokens);
    profile::Profile p = run_one(arguments, request, model, context, environment, ranks);
    const fs::path folder = folder_for(parent, tokens, request.contexts.size() > 1);
    if (context.device().kind == DeviceKind::kCuda) add_nsight(arguments, folder, p);
    if (!to_stdout) {
      print_ledger(arguments, p);
      print_memory(p);
      if (arguments.has("--memory")) print_memory_details(p);
      print_advice(p);
    }
    complete = write_profile_folder(arguments, folder, p) && complete;
    if (interrupted().load()) return kExitInterrupted;
  }
  return complete ? kExitOk : kExitFailure;
}

}  // namespace flashlab::cli
