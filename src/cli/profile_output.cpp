#include "cli/profile_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/failure.h"
#include "cli/outputs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "profile/ledger.h"
#include "train/data/files.h"

namespace flashlab::cli {
namespace {

namespace fs = std::filesystem;
using profile::LedgerKey;

std::string shares(const profile::Recording& r) {
  const auto account = r.account();
  std::string out = fmt::format("operations {:.0f}% of {}", account ? 100 * account->filled : 0.0,
                                r.device_step_ms ? "the GPU's time" : "a step");
  for (const profile::LedgerRow& row :
       profile::make_ledger(r, {.key = LedgerKey::kClass, .top = 6})) {
    out += fmt::format(" · {} {:.0f}%", row.key, 100 * row.share);
  }
  return out;
}

}  // namespace

fs::path profile_folder(const Arguments& arguments) {
  const fs::path folder = arguments.value("--output").value_or(dated_folder("profile"));
  make_folder(folder);
  // From here on an interruption leaves a folder that says what is missing.
  static_cast<void>(interrupted());
  return folder;
}

void print_ledger(const Arguments& arguments, const profile::Profile& p) {
  const profile::Recording& r = p.recording;
  if (r.steps() == 0) return;
  print_line(fmt::format("{} · {}", r.title, r.device));
  std::string more;
  if (r.first_step_ms > 0) more += fmt::format(" · first {:.4g} ms", r.first_step_ms);
  if (r.overhead()) more += fmt::format(" · recording {:+.1f}%", 100 * *r.overhead());
  print_line(fmt::format("  step       {:.4g} ms, median of {}{}", r.step_ms(), r.steps(), more));
  if (r.device_step_ms) {
    print_line(fmt::format(
        "  GPU        {:.4g} ms between two events · kernels {:.4g} ms, {:.1f}% of it{}",
        *r.device_step_ms, r.busy_ms(), 100 * r.busy_ms() / *r.device_step_ms,
        r.enqueue_ms ? fmt::format(" · enqueued in {:.3g} ms", *r.enqueue_ms) : ""));
  }
  if (const auto account = r.account(); account && account->explained) {
    print_line(fmt::format(
        "  account    {:.4g} ms in kernels + {:.3g} ms in {:g} gaps = {:.4g} ms, {:.1f}% of the "
        "GPU's time of the same steps",
        account->covered_ms, account->gaps_ms, account->gaps, account->span_ms,
        100 * *account->explained));
  }
  print_line("  " + shares(r));
  profile::LedgerOptions options;
  if (const auto by = arguments.value("--by")) options.key = *profile::parse_ledger_key(*by);
  if (const auto sort = arguments.value("--sort")) {
    options.order = *profile::parse_ledger_order(*sort);
  }
  options.top = static_cast<std::size_t>(whole(arguments, "--top", 12, 0, 1 << 20));
  std::size_t left_out = 0;
  const auto rows = profile::make_ledger(r, options, &left_out);
  print("\n" + profile::ledger_table(rows, options.key, terminal_width()));
  if (left_out > 0) print_line(fmt::format("{} further rows: --top 0", left_out));
  print_line("");
}

void print_advice(const profile::Profile& p) {
  for (const profile::Advice& advice : p.advice) {
    print_hanging(fmt::format("  {:<10} ", advice.rule), advice.what + "; " + advice.remedy);
  }
}

void print_profile(const Arguments& arguments, const profile::Profile& p) {
  print_ledger(arguments, p);
  print_advice(p);
}

bool write_profile_folder(const Arguments& arguments, const fs::path& folder,
                          const profile::Profile& p) {
  const profile::WrittenProfile written = profile::write_profile(folder, p);
  const std::string json = arguments.value("--json").value_or("");
  if (json == "-") {
    print(profile::ledger_json(p));
  } else {
    const bool ran = !p.recording.events.empty();
    const fs::path page = folder / "report.html", summary = folder / "SUMMARY.md";
    const auto& files = written.files;
    const auto has = [&](const fs::path& file) {
      return std::ranges::find(files, file) != files.end();
    };
    const fs::path& start = ran && has(page) ? page : summary;
    if (has(start)) print_line(fmt::format("  report     {}", start.string()));
  }
  if (!written.status.ok()) note("--output " + written.status.message());
  if (json.empty() || json == "-") return written.status.ok();
  const Status s = train::write_file(json, profile::ledger_json(p));
  if (!s.ok()) note("--json " + s.message());
  return written.status.ok() && s.ok();
}

std::vector<profile::Profile::Missing> missing_instruments(bool gpu,
                                                           const std::string& why_no_cupti,
                                                           const Arguments& arguments) {
  if (!gpu) {
    return {{"kernel times by CUPTI, occupancy, registers",
             "they belong to GPUs; on the CPU a clock around every operation takes the times"},
            {"counters by ncu, report of nsys", "they need a GPU"}};
  }
  std::vector<profile::Profile::Missing> out;
  if (!why_no_cupti.empty()) out.push_back({"kernel times by CUPTI", why_no_cupti});
  if (!arguments.has("--ncu")) out.push_back({"counters by ncu", "--ncu collects them"});
  if (!arguments.has("--nsys")) out.push_back({"report of nsys", "--nsys makes it"});
  return out;
}

void add_interruption(profile::Profile& p) {
  if (!p.recording.interrupted || p.recording.steps() > 0) return;
  p.missing.insert(p.missing.begin(),
                   {"ledger, trace, flame graph and roofline",
                    "interrupted before the first recorded step or call; --quick needs fewer"});
}

}  // namespace flashlab::cli
