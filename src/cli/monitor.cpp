// `monitor`: a device over time, until Ctrl-C.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/terminal.h"
#include "lab/lab.h"
#include "train/data/files.h"

namespace flashlab::cli {
namespace {

using base::pad_left;
using base::pad_right;
using lab::MonitorFigure;
using lab::MonitorSample;

std::string value_words(const MonitorFigure& figure, std::optional<double> value) {
  if (!value) return "-";
  if (figure.unit == std::string_view("bytes")) return lab::report::format_bytes(*value);
  return fmt::format("{:.4g} {}", *value, figure.unit);
}

std::string plain_line(const MonitorSample& sample) {
  std::string out = fmt::format("{:>8.1f} s", sample.seconds);
  for (const MonitorFigure& figure : lab::monitor_figures()) {
    if (!(sample.*figure.value)) continue;
    out += fmt::format("  {} {}", figure.heading, value_words(figure, sample.*figure.value));
  }
  return out + (sample.throttle.empty() ? "" : "  slowed by " + sample.throttle);
}

// The last samples as eighths of a block between the lowest and the highest.
std::string curve(const std::vector<MonitorSample>& samples, const MonitorFigure& figure,
                  std::size_t columns) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t first = samples.size() - std::min(samples.size(), columns);
  double low = 0, high = figure.unit == std::string_view("%") ? 100 : 0;
  for (std::size_t i = first; i < samples.size(); ++i) {
    high = std::max(high, (samples[i].*figure.value).value_or(0));
  }
  std::string out;
  for (std::size_t i = first; i < samples.size(); ++i) {
    const std::optional<double> value = samples[i].*figure.value;
    const double share = value && high > low ? (*value - low) / (high - low) : 0;
    out += value ? kBlocks[std::clamp(static_cast<int>(share * 8), 0, 7)] : " ";
  }
  return out;
}

// Redrawn in place on a terminal.
class Chart {
 public:
  explicit Chart(std::string title) : title_(std::move(title)) {}
  void draw(const std::vector<MonitorSample>& samples) {
    constexpr int kHeading = 13, kValue = 12;
    const int columns = std::clamp(terminal_width() - kHeading - kValue - 4, 10, 120);
    std::vector<std::string> lines = {
        fmt::format("{} · {:.0f} s · Ctrl-C ends", title_, samples.back().seconds)};
    for (const MonitorFigure& figure : lab::monitor_figures()) {
      const bool known = std::ranges::any_of(
          samples, [&](const MonitorSample& s) { return (s.*figure.value).has_value(); });
      if (!known) continue;
      lines.push_back(
          fmt::format("{}{}  {}", pad_right(figure.heading, kHeading),
                      pad_left(value_words(figure, samples.back().*figure.value), kValue),
                      curve(samples, figure, static_cast<std::size_t>(columns))));
    }
    lines.push_back(samples.back().throttle.empty() ? "" : "slowed by " + samples.back().throttle);
    std::string text = drawn_ > 0 ? fmt::format("\x1b[{}A", drawn_) : "";
    for (const std::string& line : lines) text += "\x1b[K" + line + "\n";
    drawn_ = lines.size();
    print(text);
  }

 private:
  std::string title_;
  std::size_t drawn_ = 0;
};

std::string json_of(const lab::Monitor& monitor, const std::vector<MonitorSample>& samples) {
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.monitor/1";
  out["command"] = typed_command();
  out["date_utc"] = lab::utc_now();
  out["device"] = monitor.device();
  out["max_clock_mhz"] = nullptr;
  if (monitor.max_clock_mhz()) out["max_clock_mhz"] = *monitor.max_clock_mhz();
  auto& rows = out["samples"] = nlohmann::ordered_json::array();
  for (const MonitorSample& sample : samples) {
    nlohmann::ordered_json row;
    row["seconds"] = sample.seconds;
    for (const MonitorFigure& figure : lab::monitor_figures()) {
      row[figure.name] = nullptr;
      if (sample.*figure.value) row[figure.name] = *(sample.*figure.value);
    }
    row["throttle"] = sample.throttle;
    rows.push_back(std::move(row));
  }
  return base::json_text(out, 1) + "\n";
}

// The next sample's time is a multiple of the interval: late samples do not add up.
void wait_until(std::chrono::steady_clock::time_point when) {
  using std::chrono::steady_clock;
  while (steady_clock::now() < when && !interrupted().load()) {
    std::this_thread::sleep_for(std::min<steady_clock::duration>(std::chrono::milliseconds(50),
                                                                 when - steady_clock::now()));
  }
}

struct Asked {
  double interval = 0.5, duration = 0;
  std::string csv, json;
};

Asked asked_of(const Arguments& arguments) {
  Asked out;
  out.interval = real(arguments, "--interval", 0.5);
  out.duration = real(arguments, "--duration", 0);
  if (out.interval < 0.01) fail_usage("--interval is at least 0.01 seconds");
  if (arguments.has("--duration") && out.duration <= 0) fail_usage("--duration is above 0 seconds");
  out.csv = arguments.value("--csv").value_or("");
  out.json = arguments.value("--json").value_or("");
  if (out.csv == "-" && out.json == "-") fail_usage("--csv and --json cannot both be stdout");
  return out;
}

std::string csv_of(const std::vector<MonitorSample>& samples) {
  std::string out = lab::monitor_csv_header();
  for (const MonitorSample& sample : samples) out += lab::monitor_csv(sample);
  return out;
}

// Writes what --csv and --json ask for; false when one could not be written.
bool write_files(const Asked& asked, const lab::Monitor& monitor,
                 const std::vector<MonitorSample>& samples) {
  bool complete = true;
  const auto write = [&](const char* flag, const std::string& path, const std::string& text) {
    if (path.empty() || path == "-") return;
    if (const Status s = train::write_file(path, text); !s.ok()) {
      note(std::string(flag) + " " + s.message());
      complete = false;
    }
  };
  write("--csv", asked.csv, csv_of(samples));
  write("--json", asked.json, json_of(monitor, samples));
  if (asked.json == "-") print(json_of(monitor, samples));
  return complete;
}

}  // namespace

int run_monitor(const Arguments& arguments) {
  const Asked asked = asked_of(arguments);
  Device device = device_of(arguments, DefaultDevice::kCpu);
  if (!arguments.has("--device") && lab::gpu_ready()) device = {DeviceKind::kCuda, 0};
  lab::Monitor monitor(device);
  if (!monitor.why_nothing().empty()) {
    fail_usage(monitor.why_nothing() + "\n          The processor works: --device cpu");
  }
  const bool to_stdout = asked.csv == "-" || asked.json == "-";
  const bool live = !to_stdout && ::isatty(STDOUT_FILENO) == 1;
  Chart chart(monitor.device());
  if (asked.csv == "-") print(lab::monitor_csv_header());
  if (!to_stdout && !live) print_line(monitor.device());
  std::vector<MonitorSample> samples;
  const auto begin = std::chrono::steady_clock::now();
  const auto after = [&](double seconds) {
    return begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                       std::chrono::duration<double>(seconds));
  };
  for (int i = 1; !interrupted().load(); ++i) {
    const double at = i * asked.interval;
    if (asked.duration > 0 && at > asked.duration + 1e-9) break;
    wait_until(after(at));
    if (interrupted().load()) break;
    samples.push_back(monitor.sample());
    if (asked.csv == "-") print(lab::monitor_csv(samples.back()));
    if (live) chart.draw(samples);
    if (!to_stdout && !live) print_line(plain_line(samples.back()));
  }
  if (!write_files(asked, monitor, samples)) return kExitFailure;
  // Without a duration Ctrl-C is how it ends.
  return interrupted().load() && asked.duration > 0 ? kExitInterrupted : kExitOk;
}

}  // namespace flashlab::cli
