// Rows into a cache: where each goes, and what rotary position embedding makes of it.

#include "cpu/append.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "api/appended.h"
#include "cpu/plain/elements.h"
#include "runtime/cpu/thread_pool.h"

namespace flashlab::internal {
namespace {

// One position's row of the tables.
template <class Acc>
struct Turn {
  std::vector<Acc> cos, sin;

  Turn(const AppendTensors& t, std::int64_t position) {
    const std::int64_t pairs = t.rotary_cos->spec.shape[1];
    cos.resize(static_cast<std::size_t>(pairs));
    sin.resize(cos.size());
    load_row(t.rotary_cos->spec.dtype, t.rotary_cos->data, position * t.rotary_cos->spec.strides[0],
             pairs, cos.data());
    load_row(t.rotary_sin->spec.dtype, t.rotary_sin->data, position * t.rotary_sin->spec.strides[0],
             pairs, sin.data());
  }

  // The first elements of a head.
  void apply(RotaryPairs order, Acc* head) const {
    for (std::size_t n = 0; n < cos.size(); ++n) {
      const bool halves = order == RotaryPairs::kHalves;
      Acc &x = head[halves ? n : 2 * n], &y = head[halves ? n + cos.size() : 2 * n + 1];
      const Acc before = x;
      x = before * cos[n] - y * sin[n];
      y = before * sin[n] + y * cos[n];
    }
  }
};

// A row of every head: [heads, width] at an offset, heads a stride apart.
struct HeadsAt {
  const TensorSpec* spec;
  void* data;
  std::int64_t offset;

  std::int64_t heads() const { return spec->shape[spec->rank - 2]; }
  std::int64_t width() const { return spec->shape[spec->rank - 1]; }
  std::int64_t head(std::int64_t h) const { return offset + h * spec->strides[spec->rank - 2]; }
};

// Row `row` of sequence b: of ragged tensors a row, else one of an entry.
template <class View>
HeadsAt row_at(const View& t, std::int64_t b, std::int64_t row) {
  const auto& s = t.spec.strides;
  return {&t.spec, const_cast<void*>(static_cast<const void*>(t.data)),
          t.spec.rank == 3 ? row * s[0] : b * s[0] + row * s[1]};
}

void copy_heads(const HeadsAt& from, const HeadsAt& to) {
  const auto size = static_cast<std::int64_t>(size_of(to.spec->dtype));
  for (std::int64_t h = 0; h < to.heads(); ++h) {
    std::memcpy(static_cast<char*>(to.data) + to.head(h) * size,
                static_cast<const char*>(from.data) + from.head(h) * size,
                static_cast<std::size_t>(to.width() * size));
  }
}

template <class Acc>
void turn_heads(const Turn<Acc>& turn, RotaryPairs order, const HeadsAt& from, const HeadsAt& to) {
  std::vector<Acc> head(static_cast<std::size_t>(to.width()));
  for (std::int64_t h = 0; h < to.heads(); ++h) {
    load_row(from.spec->dtype, from.data, from.head(h), from.width(), head.data());
    turn.apply(order, head.data());
    store_row(to.spec->dtype, to.data, to.head(h), to.width(), head.data());
  }
}

// A call whose lengths are read and right.
struct AppendCall {
  const AppendTensors& t;
  const AppendOptions& options;
  std::int64_t page_size;
  std::vector<Appended> sequences;

  template <class View>
  HeadsAt cache_row(const View& cache, std::size_t b, std::int64_t row) const {
    if (page_size == 0) return row_at(cache, sequences[b].entry, row);
    const auto* pages = static_cast<const std::int32_t*>(t.block_table->data) +
                        static_cast<std::int64_t>(b) * t.block_table->spec.strides[0];
    return row_at(cache, pages[row / page_size], row % page_size);
  }

  void append_row(std::size_t b, std::int64_t i) const {
    const Appended& of = sequences[b];
    const auto index = static_cast<std::int64_t>(b);
    const std::int64_t row = of.length + i;
    copy_heads(row_at(t.v_new, index, of.first_new + i), cache_row(t.v, b, row));
    const HeadsAt from = row_at(t.k_new, index, of.first_new + i), to = cache_row(t.k, b, row);
    turned(of.position + i, from, to);
  }

  void turn_query(std::size_t b, std::int64_t i) const {
    const Appended& of = sequences[b];
    const auto index = static_cast<std::int64_t>(b);
    const bool consecutive = options.rotary_queries == RotaryQueries::kConsecutive;
    turned(of.position + (consecutive ? i : 0), row_at(*t.q, index, of.first_q + i),
           row_at(*t.q_rotated, index, of.first_q + i));
  }

 private:
  void turned(std::int64_t position, const HeadsAt& from, const HeadsAt& to) const {
    if (!t.rotary_cos) return copy_heads(from, to);
    if (to.spec->dtype == DType::kFp64) {
      return turn_heads(Turn<double>(t, position), options.rotary_pairs, from, to);
    }
    turn_heads(Turn<float>(t, position), options.rotary_pairs, from, to);
  }
};

// Tasks of a row each, numbered through all sequences.
template <class Run>
void for_each_row(ThreadPool& pool, const std::vector<Appended>& sequences,
                  std::int64_t Appended::*count, const Run& run) {
  std::vector<std::int64_t> begins{0};
  for (const Appended& of : sequences) begins.push_back(begins.back() + of.*count);
  pool.run(begins.back(), [&](std::int64_t row, int) {
    const auto next = std::upper_bound(begins.begin(), begins.end(), row);
    const auto b = static_cast<std::size_t>(next - begins.begin() - 1);
    run(b, row - begins[b]);
  });
}

}  // namespace

Status append_on_cpu(ThreadPool& pool, const AppendTensors& t, const AppendOptions& options,
                     std::int64_t page_size) {
  auto sequences = read_appended(t, options, page_size);
  if (!sequences.ok()) return sequences.status();
  const std::int64_t batch = t.seqused_k.spec.shape[0];
  const AppendCall call{t, options, page_size, *std::move(sequences)};
  for_each_row(pool, call.sequences, &Appended::count,
               [&](std::size_t b, std::int64_t i) { call.append_row(b, i); });
  for_each_row(pool, call.sequences, &Appended::queries,
               [&](std::size_t b, std::int64_t i) { call.turn_query(b, i); });
  if (!t.seqused_after) return {};
  for (std::int64_t b = 0; b < batch; ++b) {
    const Appended& of = call.sequences[static_cast<std::size_t>(b)];
    if (t.seqused_after->spec.dtype == DType::kInt32) {
      static_cast<std::int32_t*>(t.seqused_after->data)[b] =
          static_cast<std::int32_t>(of.length + of.count);
    } else {
      static_cast<std::int64_t*>(t.seqused_after->data)[b] = of.length + of.count;
    }
  }
  return {};
}

}  // namespace flashlab::internal
