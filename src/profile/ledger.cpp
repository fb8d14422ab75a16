#include "profile/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"
#include "lab/report/numbers.h"

namespace flashlab::profile {
namespace {

constexpr std::array<const char*, 5> kKeyNames = {"kernel", "operation", "class", "layer", "phase"};
constexpr std::array<const char*, 6> kOrders = {"total", "mean", "calls", "flops", "bytes", "name"};

template <class Enum, std::size_t N>
std::optional<Enum> parse(const std::array<const char*, N>& names, std::string_view name) {
  for (std::size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

std::string key_of(const Event& event, LedgerKey key) {
  switch (key) {
    case LedgerKey::kKernel:
      return event.kernel;
    case LedgerKey::kOperation:
      return event.again ? event.name + " (again)" : event.name;
    case LedgerKey::kClass:
      return event.event_class;
    case LedgerKey::kLayer:
      return event.layer < 0 ? "outside the layers" : fmt::format("layer {}", event.layer);
    case LedgerKey::kPhase:
      return event.phase;
  }
  return {};
}

// Layers by number, everything else by letters.
bool name_before(const LedgerRow& a, const LedgerRow& b) {
  if (a.key.size() != b.key.size() && a.key.starts_with("layer ") && b.key.starts_with("layer ") &&
      a.key.find('/') == std::string::npos) {
    return a.key.size() < b.key.size();
  }
  return a.key < b.key;
}

double order_value(const LedgerRow& row, LedgerOrder order) {
  switch (order) {
    case LedgerOrder::kMean:
      return row.mean_ms;
    case LedgerOrder::kCalls:
      return row.calls;
    case LedgerOrder::kFlops:
      return row.flops;
    case LedgerOrder::kBytes:
      return row.bytes;
    default:
      return row.total_ms;
  }
}

void finish_row(LedgerRow& row, double enqueued, int steps, double all_ms, const Roofs& roofs) {
  const double scale = 1.0 / steps;
  row.mean_ms = row.total_ms / row.calls;
  if (enqueued > 0) row.host_mean_ms = row.host_ms / enqueued;
  row.calls *= scale;
  row.total_ms *= scale;
  row.host_ms *= scale;
  row.flops *= scale;
  row.bytes *= scale;
  row.share = all_ms > 0 ? row.total_ms / all_ms : 0;
  if (row.total_ms <= 0) return;
  if (row.flops > 0) row.gflops_per_s = row.flops / row.total_ms * 1e-6;
  if (row.bytes > 0) row.gb_per_s = row.bytes / row.total_ms * 1e-6;
  const LeastTime least = least_time(row.flops, row.bytes, roofs);
  if (least.ms <= 0) return;
  row.roof_share = least.ms / row.total_ms;
  row.bound = least.bound;
}

}  // namespace

const char* to_string(LedgerKey key) noexcept {
  return kKeyNames[static_cast<std::size_t>(key)];
}
const char* to_string(LedgerOrder order) noexcept {
  return kOrders[static_cast<std::size_t>(order)];
}
std::optional<LedgerKey> parse_ledger_key(std::string_view name) {
  return parse<LedgerKey>(kKeyNames, name);
}
std::optional<LedgerOrder> parse_ledger_order(std::string_view name) {
  return parse<LedgerOrder>(kOrders, name);
}

std::vector<LedgerRow> make_ledger(const Recording& recording, const LedgerOptions& options,
                                   std::size_t* left_out) {
  const int steps = std::max(1, recording.steps());
  std::map<std::string, LedgerRow> rows;
  std::map<std::string, double> longest, enqueued;
  double all_ms = 0;
  for (const Event& event : recording.events) {
    if (!options.phase.empty() && event.phase != options.phase) continue;
    const std::string key = key_of(event, options.key);
    LedgerRow& row = rows[key];
    if (double& ms = longest[key]; options.key == LedgerKey::kKernel && event.duration_ms > ms) {
      ms = event.duration_ms;
      row.launch = event.launch;
    }
    if (row.calls == 0) {
      row.event_class = event.event_class;
      row.phase = event.phase;
    }
    if (row.event_class != event.event_class) row.event_class.clear();
    if (row.phase != event.phase) row.phase.clear();
    row.calls += 1;
    row.total_ms += event.duration_ms;
    row.host_ms += event.host_ms;
    enqueued[key] += event.host_ms > 0 ? 1 : 0;
    row.flops += event.flops;
    row.bytes += event.bytes;
    all_ms += event.duration_ms;
  }
  std::vector<LedgerRow> out;
  for (auto& [key, row] : rows) {
    row.key = key;
    finish_row(row, enqueued[key], steps, all_ms / steps, recording.roofs);
    out.push_back(std::move(row));
  }
  std::ranges::stable_sort(out, [&](const LedgerRow& a, const LedgerRow& b) {
    if (options.order == LedgerOrder::kName) return name_before(a, b);
    return order_value(a, options.order) > order_value(b, options.order);
  });
  const std::size_t kept = options.top > 0 ? std::min(options.top, out.size()) : out.size();
  if (left_out != nullptr) *left_out = out.size() - kept;
  out.resize(kept);
  return out;
}

std::optional<LaunchFacts> longest_launch(const Recording& recording) {
  const std::vector<LedgerRow> rows = make_ledger(recording, {.top = 1});
  return rows.empty() ? std::nullopt : rows[0].launch;
}

std::string ledger_table(const std::vector<LedgerRow>& rows, LedgerKey key, int width) {
  using base::pad_left;
  using base::pad_right;
  using lab::report::format_percent;
  using lab::report::format_significant;
  constexpr int kFigures = 66, kHost = 18, kShortestName = 14;
  // On a narrow terminal the files have it.
  const bool host = width >= kShortestName + kFigures + kHost &&
                    std::ranges::any_of(rows, [](const auto& row) { return row.host_ms > 0; });
  const int figures = host ? kFigures + kHost : kFigures;
  int name_width = base::display_width(to_string(key));
  for (const LedgerRow& row : rows) {
    name_width = std::max(name_width, base::display_width(row.key));
  }
  name_width = std::min(name_width, std::max(kShortestName, width - figures));
  const auto figure = [](std::optional<double> value) {
    return value ? format_significant(*value, 3) : std::string("-");
  };
  const auto known = [&](double value) {
    return pad_left(figure(value > 0 ? std::optional(value) : std::nullopt), 9);
  };
  std::string out =
      fmt::format("{}{:>7}{:>9}{:>7}{:>9}{}{:>9}{:>7}{:>6}  {}\n",
                  pad_right(to_string(key), name_width), "calls", "ms", "share", "ms/call",
                  host ? pad_left("host ms", 9) + pad_left("host/op", 9) : "", "GFLOP/s", "GB/s",
                  "roof", "bound");
  for (const LedgerRow& row : rows) {
    const std::vector<std::string> name = base::wrap(row.key, name_width);
    for (std::size_t i = 0; i + 1 < name.size(); ++i) out += name[i] + "\n";
    out += fmt::format(
        "{}{:>7}{:>9}{:>7}{:>9}{}{:>9}{:>7}{:>6}  {}\n", pad_right(name.back(), name_width),
        format_significant(row.calls, 3), format_significant(row.total_ms, 3),
        fmt::format("{:.1f}%", 100 * row.share), format_significant(row.mean_ms, 3),
        host ? known(row.host_ms) + known(row.host_mean_ms) : "", figure(row.gflops_per_s),
        figure(row.gb_per_s), format_percent(row.roof_share), row.bound);
  }
  return out;
}

std::string ledger_csv(const std::vector<LedgerRow>& rows, LedgerKey key) {
  using base::csv_field;
  std::string out = fmt::format(
      "{},class,phase,calls,total_ms,mean_ms,share,host_ms,host_mean_ms,flops,bytes,gflops_per_s,"
      "gb_per_s,"
      "roof_share,bound\r\n",
      to_string(key));
  const auto figure = [](std::optional<double> value) {
    return value ? fmt::format("{}", *value) : std::string();
  };
  const auto known = [](double value) {
    return value > 0 ? fmt::format("{}", value) : std::string();
  };
  for (const LedgerRow& row : rows) {
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\r\n", csv_field(row.key),
                       csv_field(row.event_class), csv_field(row.phase), row.calls, row.total_ms,
                       row.mean_ms, row.share, known(row.host_ms), known(row.host_mean_ms),
                       row.flops, row.bytes, figure(row.gflops_per_s), figure(row.gb_per_s),
                       figure(row.roof_share), row.bound);
  }
  return out;
}

}  // namespace flashlab::profile
