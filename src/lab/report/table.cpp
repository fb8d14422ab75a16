#include "lab/report/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lab/report/cells.h"
#include "lab/report/crossover.h"
#include "lab/report/group.h"

namespace flashlab::lab::report {
namespace {

/// Columns of a terminal that a figure of this unit takes, the gap before it included.
int width_of(const Column& column) {
  return column.unit == "share" ? 5 : column.unit == "bytes" ? 10 : column.unit == "error" ? 9 : 8;
}

int width_of(const std::vector<Column>& columns) {
  int out = 0;
  for (const Column& column : columns) out += width_of(column);
  return out;
}

enum class Style { kBold, kDim, kGreen, kYellow };

class Painter {
 public:
  explicit Painter(bool on) : on_(on) {}
  std::string operator()(Style style, const std::string& text) const {
    if (!on_) return text;
    const char* code = style == Style::kBold    ? "1"
                       : style == Style::kDim   ? "2"
                       : style == Style::kGreen ? "32"
                                                : "33";
    return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
  }

 private:
  bool on_;
};

/// Trailing spaces would make copies and diffs of a table noisy.
void add_line(std::string* out, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  *out += line + '\n';
}

/// Right-aligned and apart from its left neighbour, however absurd the figure.
std::string apart(const std::string& text, int width) {
  return fmt::format(" {}", base::pad_left(text, width - 1));
}

std::string centred(const std::string& text, int width) {
  const int left = std::max(0, (width - base::display_width(text)) / 2);
  return base::pad_right(std::string(static_cast<std::size_t>(left), ' ') + text, width);
}

class GroupTable {
 public:
  GroupTable(const Group& group, const TableOptions& options)
      : group_(group),
        options_(options),
        paint_(options.colours),
        width_(std::max(options.width, 80)),
        timed_(columns_at(group, Place::kEachPass)),
        once_(columns_at(group, Place::kRow)) {
    unit_ = rate_unit_for(group.all());
    const int figures = width_of(timed_) * static_cast<int>(group.passes.size()) + width_of(once_);
    int longest = base::display_width("implementation");
    for (const Row& row : group.rows) longest = std::max(longest, base::display_width(row.label));
    name_width_ = std::clamp(longest, 14, std::max(14, width_ - figures));
  }

  std::string text() {
    for (const std::string& line : base::wrap(group_.title(), width_)) {
      add_line(&out_, paint_(Style::kBold, line));
    }
    header();
    for (const Row& row : group_.rows) figures(row);
    if (!forward_only_.empty()) hanging("forward only: " + base::join(forward_only_, ", "), 2);
    if (const std::string words = roof_words(group_); !words.empty()) hanging(words, 2);
    ratios();
    winners();
    return out_;
  }

 private:
  void header() {
    std::string above = base::pad_right("", name_width_),
                below = base::pad_right("implementation", name_width_);
    for (const std::string& pass : group_.passes) {
      above += "   " + centred(base::clean(pass), width_of(timed_) - 3);
      for (const Column& column : timed_) {
        below += base::pad_left(heading_of(column, unit_), width_of(column));
      }
    }
    for (const Column& column : once_) {
      const std::size_t space = std::min(column.heading.find(' '), column.heading.size());
      above += base::pad_left(column.heading.substr(0, space), width_of(column));
      below += base::pad_left(column.heading.substr(std::min(space + 1, column.heading.size())),
                              width_of(column));
    }
    add_line(&out_, paint_(Style::kDim, above));
    add_line(&out_, paint_(Style::kDim, below));
  }

  void hanging(const std::string& text, int indent) {
    const std::string space(static_cast<std::size_t>(indent), ' ');
    for (const std::string& line : base::wrap(text, width_ - indent)) {
      add_line(&out_, space + paint_(Style::kDim, line));
    }
  }

  /// The start of a row's line. A name that does not fit gets lines of its own: cut names are how
  /// rows get mistaken.
  std::string named(const Row& row, int column) {
    if (base::display_width(row.label) <= column) return base::pad_right(row.label, column);
    for (const std::string& piece : base::wrap(row.label, width_)) add_line(&out_, piece);
    return base::pad_right("", column);
  }

  void figures(const Row& row) {
    std::string line = named(row, name_width_);
    if (row.passes_ok() == 0) {
      failures(row, line);
      return;
    }
    for (std::size_t pass = 0; pass < group_.passes.size(); ++pass) {
      const Measurement* r = row.ok(pass);
      for (const Column& column : timed_) {
        const std::string text =
            apart(r ? format_figure(column, (*r)[column], unit_) : kAbsent, width_of(column));
        const bool wins = r != nullptr && group_.rows.size() > 1 && !column.best.empty() &&
                          best_of(group_, column, pass).has(row);
        line += wins ? paint_(Style::kGreen, text) : text;
      }
    }
    for (const Column& column : once_) {
      line += apart(format_figure(column, row.worst(column), unit_), width_of(column));
    }
    add_line(&out_, line);
    for (std::size_t pass = 0; pass < group_.passes.size(); ++pass) {
      const Measurement* r = row.by_pass[pass];
      if (r == nullptr) continue;
      if (r->status == RunStatus::kUnsupported && r->pass == "backward") {
        forward_only_.push_back(row.label);  // said once for all of them
      } else if (r->status != RunStatus::kOk) {
        hanging(base::clean(r->pass) + " " + failure_words(*r), 2);
      } else if (!r->parts.empty()) {
        hanging(base::clean(r->pass) + ": " + parts_words(*r), 2);
      }
    }
  }

  /// A row without any figure says why in their place; passes that say the same share a line.
  void failures(const Row& row, const std::string& name) {
    std::vector<std::string> messages;
    for (const Measurement* r : row.by_pass) {
      if (r == nullptr) continue;
      if (std::ranges::find(messages, failure_words(*r)) == messages.end()) {
        messages.push_back(failure_words(*r));
      }
    }
    // What several rows share is said once.
    const std::string why = base::join(messages, "; ");
    if (why == last_why_) messages = {"as " + last_failed_};
    last_why_ = why;
    if (messages.front() != "as " + last_failed_) last_failed_ = row.label;
    std::string lead = name;
    for (const std::string& message : messages) {
      for (const std::string& line : base::wrap(message, width_ - name_width_ - 2)) {
        add_line(&out_, lead + "  " + paint_(Style::kYellow, line));
        lead = base::pad_right("", name_width_);
      }
    }
  }

  void ratios() {
    const Row* base = options_.relative_to.empty() ? nullptr : group_.find(options_.relative_to);
    if (base == nullptr || base->passes_ok() == 0 || group_.rows.size() < 2) return;
    out_ += '\n';
    const std::string title = "compared with " + base::clean(options_.relative_to);
    const int column =
        std::clamp(base::display_width(title), name_width_, std::max(name_width_, 32));
    std::string head = base::pad_right(title, column);
    for (const std::string& pass : group_.passes)
      head += base::pad_left(base::clean(pass) + " speed", 17);
    add_line(&out_, paint_(Style::kDim, head + base::pad_left("memory", 10)));
    for (const Row& row : group_.rows) {
      if (&row == base || row.passes_ok() == 0) continue;
      std::string line = named(row, column);
      for (std::size_t pass = 0; pass < group_.passes.size(); ++pass) {
        line += base::pad_left(format_ratio(speed_up(base->ok(pass), row.ok(pass))), 17);
      }
      add_line(&out_, line + base::pad_left(format_ratio(memory_ratio(*base, row)), 10));
    }
  }

  void winners() {
    out_ += '\n';
    for (const std::string& sentence : winners_of(group_)) {
      const std::size_t colon = sentence.find(": ");
      if (colon == std::string::npos) {
        add_line(&out_, sentence);
      } else {
        verdict(sentence.substr(0, colon), sentence.substr(colon + 2));
      }
    }
  }

  void verdict(const std::string& what, const std::string& who) {
    constexpr int kIndent = 15;
    std::string lead = paint_(Style::kBold, base::pad_right(what, kIndent));
    for (const std::string& line : base::wrap(who, width_ - kIndent)) {
      add_line(&out_, lead + line);
      lead = base::pad_right("", kIndent);
    }
  }

  const Group& group_;
  const TableOptions& options_;
  Painter paint_;
  int width_;
  std::vector<Column> timed_, once_;  ///< figures of each pass, and of a row
  int name_width_;
  RateUnit unit_ = RateUnit::kTflops;
  std::vector<std::string> forward_only_;  ///< rows whose backward is not supported
  std::string last_why_, last_failed_;     ///< of the row before that has no figures
  std::string out_;
};

/// Columns as wide as their widest cell, two spaces apart; the first `left` are left-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<int> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], base::display_width(row[i]));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += i < left ? base::pad_right(row[i], widths[i]) : base::pad_left(row[i], widths[i]);
    }
    add_line(&out, line);
  }
  return out;
}

/// A cell of a line; below 0 left-aligned.
std::string cell(std::string_view text, int width) {
  return width < 0 ? base::pad_right(text, -width) : base::pad_left(text, width);
}

// A measurement's device is no label, and has a cell like one.
constexpr std::string_view kDeviceLabel = "device";

bool has_cell(const SharedLabels& shared, std::string_view name) {
  return std::ranges::find(shared.names, name) == shared.names.end();
}

// Where all has its cell, the longest name of attention has room.
int implementation_cell(const SharedLabels& shared) {
  return std::max(shared.text.empty() ? 18 : 14, shared.name_width);
}

std::string label_text(const Labels& labels, const LabelSpec& spec) {
  const LabelValue* value = labels.find(spec.name);
  return value != nullptr ? base::clean(lab::to_string(*value)) : kAbsent;
}

/// The label whose cell ends with those that have none.
const LabelSpec* last_label(const Subject& subject) {
  const LabelSpec* last = nullptr;
  for (const LabelSpec& spec : subject.labels) {
    if (spec.width != 0) last = &spec;
  }
  return last;
}

/// What is not the default and has no cell: one word, so that columns can be cut by spaces.
std::string labels_without_cell(const Subject& subject, const Labels& labels) {
  std::string more;
  for (const LabelSpec& spec : subject.labels) {
    const LabelValue* value = spec.identifies ? labels.find(spec.name) : nullptr;
    if (spec.width != 0 || value == nullptr) continue;
    const std::string text = lab::to_string(*value);
    if (text == spec.fallback) continue;
    more += fmt::format("+{}{}", spec.name, spec.kind == LabelKind::kFlag ? "" : base::clean(text));
  }
  return more;
}

}  // namespace

std::string comparison_table(const ResultFile& file, const TableOptions& options) {
  const std::vector<Group> groups = group_by_problem(file);
  if (groups.empty()) return "no results\n";
  std::string out;
  for (const Group& group : groups) {
    if (!out.empty()) out += '\n';
    out += GroupTable(group, options).text();
  }
  return out;
}

SharedLabels shared_labels(const Subject& subject, const std::vector<Labels>& problems,
                           std::string_view device, int width) {
  const auto fits = [&](const SharedLabels& shared) {
    const std::string header = bench_table_header(subject, RateUnit::kGflops, shared);
    const std::size_t below = header.rfind('\n', header.size() - 2) + 1;
    return base::display_width(header.substr(below, header.size() - 1 - below)) <= width;
  };
  if (problems.empty() || fits({})) return {};
  SharedLabels out{{kDeviceLabel}, base::clean(device), 0};
  const LabelSpec* last = last_label(subject);
  const std::string more = labels_without_cell(subject, problems[0]);
  const LabelSpec* before = nullptr;
  for (const LabelSpec& spec : subject.labels) {
    if (spec.width == 0) continue;
    const std::string first = label_text(problems[0], spec);
    const auto all = [&](auto holds) {
      return std::ranges::all_of(problems, [&](const Labels& labels) {
        return holds(labels) && (&spec != last || labels_without_cell(subject, labels) == more);
      });
    };
    if (all([&](const Labels& labels) { return label_text(labels, spec) == first; })) {
      out.names.push_back(spec.name);
      out.text += fmt::format(" · {} {}{}", spec.heading, first, &spec == last ? more : "");
    } else if (before != nullptr && &spec != last && all([&](const Labels& labels) {
                 return label_text(labels, spec) == label_text(labels, *before);
               })) {
      out.names.push_back(spec.name);
      out.text += fmt::format(" · {} = {}", spec.heading, before->heading);
    }
    before = &spec;
  }
  const auto drop = [&](auto goes) {
    for (std::size_t i = subject.columns.size(); i-- > 0 && !fits(out);) {
      const ShownColumn& shown = subject.columns[i];
      if (shown.width != 0 && goes(shown)) out.names.push_back(shown.column.name);
    }
  };
  drop([](const ShownColumn& shown) { return shown.place == Place::kDetails; });
  drop([](const ShownColumn& shown) { return shown.column.unit == "share"; });
  return out;
}

std::string bench_table_header(const Subject& subject, RateUnit unit, const SharedLabels& shared) {
  std::string out = base::pad_right("implementation", implementation_cell(shared)) + " ";
  if (has_cell(shared, kDeviceLabel)) out += "device  ";
  out += base::pad_right("pass", subject.pass_width) + " ";
  for (const LabelSpec& spec : subject.labels) {
    if (spec.width != 0 && has_cell(shared, spec.name)) out += cell(spec.heading, spec.width) + " ";
  }
  for (const ShownColumn& shown : subject.columns) {
    if (shown.width == 0 || !has_cell(shared, shown.column.name)) continue;
    const std::string heading = heading_of(shown.column, unit);
    out += base::pad_left(heading.substr(0, heading.find(' ')), shown.width) + " ";
  }
  return (shared.text.empty() ? "" : shared.text + "\n") + out + " status\n";
}

std::string bench_table_line(const Measurement& r, RateUnit unit, const SharedLabels& shared) {
  const Subject& subject = subject_of(r);
  std::string out =
      base::pad_right(base::clean(r.implementation), implementation_cell(shared)) + " ";
  if (has_cell(shared, kDeviceLabel)) out += base::pad_right(base::clean(r.device), 7) + " ";
  out += base::pad_right(base::clean(r.pass), subject.pass_width) + " ";
  const LabelSpec* last = last_label(subject);
  for (const LabelSpec& spec : subject.labels) {
    if (spec.width == 0 || !has_cell(shared, spec.name)) continue;
    const std::string more = &spec == last ? labels_without_cell(subject, r.labels) : "";
    out += cell(label_text(r.labels, spec) + more, spec.width) + " ";
  }
  const bool ok = r.status == RunStatus::kOk;
  for (const ShownColumn& shown : subject.columns) {
    if (shown.width == 0 || !has_cell(shared, shown.column.name)) continue;
    const bool known = ok || shown.column.unit == "bytes";
    std::string text = known ? format_figure(shown.column, r[shown.column], unit) : kAbsent;
    std::erase(text, ' ');
    out += base::pad_left(text, shown.width) + " ";
  }
  out += std::string(" ") + lab::to_string(r.status);
  if (!ok && !r.message.empty()) out += "  " + base::clean(r.message);
  return out + '\n';
}

std::string crossover_table(const ResultFile& file, std::string_view relative_to) {
  const std::vector<Crossover> list = crossovers(file, relative_to);
  if (list.empty()) return {};
  std::vector<std::vector<std::string>> rows = {{"implementation", "pass", "problem", "d", "B x H",
                                                 "speed at shortest S", "at longest both ran",
                                                 "faster"}};
  for (const Crossover& c : list) {
    std::string problem = to_string(c.dtype);
    if (!c.variant.empty()) problem += ", " + c.variant;
    const auto ratio = [](double value) {
      return value > 0 ? format_ratio(value) : std::string(kAbsent);
    };
    rows.push_back({c.implementation, base::clean(c.pass), problem, fmt::format("{}", c.head_dim),
                    fmt::format("{}", c.batch_heads), ratio(c.shortest_speed_up),
                    ratio(c.longest_speed_up), to_string(c)});
  }
  return fmt::format("from which length on faster than {}\n", base::clean(relative_to)) +
         aligned(rows, 3);
}

}  // namespace flashlab::lab::report
