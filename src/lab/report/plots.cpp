#include "lab/report/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "lab/report/chart.h"
#include "lab/report/group.h"
#include "lab/report/model.h"
#include "lab/report/numbers.h"
#include "lab/report/roofline.h"

namespace flashlab::lab::report {
namespace {

struct Family {
  std::string slug, title;
  std::vector<const Group*> groups;  ///< by length
};

std::int64_t length_of(const Group& group) {
  return static_cast<std::int64_t>(group.labels.whole(group.subject->axis));
}

std::vector<Family> families_of(const std::vector<Group>& groups) {
  std::vector<Family> families;
  for (const Group& group : groups) {
    const std::string title = group.subject->family(group.labels);
    auto at = std::ranges::find_if(families, [&](const Family& f) { return f.title == title; });
    if (at == families.end()) {
      families.push_back({group.subject->family_slug(group.labels), title, {}});
      at = std::prev(families.end());
    }
    at->groups.push_back(&group);
  }
  for (Family& family : families) {
    std::ranges::stable_sort(family.groups, [](const Group* a, const Group* b) {
      return length_of(*a) < length_of(*b);
    });
  }
  return families;
}

class Maker {
 public:
  explicit Maker(const ResultFile& file)
      : environment_(file.environment),
        groups_(group_by_problem(file)),
        colours_(chart_colours(file)) {}

  std::vector<Plot> plots() {
    roof_shares();
    for (const Family& family : families_of(groups_)) {
      if (family.groups.size() > 1) {
        lines(family);
      } else {
        bars(family, *family.groups.front());
      }
      roofline(family, *family.groups.back());
    }
    return std::move(plots_);
  }

 private:
  template <class Chart>
  void add(PlotKind kind, std::string name, const std::string& family, Chart chart) {
    // Two families may be spelled alike once unsafe characters are gone.
    const std::string wanted = name;
    for (int copy = 2; !names_.insert(name).second; ++copy) {
      name = fmt::format("{}-{}", wanted, copy);
    }
    chart.id = "plot-" + name;
    plots_.push_back(
        {kind, name, family, render(chart, SvgUse::kFile), render(chart, SvgUse::kInline)});
  }

  /// Medians over all problems, with the range as a whisker.
  void roof_shares() {
    BarChart chart;
    chart.title = "Share of the measured roof";
    chart.full = 1.0;
    chart.full_label = "roof";
    std::vector<std::string> passes;
    std::map<std::string, std::map<std::string, std::vector<double>>> shares;  // pass, label
    std::vector<std::string> order;
    bool many = false;
    for (const Group& group : groups_) {
      for (const Row& row : group.rows) {
        for (std::size_t i = 0; i < group.passes.size(); ++i) {
          const Measurement* r = row.ok(i);
          const auto share = r ? finite((*r)[kRoofShare]) : std::nullopt;
          if (!share || *share < 0) continue;
          const std::string pass = group.labels.text("dtype") + " " + base::clean(group.passes[i]);
          if (!shares.count(pass)) passes.push_back(pass);
          std::vector<double>& list = shares[pass][row.label];
          list.push_back(*share);
          many = many || list.size() > 1;
          if (std::ranges::find(order, row.label) == order.end()) {
            order.push_back(row.label);
          }
        }
      }
    }
    if (passes.empty()) return;
    chart.subtitle = many ? "median over the problems measured; the thin line spans all of them"
                          : "FLOP/s as a share of what the machine itself can do";
    for (const std::string& pass : passes) {
      BarGroup bars{pass, {}};
      for (const std::string& label : order) {
        const auto found = shares[pass].find(label);
        if (found == shares[pass].end()) continue;
        std::vector<double>& v = found->second;
        std::ranges::sort(v);
        const double median = (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
        bars.bars.push_back(
            {label, colours_.at(label), median, v.front(), v.back(), format_percent(median)});
      }
      chart.groups.push_back(std::move(bars));
    }
    add(PlotKind::kRoof, "roof_shares", "", std::move(chart));
  }

  /// Passes of a family, forward first.
  static std::vector<std::string> passes_of(const Family& family) {
    std::vector<std::string> passes;
    for (const Group* group : family.groups) {
      for (const std::string& pass : group->passes) {
        if (std::ranges::find(passes, pass) == passes.end()) passes.push_back(pass);
      }
    }
    return passes;
  }

  template <class Value, class Text>
  LineChart line_chart(const Family& family, const std::string& pass, Value value, Text text) {
    LineChart chart;
    chart.subtitle = family.title;
    chart.x_label = family.groups.front()->subject->axis_words;
    std::vector<std::string> order;
    std::map<std::string, Series> series;
    std::map<std::string, std::int64_t> memory_ends;
    for (const Group* group : family.groups) {
      const auto at = std::ranges::find(group->passes, pass);
      if (at == group->passes.end()) continue;
      const auto index = static_cast<std::size_t>(at - group->passes.begin());
      for (const Row& row : group->rows) {
        const Measurement* any = row.by_pass[index];
        if (any != nullptr && any->status == RunStatus::kOutOfMemory) {
          memory_ends.try_emplace(row.label, length_of(*group));
        }
        const Measurement* r = row.ok(index);
        const auto v = r ? finite(value(*r)) : std::nullopt;
        if (!v) continue;
        Series& s = series[row.label];
        if (s.points.empty()) {
          s.label = row.label;
          s.style = colours_.at(row.label);
          order.push_back(row.label);
        }
        s.points.push_back({static_cast<double>(length_of(*group)), *v,
                            fmt::format("{}, {} {}: {}", row.label, group->subject->axis_short,
                                        format_length(length_of(*group)), text(*r))});
      }
    }
    for (const std::string& label : order) chart.series.push_back(std::move(series[label]));
    for (const auto& [label, length] : memory_ends) {
      chart.notes.push_back(fmt::format("{}: out of memory from {} {}", label,
                                        family.groups.front()->subject->axis_short,
                                        format_length(length)));
    }
    return chart;
  }

  void lines(const Family& family) {
    std::vector<const Measurement*> all;
    for (const Group* group : family.groups) {
      for (const Row& row : group->rows) {
        all.insert(all.end(), row.by_pass.begin(), row.by_pass.end());
      }
    }
    const RateUnit unit = rate_unit_for(all);
    const double factor = unit == RateUnit::kGflops ? 1000 : 1;
    for (const std::string& pass : passes_of(family)) {
      const std::string end = family.slug + "_" + base::file_name_part(pass).substr(0, 40);
      const std::string words = base::clean(pass);
      LineChart time = line_chart(
          family, pass, [](const Measurement& r) { return r[kMedianMs]; },
          [](const Measurement& r) { return format_ms(r[kMedianMs]) + " ms"; });
      time.title = "Time, " + words;
      time.y_label = "time, lower is better (logarithmic)";
      time.y_scale = Scale::kLogMs;
      if (!time.series.empty()) add(PlotKind::kTime, "time_" + end, family.title, std::move(time));

      LineChart rate = line_chart(
          family, pass,
          [factor](const Measurement& r) -> std::optional<double> {
            return r[kTflops] ? std::optional<double>(*r[kTflops] * factor) : std::nullopt;
          },
          [unit](const Measurement& r) {
            return format_rate(r[kTflops], unit) + " " + to_string(unit);
          });
      rate.title = "Performance, " + words;
      rate.y_label = std::string(to_string(unit)) + ", higher is better";
      if (!rate.series.empty()) {
        add(PlotKind::kPerformance, "performance_" + end, family.title, std::move(rate));
      }

      LineChart memory = line_chart(
          family, pass, [](const Measurement& r) { return r[kPeakBytes]; },
          [](const Measurement& r) { return format_bytes(r[kPeakBytes]); });
      memory.title = "Peak memory, " + words;
      memory.y_label = "inputs, outputs and workspace, lower is better (logarithmic)";
      memory.y_scale = Scale::kLogBytes;
      if (!memory.series.empty()) {
        add(PlotKind::kMemory, "memory_" + end, family.title, std::move(memory));
      }
    }
  }

  void bars(const Family& family, const Group& group) {
    std::vector<const Measurement*> all;
    for (const Row& row : group.rows) {
      all.insert(all.end(), row.by_pass.begin(), row.by_pass.end());
    }
    const RateUnit unit = rate_unit_for(all);
    BarChart rate, memory;
    rate.subtitle = memory.subtitle = group.title();
    rate.title = std::string("Performance, ") + to_string(unit);
    memory.title = "Peak memory";
    for (std::size_t i = 0; i < group.passes.size(); ++i) {
      BarGroup rates{base::clean(group.passes[i]), {}}, peaks = rates;
      for (const Row& row : group.rows) {
        const Measurement* r = row.ok(i);
        if (r == nullptr) {
          if (row.by_pass[i] != nullptr) {
            rate.notes.push_back(row.label + ", " + base::clean(group.passes[i]) + ": " +
                                 failure_words(*row.by_pass[i]));
          }
          continue;
        }
        const int style = colours_.at(row.label);
        if ((*r)[kTflops]) {
          rates.bars.push_back({row.label,
                                style,
                                *(*r)[kTflops],
                                {},
                                {},
                                fmt::format("{} ({} ms)", format_rate((*r)[kTflops], unit),
                                            format_ms((*r)[kMedianMs]))});
        }
        if ((*r)[kPeakBytes]) {
          peaks.bars.push_back(
              {row.label, style, *(*r)[kPeakBytes], {}, {}, format_bytes((*r)[kPeakBytes])});
        }
      }
      if (!rates.bars.empty()) rate.groups.push_back(std::move(rates));
      if (!peaks.bars.empty()) memory.groups.push_back(std::move(peaks));
    }
    const std::string end =
        fmt::format("{}_{}{}", family.slug, group.subject->axis_short, length_of(group));
    if (!rate.groups.empty()) {
      add(PlotKind::kPerformance, "performance_" + end, family.title, std::move(rate));
    }
    if (!memory.groups.empty()) {
      add(PlotKind::kMemory, "memory_" + end, family.title, std::move(memory));
    }
  }

  /// Measured rates over modelled intensities, where both roofs of the type were measured.
  void roofline(const Family& family, const Group& group) {
    const std::string dtype = group.labels.text("dtype");
    const bool half = dtype == "bf16" || dtype == "fp16";
    const auto roof = half              ? environment_.roof_bf16_gflops
                      : dtype == "fp32" ? environment_.roof_fp32_gflops
                                        : std::nullopt;
    if (!roof || !environment_.copy_gb_per_s) return;
    Roofline chart;
    chart.subtitle = group.title();
    chart.description = "Measured rate over modelled FLOPs per byte, below the measured roofs.";
    chart.width = 500, chart.height = 360;
    chart.gflops = *roof, chart.gb_per_s = *environment_.copy_gb_per_s;
    for (const ModelRow& model : model_rows(group, caches_of(environment_))) {
      const auto at = std::ranges::find(group.passes, model.pass);
      const Row* row = group.find(model.label);
      const Measurement* r =
          row == nullptr ? nullptr : row->ok(static_cast<std::size_t>(at - group.passes.begin()));
      const double gflops = r == nullptr ? 0 : finite((*r)[kTflops]).value_or(0) * 1e3;
      const double intensity = model.cost.intensity();
      if (gflops <= 0 || intensity <= 0) continue;
      const std::string name = model.label + " " + base::clean(model.pass);
      constexpr std::size_t kNames = 12;  // beside more dots they would cover each other
      chart.dots.push_back(
          {chart.dots.size() < kNames ? name : "", colours_.at(model.label), intensity, gflops,
           fmt::format("{}: {} GFLOP/s at {} FLOPs per byte", name, format_significant(gflops, 3),
                       format_significant(intensity, 3))});
    }
    if (chart.dots.empty()) return;
    add(PlotKind::kRoofline, "roofline_" + family.slug, family.title, std::move(chart));
  }

  const Environment& environment_;
  std::vector<Group> groups_;
  std::map<std::string, int> colours_;
  std::set<std::string> names_;
  std::vector<Plot> plots_;
};

}  // namespace

std::map<std::string, int> chart_colours(const ResultFile& file) {
  std::map<std::string, int> colours;
  int next = 1;
  for (const Group& group : group_by_problem(file)) {
    for (const Row& row : group.rows) {
      if (row.implementation == "naive" && row.label == "naive") {
        colours.try_emplace(row.label, 0);
      } else if (colours.try_emplace(row.label, next).second) {
        // Grey stays naive's: past the last colour the next round starts at 1, dashed.
        if (++next % kChartColours == 0) ++next;
      }
    }
  }
  return colours;
}

std::vector<Plot> make_plots(const ResultFile& file) {
  return Maker(file).plots();
}

}  // namespace flashlab::lab::report
