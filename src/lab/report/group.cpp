#include "lab/report/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/text.h"
#include "lab/report/numbers.h"
#include "lab/results/baseline.h"

namespace flashlab::lab::report {
namespace {

int pass_order(const std::string& pass) {
  if (pass == "forward") return 0;
  if (pass == "backward") return 1;
  return 2;
}

std::optional<double> largest(std::optional<double> a, std::optional<double> b) {
  if (!a) return b;
  if (!b) return a;
  // A NaN is the worst error there is and must not hide behind a smaller number.
  if (std::isnan(*a) || std::isnan(*b)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(*a, *b);
}

/// Rows with the best of `value`, and those that are `alike` the best.
template <class Value, class Alike>
Best best_among(const std::vector<const Row*>& rows, Better better, Value value, Alike alike) {
  Best best;
  const Row* first = nullptr;
  for (const Row* row : rows) {
    const std::optional<double> v = finite(value(*row));
    const bool leads =
        v && (first == nullptr || (better == Better::kHigher ? *v > best.value : *v < best.value));
    if (!leads) continue;
    first = row;
    best.value = *v;
  }
  if (first == nullptr) return best;
  best.rows.push_back(first);
  for (const Row* row : rows) {
    if (row != first && finite(value(*row)) && alike(*first, *row)) best.rows.push_back(row);
  }
  return best;
}

std::vector<const Row*> most_complete(const Group& group) {
  std::size_t most = 1;
  for (const Row& row : group.rows) most = std::max(most, row.passes_ok());
  std::vector<const Row*> out;
  for (const Row& row : group.rows) {
    if (row.passes_ok() == most) out.push_back(&row);
  }
  return out;
}

}  // namespace

const Measurement* Row::ok(std::size_t pass) const {
  const Measurement* result = pass < by_pass.size() ? by_pass[pass] : nullptr;
  return result != nullptr && result->status == RunStatus::kOk ? result : nullptr;
}

std::size_t Row::passes_ok() const {
  std::size_t count = 0;
  for (std::size_t pass = 0; pass < by_pass.size(); ++pass) count += ok(pass) != nullptr;
  return count;
}

std::optional<double> Row::worst(const Column& column) const {
  std::optional<double> out;
  for (std::size_t pass = 0; pass < by_pass.size(); ++pass) {
    const Measurement* result = ok(pass);
    if (result == nullptr) continue;
    const std::optional<double>& figure = (*result)[column];
    out = column.better == Better::kHigher && out && figure ? std::min(*out, *figure)
                                                            : largest(out, figure);
  }
  return out;
}

std::string Group::title(std::string_view separator) const {
  return subject->title(labels, separator);
}

std::vector<const Measurement*> Group::all() const {
  std::vector<const Measurement*> out;
  for (const Row& row : rows) out.insert(out.end(), row.by_pass.begin(), row.by_pass.end());
  return out;
}

std::vector<Column> columns_at(const Group& group, Place place) {
  std::vector<Column> out;
  const bool read = std::ranges::any_of(group.all(), [](const Measurement* r) {
    return r != nullptr && r->roof_name == kRoofOfReads;
  });
  for (const ShownColumn& shown : group.subject->columns) {
    if (shown.place != place) continue;
    out.push_back(read && shown.column.name == kTflops.name ? kGbPerS : shown.column);
  }
  return out;
}

const Row* Group::find(std::string_view implementation) const {
  for (const Row& row : rows) {
    if (row.implementation == implementation) return &row;
  }
  return nullptr;
}

std::vector<Group> group_by_problem(const ResultFile& file) {
  std::map<std::string, std::set<std::string>> devices;
  for (const Measurement& result : file.results) {
    devices[result.implementation].insert(result.device);
  }

  std::vector<Group> groups;
  std::map<std::string, std::size_t> index;
  for (const Measurement& result : file.results) {
    const auto [at, fresh] = index.try_emplace(problem_key(result), groups.size());
    if (fresh) groups.push_back({&subject_of(result), result.labels, {}, {}});
    std::vector<std::string>& passes = groups[at->second].passes;
    if (std::ranges::find(passes, result.pass) == passes.end()) {
      passes.push_back(result.pass);
    }
  }
  for (Group& group : groups) {
    std::ranges::stable_sort(
        group.passes, [](const auto& a, const auto& b) { return pass_order(a) < pass_order(b); });
  }

  for (const Measurement& result : file.results) {
    Group& group = groups[index.at(problem_key(result))];
    const auto pass = static_cast<std::size_t>(std::ranges::find(group.passes, result.pass) -
                                               group.passes.begin());
    std::string label = base::clean(result.implementation);
    if (devices[result.implementation].size() > 1) label += " (" + base::clean(result.device) + ")";
    // A second measurement of the same thing is a row of its own: nothing measured is dropped.
    for (int copy = 1;; ++copy) {
      const std::string wanted = copy == 1 ? label : fmt::format("{} #{}", label, copy);
      auto row = std::ranges::find_if(group.rows, [&](const Row& r) { return r.label == wanted; });
      if (row == group.rows.end()) {
        group.rows.push_back({wanted, result.implementation, {}});
        row = std::prev(group.rows.end());
        row->by_pass.resize(group.passes.size());
      }
      if (row->by_pass[pass] == nullptr) {
        row->by_pass[pass] = &result;
        break;
      }
    }
  }
  return groups;
}

Result<std::string> resolve_relative_to(const ResultFile& file, std::string_view requested) {
  std::vector<std::string> names;
  for (const Measurement& result : file.results) {
    if (std::ranges::find(names, result.implementation) == names.end()) {
      names.push_back(result.implementation);
    }
  }
  const std::string wanted(requested.empty() ? "naive" : requested);
  if (std::ranges::find(names, wanted) != names.end()) return wanted;
  if (requested.empty()) return std::string();
  return Status::invalid({"--relative-to", base::clean(requested),
                          names.empty() ? "an implementation with results (there are none)"
                                        : "one of the measured: " + base::join(names, ", "),
                          "measure it too (--implementation) or choose one of these"});
}

std::optional<double> speed_up(const Measurement* base, const Measurement* other) {
  if (base == nullptr || other == nullptr) return std::nullopt;
  const std::optional<double> b = finite((*base)[kMedianMs]), o = finite((*other)[kMedianMs]);
  if (!b || !o || *b <= 0 || *o <= 0) return std::nullopt;
  return *b / *o;
}

std::optional<double> memory_ratio(const Row& base, const Row& other) {
  double base_bytes = 0, other_bytes = 0;
  for (std::size_t pass = 0; pass < base.by_pass.size(); ++pass) {
    const Measurement *b = base.ok(pass), *o = other.ok(pass);
    if (b == nullptr || o == nullptr || !(*b)[kPeakBytes] || !(*o)[kPeakBytes]) continue;
    base_bytes = std::max(base_bytes, static_cast<double>(*(*b)[kPeakBytes]));
    other_bytes = std::max(other_bytes, static_cast<double>(*(*o)[kPeakBytes]));
  }
  if (base_bytes <= 0 || other_bytes <= 0) return std::nullopt;
  return other_bytes / base_bytes;
}

bool Best::has(const Row& row) const {
  return std::ranges::find(rows, &row) != rows.end();
}

Best best_of(const Group& group, const Column& column, std::size_t pass) {
  std::vector<const Row*> rows;
  for (const Row& row : group.rows) {
    if (row.ok(pass) != nullptr) rows.push_back(&row);
  }
  const bool timed = column.name == kMedianMs.name;
  const auto value = [&](const Row& row) { return (*row.ok(pass))[column]; };
  return best_among(rows, column.better, value, [&](const Row& best, const Row& row) {
    if (!timed) return *value(best) == *value(row);
    // A median without a spread beside it stands for itself.
    const auto a = time_interval(*best.ok(pass)), b = time_interval(*row.ok(pass));
    if (!a || !b || !std::isfinite(a->high)) return false;
    // Each median lies where the other's could.
    return *value(row) <= a->high && *value(best) >= b->low;
  });
}

Best best_of(const Group& group, const Column& column) {
  std::vector<const Row*> rows = most_complete(group);
  const auto is_reference = [](const Row* row) { return row->implementation == "reference"; };
  if (column.name == kError.name && !std::ranges::all_of(rows, is_reference)) {
    std::erase_if(rows, is_reference);
  }
  const auto value = [&](const Row& row) { return row.worst(column); };
  return best_among(rows, column.better, value,
                    [&](const Row& best, const Row& row) { return *value(best) == *value(row); });
}

std::string labels(const Best& best) {
  std::string out;
  for (std::size_t i = 0; i < best.rows.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == best.rows.size() ? " and " : ", ") + best.rows[i]->label;
  }
  return best.rows.size() > 1 ? out + " alike" : out;
}

std::optional<double> geometric_mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

std::string roof_words(const Group& group) {
  const Measurement* above = nullptr;
  for (const Row& row : group.rows) {
    for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
      const Measurement* r = row.ok(pass);
      const bool named = r != nullptr && !r->roof_name.empty();
      if (named && (*r)[kRoofShare].value_or(0) > 1) above = r;
    }
  }
  if (above == nullptr || above->roof_name == kRoofOfReads || above->against_units()) return "";
  const char* what = above->roof_name == "fp32 FMA"
                         ? "tensor cores multiply the operands in parts, and faster"
                         : "wgmma multiplies faster";
  return fmt::format("roof above 100%: of {}; {}", base::clean(above->roof_name), what);
}

std::string failure_words(const Measurement& result) {
  const char* word = result.status == RunStatus::kOutOfMemory   ? "out of memory"
                     : result.status == RunStatus::kUnsupported ? "unsupported"
                                                                : "error";
  const std::string message = base::clean(result.message);
  if (message.empty()) return word;
  return message.rfind(word, 0) == 0 ? message : std::string(word) + ": " + message;
}

namespace {

/// NaN counts as the worst.
bool worse(double a, double b) {
  return std::isnan(a) ? !std::isnan(b) : a > b;
}

}  // namespace

std::vector<Accuracy> accuracies(const std::vector<Group>& groups) {
  std::vector<Accuracy> list;
  for (const Group& group : groups) {
    for (const Row& row : group.rows) {
      for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
        const Measurement* r = row.ok(pass);
        if (r == nullptr || !(*r)[kError]) continue;
        const std::string dtype = group.labels.text("dtype");
        auto at = std::ranges::find_if(list, [&](const Accuracy& a) {
          return a.label == row.label && a.dtype == dtype && a.pass == group.passes[pass];
        });
        if (at == list.end()) {
          list.push_back({row.label, dtype, group.passes[pass], "", -1, {}, {}, 0});
          at = std::prev(list.end());
        }
        ++at->problems;
        if (!worse(*(*r)[kError], at->error)) continue;
        at->error = *(*r)[kError];
        at->naive = (*r)[kNaiveError];
        at->sample = r->error_sample;
        at->ratio = at->naive && *at->naive > 0 ? std::optional<double>(at->error / *at->naive)
                                                : std::nullopt;
      }
    }
  }
  return list;
}

std::string heading_of(const ResultFile& file) {
  std::vector<std::string> names;
  for (const Subject* subject : subjects()) {
    const auto about = [&](const Measurement& r) { return &subject_of(r) == subject; };
    if (std::ranges::any_of(file.results, about)) {
      names.emplace_back(subject->heading);
    }
  }
  return names.empty() ? std::string(subjects().front()->heading) : base::join(names, " and ");
}

}  // namespace flashlab::lab::report
