#include "api/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

namespace flashlab::internal {
namespace {

std::int64_t index_at(const ConstTensor& tensor, std::int64_t n) {
  return tensor.spec.dtype == DType::kInt32 ? static_cast<const std::int32_t*>(tensor.data)[n]
                                            : static_cast<const std::int64_t*>(tensor.data)[n];
}

// What a call says of one side's sequences.
struct Side {
  const char *offsets_name, *used_name;
  const std::optional<ConstTensor>&offsets, &used;
  std::int64_t batch, rows;  ///< rows of all sequences, or of a dense tensor's entry
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
                          "a sequence ends where the next one begins"});
}

// Fills the sequences' rows of one side; `gaps` gets those that no sequence has.
Status read_side(const Side& side, SequenceRows Sequence::*rows, std::vector<Sequence>& sequences,
                 std::vector<Sequence>& gaps) {
  const auto gap = [&](std::int64_t index, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    gaps.push_back({.index = index, .q = {}, .k = {}});
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
    sequences[static_cast<std::size_t>(b)].*rows = {begin, used};
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
    list.sequences[b].index = static_cast<std::int64_t>(b);
  }
  const Side q{"cu_seqlens_q", "seqused_q", t.cu_seqlens_q, t.seqused_q, g.batch, g.seqlen_q};
  const Side k{"cu_seqlens_k", "seqused_k", t.cu_seqlens_k, t.seqused_k, g.batch, g.seqlen_k};
  Status status = read_side(q, &Sequence::q, list.sequences, list.gaps_q);
  if (status.ok()) status = read_side(k, &Sequence::k, list.sequences, list.gaps_k);
  if (status.ok() && t.mask) status = check_mask(*t.mask, list.sequences);
  if (!status.ok()) return status;
  return list;
}

}  // namespace

Result<SequenceList> read_sequences(const Geometry& geometry, const ForwardTensors& tensors) {
  return read_list(geometry, tensors);
}

Result<SequenceList> read_sequences(const Geometry& geometry, const BackwardTensors& tensors) {
  return read_list(geometry, tensors);
}

Tensor part_of(const TensorRow& row, const GivenTensor& given, const Sequence& sequence) {
  const TensorSpec& from = *given.spec;
  Tensor part{const_cast<void*>(given.data), from};
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
      first = length > 1 ? sequence.index : 0;
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
