#include "cli/flags.h"

#include <algorithm>

#include "case.h"
#include "cli/command.h"
#include "cli/flag_parts.h"
#include "cli/peers.h"
#include "flashlab/attention.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

using Words = std::vector<std::string>;

Words dtype_choices() {
  return {"fp64", "fp32", "tf32", "fp16", "bf16"};
}
Words check_dtype_choices() {
  return dtype_choices();
}
Words causal_choices() {
  return {"top-left", "bottom-right"};
}
Words pass_choices() {
  return {"forward", "backward", "both"};
}
Words shell_choices() {
  return {"bash", "zsh", "fish"};
}
Words peer_choices() {
  Words out = {"none", "cublas", "cudnn", "torch"};
  out.insert(out.end(), python_peers().begin(), python_peers().end());
  return out;
}
Words isa_choices() {
  Words out;
  for (CpuIsa isa : {CpuIsa::kAutomatic, CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2,
                     CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    out.emplace_back(to_string(isa));
  }
  return out;
}
// Of every kind of device, each name once.
Words implementation_choices() {
  Words out = implementations(Device{});
  for (std::string& name : implementations({DeviceKind::kCuda, 0})) {
    if (std::ranges::find(out, name) == out.end()) out.push_back(std::move(name));
  }
  return out;
}
// What stands in a row of `compare`.
Words contestant_choices() {
  Words out = implementation_choices();
  out.insert(out.end(), python_peers().begin(), python_peers().end());
  return out;
}
Words preset_choices() {
  Words out;
  for (const cases::Preset& preset : cases::presets()) out.push_back(preset.problem.name);
  return out;
}
Words sweep_choices() {
  Words out;
  for (const cases::Sweep& sweep : cases::sweeps()) out.push_back(sweep.name);
  return out;
}

Words selection_choices() {
  return {"common", "shipped", "smoke", "representative", "all"};
}

constexpr unsigned kMeasured = kBench | kCompare;
constexpr unsigned kShaped = kMeasured | kExplain | kProfileAttention;
constexpr unsigned kGiven = kShaped | kCheck;
constexpr unsigned kTimed = kMeasured | kSubjects;
constexpr unsigned kSaved = kTimed | kBenchStep;

constexpr std::string_view kProblem = "Problem";
constexpr std::string_view kExecution = "What runs it";
constexpr std::string_view kKernels = "Kernels";
constexpr std::string_view kOther = "Other";

// Subjects that `bench NAME` measures, with the bit of its command.
std::vector<std::pair<CommandBit, const lab::SubjectBench*>> benches() {
  std::vector<std::pair<CommandBit, const lab::SubjectBench*>> out;
  for (const lab::Subject* subject : lab::subjects()) {
    if (subject->bench == nullptr) continue;
    out.emplace_back(static_cast<CommandBit>(kFirstSubject << out.size()), subject->bench);
  }
  return out;
}

std::vector<FlagSpec> flags_of_subjects() {
  std::vector<FlagSpec> out;
  for (const auto& [bit, bench] : benches()) {
    for (const lab::ProblemFlag& flag : bench->flags) {
      out.push_back(
          {flag.name, "", flag.value, FlagKind::kList, bit, kProblem, flag.help, flag.choices});
    }
    for (const lab::ProblemFlag& flag : bench->settings) {
      out.push_back(
          {flag.name, "", flag.value, FlagKind::kList, bit, kExecution, flag.help, flag.choices});
    }
    if (!bench->sweeps.empty()) {
      out.push_back({"--sweep", "", "NAME", FlagKind::kValue, bit, kProblem, bench->sweep_help,
                     bench->sweep_names});
    }
    if (bench->knows_ranks) {
      out.push_back({"--timeout", "", "SECONDS", FlagKind::kValue, bit, kProblem,
                     "a rank that keeps the others waiting for so long is given up, and all end "
                     "(default 120)"});
    }
  }
  return out;
}

std::vector<CommandSpec> commands_of_subjects() {
  std::vector<CommandSpec> out;
  for (const auto& [bit, bench] : benches()) {
    CommandSpec& command = out.emplace_back(
        CommandSpec{bit, bench->command, run_bench_subject, bench->summary, bench->about, {}});
    command.knows_ranks = bench->knows_ranks;
    for (const auto& [words, what] : bench->examples) command.examples.push_back({words, what});
  }
  return out;
}

// What is computed and what computes it. Order is the order of help inside each group.
std::vector<FlagSpec> flags_of_runs() {
  using enum FlagKind;
  return {
      {"--batch", "", "N[,N]", kList, kGiven, kProblem, "sequences (default 2; compare: 1)"},
      {"--heads", "--nheads", "N[,N]", kList, kGiven, kProblem, "query heads (default 8)"},
      {"--kv-heads", "", "N[,N]", kList, kGiven, kProblem,
       "key and value heads, a divisor of --heads (default: as --heads)"},
      {"--head-dim", "--headdim", "N[,N]", kList, kGiven, kProblem,
       "elements of a head of q and k (default 64)"},
      {"--head-dim-v", "", "N[,N]", kList, kGiven, kProblem,
       "elements of a head of v (default: as --head-dim)"},
      {"--seqlen", "", "N[,N]", kList, kGiven, kProblem,
       "queries of a sequence; k is 1024: 512,1k,16k (default 1024; compare: 2k, 4k on a GPU)"},
      {"--seqlen-k", "", "N[,N]", kList, kGiven, kProblem,
       "keys of a sequence (default: as --seqlen)"},
      {"--causal", "", "ALIGNMENT", kOptionalValue, kGiven, kProblem,
       "hide later keys; the alignment must be named where the lengths differ", causal_choices},
      {"--window", "", "LEFT,RIGHT", kValue, kGiven, kProblem,
       "hide keys further than LEFT before or RIGHT after the query's own; all is no bound; "
       "LEFT,RIGHT,top-left or LEFT,RIGHT,bottom-right where the lengths differ"},
      {"--attention-chunk", "", "KEYS", kValue, kGiven, kProblem,
       "see the keys of the own chunk of so many alone"},
      {"--softcap", "", "CAP", kValue, kGiven, kProblem, "bend scores: CAP tanh(score / CAP)"},
      {"--alibi", "", "", kSwitch, kGiven, kProblem,
       "add ALiBi's biases, -slope |distance|, with the slopes of the paper"},
      {"--dropout", "", "P", kValue, kGiven, kProblem, "drop probabilities with probability P"},
      {"--dropout-seed", "", "N", kValue, kGiven, kProblem,
       "of the dropped pairs (default: as --seed)"},
      {"--sinks", "", "", kSwitch, kGiven, kProblem,
       "add a score of its own to every row of a head, and its gradient"},
      {"--lengths", "", "MIX[:TOKENS]", kValue, kGiven, kProblem,
       "a ragged batch of so many tokens (default 16k), lengths drawn by --seed: documents "
       "(log-normal, median 600), one-long, chat (16 to 512), half (1 to 4k), equal (2k), any (1 "
       "to 16k); or a list of them, 4k+63x1"},
      {"--lengths-k", "", "MIX", kValue, kGiven, kProblem,
       "keys of each sequence, likewise: 64x8k (default: as many as queries)"},
      {"--cache-length", "", "N[,N]", kList, kGiven, kProblem,
       "keys in a cache, so many for each of --batch sequences, or of those of --lengths; beside "
       "--lengths-k room for so many; forward only"},
      {"--queries", "", "N[,N]", kList, kGiven, kProblem,
       "queries beside --cache-length (default 1)"},
      {"--page-size", "", "KEYS", kValue, kGiven, kProblem,
       "the cache in pages of so many keys, out of order (default: contiguous)"},
      {"--scale", "", "X", kValue, kGiven, kProblem,
       "factor of the scores (default 1/sqrt(head dim))"},
      {"--dtype", "", "TYPE[,TYPE]", kList, kShaped, kProblem,
       "element types (default fp32; compare: fp32,bf16)", dtype_choices},
      {"--pass", "", "PASS", kValue, kGiven, kProblem,
       "what is computed (default forward; compare, check: both)", pass_choices},
      {"--no-grad", "", "", kSwitch, kGiven, kProblem, "the same as --pass forward"},
      {"--preset", "", "NAME[,NAME]", kList, kGiven, kProblem,
       "problems known by name; other flags change what they name", preset_choices},
      {"--sweep", "", "NAME", kValue, kGiven, kProblem,
       "a family of problems over lengths, head dims or types", sweep_choices},
      {"--input", "", "FILE", kFile, kMeasured | kCheck, kProblem,
       "tensors q, k, v (and do), each [batch, seqlen, heads, head_dim], from a .safetensors or "
       ".npz file"},

      {"--config", "", "FILE", kFile,
       kShaped | kCheck | kSubjects | kBenchStep | kCheckStep | kGenerate | kEvaluate | kExport |
           kTokenize | kCheckParallel | kBenchParallel | kExplainParallel | kExplainPrecision |
           kAccumulate | kPrecompile,
       kExecution, "a JSON or TOML file of flags, with _ for -; typed flags go over it"},
      {"--device", "", "DEVICE", kValue,
       kShaped | kCheck | kSubjects | kInfo | kBenchStep | kCheckStep | kTrains | kProfileStep |
           kMonitor | kGenerate | kEvaluate | kBenchPrecision | kCheckParallel | kBenchParallel,
       kExecution,
       "cpu or cuda[:N] (default: the GPU where there is one that can run what is asked, else cpu; "
       "check, generate, info, bench collective and weighted-sum: cpu)"},
      {"--implementation", "", "NAME[,NAME]", kList, kBench | kExplain | kCheck | kProfileAttention,
       kExecution,
       "names (default: the production one; check: all but reference and other people's)",
       implementation_choices},
      {"--implementation", "", "NAME[,NAME]", kList, kCompare, kExecution,
       "names (default: all of the device but reference, cuBLASLt and cuDNN where they are found)",
       contestant_choices},
      {"--threads", "", "N", kValue,
       kShaped | kCheck | kSubjects | kInfo | kProfileStep | kBenchStep, kExecution,
       "CPU threads (default: all that may run)"},
      {"--cpu-isa", "", "NAME", kValue,
       kShaped | kCheck | kSubjects | kInfo | kProfileStep | kBenchStep, kExecution,
       "force an instruction set (default: the best there is)", isa_choices},
      {"--tile-q", "", "N", kValue, kShaped, kExecution,
       "queries per tile, where an implementation lets you choose"},
      {"--tile-k", "", "N", kValue, kShaped, kExecution, "keys per tile, likewise"},
      {"--peers", "", "NAME[,NAME]", kList, kCompare, kExecution,
       "other libraries to run beside these (default: those that are found; none: none); torch is "
       "PyTorch's backends, and the other packages where they are installed. Beside any of those "
       "every time is taken in --python",
       peer_choices},
      {"--python", "", "FILE", kFile, kCompare | kBenchStep | kBenchParallel, kExecution,
       "the Python that has torch and flashlab installed (default python3)"},
      {"--python-timeout", "", "SECONDS", kValue, kCompare | kBenchStep, kExecution,
       "without a sign of life for so long Python is ended (default 300)"},
  };
}

// How it is measured and where the results go.
std::vector<FlagSpec> flags_of_results() {
  using enum FlagKind;
  return {
      {"--warmup", "", "N", kValue, kTimed, kMeasurement,
       "calls before the first sample (default 3); 0: the first call is the first sample"},
      {"--repeats", "", "N", kValue, kTimed, kMeasurement,
       "samples (default 30; compare without it: as many as fit in a few seconds)"},
      {"--seed", "", "N", kValue, kSaved | kExplain | kCheck | kProfileAttention, kMeasurement,
       "of the random inputs (default 1)"},
      {"--check", "", "", kSwitch, kBench | kSubjects, kMeasurement,
       "the error against fp64 as well (compare always does)"},
      {"--baseline", "", "FILE", kFile, kSaved, kMeasurement,
       "a saved --json file: verdict per case, exit code 3 when one is slower"},
      {"--relative-to", "", "NAME", kValue, kBench, kMeasurement,
       "ratios against this implementation", implementation_choices},
      {"--ladder", "", "", kSwitch, kCompare, kMeasurement,
       "the rungs of the ladder alone, and what each gains over the one below"},
      {"--relative-to", "", "NAME", kValue, kCompare, kMeasurement,
       "ratios against this implementation or peer", contestant_choices},
      {"--roof", "", "", kSwitch, kInfo, kMeasurement,
       "measure the roofs: arithmetic in fp32 and bf16, and copying (some seconds)"},
      {"--pairs", "", "", kSwitch, kCheck, kMeasurement,
       "the list of pairs instead: every two features at once, with every fill"},
      {"--quick", "", "", kSwitch, kCheck, kMeasurement, "every eighth case"},
      {"--repeat-bitwise", "", "N", kValue, kCheck, kMeasurement,
       "calls that must give the same bits where that is promised (default 2)"},
      {"--case", "", "TEXT[,TEXT]", kList, kCheck, kMeasurement,
       "only cases whose name contains this"},
      {"--dtype", "", "TYPE[,TYPE]", kList, kCheck, kMeasurement,
       "only cases of these types; of a problem that is given, its types", check_dtype_choices},

      {"--json", "", "FILE", kFile, kSaved | kInfo | kCheck, kResults,
       "results by the schema flashlab.bench/1; - is stdout, and nothing else goes there"},
      {"--csv", "", "FILE", kFile, kSaved, kResults, "one line per result; - is stdout"},
      {"--markdown", "", "FILE", kFile, kSaved, kResults, "tables for a README; - is stdout"},
      {"--latex", "", "FILE", kFile, kSaved, kResults, "a table for a paper; - is stdout"},
      {"--log", "", "FILE.md", kFile, kSaved, kResults, "append a dated result to this file"},
      {"--output", "", "DIR", kFolder, kSaved, kResults,
       "report.html, json, csv and plots go here (compare: default results/<date>)"},
      {"--arch", "", "NAME[,NAME]", kList, kExplain, kExecution,
       "in place of --device: GPUs that need not be here, sm_80, sm_90a, ..."},
      {"--memory", "", "", kSwitch, kExplain, kResults,
       "bytes of every tensor and workspace, implementation by implementation"},
      {"--verbose", "", "", kSwitch, kExplain, kResults,
       "also the constants that every kernel is compiled with"},

      {"--arch", "", "NAME[,NAME]", kList, kPrecompile, kKernels,
       "what to compile for: sm_80, sm_90a, ... (default: the GPUs of this machine)"},
      {"--for", "", "FILE", kFile, kPrecompile, kKernels,
       "the kernels of your own problems alone: a JSON problem, {\"head_dim\": 128, \"dtype\": "
       "\"bf16\", \"heads\": 32, \"kv_heads\": 8, \"causal\": \"bottom-right\"}, a list of them, "
       "or a "
       "model's config.json"},
      {"--selection", "", "NAME", kValue, kPrecompile, kKernels, "how much (default common)",
       selection_choices},
      {"--threads", "", "N", kValue, kPrecompile, kKernels,
       "compilations at once (default: all CPU threads that may run)"},
      {"--output", "", "DIR", kFolder, kPrecompile, kKernels,
       "the folder to fill; FLASHLAB_PRECOMPILED=DIR makes the library look there"},
      {"--prune", "", "", kSwitch, kPrecompile, kKernels,
       "remove what else the folder holds, such as kernels of earlier sources"},
      {"--json", "", "FILE", kFile, kPrecompile, kKernels,
       "every kernel with its registers, spills and shared memory; - is stdout"},
      {"--list", "", "", kSwitch, kCache, kKernels, "folder, entries and bytes (the default)"},
      {"--clear", "", "", kSwitch, kCache, kKernels, "remove every entry"},

      {"--help", "-h", "", kSwitch, ~0u, kOther, "this text"},
  };
}

const std::vector<FlagSpec>& table() {
  static const std::vector<FlagSpec> kTable = [] {
    std::vector<FlagSpec> out = flags_of_runs();
    // Behind the other problems' flags: completion takes a flag's values from its first row.
    const std::vector<FlagSpec> subjects = flags_of_subjects();
    out.insert(std::ranges::find(out, kExecution, &FlagSpec::group), subjects.begin(),
               subjects.end());
    for (const auto part : {flags_of_training, flags_of_schedules, flags_of_models, flags_of_steps,
                            flags_of_ranks, flags_of_profiles, flags_of_results}) {
      for (const FlagSpec& flag : part()) out.push_back(flag);
    }
    return out;
  }();
  return kTable;
}

std::vector<CommandSpec> commands_of_attention() {
  return {
      {kInfo,
       "info",
       run_info,
       "what this machine has, what is missing, what would spoil a measurement",
       "Shows processor, memory, instruction sets, implementations, what was found of NVIDIA's "
       "libraries, and warns of anything that would make timings unreliable.",
       {{"flashlab info", "the machine and its warnings"},
        {"flashlab info --roof", "and its measured limits"},
        {"flashlab info --roof --device cuda", "those of the GPU"},
        {"flashlab info --json -", "for a program"}}},
      {kCheck,
       "check",
       run_check,
       "every implementation against the fp64 oracle",
       "Runs the conformance list: each implementation, forward and backward, against plain fp64 "
       "loops, and the measuring instrument against known durations. Exit code 4 when something is "
       "wrong; each failure names the worst element and the command that repeats it.",
       {{"flashlab check", "everything, about a minute"},
        {"flashlab check --quick --implementation cpu", "a part of it"},
        {"flashlab check --pairs", "every two features at once"},
        {"flashlab check --dtype bf16 --cpu-isa avx2", "one type, one instruction set"},
        {"flashlab check --device cuda --repeat-bitwise 1000", "every kernel of a GPU"},
        {"flashlab check --input mine.safetensors", "on your own tensors"}}},
      {kBench,
       "bench",
       run_bench,
       "time one implementation on one problem or many",
       "One line per problem and pass: time, FLOP/s, share of the measured roof, memory. Lists "
       "make "
       "a product: every combination is measured. On a narrow terminal what all problems share "
       "stands once above the lines.",
       {{"flashlab bench", "batch 2, 1024 tokens, 8 heads of 64, fp32, forward"},
        {"flashlab bench --head-dim 64,128 --seqlen 1k,4k --causal --dtype bf16 --pass both",
         "eight cases"},
        {"flashlab bench --preset gpt2-small --json today.json", "save the figures"},
        {"flashlab bench --preset gpt2-small --baseline today.json", "compare with them later"},
        {"flashlab bench --sweep course --output results/course", "with plots and a report"},
        {"flashlab bench --input mine.safetensors --check", "on your own tensors"}}},
      {kCompare,
       "compare",
       run_compare,
       "all implementations on the same problem, with a report",
       "Runs the implementations in turns, so that a busy machine hits all alike; says which is "
       "fastest, leanest and most accurate; writes report.html.",
       {{"flashlab compare",
         "a GPT decoder's layer on a GPU, else batch 1, 8 heads, 2048 tokens, d 64"},
        {"flashlab compare --device cpu", "1 x 2048 tokens, 8 heads of 64, fp32 and bf16"},
        {"flashlab compare --preset gpt2-small --dtype bf16", "a known problem"},
        {"flashlab compare --seqlen 512,1k,2k,4k --relative-to naive", "ratios and crossover"},
        {"flashlab compare --ladder", "from the formula to the production kernel, rung by rung"},
        {"flashlab compare --peers torch --python .venv/bin/python", "beside PyTorch"},
        {"flashlab compare --implementation cpu,naive --baseline last.json",
         "exit code 3 when slower"}}},
      {kExplain,
       "explain",
       run_explain,
       "what would run, and why",
       "Prints the plan without running it: kernels, tiles, stages, warps, blocks, shared memory, "
       "workspace, reasons; with --memory every tensor's bytes for each implementation. A GPU may "
       "be named by its architecture, and need not be here.",
       {{"flashlab explain --head-dim 128 --seqlen 16k --causal", "the plan"},
        {"flashlab explain --arch sm_90a --dtype bf16 --verbose", "of an H100 or H200"},
        {"flashlab explain --preset gpt3-large --memory", "the bytes, without allocating them"}}},
  };
}

std::vector<CommandSpec> commands_of_kernels() {
  return {
      {kPrecompile,
       "precompile",
       run_precompile,
       "compile GPU kernels ahead, into a folder",
       "Fills a folder for machines that must not compile, or have no compiler: the production "
       "kernels of the usual problems (common), those of them that an installation carries "
       "(shipped), one variant of each kernel (smoke), one for each "
       "element type and class of head dims (representative), or all that the planner emits. Needs "
       "NVRTC and no GPU.",
       {{"flashlab precompile --arch sm_90a --output kernels", "for H100 and H200"},
        {"flashlab precompile --arch sm_90a --for config.json --output kernels",
         "what one model needs"},
        {"flashlab precompile --arch sm_80,sm_90a --selection all --output kernels",
         "everything, an hour or more"},
        {"FLASHLAB_PRECOMPILED=kernels flashlab bench --device cuda", "use them"}}},
      {kCache,
       "cache",
       run_cache,
       "the compiled GPU kernels of this user",
       "Kernels are compiled on first use and kept in FLASHLAB_CACHE, else in "
       "$XDG_CACHE_HOME/flashlab/kernels or ~/.cache/flashlab/kernels.",
       {{"flashlab cache --list", "folder, entries, bytes"},
        {"flashlab cache --clear", "remove them"}}}};
}

CommandSpec completion() {
  return {kCompletion,
          "completion",
          run_completion,
          "completion for your shell",
          "Prints a script that completes commands, flags and their values.",
          {{"source <(flashlab completion bash)", "in this shell"},
           {"flashlab completion zsh > ~/.zfunc/_flashlab", "for zsh"},
           {"flashlab completion fish > ~/.config/fish/completions/flashlab.fish", "for fish"}},
          "SHELL",
          shell_choices};
}

const std::vector<CommandSpec>& command_table() {
  static const std::vector<CommandSpec> kCommands = [] {
    std::vector<CommandSpec> out;
    for (const auto part :
         {commands_of_attention, commands_of_kernels, commands_of_training, commands_of_models,
          commands_of_steps, commands_of_ranks, commands_of_profiles}) {
      for (CommandSpec& command : part()) {
        out.push_back(std::move(command));
        if (out.back().bit != kBench) continue;
        for (CommandSpec& subject : commands_of_subjects()) out.push_back(std::move(subject));
      }
    }
    out.push_back(completion());
    return out;
  }();
  return kCommands;
}

}  // namespace

std::span<const CommandSpec> commands() {
  return command_table();
}

const CommandSpec* find_command(std::string_view name) {
  for (const CommandSpec& candidate : command_table()) {
    if (candidate.name == name) return &candidate;
  }
  return nullptr;
}

const CommandSpec& command(CommandBit bit) {
  for (const CommandSpec& candidate : command_table()) {
    if (candidate.bit == bit) return candidate;
  }
  return command_table().front();
}

std::span<const FlagSpec> flags() {
  return table();
}

std::vector<const FlagSpec*> flags_of(CommandBit bit) {
  std::vector<const FlagSpec*> out;
  for (const FlagSpec& flag : table()) {
    if ((flag.commands & bit) != 0) out.push_back(&flag);
  }
  return out;
}

const FlagSpec* find_flag(std::string_view name) {
  for (const FlagSpec& flag : table()) {
    if (flag.name == name || (!flag.alias.empty() && flag.alias == name)) return &flag;
  }
  return nullptr;
}

std::string removed(std::string_view name) {
  if (name == "tune") {
    return "tune is no command any more: nobody had measured a table with it, and the planner's "
           "rule chooses tilings; flashlab explain shows which";
  }
  if (name == "sm90.loop") {
    return "sm90.loop is gone: it was no implementation but the main loop of sm90's forward alone; "
           "flashlab bench --implementation sm90 measures the kernel";
  }
  return "";
}

std::span<const std::string_view> future_commands() {
  static constexpr std::string_view kNames[] = {"report"};
  return kNames;
}

}  // namespace flashlab::cli
