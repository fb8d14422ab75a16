// Commands about several ranks, and their flags.

#include "cli/command.h"
#include "cli/flag_parts.h"

namespace flashlab::cli {
namespace {

constexpr unsigned kRewrites = kTrain | kBenchParallel | kExplainStep | kBenchStep | kProfileStep;

Words machine_choices() {
  return {"h200", "h100", "b200", "v5p"};
}
Words parallel_choices() {
  return {"naive", "flat", "overlap", "bucket", "ddp", "sharded", "zero1", "zero2", "fsdp"};
}
Words wire_choices() {
  return {"fp32", "bf16"};
}
Words transport_choices() {
  return {"shared", "mpi"};
}
Words peers_beside_ranks() {
  return {"torch"};
}
Words state_choices() {
  return {"bf16", "fp32"};
}

}  // namespace

std::vector<FlagSpec> flags_of_ranks() {
  using enum FlagKind;
  return {
      {"--ranks", "-n", "N", kValue, kLaunch, kRanks, "processes of the command, 1 to 64"},

      {"--parallel", "", "MODE", kValue, kTrain | kBenchStep | kProfileStep, kRanks,
       "when ranks add their gradients: naive (after backward, one by one), flat (all at once), "
       "overlap (each beside backward), bucket (runs of them; also called ddp); with a part of the "
       "optimizer on each rank: sharded (buckets), zero1 (each gets the gradients of its part of "
       "every layer), zero2 (and keeps no others), fsdp (nor values of other parameters) "
       "(default bucket)",
       parallel_choices},
      {"--parallel", "", "MODE", kValue, kExplainStep, kRanks,
       "one of --ranks N ranks in this mode of train --parallel: its list and its memory",
       parallel_choices},
      {"--ranks", "", "N", kValue, kExplainStep, kRanks,
       "of --parallel; --batch is of all of them (default 2)"},
      {"--parallel", "", "MODE[,MODE]", kList, kBenchParallel, kRanks,
       "modes of train --parallel (default: all)", parallel_choices},
      {"--size", "", "NAME", kValue, kBenchParallel, kModel, "a model as of train (default tiny)"},
      {"--batch", "", "N", kValue, kBenchParallel, kModel,
       "sequences of a step, of all ranks together (default 12)"},
      {"--batch-per-rank", "", "N", kValue, kBenchParallel, kModel,
       "sequences of a step on each rank, instead of --batch"},
      {"--context", "", "N", kValue, kBenchParallel, kModel,
       "tokens of a sequence (default: the model's)"},
      {"--precision", "", "NAME", kValue, kBenchParallel, kModel,
       "types as of train (default fp32)", precision_choices},
      {"--repeats", "", "N", kValue, kBenchParallel, kRanks, "timed steps (default 10)"},
      {"--warmup", "", "N", kValue, kBenchParallel, kRanks,
       "steps before the first timed one (default 2)"},
      {"--peers", "", "NAME", kList, kBenchParallel, kRanks,
       "torch: behind the modes PyTorch on the same shapes: DDP for bucket, ZeRO-1 for zero1, "
       "FSDP2 "
       "for fsdp",
       peers_beside_ranks},
      {"--json", "", "FILE", kFile, kBenchParallel, kResults,
       "the rows by the schema flashlab.bench-parallel/1; - is stdout, and nothing else goes "
       "there"},
      {"--bucket", "", "BYTES", kValue, kRewrites & ~kBenchParallel, kRanks,
       "gradients that are added together, 1KB to all (default 25MB)"},
      {"--bucket", "", "BYTES[,BYTES]", kList, kBenchParallel, kRanks,
       "gradients that are added together, 1KB to all: a row each of every mode that has buckets "
       "(default 25MB)"},
      {"--wire", "", "TYPE", kValue, kRewrites, kRanks,
       "how gradients travel: fp32 (as they are), bf16 (rounded, and their fp32 sums once more: "
       "half "
       "the bytes, the bits no longer one rank's) (default fp32)",
       wire_choices},
      {"--deterministic", "", "", kSwitch, kTrain, kRanks,
       "the bits of one process with as many --shares on GPUs, too, in 16-bit types: all sums "
       "between them are ours, and attention's backward adds in one order; with one share bits "
       "that depend on no number of threads"},
      {"--transport", "", "NAME", kValue,
       kTrain | kCheckParallel | kBenchParallel | kBenchStep | kProfileStep, kRanks,
       "who carries the bytes: shared (memory of one host), mpi (under mpirun) (default shared)",
       transport_choices},
      {"--quick", "", "", kSwitch, kCheckParallel, kRanks,
       "four modes of every model instead of all: a few seconds"},
      {"--threads", "", "N", kValue, kCheckParallel | kBenchParallel, kRanks,
       "CPU threads of a rank (default: all that may run)"},
      {"--timeout", "", "SECONDS", kValue, kTrain | kBenchStep | kProfileStep, kRanks,
       "how long ranks wait for one of them (default 120; 600 or more until the first step has "
       "ended)"},
      {"--timeout", "", "SECONDS", kValue, kCheckParallel | kBenchParallel, kRanks,
       "how long ranks wait for one of them (default 600)"},

      {"--size", "", "NAME", kValue, kExplainParallel, kModel,
       "a model as of explain step (default xl-2026)"},
      {"--tokens", "", "N", kValue, kExplainParallel, kModel,
       "tokens of a step, of all ranks together (default 16k)"},
      {"--precision", "", "NAME", kValue, kExplainParallel, kModel,
       "bf16 with fp32 masters, gradients and moments, or fp32 (default bf16)", state_choices},
      {"--ranks", "-n", "N[,N]", kList, kExplainParallel, kRanks, "how many (default 2,4,8)"},
      {"--bucket", "", "BYTES", kValue, kExplainParallel, kRanks,
       "gradients that are sent together (default 25MB)"},
      {"--machine", "", "NAME", kValue, kExplainParallel, kRanks,
       "what a rank is; the next flags change what it can (default h200)", machine_choices},
      {"--tflops", "", "X", kValue, kExplainParallel, kRanks, "TFLOP/s of a rank's products"},
      {"--link", "", "X", kValue, kExplainParallel, kRanks, "GB/s that a rank sends"},
      {"--call-us", "", "X", kValue, kExplainParallel, kRanks,
       "microseconds that a collective costs beside its bytes (default 20)"},
      {"--json", "", "FILE", kFile, kExplainParallel, kResults,
       "the modes by the schema flashlab.parallel/1; - is stdout, and nothing else goes there"},
  };
}

std::vector<CommandSpec> commands_of_ranks() {
  std::vector<CommandSpec> out = {
      {kLaunch,
       "launch",
       run_launch,
       "one command as several ranks on this host",
       "Starts N processes of a command of flashlab that knows ranks, or, behind --, of any "
       "program, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
       "MASTER_ADDR, MASTER_PORT) and a share of the processors each. Rank 0 prints; lines of the "
       "others come with their rank. The first rank that fails ends all, with one message; Ctrl-C "
       "reaches all, and a second one ends them at once. Under torchrun, srun or mpirun the same "
       "commands run without launch.",
       {{"flashlab launch -n 2 bench collective", "what two processes can exchange"},
        {"flashlab launch -n 4 -- python train.py", "any program that reads torchrun's variables"}},
       "COMMAND"},
      {kExplainParallel,
       "explain parallel",
       run_explain_parallel,
       "what several ranks send, hold and gain",
       "By formula, on any machine: for every way of data parallel training the bytes that a rank "
       "sends a step, the time of it and what of it is left exposed, what a rank holds of states "
       "and whether it fits, up to how many ranks communication hides, the best bucket; and the "
       "problems that are solved by hand, with the numbers put in.",
       {{"flashlab explain parallel", "3.4 G parameters on 2, 4 and 8 H200"},
        {"flashlab explain parallel --size large --machine h100 --ranks 2 --tokens 16k",
         "another model and machine"},
        {"flashlab explain parallel --size tiny --tflops 0.1 --link 5 --precision fp32",
         "a processor's two ranks"}}}};
  out.front().takes_command = true;
  out.push_back(
      {kBenchParallel,
       "bench parallel",
       run_bench_parallel,
       "time a training step on several ranks, in every mode",
       "The full step of a model on the ranks that were started: the slowest rank's time, "
       "tokens/s, what forward, backward and the optimizer take, what collectives take "
       "and what of it is exposed (the step less the same list without collectives), and "
       "memory of a rank by role. On GPUs a step is one graph, and one GPU alone on its part "
       "of the batch stands beside.",
       {{"flashlab launch -n 2 bench parallel", "every mode on two ranks"},
        {"flashlab launch -n 2 bench parallel --parallel bucket --bucket 1MB,25MB,all",
         "one of them, by size of its buckets"},
        {"flashlab launch -n 2 bench parallel --device cuda --size large --batch-per-rank 16 "
         "--context 512 --precision bf16 --peers torch",
         "on two GPUs, beside PyTorch"}},
       {},
       nullptr,
       /*takes_command=*/false,
       /*knows_ranks=*/true});
  out.push_back(
      {kCheckParallel,
       "check parallel",
       run_check_parallel,
       "steps on several ranks against one rank's, bit for bit",
       "Trains small models (the course's; GPT-2's with tied weights and dropout) for 20 "
       "steps on the ranks that were started, in every mode of train --parallel, in fp32 "
       "and fp64, and compares losses, gradient norms and every weight and moment with "
       "one rank that has as many shares. Exit code 4 when a bit differs. On GPUs in "
       "bf16, by our sums and deterministic attention; and in fp32 by what training takes, "
       "whose losses are to be one rank's to 1e-5.",
       {{"flashlab launch -n 2 check parallel", "every mode on two ranks"},
        {"flashlab launch -n 4 check parallel --quick", "some of them on four"}},
       {},
       nullptr,
       /*takes_command=*/false,
       /*knows_ranks=*/true});
  return out;
}

}  // namespace flashlab::cli
