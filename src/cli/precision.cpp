// `bench accumulate` and `explain precision`: what types do to sums, and which type is where.

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "cli/command.h"
#include "cli/failure.h"
#include "cli/model_flags.h"
#include "cli/outputs.h"
#include "cli/terminal.h"
#include "cli/values.h"
#include "train/cpu/accumulate.h"
#include "train/plan/autocast.h"
#include "train/step/step.h"

namespace flashlab::cli {
namespace {

std::string addend_text(const train::Accumulation& way) {
  return fmt::format("{}{}", train::to_string(way.addend),
                     way.cast ? fmt::format(" cast to {}", train::to_string(way.accumulator)) : "");
}

// The types of an operation's operands, each once, in order.
std::string types(const train::StepPlan& plan, const std::vector<train::Operand>& ids) {
  std::string out;
  std::set<train::Element> seen;
  for (const train::TensorId id : ids) {
    const train::Element element = plan.tensor(id).element;
    if (!seen.insert(element).second) continue;
    out += fmt::format("{}{}", out.empty() ? "" : ", ", train::to_string(element));
  }
  return out;
}

}  // namespace

int run_accumulate(const Arguments& arguments) {
  const std::int64_t count = whole(arguments, "--count", 1000, 1, 100'000'000);
  const double value = real(arguments, "--value", 0.01);
  const std::vector<train::Accumulation> ways = train::accumulate(count, value);
  const double exact = static_cast<double>(count) * value;
  const std::string json = arguments.value("--json").value_or("");
  if (!json.empty()) {
    nlohmann::ordered_json out;
    out["schema"] = "flashlab.accumulate/1";
    out["count"] = count;
    out["value"] = value;
    for (const train::Accumulation& way : ways) {
      out["sums"].push_back({{"accumulator", train::to_string(way.accumulator)},
                             {"addend", addend_text(way)},
                             {"sum", way.sum}});
    }
    write_json(json, out);
    if (json == "-") return kExitOk;
  }
  print_line(fmt::format("{} times {}, exactly {:g}", count, value, exact));
  print_line(fmt::format("  {:<10}{:<20}{:>12}{:>12}", "sum in", "of", "sum", "error"));
  for (const train::Accumulation& way : ways) {
    print_line(fmt::format("  {:<10}{:<20}{:>12.4f}{:>+12.2e}", train::to_string(way.accumulator),
                           addend_text(way), way.sum, way.sum - exact));
  }
  return kExitOk;
}

namespace {

int explain_toy(train::Precision precision) {
  const train::Element low = train::policy_of(precision).activation;
  print_line(
      fmt::format("automatic mixed precision in {} · fp32 parameters", train::to_string(low)));
  for (const train::AutocastRow& row : train::autocast_toy(low)) {
    print_line(fmt::format("    {:<26}{:<6}{}", row.what, train::to_string(row.element), row.why));
  }
  return kExitOk;
}

}  // namespace

int run_explain_precision(const Arguments& arguments) {
  if (arguments.has("--toy")) return explain_toy(precision_of(arguments, train::Precision::kFp16));
  train::StepOptions options;
  options.precision = precision_of(arguments, train::Precision::kBf16);
  options.attention = arguments.value("--attention").value_or("");
  options.fused = arguments.value("--operators").value_or("fused") == "fused";
  const train::ModelConfig model = model_of(arguments, *train::find_model("small"));
  const Result<train::StepPlan> plan = train::build_step(model, options);
  if (!plan.ok()) fail_usage("--" + plan.status().message());
  const train::PrecisionPolicy policy = train::policy_of(options.precision);
  print_line(fmt::format("{} · {}{}", model.name, train::to_string(options.precision),
                         policy.tf32 ? " (products round their fp32 operands to tf32)" : ""));
  const struct {
    const char* what;
    train::Element element;
  } kStored[] = {{"parameters", policy.parameter},
                 {"read by forward", policy.activation},
                 {"gradients", policy.gradient},
                 {"both moments", policy.state},
                 {"statistics", policy.statistic}};
  print_line("  kept as");
  for (const auto& row : kStored) {
    print_line(fmt::format("    {:<22}{}", row.what, train::to_string(row.element)));
  }
  print_line(fmt::format("  {:<24}{:<22}{}", "operation", "reads", "writes"));
  std::set<train::OperationKind> seen;
  for (const train::Operation& operation : plan->operations) {
    if (!seen.insert(operation.kind).second) continue;
    print_line(fmt::format("    {:<22}{:<22}{}", train::to_string(operation.kind),
                           types(*plan, operation.inputs), types(*plan, operation.outputs)));
  }
  print_line("  sums inside an operation are fp32 at least");
  return kExitOk;
}

}  // namespace flashlab::cli
