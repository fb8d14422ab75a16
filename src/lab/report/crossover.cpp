#include "lab/report/crossover.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "lab/report/group.h"
#include "lab/report/numbers.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab::report {
namespace {

/// What happened at one length; several problems may share it (B 2 x H 8 and B 8 x H 2).
struct Point {
  bool faster = true;
  double speed_up = 0;  ///< the smallest measured; 0: none
};

/// Saturates: a file may hold any number.
std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

/// The family without lengths, batch and heads, which crossovers are made over.
std::string family_of(const cases::Case& problem) {
  cases::Case family = problem;
  family.name.clear();
  family.seqlen_q = family.seqlen_k = 1;
  family.heads_q = product(family.heads_q, family.batch);
  family.heads_k = product(family.heads_k, family.batch);
  family.batch = 1;
  return attention_subject().title(labels_of(family), "|");
}

/// Whether the pair says anything about this length; `point` gets it.
bool compare(const Measurement* base, const Measurement* other, Point* point) {
  if (base == nullptr || other == nullptr) return false;
  const bool base_ran = base->status == RunStatus::kOk;
  const bool other_ran = other->status == RunStatus::kOk;
  if (base_ran && other_ran) {
    const std::optional<double> ratio = speed_up(base, other);
    if (!ratio) return false;
    point->faster = point->faster && *ratio > 1;
    point->speed_up = point->speed_up == 0 ? *ratio : std::min(point->speed_up, *ratio);
    return true;
  }
  if (other_ran && base->status == RunStatus::kOutOfMemory) return true;
  if (base_ran && other->status == RunStatus::kOutOfMemory) {
    point->faster = false;
    return true;
  }
  return false;
}

}  // namespace

std::vector<Crossover> crossovers(const ResultFile& file, std::string_view relative_to) {
  struct Curve {
    Crossover head;
    std::map<std::int64_t, Point> points;
  };
  using Key = std::tuple<std::string, std::string, std::string>;  // row, pass, family
  std::vector<Curve> curves;
  std::map<Key, std::size_t> index;

  for (const Group& group : group_by_problem(file)) {
    if (group.subject != &attention_subject()) continue;
    const cases::Case p = case_of(group.labels);
    const Row* base = group.find(relative_to);
    if (base == nullptr || p.seqlen_q != p.seqlen_k || p.head_dim != p.head_dim_v) continue;
    for (const Row& row : group.rows) {
      if (row.implementation == relative_to) continue;
      for (std::size_t pass = 0; pass < group.passes.size(); ++pass) {
        Point point;
        if (!compare(base->by_pass[pass], row.by_pass[pass], &point)) continue;
        const auto [at, fresh] =
            index.try_emplace(Key{row.label, group.passes[pass], family_of(p)}, curves.size());
        if (fresh) {
          Curve curve;
          curve.head.implementation = row.label;
          curve.head.device = row.by_pass[pass]->device;
          curve.head.pass = group.passes[pass];
          curve.head.dtype = p.dtype;
          curve.head.variant = variant_words(p);
          curve.head.head_dim = p.head_dim;
          curve.head.batch_heads = product(p.batch, p.heads_q);
          curves.push_back(std::move(curve));
        }
        std::map<std::int64_t, Point>& points = curves[at->second].points;
        const auto [old, first] = points.try_emplace(p.seqlen_q, point);
        if (first) continue;
        old->second.faster = old->second.faster && point.faster;
        if (point.speed_up > 0) {
          old->second.speed_up = old->second.speed_up > 0
                                     ? std::min(old->second.speed_up, point.speed_up)
                                     : point.speed_up;
        }
      }
    }
  }

  std::vector<Crossover> out;
  for (Curve& curve : curves) {
    if (curve.points.size() < 2) continue;
    Crossover& c = curve.head;
    c.shortest = curve.points.begin()->first;
    c.longest = curve.points.rbegin()->first;
    for (const auto& [length, point] : curve.points) {
      if (point.speed_up <= 0) continue;
      if (c.shortest_speed_up == 0) c.shortest_speed_up = point.speed_up;
      c.longest_speed_up = point.speed_up;
    }
    for (auto at = curve.points.rbegin(); at != curve.points.rend() && at->second.faster; ++at) {
      c.from = at->first;
    }
    out.push_back(std::move(c));
  }
  std::ranges::stable_sort(out, [](const Crossover& a, const Crossover& b) {
    return std::tie(a.dtype, a.variant, a.head_dim, a.batch_heads) <
           std::tie(b.dtype, b.variant, b.head_dim, b.batch_heads);
  });
  return out;
}

std::string to_string(const Crossover& c) {
  if (!c.from) return fmt::format("not up to S {}", format_length(c.longest));
  if (*c.from == c.shortest) return fmt::format("always (from S {})", format_length(c.shortest));
  return fmt::format("from S {}", format_length(*c.from));
}

}  // namespace flashlab::lab::report
