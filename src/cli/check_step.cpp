// `check step`: our steps beside another program's, by its record.

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "train/run/parity.h"

namespace flashlab::cli {

int run_check_step(const Arguments& arguments) {
  const std::vector<std::string> records = arguments.list("--record");
  if (records.empty()) {
    fail_usage(
        "check step needs --record FILE; bench/peers/train_parity.py makes one with PyTorch");
  }
  const Context context = make_context(arguments, DefaultDevice::kGpuIfThere);
  std::vector<std::string> names = arguments.list("--precision");
  if (names.empty()) {
    names = {"fp32"};
    if (context.device().kind == DeviceKind::kCpu) names.insert(names.begin(), "fp64");
  }
  bool all_ok = true;
  for (const std::string& record : records) {
    for (const std::string& name : names) {
      const Result<train::ParityReport> report =
          train::check_parity(context, record, *train::parse_precision(name));
      if (!report.ok()) fail_usage("--record " + report.status().message());
      const train::ParityRow& worst = report->worst();
      print_line(
          fmt::format("{}  {} · {} tensors and losses · nearest to its limit: {} {:.2e} of "
                      "{:.2e}",
                      report->ok() ? "ok   " : "wrong", report->title, report->rows.size(),
                      worst.what, worst.error, worst.allowed));
      for (const train::ParityRow& row : report->rows) {
        if (!row.ok()) {
          print_line(fmt::format("       {} is off by {:.2e}, {:.2e} allowed", row.what, row.error,
                                 row.allowed));
        }
      }
      all_ok = all_ok && report->ok();
    }
  }
  return all_ok ? kExitOk : kExitCheckFailed;
}

}  // namespace flashlab::cli
