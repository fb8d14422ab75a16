#include "lab/report/headline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "lab/report/group.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

/// Everything the sentences about one implementation need.
struct Tally {
  std::string label;
  int wins = 0;
  bool tied = false;  ///< one of the wins was shared
  std::map<std::string, int> wins_by_pass;
  std::vector<double> speed_ups;      ///< against the chosen implementation
  const Measurement* best = nullptr;  ///< highest FLOP/s
  std::optional<double> smallest_memory_ratio;
  const Group* leanest = nullptr;  ///< where that was
  double worst_error_ratio = 0;    ///< against naive's error in the same type
};

std::string plural(std::size_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

Tally& tally_of(std::vector<Tally>& tallies, const std::string& label) {
  for (Tally& t : tallies) {
    if (t.label == label) return t;
  }
  tallies.push_back({});
  tallies.back().label = label;
  return tallies.back();
}

void count_row(const Group& group, const Row& row, const Row* base, Tally* t) {
  for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
    const Measurement* r = row.ok(pass);
    if (r == nullptr) continue;
    const Best best = best_of(group, kMedianMs, pass);
    if (best.has(row)) {
      ++t->wins;
      t->tied = t->tied || best.rows.size() > 1;
      ++t->wins_by_pass[base::clean(group.passes[pass])];
    }
    if (base != nullptr && base != &row) {
      if (const auto ratio = speed_up(base->ok(pass), r)) t->speed_ups.push_back(*ratio);
    }
    const auto rate = finite((*r)[kTflops]);
    if (rate && (t->best == nullptr || *rate > *(*t->best)[kTflops])) t->best = r;
  }
  if (base == nullptr || base == &row) return;
  const auto ratio = memory_ratio(*base, row);
  if (ratio && *ratio < t->smallest_memory_ratio.value_or(*ratio * 2)) {
    t->smallest_memory_ratio = ratio;
    t->leanest = &group;
  }
}

std::string title_of(const ResultFile& file) {
  const Environment& e = file.environment;
  const std::string about = heading_of(file);
  if (!e.gpu.empty()) return about + " on " + base::clean(e.gpu);
  if (e.cpu_model.empty()) return about + ", measured";
  std::string title = about + " on " + base::clean(e.cpu_model);
  if (e.threads_used > 0) {
    title += ", " + plural(static_cast<std::size_t>(e.threads_used), "thread", "threads");
  }
  return title;
}

void about_failures(const ResultFile& file, Headline* out) {
  std::map<RunStatus, std::size_t> counts;
  for (const Measurement& r : file.results) ++counts[r.status];
  std::vector<std::string> words;
  if (counts[RunStatus::kOutOfMemory]) {
    words.push_back(fmt::format("{} out of memory", counts[RunStatus::kOutOfMemory]));
  }
  if (counts[RunStatus::kUnsupported]) {
    words.push_back(fmt::format("{} not supported", counts[RunStatus::kUnsupported]));
  }
  if (counts[RunStatus::kError])
    words.push_back(plural(counts[RunStatus::kError], "error", "errors"));
  if (words.empty()) return;
  const std::size_t failed = file.results.size() - counts[RunStatus::kOk];
  out->sentences.push_back(fmt::format("{} of {} measurements {} no figures: {}.", failed,
                                       file.results.size(), failed == 1 ? "has" : "have",
                                       base::join(words, ", ")));
}

void about_speed(const Tally& t, std::size_t contests, std::string_view relative_to,
                 Headline* out) {
  if (contests == 1) {
    out->sentences.push_back(t.tied
                                 ? fmt::format("{} is as fast as any, within the noise.", t.label)
                                 : fmt::format("{} is the fastest.", t.label));
  } else {
    out->sentences.push_back(
        fmt::format("{} is the fastest in {} of {} comparisons.", t.label, t.wins, contests));
  }
  const auto mean = geometric_mean(t.speed_ups);
  if (!mean) return;
  const auto [low, high] = std::minmax_element(t.speed_ups.begin(), t.speed_ups.end());
  const std::string base = base::clean(relative_to);
  if (t.speed_ups.size() == 1) {
    out->sentences.push_back(
        fmt::format("It runs at {} the speed of {}.", format_ratio(*mean), base));
    out->tiles.push_back({format_ratio(*mean), fmt::format("{}: speed against {}", t.label, base)});
  } else {
    out->sentences.push_back(fmt::format(
        "It runs at {} the speed of {} (geometric mean of {}; {} to {}).", format_ratio(*mean),
        base, plural(t.speed_ups.size(), "measurement", "measurements"), format_ratio(*low),
        format_ratio(*high)));
    out->tiles.push_back(
        {format_ratio(*mean), fmt::format("{}: speed against {}, geometric mean of {}", t.label,
                                          base, t.speed_ups.size())});
  }
}

/// Other people's libraries by the names that results have.
bool is_peer(const std::string& implementation) {
  for (const char* name : {"cublas", "cudnn", "flash-attn", "xformers"}) {
    if (implementation == name) return true;
  }
  return implementation.starts_with("torch.");
}

/// The quickest time of the rows that `wanted` picks, over one pass.
template <class Wanted>
std::optional<double> quickest(const Group& group, std::size_t pass, Wanted wanted) {
  std::optional<double> out;
  for (const Row& row : group.rows) {
    const Measurement* r = wanted(row.implementation) ? row.ok(pass) : nullptr;
    const auto ms = r != nullptr ? finite((*r)[kMedianMs]) : std::nullopt;
    if (ms && *ms > 0) out = std::min(out.value_or(*ms), *ms);
  }
  return out;
}

/// The first ratio that a reader should see: the best of the peers, then the composition of
/// cuBLASLt's products, against the best of ours.
void about_peers(const std::vector<Group>& groups, Headline* out) {
  const auto compare = [&](const char* who, auto wanted) {
    std::vector<double> ratios;
    for (const Group& group : groups) {
      for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
        const auto theirs = quickest(group, pass, wanted);
        const auto ours =
            quickest(group, pass, [](const std::string& name) { return !is_peer(name); });
        if (theirs && ours) ratios.push_back(*theirs / *ours);
      }
    }
    const auto mean = geometric_mean(ratios);
    if (!mean) return;
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    out->sentences.push_back(fmt::format(
        "{} takes {} the time of the quickest of ours (geometric mean of {}; {} to {}).", who,
        format_ratio(*mean), plural(ratios.size(), "measurement", "measurements"),
        format_ratio(*low), format_ratio(*high)));
    out->tiles.push_back({format_ratio(*mean), fmt::format("{}: time over ours", who)});
  };
  compare("The quickest peer", is_peer);
  compare("cuBLASLt's composition", [](const std::string& name) { return name == "cublas"; });
}

void about_rate(const Tally& t, Headline* out) {
  if (t.best == nullptr) return;
  const RateUnit unit = *(*t.best)[kTflops] < 1 ? RateUnit::kGflops : RateUnit::kTflops;
  const std::string rate = format_rate((*t.best)[kTflops], unit) + " " + to_string(unit);
  const std::string where = base::clean(t.best->pass) + ", " + title_of(*t.best);
  out->sentences.push_back(fmt::format("Its highest rate is {} ({}).", rate, where));
  out->tiles.push_back(
      {rate, fmt::format("{}: highest rate, {} {}", t.label, t.best->labels.text("dtype"),
                         base::clean(t.best->pass))});
  const auto share = finite((*t.best)[kRoofShare]);
  if (!share) return;
  // Beside a loop share and roof have windows of their own: the rate beside them is theirs too.
  const auto roof = finite((*t.best)[kRoofTflops]);
  const std::string beside =
      roof ? fmt::format(
                 "{} of {} {} {}", format_rate(*share * *roof, unit), format_rate(roof, unit),
                 to_string(unit),
                 t.best->against_units() ? "of the units at their clock" : "in the same windows")
           : std::string("measured in the same run");
  out->sentences.push_back(
      fmt::format("There it reaches {} of the measured roof ({}).", format_percent(share), beside));
  out->tiles.push_back({format_percent(share), "of the measured roof: " + beside});
}

void about_memory(const Tally& t, const std::string& base, Headline* out) {
  const double ratio = *t.smallest_memory_ratio;
  const std::string where = t.leanest->title();
  if (ratio >= 1) {
    out->sentences.push_back(fmt::format("It needs {} the memory of {} at least ({}).",
                                         format_ratio(ratio), base, where));
    return;
  }
  const std::string less = format_ratio(1 / ratio);
  out->sentences.push_back(
      fmt::format("It needs up to {} less memory than {} ({}).", less, base, where));
  out->tiles.push_back({less, fmt::format("less peak memory than {}, at best", base)});
}

}  // namespace

Headline headline(const ResultFile& file, std::string_view relative_to) {
  Headline out;
  out.title = title_of(file);
  if (file.interrupted())
    out.sentences.push_back("This run is not whole: " + file.interruption() + ".");
  const std::vector<Group> groups = group_by_problem(file);
  std::vector<Tally> tallies;
  std::size_t contests = 0;
  for (const Group& group : groups) {
    const Row* base = relative_to.empty() ? nullptr : group.find(relative_to);
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      contests += !best_of(group, kMedianMs, pass).rows.empty();
    }
    for (const Row& row : group.rows) count_row(group, row, base, &tally_of(tallies, row.label));
  }
  if (contests == 0) {
    out.sentences.push_back(file.results.empty() ? "Nothing was measured."
                                                 : "Nothing ran to its end.");
    about_failures(file, &out);
    return out;
  }
  // The same figures as the table of accuracy has.
  for (const Accuracy& a : accuracies(groups)) {
    Tally& t = tally_of(tallies, a.label);
    t.worst_error_ratio = std::max(t.worst_error_ratio, finite(a.ratio).value_or(0));
  }
  const Tally& winner = *std::ranges::max_element(
      tallies, [](const Tally& a, const Tally& b) { return a.wins < b.wins; });
  const bool alone = tallies.size() == 1;
  about_peers(groups, &out);
  if (!alone) {
    about_speed(winner, contests, relative_to, &out);
  } else {
    out.sentences.push_back(fmt::format("{} was measured alone.", winner.label));
  }
  about_rate(winner, &out);
  if (winner.smallest_memory_ratio) {
    about_memory(winner, base::clean(relative_to), &out);
  }
  if (winner.worst_error_ratio > 0) {
    out.sentences.push_back(fmt::format(
        "Its error against fp64 is at most {} that of the naive formula in the same type.",
        format_ratio(winner.worst_error_ratio)));
  }
  about_failures(file, &out);
  if (!file.environment.warnings.empty()) {
    out.sentences.push_back(
        fmt::format("{} about the machine may have spoiled figures: see the environment.",
                    plural(file.environment.warnings.size(), "warning", "warnings")));
  }
  return out;
}

}  // namespace flashlab::lab::report
