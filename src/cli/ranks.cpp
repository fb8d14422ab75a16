#include "cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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
  if (arguments.value("--device").value_or("cpu") != "cpu") {
    fail_usage(
        fmt::format("--device {} with {} ranks; this version trains in ranks on CPUs alone: "
                    "--device cpu",
                    *arguments.value("--device"), world->size));
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

void fail_among(const train::Ranks& ranks, const Status& status) {
  if (ranks.group != nullptr && !ranks.group->failure().ok()) {
    throw Failure{kExitFailure, ranks.group->failure().message(), /*of_another_rank=*/true,
                  /*silent=*/!ranks.group->tells_of_failure()};
  }
  // What all ranks found together is told by the first, where no launcher listens.
  throw Failure{exit_code_of(status), status.message(), false, !ranks.leads()};
}

}  // namespace flashlab::cli
