#include "train/model/nearest.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlab::train {
namespace {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

Status unknown_name(const UnknownName& what) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(2, what.got.size() / 3) + 1;
  for (const std::string& name : what.known) {
    const std::size_t distance = edit_distance(what.got, name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return Status::invalid({what.argument, fmt::format("\"{}\"", what.got.substr(0, 60)),
                          fmt::format("one of {}", fmt::join(what.known, ", ")),
                          nearest.empty() ? "" : fmt::format("did you mean {}?", nearest)});
}

}  // namespace flashlab::train
