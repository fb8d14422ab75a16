#include "cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/terminal.h"
#include "cli/values.h"
#include "dist/start/join.h"

namespace flashlab::cli {
namespace {

constexpr std::int64_t kTimeoutS = 120;
// Until the first step has ended, and in commands that measure and compare.
constexpr std::int64_t kFirstTimeoutS = 600;

std::int64_t timeout_of(const Arguments& arguments, std::int64_t usual) {
  return whole(arguments, "--timeout", usual, 1, 1'000'000);
}

TrainingRanks joined(const dist::World& world, const Arguments& arguments, std::int64_t timeout_s) {
  TrainingRanks out;
  out.ranks.first_timeout_s = static_cast<double>(timeout_s);
  Result<std::unique_ptr<runtime::Communicator>> group =
      dist::join(world, {.transport = arguments.value("--transport").value_or("shared"),
                         .timeout_s = out.ranks.first_timeout_s});
  if (!group.ok()) {
    // What this version has no transport for, all ranks refuse in the same words.
    const bool silent = world.rank != 0 && group.status().code() == StatusCode::kUnsupported;
    throw Failure{exit_code_of(group.status()), group.status().message(), false, silent};
  }
  out.group = std::move(*group);
  out.ranks.group = out.group.get();
  return out;
}

}  // namespace

train::ParallelOptions parallel_options(const Arguments& arguments) {
  train::ParallelOptions out;
  if (const auto name = arguments.value("--parallel")) {
    out.mode = train::parse_parallel_mode(*name).value_or(out.mode);
  }
  out.bf16_wire = arguments.value("--wire") == "bf16";
  if (const auto bucket = arguments.value("--bucket")) {
    if (!has_buckets(out.mode)) {
      fail_usage(
          fmt::format("--bucket beside --parallel {}, which has none; leave one of the two "
                      "away",
                      to_string(out.mode)));
    }
    out.bucket_bytes = *bucket == "all" ? INT64_MAX : parse_bytes("--bucket", *bucket);
  }
  return out;
}

TrainingRanks training_ranks(const Arguments& arguments) {
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) fail(world.status());
  if (world->alone()) {
    for (const char* flag : {"--parallel", "--bucket", "--wire", "--transport", "--timeout"}) {
      if (!arguments.has(flag)) continue;
      fail_usage(fmt::format(
          "{} is about several ranks, and this process is alone; start them with flashlab "
          "launch -n 2 {} ...",
          flag, command(arguments.command_bit()).name));
    }
    return {};
  }
  // Before ranks meet: a refusal needs nobody.
  const train::ParallelOptions parallel = parallel_options(arguments);
  const std::int64_t timeout = timeout_of(arguments, kTimeoutS);
  TrainingRanks out = joined(*world, arguments, std::max(timeout, kFirstTimeoutS));
  out.ranks.parallel = parallel;
  out.ranks.timeout_s = static_cast<double>(timeout);
  return out;
}

TrainingRanks ranks_of(const Arguments& arguments) {
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) fail(world.status());
  if (world->alone()) return {};
  return joined(*world, arguments, timeout_of(arguments, kFirstTimeoutS));
}

void connect_gpus(TrainingRanks& started, const Context& context,
                  const dist::ChoiceOptions& options) {
  if (started.group == nullptr || context.device().kind != DeviceKind::kCuda) return;
  auto between = dist::gpu_transports(context.device(), *started.group, options);
  if (!between.ok()) fail_among(started.ranks, between.status());
  started.between = std::move(*between);
  started.ranks.gpus = started.between.chosen.get();
  if (started.ranks.gpus != nullptr) return;
  throw Failure{
      kExitUsage,
      fmt::format("there is no way between the ranks' GPUs: {}; {}",
                  started.between.nccl_status.message(), started.between.copies_status.message()),
      false, !started.ranks.leads()};
}

void tell_of(const Failure& failure) {
  // A launcher makes one message of what its ranks say.
  if (!dist::report_to_launcher(failure.exit_code, failure.of_another_rank, failure.text) &&
      !failure.silent) {
    note(failure.text);
  }
}

void fail_among(const train::Ranks& ranks, const Status& status, std::optional<int> code) {
  // What all ranks found together is told by the first, where no launcher listens.
  Failure failure = {code.value_or(exit_code_of(status)), status.message(), false, !ranks.leads()};
  if (ranks.group != nullptr && !ranks.group->failure().ok()) {
    failure = {kExitFailure, ranks.group->failure().message(), /*of_another_rank=*/true,
               /*silent=*/!ranks.group->tells_of_failure()};
  }
  if (ranks.gpus == nullptr) throw failure;
  tell_of(failure);
  std::fflush(nullptr);
  std::_Exit(failure.exit_code);  // lint: allow(exits) because destructors would wait for the GPU
}

}  // namespace flashlab::cli
