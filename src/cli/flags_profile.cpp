#include "cli/command.h"
#include "cli/flag_parts.h"

namespace flashlab::cli {
namespace {

Words key_choices() {
  return {"kernel", "operation", "class", "layer", "phase"};
}
Words order_choices() {
  return {"total", "mean", "calls", "flops", "bytes", "name"};
}

constexpr unsigned kProfiles = kProfileStep | kProfileAttention;

constexpr std::string_view kLedger = "Ledger";

}  // namespace

std::vector<FlagSpec> flags_of_profiles() {
  using enum FlagKind;
  return {
      {"--context", "", "N[,N]", kList, kProfileStep, kModel,
       "tokens of a sequence: one profile each (default: the model's)"},
      {"--steps", "", "N", kValue, kProfileStep, kMeasurement,
       "recorded steps, each beside one that nobody records (default 5)"},
      {"--warmup", "", "N", kValue, kProfileStep, kMeasurement,
       "steps before them; the first of all is shown apart (default 2)"},
      {"--quick", "", "", kSwitch, kProfiles, kMeasurement,
       "at most ten seconds of steps and short looks at the roofs"},
      {"--dry-run", "", "", kSwitch, kProfileStep, kMeasurement,
       "plan only: peaks of memory of forward and of the full step, on any machine"},
      {"--ncu", "", "", kSwitch, kProfiles, kMeasurement,
       "run once more, short, under Nsight Compute: counters of the five longest kernels"},
      {"--nsys", "", "", kSwitch, kProfiles, kMeasurement,
       "run once more, short, under Nsight Systems: its report and its sums of the kernels"},
      {"--seed", "", "N", kValue, kProfileStep, kMeasurement,
       "of weights and tokens (default 1337)"},
      {"--by", "", "KEY", kValue, kProfiles, kLedger,
       "what the printed ledger adds up by (default kernel)", key_choices},
      {"--sort", "", "ORDER", kValue, kProfiles, kLedger, "its order (default total)",
       order_choices},
      {"--top", "", "N", kValue, kProfiles, kLedger, "its rows (default 12; 0: all)"},
      {"--memory", "", "", kSwitch, kProfileStep, kResults,
       "print the memory's peaks, its largest tensors and what a block keeps for backward"},
      {"--detail", "", "BYTES", kValue, kProfileStep, kResults,
       "tensors below this are not drawn in the memory's picture (default: a thousandth of the "
       "arena)"},
      {"--output", "", "DIR", kFolder, kProfiles, kResults,
       "SUMMARY.md, report.html, ledger, trace and pictures go here (default "
       "results/profile-<date>; with --dry-run: nowhere)"},
      {"--interval", "", "SECONDS", kValue, kMonitor, kMeasurement,
       "between two samples (default 0.5)"},
      {"--duration", "", "SECONDS", kValue, kMonitor, kMeasurement,
       "how long (default: until Ctrl-C)"},
      {"--csv", "", "FILE", kFile, kMonitor, kResults, "every sample, a line each; - is stdout"},
      {"--json", "", "FILE", kFile, kMonitor, kResults,
       "all samples at the end, by the schema flashlab.monitor/1; - is stdout"},
      {"--json", "", "FILE", kFile, kProfiles, kResults,
       "the ledger by the schema flashlab.ledger/1; - is stdout"},
  };
}

std::vector<CommandSpec> commands_of_profiles() {
  return {
      {kMonitor,
       "monitor",
       run_monitor,
       "load, clock, power, temperature and memory of a device over time",
       "Samples a GPU by NVML, or the processor by what the kernel shows, until Ctrl-C. A terminal "
       "shows the last minute as a small chart, a pipe a line for every sample. What the system "
       "does not show stays empty.",
       {{"flashlab monitor", "the first GPU, else the processor"},
        {"flashlab monitor --device cpu --duration 10 --csv samples.csv",
         "ten seconds into a file"},
        {"flashlab monitor --interval 2 | tee clock.log", "plain lines"}}},
      {kProfileAttention,
       "profile attention",
       run_profile_attention,
       "the kernels of an attention call, what bounds them, what to try",
       "Measures one problem, forward and backward, kernel by kernel, and writes the folder of "
       "profile step: summary, page, ledger, trace, flame graph, roofline, and the results as "
       "bench "
       "saves them. Kernel names contain flash_fwd and flash_bwd.",
       {{"flashlab profile attention", "the production kernels on a usual problem"},
        {"flashlab profile attention --head-dim 128 --seqlen 4k --causal --dtype bf16", "yours"},
        {"flashlab profile attention --implementation naive --dtype fp32 --seqlen 1k",
         "softmax against products"}}},
      {kProfileStep,
       "profile step",
       run_profile_step,
       "where a training step's time and memory go",
       "Runs a training step on random tokens, measures every operation (on a GPU every kernel, by "
       "CUPTI where it is found) and writes one "
       "folder: SUMMARY.md and report.html to start with, the ledger (by kernel, operation, class, "
       "layer, phase), a trace for ui.perfetto.dev, folded stacks and a flame graph, the roofline, "
       "the memory's timeline and a snapshot that pytorch.org/memory_viz opens. Says what limits "
       "the step and what to try.",
       {{"flashlab profile step", "the tiny model on this machine"},
        {"flashlab profile step --attention naive --by class", "softmax against products"},
        {"flashlab profile step --size small --batch 1 --context 128 --quick", "a larger one"},
        {"flashlab profile step --size 2.7B --context 128,256,512 --memory --dry-run",
         "peaks of memory, without running anything"},
        {"flashlab launch -n 2 profile step --parallel bucket", "what ranks exchange beside what"}},
       {},
       nullptr,
       /*takes_command=*/false,
       /*knows_ranks=*/true},
  };
}

}  // namespace flashlab::cli
