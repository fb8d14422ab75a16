#include "cli/command.h"
#include "cli/flag_parts.h"

namespace flashlab::cli {
namespace {

Words step_peer_choices() {
  return {"torch"};
}

}  // namespace

std::vector<FlagSpec> flags_of_steps() {
  using enum FlagKind;
  return {
      {"--size", "", "NAME[,NAME]", kList, kBenchStep, kModel,
       "named sizes (default small on a GPU, tiny on a CPU)"},
      {"--context", "", "N[,N]", kList, kBenchStep, kModel,
       "tokens of a sequence (default: the model's); largest is the longest power of two that "
       "fits"},
      {"--precision", "", "NAME[,NAME]", kList, kBenchPrecision, kSteps,
       "types (default fp32,bf16,fp16,bf16-pure; on a GPU tf32, too)", precision_choices},
      {"--precision", "", "NAME[,NAME]", kList, kCheckStep, kSteps, "types (default fp64,fp32)",
       checked_precision_choices},
      {"--threads", "", "N", kValue, kCheckStep, kSteps, "CPU threads (default: all that may run)"},
      {"--record", "", "FILE[,FILE]", kList, kCheckStep, kText,
       "what bench/peers/train_parity.py has written: FILE.json beside FILE.safetensors"},
      {"--mode", "", "MODE[,MODE]", kList, kBenchStep, kSteps,
       "forward alone, with backward, or the full step (default: all three)", mode_choices},
      {"--precision", "", "NAME[,NAME]", kList, kBenchStep, kSteps, "types (default fp32)",
       precision_choices},
      {"--attention", "", "NAME[,NAME]", kList, kBenchStep, kSteps,
       "production, naive (scores, softmax, values apart) or implementations (default production)"},
      {"--checkpoint", "", "GROUPS[,GROUPS]", kList, kBenchStep, kSteps,
       "none, or what is made again in backward, as train reads it with + for a comma: none,4,14+14"
       " (default none)"},
      {"--warmup", "", "N[,N]", kList, kBenchStep, kSteps,
       "steps before the first sample; several show what warming up is worth (default 5)"},
      {"--repeats", "", "N", kValue, kBenchStep, kSteps, "timed steps (default 10)"},
      {"--memory-limit", "", "BYTES", kValue, kBenchStep, kSteps,
       "what a step may take; one that needs more is a result (default: what the device has left)"},
      {"--peers", "", "NAME", kList, kBenchStep, kSteps,
       "torch: the same model in PyTorch, eager and compiled, in the same run", step_peer_choices},
      {"--relative-to", "", "NAME", kValue, kBenchStep, kResults,
       "ratios against this row: flashlab, torch.compile"},
      {"--operators", "", "SET[,SET]", kList, kBenchStep, kSteps, "fused, unfused (default fused)",
       operator_choices},
      {"--output", "", "DIR", kFolder, kBenchPrecision, kResults,
       "precision.json, precision.svg and a folder for each run go here (default results/<date>)"},
  };
}

std::vector<CommandSpec> commands_of_steps() {
  return {
      {kCheckStep,
       "check step",
       run_check_step,
       "a training step against another program's record",
       "Takes weights and batches out of a record that bench/peers/train_parity.py made with "
       "PyTorch, and compares the losses, every gradient and the weights after all steps. Exit "
       "code 4 when one is beyond its tolerance.",
       {{"flashlab check step --record course.json,gpt2.json", "in fp64 and fp32"},
        {"flashlab check step --record course.json --precision bf16 --device cuda",
         "at most twice PyTorch's own error"}}},
      {kBenchPrecision,
       "bench precision",
       run_bench_precision,
       "the same training run in every precision",
       "Trains one model in each precision from the same weights and batches: samples/s, memory, "
       "steps that fp16 skipped, and the losses as a picture and as JSON.",
       {{"flashlab bench precision", "300 steps of the tiny model in four precisions"},
        {"flashlab bench precision --size small --batch 8", "on a GPU, where that is quick"},
        {"flashlab bench precision --precision fp32,fp16 --loss-scale none",
         "without loss scaling"},
        {"flashlab bench precision --steps 2000 --output results/precision", "a longer run"}}},
  };
}

}  // namespace flashlab::cli
