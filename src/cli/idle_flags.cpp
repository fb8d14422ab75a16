#include "cli/idle_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/problems.h"

namespace flashlab::cli {
namespace {

constexpr unsigned kAttention = kBench | kCompare | kExplain | kProfileAttention;

bool is(const Arguments& a, std::string_view flag, std::string_view value) {
  return a.value(flag) == value;
}

bool likeliest(const Arguments& a, const RunFacts&) {
  return a.has("--temperature") && real(a, "--temperature", 1) == 0;
}
bool likeliest_of_weights(const Arguments& a, const RunFacts& facts) {
  // It draws the weights where none are read.
  return likeliest(a, facts) && a.has("--checkpoint") && !a.has("--random");
}
bool without_fp16(const Arguments&, const RunFacts& facts) {
  return std::ranges::find(facts.precisions, "fp16") == facts.precisions.end();
}
bool vocabulary_of_text(const Arguments&, const RunFacts& facts) {
  return !facts.tokens && facts.tokenizer != "bpe";
}
bool numbers(const Arguments&, const RunFacts& facts) {
  return facts.tokens && !facts.tokenizer.ends_with(".json");
}
bool with_sgd(const Arguments&, const RunFacts& facts) {
  return facts.sgd;
}
bool with_adamw(const Arguments&, const RunFacts& facts) {
  return !facts.sgd;
}
bool forward_alone(const Arguments& a, const RunFacts&) {
  return is(a, "--mode", "forward");
}
bool toy(const Arguments& a, const RunFacts&) {
  return a.has("--toy");
}
bool dry(const Arguments& a, const RunFacts&) {
  return a.has("--dry-run");
}
bool dry_without_folder(const Arguments& a, const RunFacts&) {
  return a.has("--dry-run") && !a.has("--output");
}
bool nothing_dropped(const Arguments& a, const RunFacts&) {
  return !a.has("--dropout") || real(a, "--dropout", 0) == 0;
}
// A file's values are not drawn. What is dropped is, and so are the rows of a large problem whose
// error is asked for.
bool nothing_drawn(const Arguments& a, const RunFacts& facts) {
  const bool dropped_by_seed = !nothing_dropped(a, facts) && !a.has("--dropout-seed");
  return a.has("--input") && !dropped_by_seed && !a.has("--check");
}
bool on_gpu(const Arguments& a, const RunFacts&) {
  return a.value("--device").value_or("").starts_with("cuda");
}
bool from_list(const Arguments& a, const RunFacts&) {
  return !gives_problem(a) && !a.has("--input");
}
// A plan knows lengths, and no values. A list says its lengths: "4k+63x1".
bool no_lengths_drawn(const Arguments& a, const RunFacts&) {
  const auto names_mix = [&](const char* flag) {
    const std::string text = a.value(flag).value_or("");
    return !text.empty() && text.front() >= 'a' && text.front() <= 'z';
  };
  return !names_mix("--lengths") && !names_mix("--lengths-k") && !a.has("--sweep");
}
bool without_peers(const Arguments& a, const RunFacts&) {
  return !a.has("--peers");
}

struct IdleFlag {
  std::string_view flag;
  unsigned commands;
  bool (*idle)(const Arguments&, const RunFacts&);
  std::string_view why;  ///< when, and what would give it one
};

constexpr IdleFlag kTable[] = {
    {"--loss-scale", kRuns, without_fp16, "without fp16; --precision fp16 has a loss scale"},
    {"--vocabulary", kRuns, vocabulary_of_text,
     "where the tokenizer or the text says how many tokens there are; --tokenizer bpe and --tokens "
     "take it"},
    {"--tokenizer", kRuns, numbers,
     "beside --tokens, which are numbers already; a tokenizer.json says what they mean"},
    {"--adamw-convention", kRuns, with_sgd, "with --optimizer sgd, which has no second moment"},
    {"--beta1", kRuns, with_sgd, "with --optimizer sgd; --momentum is its own"},
    {"--beta2", kRuns, with_sgd, "with --optimizer sgd, which has no second moment"},
    {"--epsilon", kRuns, with_sgd, "with --optimizer sgd, which has no second moment"},
    {"--momentum", kRuns, with_adamw, "with AdamW; --beta1 is its own, or --optimizer sgd"},
    {"--max-skipped", kRuns, without_fp16, "without fp16, whose gradients may overflow"},
    {"--top-k", kGenerate, likeliest, "at --temperature 0, which takes the likeliest token"},
    {"--top-p", kGenerate, likeliest, "at --temperature 0, which takes the likeliest token"},
    {"--seed", kGenerate, likeliest_of_weights, "at --temperature 0, where nothing is drawn"},
    {"--checkpoint", kExplainStep | kProfileStep | kBenchStep, forward_alone,
     "with --mode forward; only a backward pass makes activations again"},
    {"--fit", kExplainStep | kProfileStep | kBenchStep, forward_alone,
     "with --mode forward; only a backward pass makes activations again"},
    {"--size", kExplainPrecision, toy, "beside --toy, which is a model of its own"},
    {"--attention", kExplainPrecision, toy, "beside --toy, which has none"},
    {"--operators", kExplainPrecision, toy, "beside --toy, which is a model of its own"},
    {"--parallel", kProfileStep, dry, "with --dry-run, which plans one rank; see explain step"},
    {"--steps", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--warmup", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--seed", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--quick", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--ncu", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--nsys", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--by", kProfileStep, dry, "with --dry-run, which has no times to add up"},
    {"--sort", kProfileStep, dry, "with --dry-run, which has no times to add up"},
    {"--top", kProfileStep, dry, "with --dry-run, which has no times to add up"},
    {"--device", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--threads", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--cpu-isa", kProfileStep, dry, "with --dry-run, which runs nothing"},
    {"--json", kProfileStep, dry_without_folder, "with --dry-run alone; add --output"},
    {"--detail", kProfileStep, dry_without_folder, "with --dry-run alone; add --output"},
    {"--cpu-isa", kAttention | kProfileStep | kBenchStep, on_gpu,
     "with --device cuda, where no kernel of the CPU runs; --device cpu takes it"},
    {"--python", kBenchStep, without_peers, "without peers that run in Python; add --peers torch"},
    {"--python-timeout", kBenchStep, without_peers,
     "without peers that run in Python; add --peers torch"},
    {"--seed", kBench, nothing_drawn,
     "beside --input, whose file holds the values; --dropout and --check draw by it"},
    {"--seed", kCheck, from_list,
     "where cases have seeds of their own; a problem of yours is drawn by it: --lengths chat"},
    {"--seed", kExplain, no_lengths_drawn,
     "where no lengths are drawn by it; --lengths chat draws them"},
    {"--dropout-seed", kAttention | kCheck, nothing_dropped,
     "where nothing is dropped; add --dropout 0.1"},
};

}  // namespace

void refuse_idle_flags(const Arguments& arguments, const RunFacts& facts) {
  for (const IdleFlag& row : kTable) {
    if ((row.commands & arguments.command_bit()) == 0 || !arguments.has(row.flag)) continue;
    if (!row.idle(arguments, facts)) continue;
    fail_usage(
        fmt::format("{} has no effect {}, or leave it out", arguments.spelling(row.flag), row.why));
  }
}

}  // namespace flashlab::cli
