// Flags of a run as a whole: the order of its data, its optimizer, its rate, what it keeps.

#include "cli/command.h"
#include "cli/flag_parts.h"
#include "train/run/train_config.h"

namespace flashlab::cli {
namespace {

Words optimizer_choices() {
  return {"adamw", "sgd"};
}
Words convention_choices() {
  return {"torch", "cs336"};
}

}  // namespace

std::vector<FlagSpec> flags_of_schedules() {
  using enum FlagKind;
  return {
      {"--order", "", "NAME", kValue, kRuns, kText,
       "windows of the text at random, or in epochs: each once, shuffled, before any comes again "
       "(default random)",
       train::window_order_names},
      {"--text-field", "", "NAME", kValue, kRuns | kTokenize, kText,
       "the text files are JSON lines, and this field of each is a document"},
      {"--tokens-format", "", "NAME", kValue, kRuns | kEvaluate, kText,
       "of --tokens: llmc, or uint16 and uint32 without a header, as nanoGPT's (default llmc)",
       train::token_format_names},
      {"--text", "", "FILE[,FILE]", kList, kTokenize, kText, "what becomes tokens"},
      {"--tokenizer", "", "NAME", kValue, kTokenize, kText,
       "a tokenizer.json of Hugging Face, or bpe (learned from the text), character, byte"},
      {"--vocabulary", "", "N", kValue, kTokenize, kText, "tokens that bpe learns (default 1024)"},
      {"--threads", "", "N", kValue, kTokenize, kSteps, "CPU threads (default: all that may run)"},
      {"--output", "", "FILE", kFile, kTokenize, kResults,
       "the token file (default: the first text's name with .bin)"},
      {"--steps", "", "N", kValue, kRuns, kSteps, "updates (default 2000); 5k is 5000"},
      {"--learning-rate", "", "X", kValue, kRuns & ~kSweepTrain, kSteps,
       "its maximum (default 2e-3, with --init 3e-5); the minimum keeps its ratio to it"},
      {"--learning-rate", "", "X,X", kList, kSweepTrain, kSteps, "the rates that are compared"},
      {"--minimum-learning-rate", "", "X", kValue, kRuns, kSteps,
       "what it comes down to (default 1e-4)"},
      {"--warmup-steps", "", "N", kValue, kRuns, kSteps, "steps to the maximum (default 100)"},
      {"--schedule", "", "NAME", kValue, kRuns, kSteps,
       "how the rate goes after it: cosine (as llm.c's), course, nanogpt (cosines that begin and "
       "end as theirs), linear, constant, wsd (constant, a line down at the end) (default cosine)",
       train::schedule_names},
      {"--decay-until", "", "N", kValue, kRuns, kSteps,
       "the step at which it has come down (default: the last)"},
      {"--decay-steps", "", "N", kValue, kRuns, kSteps,
       "of wsd: steps of the way down (default: a fifth)"},
      {"--optimizer", "", "NAME", kValue, kRuns, kSteps, "adamw or sgd (default adamw)",
       optimizer_choices},
      {"--adamw-convention", "", "NAME", kValue, kRuns, kSteps,
       "where epsilon stands and what decays: torch (matrices), cs336 (everything) (default torch)",
       convention_choices},
      {"--beta1", "", "X", kValue, kRuns, kSteps, "of AdamW's first moment (default 0.9)"},
      {"--beta2", "", "X", kValue, kRuns, kSteps, "of its second (default 0.99)"},
      {"--epsilon", "", "X", kValue, kRuns, kSteps, "in its denominator (default 1e-8)"},
      {"--momentum", "", "X", kValue, kRuns, kSteps, "of sgd (default 0)"},
      {"--weight-decay", "", "X", kValue, kRuns, kSteps, "of matrices (default 0.1)"},
      {"--max-norm", "", "X", kValue, kRuns, kSteps,
       "gradients are scaled to at most this norm (default 1; 0: never)"},
      {"--max-skipped", "", "N", kValue, kRuns, kSteps,
       "fp16 steps in a row without an update that end the run (default 25)"},
      {"--keep", "", "N", kValue, kTrains, kResults,
       "newest checkpoints that stay (default 2; 0: all)"},
      {"--keep-best", "", "", kSwitch, kTrains, kResults,
       "save at every look at the validation text that is the best so far; DIR/best names it"},
      {"--tensorboard", "", "", kSwitch, kTrains, kResults,
       "event files beside log.jsonl and log.csv: tensorboard --logdir results"},
  };
}

}  // namespace flashlab::cli
