#pragma once

// Flags that would change nothing about this run: refused, so that nobody believes in them.

#include <string>
#include <vector>

#include "cli/flags.h"

namespace flashlab::cli {

/// What other flags may leave to a file of --config.
struct RunFacts {
  std::vector<std::string> precisions;
  std::string tokenizer;
  bool tokens = false;  ///< token files in place of text
  bool sgd = false;
};

/// Throws Failure for the first flag of the table that has no effect. Runs of training have
/// `facts`; other commands are decided by their flags alone.
void refuse_idle_flags(const Arguments& arguments, const RunFacts& facts = {});

}  // namespace flashlab::cli
