// `cache`: the compiled kernels of this user, listed or removed.

#include <fmt/format.h>

#include "base/text.h"
#include "cli/command.h"
#include "cli/failure.h"
#include "cli/terminal.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

void print_list(const lab::KernelCacheReport& report) {
  for (const auto& entry : report.entries) {
    print_line(fmt::format("{:>10}  {}", lab::format_bytes(entry.bytes), entry.name));
  }
  print_line(fmt::format("{} kernels, {} in {}", report.entries.size(),
                         lab::format_bytes(report.bytes), report.folder));
  if (report.shipped_folder.empty()) return;
  print_line(
      fmt::format("{} kernels came with FlashLab in {}", report.shipped, report.shipped_folder));
}

}  // namespace

int run_cache(const Arguments& arguments) {
  if (arguments.has("--list") && arguments.has("--clear")) {
    fail_usage("--list and --clear exclude each other; name one");
  }
  const Result<lab::KernelCacheReport> report = lab::kernel_cache();
  if (!report.ok()) fail(report.status());
  if (report->folder.empty()) {
    fail("there is no cache: no HOME, XDG_CACHE_HOME or FLASHLAB_CACHE; set FLASHLAB_CACHE");
  }
  if (arguments.has("--clear")) {
    const Result<std::int64_t> freed = lab::clear_kernel_cache();
    if (!freed.ok()) fail(freed.status());
    print_line(fmt::format("removed {} kernels, {} from {}", report->entries.size(),
                           lab::format_bytes(*freed), report->folder));
    return kExitOk;
  }
  print_list(*report);
  if (!report->refused.empty()) fail("kernels are compiled anew each time: " + report->refused);
  return kExitOk;
}

}  // namespace flashlab::cli
