#include "cli/command.h"
#include "cli/flag_parts.h"

namespace flashlab::cli {
namespace {

constexpr unsigned kStep = kRuns | kExplainStep;
constexpr unsigned kPlanned = kStep | kProfileStep;
constexpr unsigned kModels = kPlanned | kGenerate | kExplainPrecision;
constexpr unsigned kSizes = kPlanned | kBenchStep;

Words reduce_choices() {
  return {"step", "micro-batch"};
}

}  // namespace

std::vector<FlagSpec> flags_of_training() {
  using enum FlagKind;
  return {
      {"--size", "", "NAME", kValue, kModels, kModel,
       "tiny, small, medium, large, xl-2025, xl-2026 (= 2.7B), 10B, notebook, course-medium, gpt2, "
       "gpt2-medium, gpt2-large, gpt2-xl, llama3-8B, llama3.2-1B, qwen2.5-0.5B, qwen3-0.6B, "
       "smollm2-135M, mistral-7B-v0.1, gemma2-2B (default: train tiny, explain step small; "
       "generate: "
       "random weights of this size)"},
      {"--config", "", "FILE", kFile, kPlanned, kModel,
       "a JSON or TOML file of flags (with _ for -) and of the run and its model; typed flags go "
       "over "
       "it"},
      {"--init", "", "PATH", kFolder, kTrains, kModel,
       "weights to begin with: a run, a folder of Hugging Face (GPT-2, Llama, Mistral, Qwen 2 and "
       "3, "
       "Gemma 2), or llm.c's .bin; step 0, no moments"},
      {"--context", "", "N", kValue, kStep, kModel, "tokens that the model sees at once"},
      {"--layers", "", "N", kValue, kSizes, kModel, "blocks"},
      {"--heads", "", "N", kValue, kSizes, kModel, "attention heads, a divisor of --width"},
      {"--width", "", "N", kValue, kSizes, kModel, "elements of a token's vector"},
      {"--hidden", "", "N", kValue, kSizes, kModel, "elements inside the MLP"},
      {"--vocabulary", "", "N", kValue, kExplainStep | kProfileStep | kBenchStep, kModel,
       "tokens there are"},
      {"--dropout", "", "P", kValue, kPlanned, kModel,
       "of the embedding, of attention's probabilities and of every block's sum"},

      {"--text", "", "FILE[,FILE]", kList, kRuns, kText,
       "what to learn (default: the shipped tinyshakespeare); a.txt:0.7,b.txt:0.3 are sources with "
       "weights, of --tokens, too"},
      {"--tokens", "", "FILE[,FILE]", kList, kRuns, kText,
       "tokens instead of text: .bin files as llm.c writes them, one after the other"},
      {"--validation-text", "", "FILE[,FILE]", kList, kTrains, kText,
       "what validation looks at (default: the last tenth of what is learned)"},
      {"--validation-tokens", "", "FILE[,FILE]", kList, kTrains, kText,
       "the same, beside --tokens"},
      {"--tokenizer", "", "NAME", kValue, kRuns, kText,
       "what a token is: character, byte, bpe (byte pairs learned from the text), or a "
       "tokenizer.json of Hugging Face with a byte-level BPE (default character)"},
      {"--vocabulary", "", "N", kValue, kRuns, kText,
       "tokens that bpe learns (default 1024), or of --tokens (default GPT-2's 50257 or Llama 3's "
       "128256, by the file)"},

      {"--documents", "", "TOKEN", kOptionalValue, kTrains, kText,
       "attention ends where a document does, at tokens of this number (bare: the tokenizer's end "
       "of text, GPT-2's of --tokens)"},

      {"--batch", "", "N", kValue, kSizes, kSteps,
       "sequences of a micro-batch (default 4; train: 12)"},
      {"--accumulate", "", "N", kValue, kSizes, kSteps, "micro-batches of a step (default 1)"},
      {"--shares", "", "N", kValue, kTrains, kSteps,
       "equal parts of the batch that learn apart and are added as a tree: the run's bits then "
       "depend on them and not on the number of ranks (default: the ranks, 1)"},
      {"--reduce-every", "", "WHAT", kValue, kTrains, kSteps,
       "of several micro-batches: step (each share adds its own first, default), or micro-batch "
       "(shares and ranks are added behind each)",
       reduce_choices},
      {"--freeze", "", "PATTERN[,PATTERN]", kList, kTrains, kSteps,
       "parameters that stay as they are, by the names of their files with * and ?: no gradient, "
       "no "
       "moments, nothing exchanged"},
      {"--mode", "", "MODE", kValue, kExplainStep | kProfileStep, kSteps,
       "what a step is (default full)", mode_choices},
      {"--precision", "", "NAME", kValue, kExplainStep | kExplainPrecision | kProfileStep, kSteps,
       "types of activations, parameters and gradients (default fp32; explain precision: bf16)",
       precision_choices},
      {"--precision", "", "NAME", kValue, kTrains, kSteps,
       "types: bf16 and fp16 keep fp32 masters and sums, bf16-lean fp32 masters beside bf16 sums, "
       "bf16-pure nothing (default fp32; a CPU's "
       "products are fp32 in tf32, too)",
       precision_choices},
      {"--loss-scale", "", "SCALE", kValue, kRuns, kSteps,
       "of fp16: dynamic, none, or a number that stays (default dynamic, from 65536)"},
      {"--attention", "", "NAME", kValue, kPlanned | kExplainPrecision, kSteps,
       "naive (scores, softmax, values apart) or an implementation (default: the production one)"},
      {"--checkpoint", "", "GROUPS", kValue, kPlanned, kSteps,
       "make activations again in backward: 4 (groups of 4 layers), 14,14,6 (these groups), 12/3 "
       "(groups of 12, each again in groups of 3), or by rungs: norms, mlp, qkv, block; "
       "mlp*10,norms*2"},
      {"--fit", "", "BYTES", kOptionalValue, kPlanned | kBenchStep, kSteps,
       "the checkpointing that repeats least and fits so much memory, such as 80GB (bare: what is "
       "left here)"},
      {"--operators", "", "SET", kValue, kPlanned | kExplainPrecision, kSteps,
       "fused, or unfused: biases, sums and activations as operations of their own, all logits at "
       "once (default fused)",
       operator_choices},
      {"--seed", "", "N", kValue, kRuns, kSteps, "of weights, windows and dropout (default 1337)"},
      {"--threads", "", "N", kValue, kRuns | kGenerate, kSteps,
       "CPU threads (default: all that may run)"},

      {"--output", "", "DIR", kFolder, kTrains, kResults,
       "config.json, log.jsonl, loss.svg, tokens and checkpoints go here (default results/<date>)"},
      {"--toy", "", "", kSwitch, kExplainPrecision, kSteps,
       "what automatic mixed precision makes of linear, ReLU, layer norm, linear and a loss"},
      {"--resume", "", "DIR", kFolder, kTrain, kResults,
       "go on with this run from its newest checkpoint, bit for bit as if it had not stopped; "
       "steps, rates, their schedule and when it looks and saves may be given anew"},
      {"--evaluate-every", "", "N", kValue, kTrains, kResults,
       "steps between looks at the validation text (default 250)"},
      {"--evaluate-batches", "", "N", kValue, kTrains, kResults,
       "batches of such a look, spread over the text (default 20); the last look is at all of it"},
      {"--patience", "", "N", kValue, kTrains, kResults,
       "end after so many looks in a row that were no better than the best (default: never)"},
      {"--sample-every", "", "N", kValue, kTrains, kResults, "steps between samples (default 500)"},
      {"--save-every", "", "N", kValue, kTrains, kResults,
       "steps between checkpoints (default 500)"},
      {"--operations", "", "", kSwitch, kExplainStep, kResults,
       "the whole list: each operation with its class, cost and tensors"},
      {"--count", "", "N", kValue, kAccumulate, kSteps, "additions (default 1000)"},
      {"--value", "", "X", kValue, kAccumulate, kSteps, "what is added (default 0.01)"},
      {"--json", "", "FILE", kFile, kAccumulate, kResults,
       "the sums by the schema flashlab.accumulate/1; - is stdout"},
      {"--json", "", "FILE", kFile, kExplainStep, kResults,
       "plan and memory by the schema flashlab.step/1; - is stdout"},
  };
}

std::vector<CommandSpec> commands_of_training() {
  return {
      {kTrain,
       "train",
       run_train,
       "train a language model on text",
       "Trains a Transformer on a GPU or the CPU: by default a small one on the shipped text, to "
       "readable text in minutes. Shows loss, learning rate, gradient norm, tokens/s and the time "
       "left; "
       "writes a log, a curve and checkpoints. Ctrl-C saves and ends; --resume goes on.",
       {{"flashlab train", "four layers on Shakespeare, character by character"},
        {"flashlab train --text mine.txt,more.txt --tokenizer byte", "your own text"},
        {"flashlab train --tokenizer bpe --vocabulary 2000 --context 128", "byte pairs"},
        {"flashlab train --tokens train_00.bin,train_01.bin --size small", "llm.c's shards"},
        {"flashlab train --layers 6 --width 192 --heads 6 --hidden 512 --steps 5k", "a larger one"},
        {"flashlab train --init gpt2 --text mine.txt --context 256 --steps 500",
         "weights of Hugging Face, taught your text"},
        {"flashlab train --config run.json --learning-rate 1e-3", "a file, and a flag over it"},
        {"flashlab launch -n 2 train --parallel bucket", "two ranks on this host"},
        {"flashlab train --resume results/train-2026-11-22-101500", "go on"},
        {"flashlab train --resume results/train-2026-11-22-101500 --steps 4k", "go on for longer"}},
       {},
       nullptr,
       /*takes_command=*/false,
       /*knows_ranks=*/true},
      {kSweepTrain,
       "sweep train",
       run_sweep_train,
       "the same run at several learning rates",
       "Trains one model at each rate of --learning-rate from the same weights and windows, and "
       "compares the losses: a table, sweep.csv, sweep.json and a picture of the curves. Each run "
       "is a folder that generate, evaluate and train --resume take.",
       {{"flashlab sweep train --learning-rate 1e-4,3e-4,1e-3", "three runs of the tiny model"},
        {"flashlab sweep train --learning-rate 1e-3,3e-3 --text mine.txt --steps 500",
         "shorter, on your text"}}},
      {kTokenize,
       "tokenize",
       run_tokenize,
       "texts as a file of tokens",
       "Encodes texts, or a field of JSON lines, on all processors into a file of llm.c's format, "
       "which train --tokens and evaluate --tokens map into memory.",
       {{"flashlab tokenize --text book.txt --tokenizer gpt2/tokenizer.json", "book.bin"},
        {"flashlab tokenize --text a.txt,b.txt --tokenizer bpe --vocabulary 8000 --output ab.bin",
         "byte pairs learned from both; ab.json is the tokenizer"},
        {"flashlab tokenize --text web.jsonl --text-field text --tokenizer gpt2/tokenizer.json",
         "documents"}}},
      {kExplainStep,
       "explain step",
       run_explain_step,
       "what a training step does and how much memory it takes",
       "Plans a whole step on any machine, without running it: its operations, their FLOPs, the "
       "peak of memory by phase, role and layer, and whether it fits devices of 80, 141 and 180 "
       "GB.",
       {{"flashlab explain step --size 2.7B --context 2048 --precision bf16", "does it fit"},
        {"flashlab explain step --size 10B --precision bf16 --checkpoint 2", "with recomputation"},
        {"flashlab explain step --size tiny --operations", "every operation"}}},
      {kExplainPrecision,
       "explain precision",
       run_explain_precision,
       "which type everything in a training step has",
       "Plans a step and shows in which type parameters, gradients and moments are kept, and what "
       "each kind of operation reads and writes.",
       {{"flashlab explain precision --precision bf16", "bf16 with fp32 masters"},
        {"flashlab explain precision --precision bf16-pure --attention naive", "scores, too"},
        {"flashlab explain precision --toy", "a small network under autocast"}}},
      {kBenchStep,
       "bench step",
       run_bench_step,
       "time a training step",
       "Forward, forward with backward, and the full step of a model: median, mean and standard "
       "deviation, the first step apart, tokens/s and memory. Lists make a product. A step that "
       "does not fit is a result with its bytes; nothing is allocated for it.",
       {{"flashlab bench step", "the tiny model on this machine"},
        {"flashlab bench step --size small --context 128,largest --mode full",
         "how long can it be"},
        {"flashlab bench step --warmup 0,1,2,5", "what warming up is worth"},
        {"flashlab bench step --attention production,naive --checkpoint none,1", "ways to make it"},
        {"flashlab bench step --peers torch --python .venv/bin/python --output results/step",
         "beside PyTorch, with plots and a report"},
        {"flashlab launch -n 2 bench step --parallel fsdp --batch 8", "on two ranks"}},
       {},
       nullptr,
       /*takes_command=*/false,
       /*knows_ranks=*/true},
      {kAccumulate,
       "bench accumulate",
       run_accumulate,
       "what a sum loses in few bits",
       "Adds the same number again and again, in fp32, fp16 and bf16 accumulators.",
       {{"flashlab bench accumulate", "1000 times 0.01"},
        {"flashlab bench accumulate --count 100k --value 1e-3", "where 16 bits stop growing"}}},
  };
}

}  // namespace flashlab::cli
