#include "profile/questions.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/numbers.h"
#include "profile/ledger.h"

namespace flashlab::profile {
namespace {

using lab::report::format_significant;

std::string ms(double value) {
  return format_significant(value, 3) + " ms";
}
std::string percent_of(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

bool in_attention(const Event& event) {
  for (const std::string& part : path_of(event.name)) {
    if (part == "attention") return true;
  }
  return false;
}

std::string top_kernel(const Recording& r, const std::string& phase) {
  const std::vector<LedgerRow> rows =
      make_ledger(r, {.key = LedgerKey::kKernel, .top = 1, .phase = phase});
  if (rows.empty()) return "none";
  return fmt::format("{}, {} calls, {} ({})", rows[0].key, fmt::format("{:g}", rows[0].calls),
                     ms(rows[0].total_ms), percent_of(rows[0].share));
}

double product_share(const Recording& r, const std::string& phase) {
  double products = 0, all = 0;
  for (const Event& event : r.events) {
    if (!phase.empty() && event.phase != phase) continue;
    all += event.duration_ms;
    if (event.event_class == "product") products += event.duration_ms;
  }
  return all > 0 ? products / all : 0;
}

bool has_phase(const Recording& r, const std::string& phase) {
  return std::ranges::any_of(r.events, [&](const Event& event) { return event.phase == phase; });
}

void ask_about_attention(const Recording& r, std::vector<Answer>& out) {
  double softmax_ms = 0, softmax_flops = 0, product_ms = 0, product_flops = 0;
  for (const Event& event : r.events) {
    if (event.phase != "forward" || event.again || !in_attention(event)) continue;
    // The projections before and after are products of the block, not of attention itself.
    std::string last = path_of(event.name).back();
    last.erase(0, last.find_last_of('_') + 1);
    if (event.event_class == "softmax") {
      softmax_ms += event.duration_ms;
      softmax_flops += event.flops;
    } else if (event.event_class == "product" && (last == "scores" || last == "values")) {
      product_ms += event.duration_ms;
      product_flops += event.flops;
    }
  }
  if (softmax_ms <= 0 || product_ms <= 0) return;
  const double steps = std::max(1, r.steps());
  out.push_back(
      {"Softmax against the products inside attention, forward",
       fmt::format("{} against {}: {:.2f} of the time for {:.3f} of the FLOPs",
                   ms(softmax_ms / steps), ms(product_ms / steps), softmax_ms / product_ms,
                   product_flops > 0 ? softmax_flops / product_flops : 0)});
}

}  // namespace

std::vector<Answer> answers(const Recording& r) {
  std::vector<Answer> out;
  if (r.steps() == 0 || r.events.empty()) return out;
  const double step = r.step_ms(), busy = r.busy_ms();
  const double forward = time_of(r, [](const Event& e) { return e.phase == "forward"; });
  out.push_back(
      {"Time in forward's operations against the step",
       fmt::format("{} of {} wall time ({})", ms(forward), ms(step), percent_of(forward / step))});
  if (r.device_step_ms && *r.device_step_ms > 0) {
    out.push_back({"The GPU's time of a step, by a pair of events around it",
                   fmt::format("{}: {} in kernels ({}), {} between them", ms(*r.device_step_ms),
                               ms(busy), percent_of(busy / *r.device_step_ms),
                               ms(std::max(0.0, *r.device_step_ms - busy)))});
  }
  if (const auto account = r.account(); account && account->explained) {
    out.push_back({"That time by the kernels' own clock",
                   fmt::format("{} in kernels and {} in {:g} gaps are {}: {} of what the events "
                               "measured; the longest gap, {}, is after {}",
                               ms(account->covered_ms), ms(account->gaps_ms), account->gaps,
                               ms(account->span_ms), percent_of(*account->explained),
                               ms(account->longest_gap_ms), account->longest_gap_after)});
  }
  if (r.enqueue_ms) {
    out.push_back(
        {"Until the host was free again", fmt::format("{} of {} ({})", ms(*r.enqueue_ms), ms(step),
                                                      percent_of(*r.enqueue_ms / step))});
  }
  double host_ms = 0;
  for (const Event& event : r.events) host_ms += event.host_ms / r.steps();
  const auto operations =
      static_cast<double>(make_ledger(r, {.key = LedgerKey::kOperation}).size());
  if (host_ms > 0) {
    out.push_back({"The host's time to launch the operations one by one",
                   fmt::format("{} for {:g} operations, {} us each", ms(host_ms), operations,
                               format_significant(1e3 * host_ms / operations, 3))});
  }
  out.push_back({"Kernel with the most time in forward", top_kernel(r, "forward")});
  const bool learns = has_phase(r, "backward");
  if (learns) out.push_back({"Kernel with the most time in the step", top_kernel(r, "")});
  std::vector<std::string> others;
  for (const LedgerRow& row : make_ledger(r, {.key = LedgerKey::kKernel})) {
    if (row.event_class != "product" && row.share >= 0.02) {
      others.push_back(fmt::format("{} {}", row.key, percent_of(row.share)));
    }
  }
  if (!others.empty()) {
    out.push_back({"Kernels other than matrix products with 2% or more", base::join(others, ", ")});
  }
  out.push_back({"Matrix products' share",
                 learns ? fmt::format("{} of forward alone (inference), {} of the step",
                                      percent_of(product_share(r, "forward")),
                                      percent_of(product_share(r, "")))
                        : percent_of(product_share(r, "forward"))});
  ask_about_attention(r, out);
  if (const auto account = r.account(); account && account->filled > 0) {
    const double idle = std::max(0.0, 1 - account->filled);
    out.push_back({"Between operations",
                   fmt::format("{} a step ({})", ms(idle * r.whole_ms()), percent_of(idle))});
  }
  if (r.batch_ms) {
    out.push_back(
        {"Drawing a step's batch before it",
         fmt::format("{} ({} of the step)", ms(*r.batch_ms), percent_of(*r.batch_ms / step))});
  }
  if (r.first_step_ms > 0) {
    out.push_back({"First step", fmt::format("{}, {:.2f} times a later one", ms(r.first_step_ms),
                                             r.first_step_ms / step)});
  }
  if (const auto overhead = r.overhead()) {
    out.push_back({"Cost of recording", fmt::format("{:+.1f}% of a step", 100 * *overhead)});
  }
  return out;
}

}  // namespace flashlab::profile
