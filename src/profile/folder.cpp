#include "profile/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "lab/report/numbers.h"
#include "lab/results/results_json.h"
#include "lab/results/verdict.h"
#include "profile/ledger.h"
#include "profile/questions.h"
#include "profile/roofline.h"
#include "profile/trace.h"
#include "train/data/files.h"

namespace flashlab::profile {
namespace {

using base::escape_markdown;
using lab::report::format_bytes;
using lab::report::format_significant;

constexpr LedgerKey kKeys[] = {LedgerKey::kClass, LedgerKey::kKernel, LedgerKey::kPhase,
                               LedgerKey::kLayer, LedgerKey::kOperation};
constexpr std::size_t kHeadRows = 10;

std::string markdown_rows(const std::vector<LedgerRow>& rows, LedgerKey key) {
  std::string out = fmt::format(
      "| {} | calls | ms | share | GFLOP/s | GB/s | of the roof | bound |\n"
      "|---|---:|---:|---:|---:|---:|---:|---|\n",
      to_string(key));
  const auto figure = [](std::optional<double> value) {
    return value ? format_significant(*value, 3) : std::string("-");
  };
  for (const LedgerRow& row : rows) {
    out += fmt::format("| {} | {} | {} | {:.1f}% | {} | {} | {} | {} |\n", escape_markdown(row.key),
                       fmt::format("{:g}", row.calls), format_significant(row.total_ms, 3),
                       100 * row.share, figure(row.gflops_per_s), figure(row.gb_per_s),
                       lab::report::format_percent(row.roof_share), row.bound);
  }
  return out;
}

// How the longest kernels were launched; nothing where that is not known.
std::string launches_markdown(const Recording& r) {
  std::string out;
  for (const LedgerRow& row : make_ledger(r, {.key = LedgerKey::kKernel, .top = kHeadRows})) {
    if (!row.launch) continue;
    const LaunchFacts& f = *row.launch;
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", escape_markdown(row.key), f.blocks,
                       f.threads, f.registers, format_bytes(f.shared_bytes),
                       lab::report::format_percent(f.occupancy), format_significant(f.waves, 3));
  }
  if (out.empty()) return out;
  return "\n| kernel | blocks | threads | registers | shared memory | occupancy | waves |\n"
         "|---|---:|---:|---:|---:|---:|---:|\n" +
         out;
}

// What Nsight Compute counted.
std::string counters_markdown(const Profile& p) {
  if (p.counters.empty()) return {};
  std::string out = "\n## Counters by Nsight Compute\n\n| kernel | calls |";
  std::string rule = "|---|---:|";
  for (const NcuMetric& metric : ncu_metrics()) {
    out += fmt::format(" {}, {} |", metric.heading, metric.unit);
    rule += "---:|";
  }
  out += " warps wait for |\n" + rule + "---|\n";
  for (const KernelCounters& row : p.counters) {
    out += fmt::format("| {} | {} |", escape_markdown(row.kernel), row.calls);
    for (const NcuMetric& metric : ncu_metrics()) {
      const auto found = row.metrics.find(metric.name);
      out +=
          found == row.metrics.end() ? " - |" : " " + format_significant(found->second, 3) + " |";
    }
    out += " " + longest_waits(row) + " |\n";
  }
  return out;
}

std::string timeline_markdown(const Profile& p) {
  if (p.timeline.empty()) return {};
  std::string out =
      "\n## Kernels by Nsight Systems\n\nOpen `nsys.nsys-rep` with nsys-ui; the sums of NVTX "
      "ranges "
      "are in `nsys_nvtx_gpu_proj_sum.csv`.\n\n| kernel | calls | ms | share "
      "|\n|---|---:|---:|---:|\n";
  for (std::size_t i = 0; i < p.timeline.size() && i < kHeadRows; ++i) {
    const NsysKernel& row = p.timeline[i];
    out += fmt::format("| {} | {} | {} | {:.1f}% |\n", escape_markdown(row.kernel), row.calls,
                       format_significant(row.total_ms, 3), 100 * row.share);
  }
  return out;
}

std::string memory_markdown(const Profile& p) {
  const MemoryTimeline& m = *p.memory;
  std::string out = "\n## Memory\n\n";
  out += fmt::format(
      "Predicted peak {} at `{}`: parameters, gradients and optimizer {}, arena of "
      "activations {}.\n",
      format_bytes(m.peak_bytes()),
      m.operations.empty() ? "" : m.operations[static_cast<std::size_t>(m.peak_operation)],
      format_bytes(m.persistent_bytes), format_bytes(m.arena_bytes));
  out += fmt::format("Reserved {}: at most {} of it in use at once, {} between two steps.\n",
                     format_bytes(m.persistent_bytes + m.arena_bytes), format_bytes(m.peak_bytes()),
                     format_bytes(m.persistent_bytes));
  if (p.measured_bytes) {
    out += fmt::format("Memory grew by {}: {:.3f} times what the plan holds.\n",
                       format_bytes(*p.measured_bytes),
                       static_cast<double>(*p.measured_bytes) /
                           static_cast<double>(m.persistent_bytes + m.arena_bytes));
  }
  out += "\n| phase | peak |\n|---|---:|\n";
  for (const train::Phase phase :
       {train::Phase::kForward, train::Phase::kBackward, train::Phase::kOptimizer}) {
    if (m.peak_bytes(phase) == 0) continue;
    out += fmt::format("| {} | {} |\n", train::to_string(phase), format_bytes(m.peak_bytes(phase)));
  }
  out += "\n| largest allocations | times | shape | bytes | since |\n|---|---:|---|---:|---|\n";
  for (const auto& [each, count] : largest(m, kHeadRows)) {
    out += fmt::format("| {} | {} | {} | {} | {} |\n", escape_markdown(each.name), count,
                       escape_markdown(each.shape), format_bytes(each.bytes),
                       escape_markdown(each.allocated_by));
  }
  if (p.block && p.block->saved_bytes > 0) {
    out += fmt::format(
        "\nLayer {} keeps {} for backward, and its backward makes {} of parameters' gradients. "
        "One tensor of the residual stream takes {}.\n\n| kept by layer {} | bytes | share |\n"
        "|---|---:|---:|\n",
        p.block->layer, format_bytes(p.block->saved_bytes),
        format_bytes(p.block->parameter_gradient_bytes),
        format_bytes(p.block->residual_stream_bytes), p.block->layer);
    for (std::size_t i = 0; i < p.block->saved.size() && i < 5; ++i) {
      const BlockMemory::Part& part = p.block->saved[i];
      out += fmt::format("| {} | {} | {:.1f}% |\n", escape_markdown(part.name),
                         format_bytes(part.bytes), 100 * part.share);
    }
  }
  return out;
}

nlohmann::ordered_json json_of(const LedgerRow& row) {
  nlohmann::ordered_json out;
  out["key"] = row.key;
  out["class"] = row.event_class;
  out["phase"] = row.phase;
  out["calls"] = row.calls;
  out["total_ms"] = row.total_ms;
  out["mean_ms"] = row.mean_ms;
  out["share"] = row.share;
  out["flops"] = row.flops;
  out["bytes"] = row.bytes;
  const auto set = [&](const char* name, std::optional<double> value) {
    out[name] = nullptr;
    if (value) out[name] = *value;
  };
  set("host_ms", row.host_ms > 0 ? std::optional(row.host_ms) : std::nullopt);
  set("host_mean_ms", row.host_mean_ms > 0 ? std::optional(row.host_mean_ms) : std::nullopt);
  set("gflops_per_s", row.gflops_per_s);
  set("gb_per_s", row.gb_per_s);
  set("roof_share", row.roof_share);
  out["bound"] = row.bound;
  if (row.launch) {
    out["launch"] = {
        {"blocks", row.launch->blocks},       {"threads", row.launch->threads},
        {"registers", row.launch->registers}, {"shared_bytes", row.launch->shared_bytes},
        {"occupancy", row.launch->occupancy}, {"waves", row.launch->waves}};
  }
  return out;
}

// What the folder holds besides, and where it opens.
std::string files_markdown(const Profile& p) {
  std::string out = "\n## Files\n\n- `report.html`: this with every table and picture\n";
  if (!p.recording.events.empty()) {
    out +=
        "- `ledger.txt`, `ledger.csv`, `ledger.json`: the ledger by kernel, operation, class, "
        "layer and phase\n"
        "- `trace.json`: open it at ui.perfetto.dev or chrome://tracing\n"
        "- `stacks.folded`, `flame.svg`, `roofline.svg`: pictures; speedscope opens the stacks\n";
  }
  if (p.memory) {
    out +=
        "- `memory.svg`, `memory.json`: every allocation; `memory.pickle`: drop it on "
        "pytorch.org/memory_viz\n";
  }
  return out + "- `environment.json`: the machine, its warnings and its samples over time\n";
}

std::string environment_json(const Profile& p) {
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.environment/1";
  lab::ResultFile file;
  file.environment = p.environment;
  out["environment"] = base::read_json<nlohmann::ordered_json>(lab::to_json(file))["environment"];
  return base::json_text(out, 1) + "\n";
}

// Behind the summary, in place: a full disk may have room for a line and none for a second summary.
void tell_unwritten(const std::filesystem::path& summary, const std::vector<std::string>& names) {
  std::error_code ignored;
  if (names.empty() || !std::filesystem::exists(summary, ignored)) return;
  std::ofstream(summary, std::ios::app)
      << fmt::format("\n**Not written: {}.** Is the disk full?\n", base::join(names, ", "));
}

// Live bytes while each event of the first recorded step ran.
std::vector<double> memory_counter(const Profile& p) {
  std::vector<double> out;
  if (!p.memory) return out;
  for (const train::RoleBytes& bytes : p.memory->live_bytes) {
    out.push_back(static_cast<double>(train::sum(bytes)));
  }
  return out;
}

}  // namespace

std::vector<Judgement> judgements(const Profile& p) {
  std::vector<Judgement> out = judge(p.recording);
  const auto add = [&](const lab::Measurement& m, const lab::Verdict& verdict) {
    static constexpr Verdict kSame[] = {Verdict::kGood, Verdict::kFair, Verdict::kPoor};
    out.push_back({fmt::format("{} {}, {}", m.implementation, m.pass, verdict.metric),
                   kSame[static_cast<int>(verdict.grade)], verdict.text});
  };
  for (const lab::Measurement& m : p.results) {
    if (m.status != lab::RunStatus::kOk) continue;
    if (const auto rate = lab::judge_throughput(m, p.environment)) add(m, *rate);
    const auto naive = std::ranges::find_if(p.results, [&](const lab::Measurement& other) {
      return other.implementation == "naive" && other.pass == m.pass &&
             other.status == lab::RunStatus::kOk;
    });
    if (naive == p.results.end() || m.implementation == "naive") continue;
    if (m[lab::kMedianMs] && (*naive)[lab::kMedianMs]) {
      add(m, lab::judge_speedup(*(*naive)[lab::kMedianMs], *m[lab::kMedianMs]));
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> environment_facts(const Profile& p) {
  const lab::Environment& e = p.environment;
  std::vector<std::pair<std::string, std::string>> out = {
      {"command", p.command},
      {"processor", e.cpu_model},
      {"GPU", e.gpu},
      {"driver", e.driver},
      {"instruction set", e.cpu_isa},
      {"threads", e.threads_used > 0 ? fmt::format("{}", e.threads_used) : ""},
      {"commit", e.commit},
      {"date", e.date_utc},
      {"roofs", p.recording.roofs.source},
      {"times", p.recording.clock}};
  std::erase_if(out, [](const auto& fact) { return fact.second.empty(); });
  return out;
}

std::string summary_markdown(const Profile& p) {
  const Recording& r = p.recording;
  std::string out =
      fmt::format("# {} on {}\n\n", escape_markdown(r.title), escape_markdown(r.device));
  out += fmt::format("`{}`, {}\n", p.command, p.environment.date_utc);
  if (r.interrupted) {
    out += fmt::format("\n**Interrupted: {} step{} recorded.**\n", r.steps(),
                       r.steps() == 1 ? " was" : "s were");
  }
  if (!p.advice.empty()) {
    out += "\n## What limits it, and what to try\n\n";
    for (const Advice& advice : p.advice) {
      out += fmt::format("- **{}** {}. {}.\n", advice.rule, escape_markdown(advice.what),
                         escape_markdown(advice.remedy));
    }
  }
  const std::vector<Judgement> verdicts = judgements(p);
  if (!verdicts.empty()) {
    out += "\n## Verdicts\n\n";
    for (const Judgement& j : verdicts) out += fmt::format("- {}: {}\n", j.metric, j.text);
  }
  const std::vector<Answer> all = answers(r);
  if (!all.empty()) {
    out += "\n## Answers\n\n| question | answer |\n|---|---|\n";
    for (const Answer& a : all) {
      out += fmt::format("| {} | {} |\n", escape_markdown(a.question), escape_markdown(a.answer));
    }
  }
  if (!r.events.empty()) {
    out += "\n## Ledger\n\n" +
           markdown_rows(make_ledger(r, {.key = LedgerKey::kClass}), LedgerKey::kClass) + "\n" +
           markdown_rows(make_ledger(r, {.key = LedgerKey::kKernel, .top = kHeadRows}),
                         LedgerKey::kKernel) +
           launches_markdown(r);
    if (!r.roofs.source.empty()) {
      out += fmt::format("\nRoofs: {} GFLOP/s, {} GB/s ({}).\n",
                         r.roofs.gflops ? format_significant(*r.roofs.gflops, 3) : "-",
                         r.roofs.gb_per_s ? format_significant(*r.roofs.gb_per_s, 3) : "-",
                         r.roofs.source);
    }
  }
  out += counters_markdown(p) + timeline_markdown(p);
  if (p.memory) out += memory_markdown(p);
  out += "\n## Where and how\n\n";
  for (const auto& [name, value] : environment_facts(p)) {
    out += fmt::format("- {}: {}\n", name, escape_markdown(value));
  }
  for (const lab::EnvironmentWarning& warning : p.environment.warnings) {
    out += fmt::format("- **{}**; {}\n", escape_markdown(warning.what),
                       escape_markdown(warning.remedy));
  }
  out += files_markdown(p);
  if (!p.missing.empty()) {
    out += "\n## Not there\n\n";
    for (const Profile::Missing& m : p.missing) {
      out += fmt::format("- {}: {}\n", m.what, escape_markdown(m.reason));
    }
  }
  return out;
}

std::string ledger_json(const Profile& p) {
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.ledger/1";
  out["command"] = p.command;
  out["title"] = p.recording.title;
  out["device"] = p.recording.device;
  out["interrupted"] = p.recording.interrupted;
  out["steps"] = p.recording.steps();
  out["step_ms"] = p.recording.step_ms();
  out["operations_ms"] = p.recording.busy_ms();
  out["first_step_ms"] = p.recording.first_step_ms;
  const auto figure = [&](const char* name, std::optional<double> value) {
    out[name] = nullptr;
    if (value) out[name] = *value;
  };
  out["clock"] = p.recording.clock;
  figure("plain_step_ms", p.recording.plain_step_ms);
  figure("device_step_ms", p.recording.device_step_ms);
  figure("enqueue_ms", p.recording.enqueue_ms);
  figure("batch_ms", p.recording.batch_ms);
  if (p.memory) {
    out["planned_bytes"] = p.memory->persistent_bytes + p.memory->arena_bytes;
    out["measured_bytes"] = nullptr;
    if (p.measured_bytes) out["measured_bytes"] = *p.measured_bytes;
  }
  figure("overhead", p.recording.overhead());
  if (const auto account = p.recording.account()) {
    out["account"] = {{"span_ms", account->span_ms},
                      {"covered_ms", account->covered_ms},
                      {"gaps_ms", account->gaps_ms},
                      {"gaps", account->gaps},
                      {"longest_gap_ms", account->longest_gap_ms},
                      {"longest_gap_after", account->longest_gap_after},
                      {"explained", nullptr}};
    if (account->explained) out["account"]["explained"] = *account->explained;
  }
  for (const LedgerKey key : kKeys) {
    auto& rows = out["by"][to_string(key)] = nlohmann::ordered_json::array();
    for (const LedgerRow& row : make_ledger(p.recording, {.key = key})) {
      rows.push_back(json_of(row));
    }
  }
  for (const KernelCounters& row : p.counters) {
    out["counters"].push_back(
        {{"kernel", row.kernel}, {"calls", row.calls}, {"metrics", row.metrics}});
  }
  for (const Profile::Missing& m : p.missing) {
    out["missing"].push_back({{"what", m.what}, {"reason", m.reason}});
  }
  out["environment"] = base::read_json<nlohmann::ordered_json>(environment_json(p))["environment"];
  for (const Advice& advice : p.advice) {
    out["advice"].push_back(
        {{"rule", advice.rule}, {"what", advice.what}, {"remedy", advice.remedy}});
  }
  return base::json_text(out, 1) + "\n";
}

WrittenProfile write_profile(const std::filesystem::path& folder, const Profile& p) {
  WrittenProfile out;
  std::vector<std::string> unwritten;
  const auto write = [&](const char* name, const std::string& text) {
    if (text.empty()) return;
    const std::filesystem::path path = folder / name;
    if (Status s = train::write_file(path, text); s.ok()) {
      out.files.push_back(path);
    } else {
      if (out.status.ok()) out.status = s;
      unwritten.emplace_back(name);
    }
  };
  // The summary first, which says what else there is, then figures, pictures last: a full disk
  // takes what can be made again.
  const bool ran = !p.recording.events.empty();
  write("SUMMARY.md", summary_markdown(p));
  if (ran) {
    write("ledger.json", ledger_json(p));
    const std::vector<LedgerRow> operations =
        make_ledger(p.recording, {.key = LedgerKey::kOperation});
    write("ledger.csv", ledger_csv(operations, LedgerKey::kOperation));
    std::string text;
    for (const LedgerKey key : kKeys) {
      text += ledger_table(make_ledger(p.recording, {.key = key}), key, 120) + "\n";
    }
    write("ledger.txt", text);
  }
  write("environment.json", environment_json(p));
  write("report.html", report_html(p));
  if (ran) {
    write("trace.json", chrome_trace(p.recording, memory_counter(p)));
    write("stacks.folded", folded_stacks(p.recording));
    write("flame.svg", flame_graph(p.recording, /*inline_in_page=*/false));
    write("roofline.svg", roofline_picture(p.recording, /*inline_in_page=*/false));
  }
  if (p.memory) {
    write("memory.json", timeline_json(*p.memory));
    write("memory.pickle", memory_snapshot(*p.memory));
    write("memory.svg", timeline_picture(*p.memory, {.detail_bytes = p.detail_bytes}));
  }
  tell_unwritten(folder / "SUMMARY.md", unwritten);
  return out;
}

}  // namespace flashlab::profile
