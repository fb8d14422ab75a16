#include "cli/problem_sequences.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/failure.h"
#include "cli/terminal.h"
#include "cli/values.h"

namespace flashlab::cli {
namespace {

using cases::Case;

// A thousand would fill the screen.
std::string first_lengths(const Case& problem, std::int64_t cases::SequenceLengths::*of) {
  constexpr std::size_t kShown = 12;
  std::string out;
  for (std::size_t n = 0; n < std::min(kShown, problem.sequences.size()); ++n) {
    out += fmt::format("{}{}", n > 0 ? ", " : "", problem.sequences[n].*of);
  }
  return problem.sequences.size() > kShown ? out + ", …" : out;
}

void refuse_beside(const Arguments& arguments, std::initializer_list<const char*> flags,
                   std::string_view what) {
  for (const char* flag : flags) {
    if (arguments.has(flag)) fail_usage(fmt::format("{} contradicts {}; give one", flag, what));
  }
}

std::string_view sweep_of(const Arguments& arguments, std::string& buffer) {
  buffer = fmt::format("the lengths of --sweep {}", arguments.value("--sweep").value_or(""));
  return buffer;
}

// "chat:32k" as cases::set_lengths takes it: the tokens are a whole number there.
std::string in_tokens(std::string_view flag, const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return text;
  return fmt::format("{}:{}", text.substr(0, colon),
                     parse_whole(flag, text.substr(colon + 1), 1, cases::kMostLengthTokens));
}

std::string mixes() {
  std::vector<std::string> names = cases::length_mixes();
  names.push_back("any");
  return join_or(names);
}

// "documents", "chat:32k", "4k+63x1".
void apply_lengths(const Arguments& arguments, Case& problem) {
  std::optional<std::string> text = arguments.value("--lengths");
  const bool swept = !text && !problem.lengths.empty();
  if (swept) text = problem.lengths;  // drawn anew, by this run's seed
  if (!text) return;
  std::string buffer;
  refuse_beside(arguments, {"--batch", "--seqlen", "--seqlen-k", "--queries", "--input"},
                swept ? sweep_of(arguments, buffer) : "--lengths");
  if (!cases::set_lengths(problem, in_tokens("--lengths", *text))) {
    fail_usage(
        fmt::format("--lengths {} is no mix of lengths; give {}, and :TOKENS behind it, or a list "
                    "such as 8x2k+1000x0",
                    *text, mixes()));
  }
  if (!swept)
    note(fmt::format("--lengths {}, seed {}: {} sequences: {}", problem.lengths, problem.seed,
                     problem.batch, first_lengths(problem, &cases::SequenceLengths::q)));
}

void apply_key_lengths(const Arguments& arguments, Case& problem) {
  std::optional<std::string> text = arguments.value("--lengths-k");
  const bool swept = !text && !problem.lengths_k.empty();
  if (swept) text = problem.lengths_k;
  if (!text) return;
  refuse_beside(arguments, {"--seqlen-k", "--input"}, "--lengths-k");
  if (!cases::set_key_lengths(problem, in_tokens("--lengths-k", *text))) {
    fail_usage(
        fmt::format("--lengths-k {} is no mix of lengths; give {}, or a list of {} such as {}x8k",
                    *text, mixes(), problem.batch, problem.batch));
  }
  if (!swept)
    note(fmt::format("--lengths-k {}, seed {}: {}", problem.lengths_k, problem.seed,
                     first_lengths(problem, &cases::SequenceLengths::k)));
}

// Flags of a cache where there is none, and what contradicts one.
void check_cache_flags(const Arguments& arguments, bool cached, bool swept) {
  for (const char* flag : {"--queries", "--page-size"}) {
    if (!cached && arguments.has(flag)) {
      fail_usage(fmt::format("{} belongs to a cache; give --cache-length N, too", flag));
    }
  }
  std::string buffer;
  if (cached) {
    refuse_beside(arguments, {"--seqlen", "--seqlen-k", "--input"},
                  swept ? sweep_of(arguments, buffer) : "--cache-length");
  }
}

}  // namespace

void apply_sequences(const Arguments& arguments, bool passes_asked, Job& job) {
  Case& problem = job.problem;
  const std::optional<cases::Cache> swept = problem.cache;
  const bool asked = arguments.has("--cache-length"), cached = asked || swept;
  check_cache_flags(arguments, cached, swept.has_value());
  // Until here it stood in the keys' place, as in a dense problem.
  const std::int64_t room = asked || !swept ? problem.seqlen_k : swept->capacity;
  problem.cache.reset();
  problem.sequences.clear();
  apply_lengths(arguments, problem);
  const bool ragged_queries = problem.ragged();
  if (asked && ragged_queries && !arguments.has("--lengths-k")) {
    if (!cases::set_key_lengths(problem, fmt::format("{}x{}", problem.batch, room))) {
      fail_usage(
          fmt::format("--cache-length {} for each of {} sequences is more than {} keys; use "
                      "smaller caches or --lengths-k",
                      room, problem.batch, cases::kMostLengthTokens));
    }
  } else {
    apply_key_lengths(arguments, problem);
  }
  // As many queries as keys: both alignments are one. Over others the last query is at the last
  // key.
  const bool open = problem.window && problem.causal == Causal::kNone &&
                    problem.window->alignment == Alignment::kOfCausal;
  if (open && cached) problem.window->alignment = Alignment::kBottomRight;
  if (open && ragged_queries && !cached) problem.window->alignment = Alignment::kTopLeft;
  if (!cached) return;
  if (std::ranges::find(job.passes, Pass::kBackward) != job.passes.end()) {
    if (passes_asked) fail_usage("--cache-length has no backward pass; use --pass forward");
    job.passes = {Pass::kForward};
  }
  const bool longest_known = !problem.lengths_k.empty() && problem.seqlen_k > room;
  if (longest_known) {
    fail_usage(
        fmt::format("--lengths-k {} has {} keys in one sequence and --cache-length room for "
                    "{}; give more room",
                    problem.lengths_k, problem.seqlen_k, room));
  }
  const std::int64_t pages = swept ? swept->page_size : 0;
  problem.set_cache(
      arguments.has("--page-size") ? whole(arguments, "--page-size", 0, 1, INT32_MAX) : pages,
      problem.lengths_k.empty() ? 0 : room);
  if (!problem.cache && problem.batch > 0) {
    fail_usage(fmt::format("--batch {}: more caches than one call takes here", problem.batch));
  }
}

std::string sequence_flags(const Case& problem) {
  std::string out;
  const bool drawn = !problem.lengths.empty() || !problem.lengths_k.empty();
  if (!problem.lengths.empty()) {
    out += " --lengths " + problem.lengths;
  } else if (!problem.cache) {
    out += fmt::format(" --seqlen {}", problem.seqlen_q);
  }
  if (!problem.lengths_k.empty()) out += " --lengths-k " + problem.lengths_k;
  if (problem.cache) {
    out += fmt::format(" --cache-length {}", problem.cache->capacity);
    if (problem.lengths.empty()) out += fmt::format(" --queries {}", problem.seqlen_q);
    if (problem.cache->page_size > 0) {
      out += fmt::format(" --page-size {}", problem.cache->page_size);
    }
  } else if (!drawn && problem.seqlen_k != problem.seqlen_q) {
    out += fmt::format(" --seqlen-k {}", problem.seqlen_k);
  }
  if (drawn) out += fmt::format(" --seed {}", problem.seed);
  return out;
}

}  // namespace flashlab::cli
