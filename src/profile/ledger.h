#pragma once

// The kernel ledger: a recording's events added up by kernel, operation, class, layer or phase.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profile/recording.h"

namespace flashlab::profile {

enum class LedgerKey { kKernel, kOperation, kClass, kLayer, kPhase };
enum class LedgerOrder { kTotal, kMean, kCalls, kFlops, kBytes, kName };

/// "kernel", "operation", "class", "layer", "phase"; "total", "mean", "calls", "flops", "bytes",
/// "name".
const char* to_string(LedgerKey key) noexcept;
const char* to_string(LedgerOrder order) noexcept;
std::optional<LedgerKey> parse_ledger_key(std::string_view name);
std::optional<LedgerOrder> parse_ledger_order(std::string_view name);

/// Figures are those of one step: sums over the recording divided by its steps. Events hold no
/// other events: a row's own time is its total.
struct LedgerRow {
  std::string key;
  std::string event_class;  ///< of all its events; empty where they differ
  std::string phase;        ///< likewise
  double calls = 0;
  double total_ms = 0;
  double mean_ms = 0;       ///< of one call
  double share = 0;         ///< of all events' time, 0..1
  double host_ms = 0;       ///< of a GPU: to enqueue them one by one; 0: not known
  double host_mean_ms = 0;  ///< of one operation, which may be several calls; 0: not known
  double flops = 0;
  double bytes = 0;
  std::optional<double> gflops_per_s;
  std::optional<double> gb_per_s;
  /// Time that the roofs allow over time taken; above 1 where operands come from caches.
  std::optional<double> roof_share;
  std::string bound;                  ///< "arithmetic", "memory"; empty without roofs
  std::optional<LaunchFacts> launch;  ///< by kernel: of its longest call, where it is known
};

struct LedgerOptions {
  LedgerKey key = LedgerKey::kKernel;
  LedgerOrder order = LedgerOrder::kTotal;
  std::size_t top = 0;  ///< rows kept; 0: all
  std::string phase{};  ///< only events of this phase; empty: all
};

/// Rows in order, the greatest first (names: alphabetically). `left_out`, where given, becomes how
/// many rows `top` has cut away.
std::vector<LedgerRow> make_ledger(const Recording& recording, const LedgerOptions& options,
                                   std::size_t* left_out = nullptr);

/// Time of one step in events that `keep` accepts, in ms.
template <class Keep>
double time_of(const Recording& recording, const Keep& keep) {
  double sum = 0;
  for (const Event& event : recording.events) {
    if (keep(event)) sum += event.duration_ms;
  }
  return recording.steps() > 0 ? sum / recording.steps() : 0;
}

/// The launch of the kernel that takes most time; empty where it is not known.
std::optional<LaunchFacts> longest_launch(const Recording& recording);

/// A table for a terminal of `width` columns.
std::string ledger_table(const std::vector<LedgerRow>& rows, LedgerKey key, int width);

/// RFC 4180: every row of the ledger by this key, numbers with every digit.
std::string ledger_csv(const std::vector<LedgerRow>& rows, LedgerKey key);

}  // namespace flashlab::profile
