#pragma once

// What `profile step` and `profile attention` print and write.

#include <filesystem>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "profile/folder.h"

namespace flashlab::cli {

/// --output, else results/profile-<date>; made. Throws Failure when it cannot be.
std::filesystem::path profile_folder(const Arguments& arguments);

/// Title, times, shares, the ledger by --by, --sort and --top.
void print_ledger(const Arguments& arguments, const profile::Profile& p);
void print_advice(const profile::Profile& p);
/// Both.
void print_profile(const Arguments& arguments, const profile::Profile& p);

/// The folder's files and --json. False when one could not be written; the others are there.
bool write_profile_folder(const Arguments& arguments, const std::filesystem::path& folder,
                          const profile::Profile& p);

/// --ncu, --nsys: runs this command once more, short, under Nsight Compute and Nsight Systems; what
/// they find, or why it is nothing, becomes part of `p`, and their files of the folder.
void add_nsight(const Arguments& arguments, const std::filesystem::path& folder,
                profile::Profile& p);

/// Between two samples of the device while a profile runs.
inline constexpr double kMonitorSeconds = 0.1;

/// Instruments that this run had not, each with its reason. `why_no_cupti`: empty where it took
/// the times.
std::vector<profile::Profile::Missing> missing_instruments(bool gpu,
                                                           const std::string& why_no_cupti,
                                                           const Arguments& arguments);

/// What an interruption before anything was recorded leaves out, among what is missing.
void add_interruption(profile::Profile& p);

}  // namespace flashlab::cli
