#pragma once

// What the kernel of an append is launched with, on host and device.

#include "sequence_arguments.h"

namespace flashlab::device {

/// Ragged rows [total, heads, dim] have a batch stride of 0; those of a cache in pages the stride
/// of pages there.
struct AppendArguments {
  Rows k, v;          ///< the cache
  Rows k_new, v_new;  ///< rows that are written into it
  Rows q, q_turned;   ///< null without queries
  Indices used, entries, offsets_new, offsets_q, positions;
  Indices used_after;      ///< written; null where it is not wanted
  const int* block_table;  ///< null: the cache is in no pages
  Int64 table_stride;      ///< entries from one sequence's pages to the next's
  const void *cos, *sin;   ///< [table_rows, pairs] of Config::kTable; null: nothing turns
  Int64 cos_stride, sin_stride;
  Int64 table_rows;
  int pairs, interleaved;
  int consecutive;         ///< query i turns by the position of new row i, else by that of row 0
  int batch;               ///< sequences
  int heads_k, heads_q;    ///< heads_q 0: no queries
  int columns, columns_v;  ///< of a head
  int vectors, vectors_v;  ///< whether 16 bytes of k's, v's rows may be read and written at once
  Int64 rows_new, rows_q;  ///< of all sequences
  Int64 each_new, each_q;  ///< of each sequence, where they are not ragged
  Int64 places;            ///< pages or entries of the cache
  Int64 page_size;         ///< rows of a page
  Int64 capacity;          ///< rows of a sequence's cache
};

}  // namespace flashlab::device
