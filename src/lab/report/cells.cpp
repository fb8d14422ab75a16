#include "lab/report/cells.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/report/numbers.h"
#include "lab/report/text.h"

namespace flashlab::lab::report {
namespace {

bool among(const Best& best, const Row& row) {
  return std::find(best.rows.begin(), best.rows.end(), &row) != best.rows.end();
}

void add_messages(const Row& row, CellRow* out) {
  for (const BenchResult* result : row.by_pass) {
    if (result == nullptr) continue;
    const std::string pass = clean(result->pass);
    if (result->status != RunStatus::kOk) {
      out->messages.push_back(pass + ": " + failure_words(*result));
    } else if (!result->parts.empty()) {
      out->messages.push_back(pass + ": " + parts_words(*result));
    }
  }
}

}  // namespace

std::string parts_words(const BenchResult& result) {
  std::vector<std::string> words;
  for (const BenchResult::Part& part : result.parts) {
    words.push_back(clean(part.name) + " " + format_ms(part.median_ms));
  }
  return join(words, " + ") + " ms";
}

CellTable cells_of(const Group& group, std::string_view relative_to) {
  CellTable table;
  table.title = problem_title(group.problem);
  std::vector<const BenchResult*> all;
  for (const Row& row : group.rows) all.insert(all.end(), row.by_pass.begin(), row.by_pass.end());
  const RateUnit unit = rate_unit_for(all);
  const Row* base = relative_to.empty() ? nullptr : group.find(relative_to);
  if (base != nullptr && base->passes_ok() == 0) base = nullptr;
  const std::string versus = "vs " + clean(relative_to);

  std::vector<Best> quickest;
  for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
    const std::string over = clean(group.passes[pass]);
    for (const char* name : {"ms", to_string(unit), "roof"}) table.columns.push_back({over, name});
    if (base != nullptr) table.columns.push_back({over, versus});
    quickest.push_back(fastest(group, pass));
  }
  table.columns.push_back({"", "peak memory"});
  if (base != nullptr) table.columns.push_back({"", "memory " + versus});
  table.columns.push_back({"", "error vs fp64"});

  const bool several = group.rows.size() > 1;
  const Best leanest = least_memory(group), truest = most_accurate(group);
  for (const Row& row : group.rows) {
    CellRow out{row.label, {}, {}};
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const BenchResult* r = row.ok(pass);
      out.cells.push_back(
          {r ? format_ms(r->median_ms) : kAbsent, several && among(quickest[pass], row), {}});
      out.cells.push_back({r ? format_rate(r->tflops, unit) : kAbsent, false, {}});
      std::optional<double> share = r ? finite(r->roof_share) : std::nullopt;
      if (share) share = std::clamp(*share, 0.0, 1.0);
      out.cells.push_back({r ? format_percent(r->roof_share) : kAbsent, false, share});
      if (base != nullptr) {
        out.cells.push_back({format_ratio(speed_up(base->ok(pass), r)), false, {}});
      }
    }
    out.cells.push_back({format_bytes(row.peak_bytes()), several && among(leanest, row), {}});
    if (base != nullptr) {
      out.cells.push_back({format_ratio(memory_ratio(*base, row)), false, {}});
    }
    out.cells.push_back({format_error(row.error()), several && among(truest, row), {}});
    add_messages(row, &out);
    table.rows.push_back(std::move(out));
  }
  return table;
}

std::vector<std::string> winners_of(const Group& group) {
  std::vector<std::string> out, quickest;
  for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
    const Best best = fastest(group, pass);
    if (best.rows.empty()) continue;
    quickest.push_back(fmt::format("{} {} ({} ms)", clean(group.passes[pass]), labels(best),
                                   format_ms(best.value)));
  }
  if (quickest.empty()) return {"nothing ran to its end"};
  out.push_back("fastest: " + join(quickest, ", "));
  if (const Best best = least_memory(group); !best.rows.empty()) {
    out.push_back(fmt::format("least memory: {} ({})", labels(best), format_bytes(best.value)));
  }
  if (const Best best = most_accurate(group); !best.rows.empty()) {
    out.push_back(fmt::format("most accurate: {} ({})", labels(best), format_error(best.value)));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> environment_rows(const Environment& e) {
  std::vector<std::pair<std::string, std::string>> rows;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) rows.emplace_back(name, clean(value));
  };
  const auto add_bytes = [&](const char* name, std::int64_t bytes) {
    if (bytes > 0) add(name, format_bytes(bytes));
  };
  const auto add_number = [&](const char* name, std::optional<double> value, const char* unit) {
    if (value) add(name, format_significant(*value, 4) + " " + unit);
  };
  add("GPU", e.gpu);
  add("driver", e.driver);
  add("CUDA", e.cuda_version);
  add("architecture", e.gpu_architecture);
  add_bytes("GPU memory", e.gpu_memory_bytes);
  add_number("GPU clock before the run", e.gpu_clock_mhz, "MHz");
  add_number("GPU power limit", e.gpu_power_limit_w, "W");
  add("GPU memory ECC", e.gpu_ecc);
  add("CPU", e.cpu_model);
  add("instruction set", e.cpu_isa);
  if (e.threads_used > 0) {
    add("threads", e.cpu_threads_online > 0
                       ? fmt::format("{} of {} online", e.threads_used, e.cpu_threads_online)
                       : fmt::format("{}", e.threads_used));
  }
  add_bytes("memory", e.memory_bytes);
  add_bytes("L1 data cache", e.l1d_bytes);
  add_bytes("L2 cache", e.l2_bytes);
  add_bytes("L3 cache", e.l3_bytes);
  add_number("clock", e.clock_mhz, "MHz");
  add_number("fp32 roof, measured", e.roof_fp32_gflops, "GFLOP/s");
  add_number("bf16 roof, measured", e.roof_bf16_gflops, "GFLOP/s");
  add_number("copy bandwidth, measured", e.copy_gb_per_s, "GB/s");
  add("roof of", e.roof_source);
  add("system", e.os);
  add("kernel", e.kernel);
  add("compiler", e.compiler);
  add("C library", e.libc);
  add("FlashLab", e.flashlab_version);
  add("commit", e.commit);
  add("date (UTC)", e.date_utc);
  add("machine (hash)", e.hostname_hash);
  add("protocol", e.protocol);
  return rows;
}

}  // namespace flashlab::lab::report
