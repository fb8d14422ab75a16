#pragma once

// The tuning table of the Hopper forward kernel: tilings that were measured on one GPU. `flashlab
// tune` writes it (schema "flashlab.tuning/1"), and the planner follows it. It may change how fast
// a call is, and its results by rounding: a row counts only if it is one of the legal tilings.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/launch/sm90_forward.h"

namespace flashlab::cuda {

struct DeviceInfo;
class GpuDevice;

inline constexpr std::string_view kTuningSchema = "flashlab.tuning/1";

/// A row: what was measured, the tiling that was fastest, and its time beside that of the rule's.
struct Sm90ForwardRow {
  Sm90ForwardCall call;
  Sm90ForwardTiling tiling;
  double median_ms = 0, rule_ms = 0;
};

struct Sm90ForwardTable {
  std::string path;  ///< for messages
  std::string gpu, driver, date, commit;
  std::vector<Sm90ForwardRow> rows;
  Status status;  ///< why it has no rows
};

/// Whether a row that was measured on one call holds for another: equal but for seqlen_q, seqlen_k
/// and batch x heads, which lie between the same powers of two (2^k < n <= 2^(k + 1)).
bool same_class(const Sm90ForwardCall& a, const Sm90ForwardCall& b);

/// Reads a table's text. Errors: kInvalidArgument (no JSON, another schema, a member that is
/// missing or of another type, another version of FlashLab).
Result<Sm90ForwardTable> parse_sm90_forward_table(std::string_view text, const std::string& path);

/// The same from a file. Errors also: kIoError (it cannot be read, others may write to it, or
/// another user owns it where `own` says that it must be this one's).
Result<Sm90ForwardTable> read_sm90_forward_table(const std::string& path, bool own);

/// Where `flashlab tune` writes and the library looks: $XDG_CACHE_HOME/flashlab/tuning/
/// sm90-forward.json, else below ~/.cache; empty if there is no home either.
std::string default_tuning_path();

/// The file that FLASHLAB_TUNING names, else the one at default_tuning_path() where there is one;
/// read once per process. Null: there is none, FLASHLAB_TUNING=off, or the GPU is only described:
/// what is compiled for other machines does not follow this one's table.
const Sm90ForwardTable* users_sm90_forward_table(const GpuDevice& gpu);

/// Ok, or why no plan for this GPU follows the table: its status, or the figures are of another
/// GPU.
Status check_table(const Sm90ForwardTable& table, const DeviceInfo& device);

struct Sm90TableAnswer {
  std::optional<Sm90ForwardTiling> tiling;
  std::string reason;  ///< which row it came from, or why the table is not used; empty: no row
};
Sm90TableAnswer ask(const Sm90ForwardTable& table, const DeviceInfo& device,
                    const Sm90ForwardCall& call, const Sm90ForwardNeeds& needs);

}  // namespace flashlab::cuda
