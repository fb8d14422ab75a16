#pragma once

// One function per command: runs it and returns its exit code, or throws Failure.

#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"

namespace flashlab::cli {

int run_info(const Arguments& arguments);
int run_check(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_bench_subject(const Arguments& arguments);
int run_compare(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_precompile(const Arguments& arguments);
int run_cache(const Arguments& arguments);
int run_train(const Arguments& arguments);
int run_tokenize(const Arguments& arguments);
int run_sweep_train(const Arguments& arguments);
int run_generate(const Arguments& arguments);
int run_evaluate(const Arguments& arguments);
int run_export(const Arguments& arguments);
int run_explain_step(const Arguments& arguments);
int run_explain_precision(const Arguments& arguments);
int run_profile_step(const Arguments& arguments);
int run_profile_attention(const Arguments& arguments);
int run_monitor(const Arguments& arguments);
int run_check_step(const Arguments& arguments);
int run_check_parallel(const Arguments& arguments);
int run_bench_parallel(const Arguments& arguments);
int run_bench_precision(const Arguments& arguments);
int run_bench_step(const Arguments& arguments);
int run_accumulate(const Arguments& arguments);
int run_launch(const Arguments& arguments);
int run_explain_parallel(const Arguments& arguments);
int run_completion(const Arguments& arguments);

/// Several ranks of a command on this host, until all have ended; `ours`: it is this program's.
/// Throws Failure.
int launch_ranks(int ranks, std::vector<std::string> command, bool ours);
inline constexpr int kMostRanks = 64;
/// This process's command without a flag and its value.
std::vector<std::string> own_words_without(std::string_view flag);

/// What was typed, as a shell would read it back. Set once by main, kept with every result.
const std::string& typed_command();

}  // namespace flashlab::cli
