// `bench parallel`: a training step on several ranks, mode by mode.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "lab/lab.h"
#include "train/data/files.h"
#include "train/run/parallel_bench.h"

namespace flashlab::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string words_of_mode(const train::ParallelOptions& parallel) {
  std::string out = to_string(parallel.mode);
  if (!has_buckets(parallel.mode)) return out;
  return out + (parallel.bucket_bytes == INT64_MAX
                    ? std::string(" all")
                    : " " + lab::format_bytes(static_cast<double>(parallel.bucket_bytes)));
}

std::vector<train::ParallelOptions> parallel_modes_of(const Arguments& arguments) {
  std::vector<std::string> names = arguments.list("--parallel");
  if (names.empty()) names = train::parallel_mode_names();
  std::vector<std::string> buckets = arguments.list("--bucket");
  if (buckets.empty()) buckets = {"25MB"};
  const bool narrow = arguments.value("--wire") == "bf16";
  std::vector<train::ParallelOptions> out;
  for (const std::string& name : names) {
    const train::ParallelMode mode = *train::parse_parallel_mode(name);
    for (const std::string& bucket : buckets) {
      const std::int64_t bytes = bucket == "all" ? INT64_MAX : parse_bytes("--bucket", bucket);
      out.push_back({mode, bytes, narrow});
      if (!has_buckets(mode)) break;
    }
  }
  return out;
}

// What is the same in all rows.
struct Table {
  double tokens = 0;                              // of a step
  std::optional<train::OneRankTimes> one_rank{};  // on GPUs
};

double share_of(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

Json row_of_mode(const train::ParallelOptions& parallel, const train::ParallelTimes& times,
                 const Table& table) {
  Json out;
  out["mode"] = to_string(parallel.mode);
  if (has_buckets(parallel.mode)) out["bucket_bytes"] = parallel.bucket_bytes;
  out["step_ms"] = times.step_ms;
  out["forward_ms"] = times.forward_ms;
  out["backward_ms"] = times.backward_ms;
  out["optimizer_ms"] = times.optimizer_ms;
  out["tokens_per_s"] = table.tokens / times.step_ms * 1e3;
  out["communication_ms"] = times.communication_ms;
  out["exposed_ms"] = times.exposed_ms();
  out["efficiency"] = share_of(times.without_ms, times.step_ms);
  if (table.one_rank) {
    out["gradients_ms"] = times.gradients_ms;
    out["of_one_rank"] = {
        {"step", share_of(table.one_rank->step_ms, times.step_ms)},
        {"gradients", share_of(table.one_rank->gradients_ms, times.gradients_ms)}};
  }
  for (int role = 0; role < train::kRoles; ++role) {
    out["bytes"][to_string(static_cast<train::Role>(role))] =
        times.bytes[static_cast<std::size_t>(role)];
  }
  out["bytes"]["scratch"] = times.scratch;
  out["held_bytes"] = times.held;
  out["predicted_bytes"] = times.predicted;
  return out;
}

void print_heading(const Table& table) {
  const std::string gpus = table.one_rank
                               ? fmt::format(" {:>9} {:>7} {:>7}", "f + b ms", "of one", "step")
                               : std::string();
  print_line(fmt::format("{:16} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9} {:>7}{}  {}", "mode",
                         "step ms", "forward", "backward", "optimizer", "tokens/s", "sent ms",
                         "exposed", "eff.", gpus, "parameters + gradients + moments of a rank"));
  if (!table.one_rank) return;
  print_line(fmt::format("{:16} {:9.2f} {:>69} {:9.2f}", "one rank", table.one_rank->step_ms, "",
                         table.one_rank->gradients_ms));
}

void print_mode(const train::ParallelOptions& parallel, const train::ParallelTimes& times,
                const Table& table) {
  const auto bytes = [&](train::Role role) {
    return lab::format_bytes(static_cast<double>(times.bytes[static_cast<std::size_t>(role)]));
  };
  std::string gpus;
  if (table.one_rank) {
    gpus = fmt::format(" {:9.2f} {:6.1f}% {:6.1f}%", times.gradients_ms,
                       100 * share_of(table.one_rank->gradients_ms, times.gradients_ms),
                       100 * share_of(table.one_rank->step_ms, times.step_ms));
  }
  print_line(fmt::format(
      "{:16} {:9.2f} {:9.2f} {:9.2f} {:9.2f} {:10.0f} {:9.2f} {:9.2f} {:6.1f}%{}"
      "  {} + {} + {}, {} in all",
      words_of_mode(parallel), times.step_ms, times.forward_ms, times.backward_ms,
      times.optimizer_ms, table.tokens / times.step_ms * 1e3, times.communication_ms,
      times.exposed_ms(), 100 * share_of(times.without_ms, times.step_ms), gpus,
      bytes(train::Role::kParameter), bytes(train::Role::kGradient),
      bytes(train::Role::kOptimizerState), lab::format_bytes(static_cast<double>(times.held))));
}

train::StepOptions step_options_of(const Arguments& arguments, const train::Ranks& ranks) {
  train::StepOptions out;
  if (arguments.has("--batch") && arguments.has("--batch-per-rank")) {
    fail_usage("--batch beside --batch-per-rank: the batch of all ranks or of one; leave one away");
  }
  out.batch = whole(arguments, "--batch", 12, 1, kMaxSize);
  if (arguments.has("--batch-per-rank")) {
    out.batch = ranks.size() * whole(arguments, "--batch-per-rank", 1, 1, kMaxSize);
  }
  out.context = whole(arguments, "--context", 0, 1, kMaxSize);
  out.shares = out.ranks = ranks.size();
  out.rank = ranks.rank();
  out.precision = precision_of(arguments, train::Precision::kFp32);
  return out;
}

void write_rows(const std::string& file, const Json& out) {
  const std::string text = base::json_text(out, 1) + "\n";
  if (file == "-") {
    print(text);
  } else if (const Status s = train::write_file(file, text); !s.ok()) {
    fail(s.message());
  }
}

// PyTorch's way of a mode; empty where it has none.
std::string torch_way(train::ParallelMode mode) {
  using enum train::ParallelMode;
  return mode == kBucket ? "ddp" : mode == kZero1 ? "zero1" : mode == kFsdp ? "fsdp2" : "";
}

Json row_of_torch(const std::string& name, const Result<lab::TorchParallelTimes>& times,
                  const Table& table, double our_step_ms) {
  if (!times.ok()) return {{"mode", name}, {"error", times.status().message()}};
  Json out = {{"mode", name},
              {"step_ms", times->step_ms},
              {"gradients_ms", times->gradients_ms},
              {"tokens_per_s", table.tokens / times->step_ms * 1e3},
              {"peak_bytes", times->peak_bytes}};
  if (our_step_ms > 0) out["tokens_per_s_of_ours"] = times->step_ms / our_step_ms;
  return out;
}

void print_torch(const Json& row, const std::string& mode) {
  const auto name = row["mode"].get<std::string>();
  if (row.contains("error")) {
    return print_line(fmt::format("{:16} {}", name, row["error"].get<std::string>()));
  }
  const std::string ours = row.contains("tokens_per_s_of_ours")
                               ? fmt::format("; {} makes {:.2f} times its tokens/s", mode,
                                             row["tokens_per_s_of_ours"].get<double>())
                               : std::string();
  print_line(fmt::format("{:16} {:9.2f} {:>29} {:10.0f}   forward and backward {:.2f} ms{}", name,
                         row["step_ms"].get<double>(), "", row["tokens_per_s"].get<double>(),
                         row["gradients_ms"].get<double>(), ours));
}

std::unique_ptr<lab::TorchParallel> start_peer(const Arguments& arguments, const Context& context,
                                               const train::Ranks& ranks,
                                               const std::vector<train::ParallelOptions>& modes) {
  if (!arguments.has("--peers")) {
    if (!arguments.has("--python")) return nullptr;
    fail_usage(
        "--python has no effect without peers that run in Python; add --peers torch, or leave it "
        "out");
  }
  if (std::ranges::all_of(modes, [](const auto& mode) { return torch_way(mode.mode).empty(); })) {
    fail_usage(
        fmt::format("--peers torch has no effect beside --parallel {}, which PyTorch does "
                    "not have; add bucket, zero1 or fsdp, or leave it out",
                    base::join(arguments.list("--parallel"), ",")));
  }
  auto torch = lab::TorchParallel::start(
      {.python = arguments.value("--python").value_or("python3"),
       .silence_s = static_cast<double>(whole(arguments, "--timeout", 600, 1, 1'000'000))},
      to_string(context.device()));
  if (const Status s = ranks.agree(torch.status()); !s.ok()) {
    fail_among(ranks, s, kExitUsage);
  }
  return std::move(*torch);
}

// All but the rows.
Json head_of_rows(const Context& context, const train::Ranks& ranks, const std::string& model,
                  const train::StepOptions& options, const train::BenchCounts& counts,
                  const Table& table) {
  lab::ResultFile file_of_run;
  file_of_run.environment = environment_of(
      context, fmt::format("{} warm-ups, median of {} steps", counts.warmup, counts.repeats));
  Json out;
  out["schema"] = "flashlab.bench-parallel/1";
  out["environment"] = base::read_json<Json>(lab::to_json(file_of_run))["environment"];
  out["model"] = model;
  out["ranks"] = ranks.size();
  out["batch"] = options.batch;
  out["batch_per_rank"] = options.batch / ranks.size();
  out["context"] = options.context;
  out["precision"] = to_string(options.precision);
  out["device"] = device_words(context);
  if (table.one_rank) {
    out["one_rank"] = {{"step_ms", table.one_rank->step_ms},
                       {"gradients_ms", table.one_rank->gradients_ms}};
  }
  out["rows"] = Json::array();
  return out;
}

}  // namespace

int run_bench_parallel(const Arguments& arguments) {
  const std::vector<train::ParallelOptions> modes = parallel_modes_of(arguments);
  TrainingRanks started = ranks_of(arguments);
  train::Ranks& ranks = started.ranks;
  if (ranks.group == nullptr) {
    fail_usage(
        "bench parallel times several ranks; start them: flashlab launch -n 2 bench parallel");
  }
  const Context context = make_context(arguments);
  connect_gpus(started, context, {.beside_kernels = true});
  const Result<train::ModelConfig> model =
      train::find_model(arguments.value("--size").value_or("tiny"));
  if (!model.ok()) fail_usage("--size " + model.status().message());
  train::StepOptions options = step_options_of(arguments, ranks);
  options.gpu = ranks.gpus != nullptr;
  if (options.context == 0) options.context = model->context;
  const train::BenchCounts counts = {
      .warmup = static_cast<int>(whole(arguments, "--warmup", 2, 0, 1000)),
      .repeats = static_cast<int>(whole(arguments, "--repeats", 10, 1, 100000))};
  const auto file = arguments.value("--json");
  const bool prints = ranks.leads() && file != "-";
  const std::unique_ptr<lab::TorchParallel> torch = start_peer(arguments, context, ranks, modes);
  Table table = {.tokens = static_cast<double>(options.batch * options.context)};
  if (prints) {
    print_line(fmt::format("bench parallel · {} · batch {} x {} ({} a rank) · {} · {} ranks · {}\n",
                           model->name, options.batch, options.context,
                           options.batch / ranks.size(), to_string(options.precision), ranks.size(),
                           device_words(context)));
  }
  if (options.gpu) {
    const Result<train::OneRankTimes> one =
        train::time_one_rank(context, ranks, *model, options, counts);
    if (!one.ok()) fail_among(ranks, one.status());
    table.one_rank = *one;
  }
  if (prints) print_heading(table);
  Json out = head_of_rows(context, ranks, model->name, options, counts, table);
  if (torch != nullptr) out["torch"] = torch->words();
  // After each mode, so that an interruption loses no more than the mode it stops; a pipe has one.
  std::vector<train::ParallelMode> with_peer;  // once, of however many buckets
  for (const train::ParallelOptions& each : modes) {
    if (torch == nullptr || torch_way(each.mode).empty()) continue;
    if (std::ranges::count(with_peer, each.mode) == 0) with_peer.push_back(each.mode);
  }
  const auto all = modes.size() + with_peer.size();
  const auto keep = [&](Json row) {
    out["rows"].push_back(std::move(row));
    const bool last = out["rows"].size() == all;
    if (ranks.leads() && file && (file != "-" || last)) write_rows(*file, out);
  };
  std::map<std::string, double> ours;  // milliseconds of a step
  for (const train::ParallelOptions& mode : modes) {
    ranks.parallel = mode;
    const Result<train::ParallelTimes> times =
        train::time_parallel(context, ranks, *model, options, counts);
    if (!times.ok() && times.status().code() == StatusCode::kOutOfMemory) {
      if (prints)
        print_line(fmt::format("{:16} {}", words_of_mode(mode), times.status().message()));
      keep({{"mode", to_string(mode.mode)}, {"error", times.status().message()}});
      continue;
    }
    if (!times.ok()) fail_among(ranks, times.status());
    if (prints) print_mode(mode, *times, table);
    ours.emplace(to_string(mode.mode), times->step_ms);  // of the first bucket
    keep(row_of_mode(mode, *times, table));
  }
  for (const train::ParallelMode mode : with_peer) {
    const std::string way = torch_way(mode);
    const auto times = torch->time(way, *model, options, counts.warmup, counts.repeats);
    Json row = row_of_torch("torch." + way, times, table, ours[to_string(mode)]);
    if (prints) print_torch(row, to_string(mode));
    keep(std::move(row));
  }
  if (prints) {
    print_line(
        "\nsent: all collectives of rank 0, waiting for others included. exposed: the step less "
        "the same list without\ncollectives; eff.: that list's time over the step's.");
    if (table.one_rank) {
      print_line(
          "one rank: its part of the batch alone, while the others do the same; f + b: forward and "
          "backward with what is\nsent; of one, step: one rank's time of it, and of the whole "
          "step, over the mode's.");
    }
  }
  return kExitOk;
}

}  // namespace flashlab::cli
