#include "lab/report/cells.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

void add_messages(const Row& row, CellRow* out) {
  for (const Measurement* result : row.by_pass) {
    if (result == nullptr) continue;
    const std::string pass = base::clean(result->pass);
    if (result->status != RunStatus::kOk) {
      out->messages.push_back(pass + ": " + failure_words(*result));
    } else if (!result->parts.empty()) {
      out->messages.push_back(pass + ": " + parts_words(*result));
    }
  }
}

}  // namespace

std::string parts_words(const Measurement& result) {
  std::vector<std::string> words;
  for (const Measurement::Part& part : result.parts) {
    words.push_back(base::clean(part.name) + " " + format_ms(part.median_ms));
  }
  return base::join(words, " + ") + " ms";
}

CellTable cells_of(const Group& group, std::string_view relative_to) {
  CellTable table;
  table.title = group.title();
  const RateUnit unit = rate_unit_for(group.all());
  const Row* base = relative_to.empty() ? nullptr : group.find(relative_to);
  if (base != nullptr && base->passes_ok() == 0) base = nullptr;
  const std::string versus = "vs " + base::clean(relative_to);
  const std::vector<Column> timed = columns_at(group, Place::kEachPass),
                            once = columns_at(group, Place::kRow);
  const bool several = group.rows.size() > 1;
  for (const Row& row : group.rows) table.rows.push_back({row.label, {}, {}});

  // Column by column, so that the best of one is looked for once.
  const auto add = [&](const Column& column, std::string over, const Best& best, auto value) {
    table.columns.push_back({std::move(over), heading_of(column, unit)});
    for (std::size_t i = 0; i < group.rows.size(); ++i) {
      const std::optional<double> figure = value(group.rows[i]);
      std::optional<double> share = column.unit == "share" ? finite(figure) : std::nullopt;
      if (share) share = std::clamp(*share, 0.0, 1.0);
      table.rows[i].cells.push_back({format_figure(column, figure, unit),
                                     several && !column.best.empty() && best.has(group.rows[i]),
                                     share});
    }
  };
  const auto add_ratio = [&](std::string over, std::string name, auto ratio) {
    if (base == nullptr) return;
    table.columns.push_back({std::move(over), std::move(name)});
    for (std::size_t i = 0; i < group.rows.size(); ++i) {
      table.rows[i].cells.push_back({format_ratio(ratio(group.rows[i])), false, {}});
    }
  };
  for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
    for (const Column& column : timed) {
      add(column, base::clean(group.passes[pass]), best_of(group, column, pass),
          [&](const Row& row) {
            return row.ok(pass) != nullptr ? (*row.ok(pass))[column] : std::nullopt;
          });
    }
    add_ratio(base::clean(group.passes[pass]), versus,
              [&](const Row& row) { return speed_up(base->ok(pass), row.ok(pass)); });
  }
  for (const Column& column : once) {
    add(column, "", best_of(group, column), [&](const Row& row) { return row.worst(column); });
    if (column.name == kPeakBytes.name) {
      add_ratio("", "memory " + versus, [&](const Row& row) { return memory_ratio(*base, row); });
    }
  }
  for (std::size_t i = 0; i < group.rows.size(); ++i) add_messages(group.rows[i], &table.rows[i]);
  return table;
}

std::vector<std::string> winners_of(const Group& group) {
  std::vector<std::string> out;
  const RateUnit unit = rate_unit_for(group.all());
  const auto words = [&](const Column& column, const Best& best) {
    return fmt::format("{} ({}{})", labels(best), format_figure(column, best.value, unit),
                       column.unit == "ms" ? " ms" : "");
  };
  for (const Column& column : columns_at(group, Place::kEachPass)) {
    std::vector<std::string> passes;
    for (std::size_t pass = 0; pass < group.passes.size() && !column.best.empty(); ++pass) {
      const Best best = best_of(group, column, pass);
      if (!best.rows.empty()) {
        passes.push_back(base::clean(group.passes[pass]) + " " + words(column, best));
      }
    }
    if (!passes.empty()) out.push_back(std::string(column.best) + ": " + base::join(passes, ", "));
  }
  if (out.empty()) return {"nothing ran to its end"};
  for (const Column& column : columns_at(group, Place::kRow)) {
    const Best best = best_of(group, column);
    if (column.best.empty() || best.rows.empty()) continue;
    out.push_back(std::string(column.best) + ": " + words(column, best));
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> environment_rows(const Environment& e) {
  std::vector<std::pair<std::string, std::string>> rows;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) rows.emplace_back(name, base::clean(value));
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
  add_number("fp32 loop, measured", e.loop_fp32_gflops, "GFLOP/s");
  add_number("bf16 loop, measured", e.loop_bf16_gflops, "GFLOP/s");
  add_number("copy bandwidth, measured", e.copy_gb_per_s, "GB/s");
  add_number("read bandwidth, measured", e.read_gb_per_s, "GB/s");
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
