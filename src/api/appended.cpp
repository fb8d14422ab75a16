#include "api/appended.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "api/sequences.h"

namespace flashlab::internal {
namespace {

Status wrong(const char* name, std::int64_t n, std::int64_t value, std::string expected,
             std::string remedy) {
  return Status::invalid({fmt::format("{}[{}]", name, n), fmt::format("{}", value),
                          std::move(expected), std::move(remedy)});
}

// Rows of a sequence: of ragged ones those between two offsets, else all of an entry.
Status read_rows(const char* name, const std::optional<ConstTensor>& offsets,
                 const TensorSpec& rows, std::int64_t b, std::int64_t& first, std::int64_t& count) {
  first = 0;
  count = rows.shape[1];
  if (!offsets) return {};
  first = index_at(*offsets, b);
  const std::int64_t end = index_at(*offsets, b + 1), all = rows.shape[0];
  if (first < 0 || first > all) {
    return wrong(name, b, first, fmt::format("an offset from 0 to {}, the number of rows", all),
                 "offsets never decrease and end inside the tensor");
  }
  if (end < first || end > all) {
    return wrong(name, b + 1, end,
                 fmt::format("an offset from {} to {}, the number of rows", first, all),
                 "offsets never decrease and end inside the tensor");
  }
  count = end - first;
  return {};
}

Status read_one(const AppendTensors& t, std::int64_t capacity, const AppendOptions& options,
                std::int64_t b, Appended& of) {
  Status status =
      read_rows("cu_seqlens_new", t.cu_seqlens_new, t.k_new.spec, b, of.first_new, of.count);
  if (status.ok() && t.q) {
    status = read_rows("cu_seqlens_q", t.cu_seqlens_q, t.q->spec, b, of.first_q, of.queries);
  }
  if (!status.ok()) return status;
  of.length = index_at(t.seqused_k, b);
  if (of.length < 0 || of.length > capacity || of.count > capacity - of.length) {
    return wrong("seqused_k", b, of.length,
                 fmt::format("a length from 0 to {}: {} new rows go into a cache of {}",
                             std::max<std::int64_t>(capacity - of.count, 0), of.count, capacity),
                 "give the sequence a larger cache, or more pages");
  }
  of.position = t.rotary_positions ? index_at(*t.rotary_positions, b) : of.length;
  if (!t.rotary_cos) return {};
  const std::int64_t positions = t.rotary_cos->spec.shape[0];
  const bool consecutive = options.rotary_queries == RotaryQueries::kConsecutive;
  const std::int64_t reach =
      std::max(of.count, consecutive ? of.queries : std::min<std::int64_t>(of.queries, 1));
  if (of.position >= 0 && of.position <= positions && reach <= positions - of.position) return {};
  return wrong(t.rotary_positions ? "rotary_positions" : "seqused_k", b, of.position,
               fmt::format("a position from 0 to {}: {} rows turn by a table of {}",
                           std::max<std::int64_t>(positions - reach, 0), reach, positions),
               "make rotary_cos and rotary_sin longer");
}

// Entries and pages that the new rows go into.
Status read_places(const AppendTensors& t, std::int64_t page_size, std::vector<Appended>& list) {
  std::vector<Sequence> rows(list.size());
  for (std::size_t b = 0; b < rows.size(); ++b) {
    rows[b].index = rows[b].entry_k = static_cast<std::int64_t>(b);
    rows[b].k = {list[b].length, list[b].count};
  }
  const std::int64_t count = t.k.spec.shape[0];
  Status status;
  if (t.block_table) status = check_pages(*t.block_table, page_size, count, rows);
  if (t.cache_batch_idx) status = read_entries(*t.cache_batch_idx, count, rows);
  for (std::size_t b = 0; b < rows.size(); ++b) list[b].entry = rows[b].entry_k;
  return status;
}

}  // namespace

Result<std::vector<Appended>> read_appended(const AppendTensors& t, const AppendOptions& options,
                                            std::int64_t page_size) {
  const std::int64_t batch = t.seqused_k.spec.shape[0];
  const std::int64_t capacity =
      page_size > 0 ? t.block_table->spec.shape[1] * page_size : t.k.spec.shape[1];
  std::vector<Appended> list(static_cast<std::size_t>(batch));
  for (std::int64_t b = 0; b < batch; ++b) {
    Appended& of = list[static_cast<std::size_t>(b)];
    if (Status s = read_one(t, capacity, options, b, of); !s.ok()) return s;
  }
  if (Status s = read_places(t, page_size, list); !s.ok()) return s;
  return list;
}

}  // namespace flashlab::internal
