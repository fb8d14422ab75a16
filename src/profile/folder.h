#pragma once

// The folder that a profile leaves behind.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "flashlab/status.h"
#include "lab/machine/machine.h"
#include "lab/results/measurement.h"
#include "profile/advice.h"
#include "profile/memory_timeline.h"
#include "profile/nsight.h"
#include "profile/recording.h"

namespace flashlab::profile {

/// All that a profile knows. What was not measured is absent, and `missing` says why.
struct Profile {
  std::string command;  ///< what was typed
  std::string subject;  ///< "step", "attention"
  Recording recording;
  std::optional<MemoryTimeline> memory;
  std::optional<BlockMemory> block;            ///< of one layer in the middle
  std::optional<std::int64_t> measured_bytes;  ///< beside the predicted peak
  std::int64_t detail_bytes = 0;               ///< tensors below it are not drawn
  std::vector<Advice> advice;
  std::vector<KernelCounters> counters;   ///< by Nsight Compute
  std::vector<NsysKernel> timeline;       ///< by Nsight Systems
  std::vector<lab::Measurement> results;  ///< of attention: as bench measures it
  lab::Environment environment;
  struct Missing {
    std::string what;    ///< "kernel times by CUPTI"
    std::string reason;  ///< and where to get it
  };
  std::vector<Missing> missing;
};

/// judge() of the recording, and of measured attention its rate and its speed against naive.
std::vector<Judgement> judgements(const Profile& profile);

/// Command, machine, clock, roofs: what is known of it, name and value.
std::vector<std::pair<std::string, std::string>> environment_facts(const Profile& profile);

/// SUMMARY.md: what limits the step, the answers, the ledger's head, where everything is.
std::string summary_markdown(const Profile& profile);

/// report.html: the same with every table and picture inside; complete in itself.
std::string report_html(const Profile& profile);

/// ledger.json, schema flashlab.ledger/1: the ledger by kernel, class, layer, phase and operation,
/// the account of the step's time, counters, advice, what is missing, and the environment.
std::string ledger_json(const Profile& profile);

struct WrittenProfile {
  std::vector<std::filesystem::path> files;
  Status status;  ///< the first failure; files before and after it stay
};

/// SUMMARY.md, environment.json, report.html, ledger.txt, ledger.csv, ledger.json, trace.json,
/// stacks.folded, flame.svg, roofline.svg, memory.svg, memory.json and memory.pickle in an existing
/// folder; those that have nothing to say are left out. SUMMARY.md names those that could not be
/// written.
WrittenProfile write_profile(const std::filesystem::path& folder, const Profile& profile);

}  // namespace flashlab::profile
