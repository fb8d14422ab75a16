// `check parallel`: steps on several ranks beside one rank's, bit for bit.

#include <fmt/format.h>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "train/run/parallel_check.h"

namespace flashlab::cli {

int run_check_parallel(const Arguments& arguments) {
  TrainingRanks started = ranks_of(arguments);
  const train::Ranks& ranks = started.ranks;
  if (ranks.group == nullptr) {
    fail_usage(
        "check parallel compares several ranks with one; start them: flashlab launch -n 2 check "
        "parallel");
  }
  const Context context = make_context(arguments);
  connect_gpus(started, context, {.sums_of_nccl = false});
  std::unique_ptr<runtime::Communicator> usual;
  if (ranks.gpus != nullptr) {
    const dist::GpuTransports& between = started.between;
    usual = dist::chosen_communicator(*started.group, between.nccl.get(), between.copies.get(),
                                      {.beside_kernels = true});
  }
  const train::ParallelCheckOptions options = {.brief = arguments.has("--quick"),
                                               .usual = usual.get()};
  if (ranks.leads()) {
    print_line(
        fmt::format("check parallel · {} ranks beside one with {} shares · {} steps each · {}\n",
                    ranks.size(), ranks.size(), options.steps, device_words(context)));
  }
  const auto ended = [&](const train::ParallelCheck& check) {
    if (!ranks.leads()) return;
    print_line(fmt::format("{}  {}", check.ok() ? "equal" : "WRONG", check.title));
    for (const std::string& what : check.wrong) print_line("       " + what);
  };
  const auto checks = train::check_parallel(context, ranks, options, ended);
  if (!checks.ok()) fail_among(ranks, checks.status());
  std::size_t wrong = 0;
  for (const train::ParallelCheck& check : *checks) wrong += check.ok() ? 0 : 1;
  if (ranks.leads()) {
    print_line(
        fmt::format("\n{} of {} give the bits of one rank: losses, gradient norms, every "
                    "weight and moment on every rank{}",
                    checks->size() - wrong, checks->size(),
                    usual == nullptr ? "" : "; or, where a row says so, its losses to 1e-5"));
  }
  return wrong == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace flashlab::cli
