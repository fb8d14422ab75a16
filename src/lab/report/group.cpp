#include "lab/report/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "lab/report/numbers.h"
#include "lab/report/text.h"

namespace flashlab::lab::report {
namespace {

int pass_order(const std::string& pass) {
  if (pass == "forward") return 0;
  if (pass == "backward") return 1;
  return 2;
}

const char* fill_words(cases::Fill fill) {
  switch (fill) {
    case cases::Fill::kNormal:
      return "";
    case cases::Fill::kLargeScores:
      return "large scores";
    case cases::Fill::kMixedScales:
      return "mixed scales";
    case cases::Fill::kSubnormal:
      return "subnormal values";
    case cases::Fill::kSpecial:
      return "special values";
    case cases::Fill::kEqual:
      return "equal scores";
  }
  return "";
}

const char* layout_words(cases::Layout layout) {
  switch (layout) {
    case cases::Layout::kContiguous:
      return "";
    case cases::Layout::kHeadsFirst:
      return "heads first";
    case cases::Layout::kPackedQkv:
      return "packed qkv";
    case cases::Layout::kPaddedRows:
      return "padded rows";
  }
  return "";
}

/// What a problem has that most have not, in words.
std::vector<std::string> extras(const cases::Case& p) {
  std::vector<std::string> out;
  if (p.scale) out.push_back(fmt::format("scale {}", *p.scale));
  if (p.precision == Precision::kTf32) out.push_back("tf32");
  if (p.fp32_outputs) out.push_back("fp32 outputs");
  if (p.lse_gradient) out.push_back("LSE gradient");
  if (p.gradient_mode == GradientMode::kAccumulate) out.push_back("accumulating gradients");
  if (p.deterministic) out.push_back("deterministic");
  if (p.layout != cases::Layout::kContiguous) out.push_back(layout_words(p.layout));
  if (p.fill != cases::Fill::kNormal) out.push_back(fill_words(p.fill));
  return out;
}

std::vector<std::string> family_parts(const cases::Case& p) {
  std::vector<std::string> parts = {to_string(p.dtype), fmt::format("batch {}", p.batch)};
  parts.push_back(p.heads_k == p.heads_q ? fmt::format("heads {}", p.heads_q)
                                         : fmt::format("heads {} over {}", p.heads_q, p.heads_k));
  parts.push_back(p.head_dim_v == p.head_dim
                      ? fmt::format("d {}", p.head_dim)
                      : fmt::format("d {}, values {}", p.head_dim, p.head_dim_v));
  return parts;
}

std::string key_of(const cases::Case& problem) {
  // The unnamed title holds everything that tells problems apart.
  cases::Case unnamed = problem;
  unnamed.name.clear();
  return problem_title(unnamed, "|");
}

std::optional<double> largest(std::optional<double> a, std::optional<double> b) {
  if (!a) return b;
  if (!b) return a;
  // A NaN is the worst error there is and must not hide behind a smaller number.
  if (std::isnan(*a) || std::isnan(*b)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(*a, *b);
}

template <class Value>
Best best_of(const std::vector<const Row*>& rows, Value value) {
  Best best;
  for (const Row* row : rows) {
    const std::optional<double> v = finite(value(*row));
    if (!v) continue;
    if (best.rows.empty() || *v < best.value) {
      best = {{row}, *v};
    } else if (*v == best.value) {
      best.rows.push_back(row);
    }
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

const BenchResult* Row::ok(std::size_t pass) const {
  const BenchResult* result = pass < by_pass.size() ? by_pass[pass] : nullptr;
  return result != nullptr && result->status == RunStatus::kOk ? result : nullptr;
}

std::size_t Row::passes_ok() const {
  std::size_t count = 0;
  for (std::size_t pass = 0; pass < by_pass.size(); ++pass) count += ok(pass) != nullptr;
  return count;
}

std::optional<std::int64_t> Row::peak_bytes() const {
  std::optional<std::int64_t> peak;
  for (std::size_t pass = 0; pass < by_pass.size(); ++pass) {
    const BenchResult* result = ok(pass);
    if (result != nullptr && result->peak_bytes) {
      peak = std::max(peak.value_or(0), *result->peak_bytes);
    }
  }
  return peak;
}

std::optional<double> Row::error() const {
  std::optional<double> error;
  for (std::size_t pass = 0; pass < by_pass.size(); ++pass) {
    if (const BenchResult* result = ok(pass)) error = largest(error, result->error_vs_fp64);
  }
  return error;
}

const Row* Group::find(std::string_view implementation) const {
  for (const Row& row : rows) {
    if (row.implementation == implementation) return &row;
  }
  return nullptr;
}

std::vector<Group> group_by_problem(const ResultFile& file) {
  std::map<std::string, std::set<std::string>> devices;
  for (const BenchResult& result : file.results) {
    devices[result.implementation].insert(result.device);
  }

  std::vector<Group> groups;
  std::map<std::string, std::size_t> index;
  for (const BenchResult& result : file.results) {
    const auto [at, fresh] = index.try_emplace(key_of(result.problem), groups.size());
    if (fresh) groups.push_back({result.problem, {}, {}});
    std::vector<std::string>& passes = groups[at->second].passes;
    if (std::find(passes.begin(), passes.end(), result.pass) == passes.end()) {
      passes.push_back(result.pass);
    }
  }
  for (Group& group : groups) {
    std::stable_sort(group.passes.begin(), group.passes.end(),
                     [](const auto& a, const auto& b) { return pass_order(a) < pass_order(b); });
  }

  for (const BenchResult& result : file.results) {
    Group& group = groups[index.at(key_of(result.problem))];
    const auto pass = static_cast<std::size_t>(
        std::find(group.passes.begin(), group.passes.end(), result.pass) - group.passes.begin());
    std::string label = clean(result.implementation);
    if (devices[result.implementation].size() > 1) label += " (" + clean(result.device) + ")";
    // A second measurement of the same thing is a row of its own: nothing measured is dropped.
    for (int copy = 1;; ++copy) {
      const std::string wanted = copy == 1 ? label : fmt::format("{} #{}", label, copy);
      auto row = std::find_if(group.rows.begin(), group.rows.end(),
                              [&](const Row& r) { return r.label == wanted; });
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

std::string mask_words(const cases::Case& p) {
  std::string words;
  switch (p.causal) {
    case Causal::kNone:
      break;
    case Causal::kCausal:
      words = "causal";
      break;
    case Causal::kTopLeft:
      words = p.seqlen_q == p.seqlen_k ? "causal" : "causal, top-left";
      break;
    case Causal::kBottomRight:
      words = "causal, bottom-right";
      break;
  }
  if (p.mask != cases::MaskKind::kNone) {
    if (!words.empty()) words += " + ";
    words += p.mask == cases::MaskKind::kBool ? "boolean mask" : "additive mask";
  }
  return words;
}

std::string variant_words(const cases::Case& p) {
  std::vector<std::string> parts = extras(p);
  if (std::string mask = mask_words(p); !mask.empty()) parts.insert(parts.begin(), std::move(mask));
  return join(parts, ", ");
}

std::string problem_title(const cases::Case& p, std::string_view separator) {
  std::vector<std::string> parts = family_parts(p);
  parts.insert(parts.begin() + 3, p.seqlen_q == p.seqlen_k
                                      ? fmt::format("S {}", p.seqlen_q)
                                      : fmt::format("S {} x {}", p.seqlen_q, p.seqlen_k));
  // Generated names only repeat the shape; a preset's name says something.
  if (cases::find_preset(p.name)) parts.insert(parts.begin(), clean(p.name));
  if (const std::string mask = mask_words(p); !mask.empty()) parts.push_back(mask);
  for (std::string& extra : extras(p)) parts.push_back(std::move(extra));
  return join(parts, separator);
}

std::string family_title(const cases::Case& p) {
  std::vector<std::string> parts = family_parts(p);
  if (p.seqlen_q != p.seqlen_k) parts.push_back(fmt::format("Sq {}", p.seqlen_q));
  if (const std::string mask = mask_words(p); !mask.empty()) parts.push_back(mask);
  for (std::string& extra : extras(p)) parts.push_back(std::move(extra));
  return join(parts, " · ");
}

std::string family_slug(const cases::Case& p) {
  std::string slug = fmt::format("B{}_H{}", p.batch, p.heads_q);
  if (p.heads_k != p.heads_q) slug += fmt::format("kv{}", p.heads_k);
  slug += fmt::format("_d{}", p.head_dim);
  if (p.head_dim_v != p.head_dim) slug += fmt::format("v{}", p.head_dim_v);
  slug += std::string("_") + to_string(p.dtype);
  if (p.seqlen_q != p.seqlen_k) slug += fmt::format("_Sq{}", p.seqlen_q);
  if (const std::string mask = p.mask_name(); mask != "none") slug += "_" + mask;
  for (const std::string& extra : extras(p)) {
    std::string word = extra;
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    slug += "_" + word;
  }
  return file_name_part(slug);
}

Result<std::string> resolve_relative_to(const ResultFile& file, std::string_view requested) {
  std::vector<std::string> names;
  for (const BenchResult& result : file.results) {
    if (std::find(names.begin(), names.end(), result.implementation) == names.end()) {
      names.push_back(result.implementation);
    }
  }
  const std::string wanted(requested.empty() ? "naive" : requested);
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return wanted;
  if (requested.empty()) return std::string();
  return Status::invalid({"--relative-to", clean(requested),
                          names.empty() ? "an implementation with results (there are none)"
                                        : "one of the measured: " + join(names, ", "),
                          "measure it too (--implementation) or choose one of these"});
}

std::optional<double> speed_up(const BenchResult* base, const BenchResult* other) {
  if (base == nullptr || other == nullptr) return std::nullopt;
  const std::optional<double> b = finite(base->median_ms), o = finite(other->median_ms);
  if (!b || !o || *b <= 0 || *o <= 0) return std::nullopt;
  return *b / *o;
}

std::optional<double> memory_ratio(const Row& base, const Row& other) {
  double base_bytes = 0, other_bytes = 0;
  for (std::size_t pass = 0; pass < base.by_pass.size(); ++pass) {
    const BenchResult *b = base.ok(pass), *o = other.ok(pass);
    if (b == nullptr || o == nullptr || !b->peak_bytes || !o->peak_bytes) continue;
    base_bytes = std::max(base_bytes, static_cast<double>(*b->peak_bytes));
    other_bytes = std::max(other_bytes, static_cast<double>(*o->peak_bytes));
  }
  if (base_bytes <= 0 || other_bytes <= 0) return std::nullopt;
  return other_bytes / base_bytes;
}

Best fastest(const Group& group, std::size_t pass) {
  std::vector<const Row*> rows;
  for (const Row& row : group.rows) {
    if (row.ok(pass) != nullptr) rows.push_back(&row);
  }
  return best_of(rows, [pass](const Row& row) { return row.ok(pass)->median_ms; });
}

Best least_memory(const Group& group) {
  return best_of(most_complete(group), [](const Row& row) -> std::optional<double> {
    const auto bytes = row.peak_bytes();
    return bytes ? std::optional<double>(static_cast<double>(*bytes)) : std::nullopt;
  });
}

Best most_accurate(const Group& group) {
  std::vector<const Row*> rows = most_complete(group);
  const auto is_reference = [](const Row* row) { return row->implementation == "reference"; };
  if (!std::all_of(rows.begin(), rows.end(), is_reference)) std::erase_if(rows, is_reference);
  return best_of(rows, [](const Row& row) { return row.error(); });
}

std::string labels(const Best& best) {
  std::vector<std::string> names;
  for (const Row* row : best.rows) names.push_back(row->label);
  return join(names, ", ");
}

std::optional<double> geometric_mean(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

std::string failure_words(const BenchResult& result) {
  const char* word = result.status == RunStatus::kOutOfMemory   ? "out of memory"
                     : result.status == RunStatus::kUnsupported ? "unsupported"
                                                                : "error";
  const std::string message = clean(result.message);
  if (message.empty()) return word;
  return message.rfind(word, 0) == 0 ? message : std::string(word) + ": " + message;
}

}  // namespace flashlab::lab::report
