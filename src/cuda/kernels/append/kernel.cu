// Rows into a cache, and queries turned beside them.
//
// One warp takes one head of one row at a time: rows of k first, then those of v, then queries; a
// loop over them, so that any number fits the grid. Bound by the latency of dependent reads: what
// needs no length is fetched into L2 while the length is on its way. A sequence whose length leaves
// no room, whose positions leave the tables, or whose entry is not there is written nothing of, as
// is a row whose page is not there; its length afterwards is then beyond its capacity, which
// attention answers with NaN.
//
// Config: Element kElement (of keys, values and queries), Element kTable (of the rotary tables).

#include "append/launch_arguments.h"
#include "config_types.h"
#include "ptx/convert.h"
#include "ptx/dependency.h"
#include "ptx/memory.h"

namespace flashlab::device {

inline constexpr int kWarpLanes = 32, kAppendThreads = 128;
inline constexpr float kNotANumber = __builtin_bit_cast(float, 0x7fc00000u);

__device__ inline Int64 integer_at(const Indices& of, Int64 n) {
  return of.wide != 0 ? static_cast<const Int64*>(of.data)[n] : static_cast<const int*>(of.data)[n];
}

constexpr Int64 clamped(Int64 value, Int64 most) {
  return value < 0 ? 0 : (value > most ? most : value);
}

template <Element kElement>
__device__ inline float load_element(const void* data, Int64 at) {
  if constexpr (kElement == Element::kFp32) {
    return static_cast<const float*>(data)[at];
  } else if constexpr (kElement == Element::kFp16) {
    return ptx::float_of_fp16(static_cast<const unsigned short*>(data)[at]);
  } else {
    return __uint_as_float(static_cast<unsigned>(static_cast<const unsigned short*>(data)[at])
                           << 16);
  }
}

template <Element kElement>
__device__ inline void store_element(void* data, Int64 at, float value) {
  if constexpr (kElement == Element::kFp32) {
    static_cast<float*>(data)[at] = value;
  } else if constexpr (kElement == Element::kFp16) {
    static_cast<unsigned short*>(data)[at] = ptx::fp16_bits(value);
  } else {
    // Round to nearest even, NaN kept: not every GPU has an instruction for it.
    const unsigned bits = __float_as_uint(value);
    const unsigned rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    static_cast<unsigned short*>(data)[at] =
        static_cast<unsigned short>(value != value ? bits >> 16 | 0x40 : rounded);
  }
}

/// A row of ragged or dense rows: whose it is, and which one of the sequence's.
struct RowOf {
  int sequence;
  Int64 index;
  bool inside;  ///< else no sequence has it
};

__device__ inline Int64 offset_at(const Indices& offsets, Int64 rows, int n) {
  return clamped(integer_at(offsets, n), rows);
}

__device__ inline RowOf row_of(const Indices& offsets, Int64 rows, Int64 each, int batch,
                               Int64 row) {
  if (offsets.data == nullptr) return {static_cast<int>(row / each), row % each, true};
  int low = 0, high = batch;  // the last sequence that begins at or before the row
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (offset_at(offsets, rows, middle) <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Int64 begin = offset_at(offsets, rows, low), end = offset_at(offsets, rows, low + 1);
  return {low, row - begin, row >= begin && row < end};
}

/// What a sequence's lengths say.
struct Appended {
  Int64 length, count, position;
  bool fits;
};

__device__ inline Appended appended(const AppendArguments& args, int b) {
  Appended out{integer_at(args.used, b), args.each_new, 0, true};
  if (args.offsets_new.data != nullptr) {
    const Int64 begin = offset_at(args.offsets_new, args.rows_new, b);
    const Int64 end = offset_at(args.offsets_new, args.rows_new, b + 1);
    out.count = end > begin ? end - begin : 0;
  }
  out.position = args.positions.data != nullptr ? integer_at(args.positions, b) : out.length;
  out.fits =
      out.length >= 0 && out.length <= args.capacity && out.count <= args.capacity - out.length;
  if (args.cos != nullptr) {
    out.fits = out.fits && out.position >= 0 && out.position <= args.table_rows &&
               out.count <= args.table_rows - out.position;
  }
  return out;
}

/// Where row `row` of a sequence's cache lies, in rows of `cache`; below 0: nowhere.
__device__ inline Int64 cache_offset(const AppendArguments& args, const Rows& cache, int b,
                                     Int64 row) {
  Int64 place = b, inside = row;
  if (args.block_table != nullptr) {
    place = args.block_table[b * args.table_stride + row / args.page_size];
    inside = row % args.page_size;
  } else if (args.entries.data != nullptr) {
    place = integer_at(args.entries, b);
  }
  if (place < 0 || place >= args.places) return -1;
  return place * cache.batch_stride + inside * cache.row_stride;
}

__device__ inline void copy_head(const void* from, Int64 from_at, void* to, Int64 to_at,
                                 int columns, bool vectors, int lane) {
  constexpr int kBytes = Config::kElement == Element::kFp32 ? 4 : 2;
  const char* source = static_cast<const char*>(from) + from_at * kBytes;
  char* target = static_cast<char*>(to) + to_at * kBytes;
  if (vectors) {
#pragma unroll 1
    for (int n = lane * 16; n < columns * kBytes; n += kWarpLanes * 16) {
      *reinterpret_cast<uint4*>(target + n) = *reinterpret_cast<const uint4*>(source + n);
    }
    return;
  }
#pragma unroll 1
  for (int n = lane; n < columns; n += kWarpLanes) {
    if constexpr (kBytes == 4) {
      reinterpret_cast<float*>(target)[n] = reinterpret_cast<const float*>(source)[n];
    } else {
      reinterpret_cast<unsigned short*>(target)[n] =
          reinterpret_cast<const unsigned short*>(source)[n];
    }
  }
}

/// The pairs of a head by the tables' row `position`, which is there; the rest as it is. `to` may
/// be `from`: a lane reads its pair before it writes it.
__device__ inline void turn_head(const AppendArguments& args, Int64 position, const void* from,
                                 Int64 from_at, void* to, Int64 to_at, int lane) {
  constexpr int kAtOnce = 2;  // pairs of a lane that are under way: all of a head of 128
  const auto first_of = [&](int n) { return args.interleaved != 0 ? 2 * n : n; };
  const int between = args.interleaved != 0 ? 1 : args.pairs;
#pragma unroll 1
  for (int n = lane; n < args.pairs; n += kAtOnce * kWarpLanes) {
    float c[kAtOnce], s[kAtOnce], x[kAtOnce], y[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = n + i * kWarpLanes;
      if (pair >= args.pairs) continue;
      c[i] = load_element<Config::kTable>(args.cos, position * args.cos_stride + pair);
      s[i] = load_element<Config::kTable>(args.sin, position * args.sin_stride + pair);
      x[i] = load_element<Config::kElement>(from, from_at + first_of(pair));
      y[i] = load_element<Config::kElement>(from, from_at + first_of(pair) + between);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = n + i * kWarpLanes;
      if (pair >= args.pairs) continue;
      const Int64 at = to_at + first_of(pair);
      store_element<Config::kElement>(to, at, x[i] * c[i] - y[i] * s[i]);
      store_element<Config::kElement>(to, at + between, x[i] * s[i] + y[i] * c[i]);
    }
  }
  const int rest = 2 * args.pairs;
  copy_head(from, from_at + rest, to, to_at + rest, args.columns - rest, false, lane);
}

/// What a warp does: one head of one row.
enum class Task { kKey, kValue, kQuery };

/// Asks for what is read once a length is known, while the length is on its way: the row, and as
/// much of the sequence's line of the page table as a warp has lanes for.
__device__ inline void fetch_beside_length(const AppendArguments& args, const void* row, int bytes,
                                           int sequence, int lane) {
  constexpr int kLineBytes = 128, kLinePages = kLineBytes / 4;
  if (lane * kLineBytes < bytes) {
    ptx::fetch_line(static_cast<const char*>(row) + lane * kLineBytes);
  }
  if (args.block_table != nullptr && lane * kLinePages * args.page_size < args.capacity) {
    ptx::fetch_line(args.block_table + sequence * args.table_stride + lane * kLinePages);
  }
}

/// One head of one new row, or of one query. A position that the tables have not gives a query of
/// NaN.
__device__ inline void append_head(const AppendArguments& args, Task task, Int64 row, int head,
                                   int lane) {
  constexpr int kBytes = Config::kElement == Element::kFp32 ? 4 : 2;
  const bool query = task == Task::kQuery;
  const Indices& offsets = query ? args.offsets_q : args.offsets_new;
  const RowOf of = row_of(offsets, query ? args.rows_q : args.rows_new,
                          query ? args.each_q : args.each_new, args.batch, row);
  if (!of.inside) return;
  const Rows& rows = query ? args.q : (task == Task::kKey ? args.k_new : args.v_new);
  const Int64 inside = offsets.data != nullptr ? row : of.index;
  const auto offset = [&](const Rows& in) {
    return of.sequence * in.batch_stride + inside * in.row_stride + head * in.head_stride;
  };
  const Int64 from = offset(rows);
  const int columns = task == Task::kValue ? args.columns_v : args.columns;
  fetch_beside_length(args, static_cast<const char*>(rows.data) + from * kBytes, columns * kBytes,
                      of.sequence, lane);
  const Appended sequence = appended(args, of.sequence);
  const bool turns = args.cos != nullptr && task != Task::kValue;
  const Int64 position = sequence.position + (!query || args.consecutive != 0 ? of.index : 0);
  const bool in_tables = position >= 0 && position < args.table_rows;
  if (turns && in_tables && lane < 2) {
    constexpr int kTableBytes = Config::kTable == Element::kFp32 ? 4 : 2;
    ptx::fetch_line(static_cast<const char*>(lane == 0 ? args.cos : args.sin) +
                    position * (lane == 0 ? args.cos_stride : args.sin_stride) * kTableBytes);
  }
  void* target = args.q_turned.data;
  Int64 to = 0;
  if (query) {
    to = offset(args.q_turned);
    if (!in_tables) {
#pragma unroll 1
      for (int n = lane; n < columns; n += kWarpLanes) {
        store_element<Config::kElement>(target, to + n, kNotANumber);
      }
      return;
    }
  } else {
    if (!sequence.fits) return;
    const Rows& cache = task == Task::kKey ? args.k : args.v;
    to = cache_offset(args, cache, of.sequence, sequence.length + of.index);
    if (to < 0) return;
    to += head * cache.head_stride;
    target = cache.data;
  }
  if (turns) {
    turn_head(args, position, rows.data, from, target, to, lane);
  } else {
    copy_head(rows.data, from, target, to, columns,
              (task == Task::kKey ? args.vectors : args.vectors_v) != 0, lane);
  }
}

/// The rows that each sequence's cache has now.
__device__ inline void write_lengths(const AppendArguments& args) {
#pragma unroll 1
  for (int b = threadIdx.x; b < args.batch; b += kAppendThreads) {
    const Appended sequence = appended(args, b);
    const Int64 after = sequence.fits ? sequence.length + sequence.count : args.capacity + 1;
    void* data = const_cast<void*>(args.used_after.data);
    if (args.used_after.wide != 0) {
      static_cast<Int64*>(data)[b] = after;
    } else {
      static_cast<int*>(data)[b] = static_cast<int>(clamped(after, 0x7fffffff));
    }
  }
}

}  // namespace flashlab::device

extern "C" __global__ void __launch_bounds__(flashlab::device::kAppendThreads)
    flash_append(const __grid_constant__ flashlab::device::AppendArguments args) {
  using namespace flashlab::device;
  flashlab::ptx::launch_dependents();  // 'decode', which waits for what is written here
  // A block of its own: nobody's rows wait for the lengths of a batch.
  const int blocks = static_cast<int>(gridDim.x) - (args.used_after.data != nullptr ? 1 : 0);
  if (static_cast<int>(blockIdx.x) == blocks) return write_lengths(args);
  const int lane = threadIdx.x % kWarpLanes, warps = kAppendThreads / kWarpLanes;
  const Int64 heads = args.rows_new * args.heads_k, queries = args.rows_q * args.heads_q;
#pragma unroll 1
  for (Int64 n = static_cast<Int64>(blockIdx.x) * warps + threadIdx.x / kWarpLanes;
       n < 2 * heads + queries; n += static_cast<Int64>(blocks) * warps) {
    const Task task = n < heads ? Task::kKey : (n < 2 * heads ? Task::kValue : Task::kQuery);
    const Int64 of = n - (task == Task::kKey ? 0 : (task == Task::kValue ? heads : 2 * heads));
    const int in_row = task == Task::kQuery ? args.heads_q : args.heads_k;
    append_head(args, task, of / in_row, static_cast<int>(of % in_row), lane);
  }
}
