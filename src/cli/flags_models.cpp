#include "cli/command.h"
#include "cli/flag_parts.h"

namespace flashlab::cli {
namespace {

constexpr unsigned kUses = kGenerate | kEvaluate;

constexpr std::string_view kSampling = "Sampling";

Words form_choices() {
  return {"hf", "llm.c", "safetensors"};
}
Words export_type_choices() {
  return {"fp32", "bf16", "fp16", "fp64"};
}

}  // namespace

std::vector<FlagSpec> flags_of_models() {
  using enum FlagKind;
  return {
      {"--prompt", "", "TEXT", kValue, kGenerate, kSampling, "how the text begins"},
      {"--prompt-file", "", "FILE", kFile, kGenerate, kSampling,
       "how the text begins, from a file; - is stdin"},
      {"--prompt-ids", "", "N[,N]", kList, kGenerate, kSampling,
       "how the text begins, as tokens' numbers"},
      {"--chat", "", "", kSwitch, kGenerate, kSampling,
       "the prompt as a person's turn by the tokenizer's own chat template; the model's answer "
       "alone is shown"},
      {"--tokens", "--max-new-tokens", "N", kValue, kGenerate, kSampling,
       "how many to add (default 500)"},
      {"--samples", "", "N", kValue, kGenerate, kSampling,
       "texts made side by side from one prompt (default 1)"},
      {"--temperature", "", "X", kValue, kGenerate, kSampling,
       "0: always the likeliest; 1: as learned (default 0.8)"},
      {"--top-k", "", "N", kValue, kGenerate, kSampling, "only the N likeliest (default: all)"},
      {"--top-p", "", "P", kValue, kGenerate, kSampling,
       "only the likeliest that together have this probability (default 1)"},
      {"--repetition-penalty", "", "X", kValue, kGenerate, kSampling,
       "divides logits above 0 of tokens that stand there already, multiplies those below "
       "(default 1)"},
      {"--stop", "", "TEXT", kRepeated, kGenerate, kSampling,
       "end after this text; once for each of several"},
      {"--seed", "", "N", kValue, kGenerate, kSampling,
       "of the draws, and of --random (default 1)"},
      {"--random", "", "", kSwitch, kGenerate, kModel,
       "weights drawn from --seed, whatever the checkpoint holds; those of --size always are"},
      {"--checkpoint", "", "PATH", kFolder, kUses | kExport, kModel,
       "a run's folder (its newest checkpoint), one of its step-N, a folder of Hugging Face, or "
       "llm.c's .bin"},
      {"--tokenizer", "", "FILE", kFile, kUses, kModel,
       "a tokenizer.json, where the checkpoint has none (without one tokens are numbers)"},

      {"--text", "", "FILE[,FILE]", kList, kEvaluate, kText, "texts to foretell, each for itself"},
      {"--tokens", "", "FILE[,FILE]", kList, kEvaluate, kText,
       "tokens instead of text: .bin files as llm.c writes them"},
      {"--choices", "", "FILE[,FILE]", kList, kEvaluate, kText,
       "multiple choice by likelihood: JSON lines with HellaSwag's fields"},
      {"--window", "", "N", kValue, kEvaluate, kSteps,
       "tokens that the model sees at once (default: its context)"},
      {"--stride", "", "N", kValue, kEvaluate, kSteps,
       "tokens from window to window: fewer give each more before it (default: --window)"},
      {"--batch", "", "N", kValue, kEvaluate, kSteps, "windows at once (default 8)"},
      {"--precision", "", "NAME", kValue, kUses, kSteps,
       "types of weights and activations (default fp32)", precision_choices},
      {"--threads", "", "N", kValue, kEvaluate, kSteps, "CPU threads (default: all that may run)"},
      {"--json", "", "FILE", kFile, kEvaluate, kResults,
       "scores by the schema flashlab.evaluate/1; - is stdout"},

      {"--to", "", "FORM", kValue, kExport, kResults,
       "hf: a folder that from_pretrained opens, the course's model as Llama; llm.c: its file of "
       "GPT-2; safetensors: a file under the names of train (default hf)",
       form_choices},
      {"--dtype", "", "NAME", kValue, kExport, kResults,
       "type of every tensor (default: as the checkpoint has it)", export_type_choices},
      {"--output", "", "PATH", kFolder, kExport, kResults,
       "a new or empty folder (hf), or a file (llm.c, safetensors)"},
  };
}

std::vector<CommandSpec> commands_of_models() {
  return {
      {kGenerate,
       "generate",
       run_generate,
       "text from a trained model",
       "Reads a checkpoint and continues a prompt token by token, with a cache of keys and values.",
       {{"flashlab generate --checkpoint results/train-2026-11-22-101500 --prompt ROMEO:",
         "500 characters"},
        {"flashlab generate --checkpoint DIR --temperature 0 --tokens 50", "the likeliest ones"},
        {"flashlab generate --checkpoint gpt2 --prompt Once", "a folder of Hugging Face"},
        {"flashlab generate --checkpoint DIR --device cuda", "decoded on the GPU"},
        {"flashlab generate --checkpoint DIR --prompt-file - --samples 4 --stop .",
         "four texts side by side, each to its first full stop"},
        {"flashlab generate --checkpoint Qwen3-0.6B --chat --prompt Hello", "by its chat template"},
        {"flashlab generate --size tiny --random --tokens 50",
         "random weights: noise, as numbers"}}},
      {kEvaluate,
       "evaluate",
       run_evaluate,
       "how well a model foretells a text",
       "Loss, perplexity and bits a byte of every file, each token after all before it in its "
       "window; or the accuracy of multiple choice by likelihood. Of a run's checkpoint, a folder "
       "of Hugging Face or llm.c's .bin.",
       {{"flashlab evaluate --checkpoint results/train-2026-11-22-101500 --text a.txt,b.txt",
         "two texts, and both together"},
        {"flashlab evaluate --checkpoint gpt2 --text book.txt --stride 512",
         "at least half a window before each token"},
        {"flashlab evaluate --checkpoint gpt2 --tokens val.bin --device cuda", "llm.c's shard"},
        {"flashlab evaluate --checkpoint gpt2 --choices hellaswag_val.jsonl", "HellaSwag"}}},
      {kExport,
       "export",
       run_export,
       "weights for other programs",
       "Writes a checkpoint as a folder that transformers opens, as llm.c's file, or as one "
       ".safetensors file, in the type that --dtype says.",
       {{"flashlab export --checkpoint results/train-2026-11-22-101500 --output mine",
         "for AutoModelForCausalLM and AutoTokenizer"},
        {"flashlab export --checkpoint DIR --to llm.c --dtype bf16 --output gpt2_mine_bf16.bin",
         "for llm.c"}}},
  };
}

}  // namespace flashlab::cli
