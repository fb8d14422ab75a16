#include "api/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <type_traits>

#include "api/capacity.h"

namespace flashlab::internal {

std::int64_t index_at(const ConstTensor& tensor, std::int64_t n) {
  return tensor.spec.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(tensor.data)[n]
                                            : static_cast<const std::int64_t*>(tensor.data)[n];
}

Status read_entries(const ConstTensor& entries, std::int64_t count,
                    std::vector<Sequence>& sequences) {
  for (Sequence& s : sequences) {
    s.entry_k = index_at(entries, s.index);
    if (s.entry_k >= 0 && s.entry_k < count) continue;
    return Status::invalid({fmt::format("cache_batch_idx[{}]", s.index),
                            fmt::format("{}", s.entry_k),
                            fmt::format("an entry from 0 to {}, of the {} of k", count - 1, count),
                            "an entry may be chosen twice, but there has to be one"});
  }
  return {};
}

// Entries of the table that no key lies in may be anything.
Status check_pages(const ConstTensor& table, std::int64_t page_size, std::int64_t count,
                   const std::vector<Sequence>& sequences) {
  for (const Sequence& s : sequences) {
    const ConstTensor pages = pages_of(table, s, page_size);
    for (std::int64_t n = 0; n < pages.spec.shape[1]; ++n) {
      const std::int64_t page = static_cast<const std::int32_t*>(pages.data)[n];
      if (page >= 0 && page < count) continue;
      return Status::invalid({fmt::format("block_table[{}, {}]", s.index, s.k.row / page_size + n),
                              fmt::format("{}", page),
                              fmt::format("a page from 0 to {}, of the {} of k", count - 1, count),
                              fmt::format("sequence {} has keys in it: rows {} to {}", s.index,
                                          s.k.row, s.k.row + s.k.length - 1)});
    }
  }
  return {};
}

namespace {

// What a call says of one side's sequences.
struct Side {
  const char *offsets_name, *used_name;
  const std::optional<ConstTensor>&offsets, &used;
  std::int64_t batch, rows;              ///< rows of all sequences, or of a dense tensor's entry
  const ConstTensor* padding = nullptr;  ///< rows before a sequence's first one
};

Status wrong_offset(const Side& side, std::int64_t n, std::int64_t value, std::int64_t before) {
  return Status::invalid(
      {fmt::format("{}[{}]", side.offsets_name, n), fmt::format("{}", value),
       fmt::format("an offset from {} to {}, the number of rows", before, side.rows),
       "offsets never decrease and end inside the tensor"});
}

Status wrong_length(const Side& side, std::int64_t n, std::int64_t value, std::int64_t room) {
  return Status::invalid({fmt::format("{}[{}]", side.used_name, n), fmt::format("{}", value),
                          fmt::format("a length from 0 to {}, the sequence's room", room),
                          side.offsets ? "a sequence ends where the next one begins"
                                       : "a sequence ends with its rows of the tensor"});
}

Status wrong_padding(std::int64_t n, std::int64_t value, std::int64_t length) {
  return Status::invalid({fmt::format("leftpad_k[{}]", n), fmt::format("{}", value),
                          fmt::format("padding from 0 to {}, the sequence's length", length),
                          "lengths count the padding before the first key"});
}

// Fills the sequences' rows of one side; `gaps` gets those that no sequence has.
Status read_side(const Side& side, SequenceRows Sequence::*rows, std::vector<Sequence>& sequences,
                 std::vector<Sequence>& gaps) {
  const auto gap = [&](std::int64_t index, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    gaps.push_back({.index = index, .q = {}, .k = {}, .entry_k = index});
    gaps.back().*rows = {begin, end - begin};
  };
  std::int64_t end = side.offsets ? index_at(*side.offsets, 0) : 0;
  if (end < 0 || end > side.rows) return wrong_offset(side, 0, end, 0);
  gap(0, 0, end);
  for (std::int64_t b = 0; b < side.batch; ++b) {
    const std::int64_t begin = side.offsets ? end : 0;
    end = side.offsets ? index_at(*side.offsets, b + 1) : side.rows;
    if (end < begin || end > side.rows) return wrong_offset(side, b + 1, end, begin);
    const std::int64_t room = end - begin, used = side.used ? index_at(*side.used, b) : room;
    if (used < 0 || used > room) return wrong_length(side, b, used, room);
    const std::int64_t padding = side.padding != nullptr ? index_at(*side.padding, b) : 0;
    if (padding < 0 || padding > used) return wrong_padding(b, padding, used);
    sequences[static_cast<std::size_t>(b)].*rows = {begin + padding, used - padding};
    gap(b, begin + used, end);
  }
  if (side.offsets) gap(0, end, side.rows);
  return {};
}

// A mask that does not broadcast has the positions of every sequence.
Status check_mask(const ConstTensor& mask, const std::vector<Sequence>& sequences) {
  for (const Sequence& s : sequences) {
    for (const auto& [dim, length] : {std::pair{2, s.q.length}, std::pair{3, s.k.length}}) {
      const std::int64_t extent = mask.spec.shape[static_cast<std::size_t>(dim)];
      if (extent == 1 || extent >= length) continue;
      return Status::invalid({fmt::format("mask.shape[{}]", dim), fmt::format("{}", extent),
                              fmt::format("1, or at least {}, the {} of sequence {}", length,
                                          dim == 2 ? "queries" : "keys", s.index),
                              "a mask lies at each sequence's own positions"});
    }
  }
  return {};
}

template <class Tensors>
Result<SequenceList> read_list(const Geometry& g, const Tensors& t) {
  SequenceList list;
  list.sequences.resize(static_cast<std::size_t>(g.batch));
  for (std::size_t b = 0; b < list.sequences.size(); ++b) {
    list.sequences[b].index = list.sequences[b].entry_k = static_cast<std::int64_t>(b);
  }
  const Side q{"cu_seqlens_q", "seqused_q", t.cu_seqlens_q, t.seqused_q, g.batch, g.seqlen_q};
  Side k{"cu_seqlens_k", "seqused_k", t.cu_seqlens_k, t.seqused_k, g.batch, g.seqlen_k};
  Status status = read_side(q, &Sequence::q, list.sequences, list.gaps_q);
  if constexpr (std::is_same_v<Tensors, ForwardTensors>) {
    const std::int64_t entries = t.k.spec.shape[0];
    if (t.leftpad_k) k.padding = &*t.leftpad_k;
    if (status.ok()) status = read_side(k, &Sequence::k, list.sequences, list.gaps_k);
    if (status.ok() && t.cache_batch_idx) {
      status = read_entries(*t.cache_batch_idx, entries, list.sequences);
    }
    if (status.ok() && t.block_table) {
      status = check_pages(*t.block_table, g.page_size, entries, list.sequences);
    }
  } else if (status.ok()) {
    status = read_side(k, &Sequence::k, list.sequences, list.gaps_k);
  }
  if (status.ok() && t.mask) status = check_mask(*t.mask, list.sequences);
  if (!status.ok()) return status;
  return list;
}

template <class Tensors>
Geometry of_call(const Geometry& planned, const Problem& problem, const Tensors& tensors) {
  const SequenceSource source = source_of(problem);
  const Extents sizes = extents_of_call(source, tensors);
  Geometry g = planned;
  g.batch = sizes[Extent::kBatch];
  g.seqlen_q = sizes[source.ragged_q ? Extent::kTotalQ : Extent::kSeqlenQ];
  g.seqlen_k = source.paged_k ? sizes[Extent::kPagesPerSequence] * sizes[Extent::kPageSize]
                              : sizes[source.ragged_k ? Extent::kTotalK : Extent::kSeqlenK];
  return g;
}

}  // namespace

Geometry geometry_of_call(const Geometry& planned, const Problem& problem,
                          const ForwardTensors& tensors) {
  return of_call(planned, problem, tensors);
}

Geometry geometry_of_call(const Geometry& planned, const Problem& problem,
                          const BackwardTensors& tensors) {
  return of_call(planned, problem, tensors);
}

Result<SequenceList> read_sequences(const Geometry& geometry, const ForwardTensors& tensors) {
  return read_list(geometry, tensors);
}

Result<SequenceList> read_sequences(const Geometry& geometry, const BackwardTensors& tensors) {
  return read_list(geometry, tensors);
}

ConstTensor pages_of(const ConstTensor& block_table, const Sequence& sequence,
                     std::int64_t page_size) {
  const TensorSpec& from = block_table.spec;
  const std::int64_t first = sequence.k.row / page_size;
  const std::int64_t end = (sequence.k.row + sequence.k.length + page_size - 1) / page_size;
  ConstTensor pages = block_table;
  pages.spec.shape = {1, sequence.k.length > 0 ? end - first : 0, 0, 0};
  pages.spec.strides[0] = 0;
  if (pages.data != nullptr) {
    pages.data = static_cast<const std::int32_t*>(block_table.data) +
                 sequence.index * from.strides[0] + first;
  }
  return pages;
}

Tensor part_of(const TensorRow& row, const GivenTensor& given, const Sequence& sequence,
               std::int64_t page_size) {
  const TensorSpec& from = *given.spec;
  Tensor part{const_cast<void*>(given.data), from};
  const bool of_keys = row.shape.extents[1] == Extent::kSeqlenK;
  if (of_keys && page_size > 0) {
    part.spec.shape[0] = 1;
    part.spec.shape[1] = sequence.k.length;
    return part;
  }
  const bool packed = from.rank < row.shape.rank;  // rows of all sequences, no batch
  std::int64_t offset = 0;
  part.spec.rank = row.shape.rank;
  for (int i = 0, n = 0; i < row.shape.rank; ++i) {
    const auto to = static_cast<std::size_t>(i);
    const Extent extent = row.shape.extents[to];
    if (extent == Extent::kBatch && packed) {
      part.spec.shape[to] = 1;
      part.spec.strides[to] = 0;
      continue;
    }
    const auto at = static_cast<std::size_t>(n++);
    std::int64_t length = from.shape[at], first = 0;
    if (extent == Extent::kBatch) {
      first = length > 1 ? (of_keys ? sequence.entry_k : sequence.index) : 0;
      length = 1;
    } else if (extent == Extent::kSeqlenQ || extent == Extent::kSeqlenK) {
      const SequenceRows& rows = extent == Extent::kSeqlenQ ? sequence.q : sequence.k;
      // A mask has each sequence's own positions.
      first = row.shape.broadcasts ? 0 : rows.row;
      if (!row.shape.broadcasts || length != 1) length = rows.length;
    }
    offset += first * from.strides[at];
    part.spec.shape[to] = length;
    part.spec.strides[to] = length > 1 ? from.strides[at] : 0;
  }
  if (part.data != nullptr) {
    part.data =
        static_cast<char*>(part.data) + offset * static_cast<std::int64_t>(size_of(from.dtype));
  }
  return part;
}

}  // namespace flashlab::internal
