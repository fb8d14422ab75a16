#include "lab/check/check_heads.h"
#include "lab/machine/memory.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>

namespace flashlab::lab {
namespace {

namespace ref = flashlab::reference;

// Below this a head has other yardsticks (naive_rounded.h), and is not worth a task.
constexpr double kSmallHead = ref::kSmallProblem;

// One entry of a dimension; a dimension of extent 1 is broadcast and stays.
template <class View>
View narrowed(View view, std::size_t dimension, std::int64_t first, std::int64_t count) {
  TensorSpec& spec = view.spec;
  if (spec.shape[dimension] <= 1) return view;
  const std::int64_t bytes =
      first * spec.strides[dimension] * static_cast<std::int64_t>(size_of(spec.dtype));
  if (view.data != nullptr) view.data = static_cast<const char*>(view.data) + bytes;
  spec.shape[dimension] = count;
  return view;
}

// One batch entry and key head with its query heads.
struct Head {
  std::int64_t batch = 0, key_head = 0, group = 1;

  ConstTensor rows(const ConstTensor& t, std::int64_t first, std::int64_t count) const {
    return narrowed(narrowed(t, 0, batch, 1), 2, first, count);  // [batch, seqlen, heads, dim]
  }
  ConstTensor scalars(const ConstTensor& t) const {  // [batch, heads, ...]
    return narrowed(narrowed(t, 0, batch, 1), 1, key_head * group, group);
  }

  template <class Tensors>
  Tensors tensors(Tensors t) const {
    const std::int64_t first = key_head * group;
    t.q = rows(t.q, first, group);
    t.k = rows(t.k, key_head, 1);
    t.v = rows(t.v, key_head, 1);
    if (t.mask) t.mask = scalars(*t.mask);
    if (t.alibi_slopes) t.alibi_slopes = scalars(*t.alibi_slopes);
    if constexpr (std::is_same_v<Tensors, BackwardTensors>) {
      t.o = rows(t.o, first, group);
      t.d_o = rows(t.d_o, first, group);
      t.lse = scalars(t.lse);
      if (t.d_lse) t.d_lse = scalars(*t.d_lse);
    }
    return t;
  }

  ref::Sample sample(const ref::Sample& all) const {
    ref::Sample out;
    out.all = all.all;
    for (const ref::Row& row : all.queries) {
      if (row.batch == batch && row.head / group == key_head) {
        out.queries.push_back({0, row.head - key_head * group, row.position});
      }
    }
    for (const ref::Row& row : all.keys) {
      if (row.batch == batch && row.head == key_head) out.keys.push_back({0, 0, row.position});
    }
    return out;
  }
};

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void append(ref::ForwardRows& to, const ref::ForwardRows& from) {
  append(to.o, from.o);
  append(to.lse, from.lse);
  append(to.magnitude, from.magnitude);
  append(to.dont_care, from.dont_care);
}

void append(ref::BackwardRows& to, const ref::BackwardRows& from) {
  append(to.dq, from.dq);
  append(to.dk, from.dk);
  append(to.dv, from.dv);
  append(to.dq_dont_care, from.dq_dont_care);
  append(to.dk_dont_care, from.dk_dont_care);
  append(to.dv_dont_care, from.dv_dont_care);
}

// As many threads as there are processors, and as have memory for their copies of a head in fp64.
std::size_t threads_for(const ref::Sizes& sizes, std::size_t tasks) {
  const double rows = static_cast<double>(sizes.seqlen_q * sizes.group() + 2 * sizes.seqlen_k);
  const double bytes = rows * static_cast<double>(sizes.head_dim + sizes.head_dim_v) * 8 * 4;
  const double fit = static_cast<double>(available_memory_bytes()) / 4 / std::max(bytes, 1.0);
  const auto processors = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  return std::min({tasks, processors, std::max<std::size_t>(1, static_cast<std::size_t>(fit))});
}

// Runs work(n) for every n below `count` on several threads.
template <class Work>
void on_threads(std::size_t threads, std::size_t count, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto loop = [&] {
    for (std::size_t n = next++; n < count; n = next++) work(n);
  };
  std::vector<std::thread> others;
  for (std::size_t n = 1; n < threads; ++n) {
    try {
      others.emplace_back(loop);
    } catch (const std::system_error&) {
      break;  // fewer at a time
    }
  }
  loop();
  for (std::thread& thread : others) thread.join();
}

// `truth_of` gives the truth of the tensors and sample of one head.
template <class Truth, class Tensors, class TruthOf>
Result<Truth> by_heads(const Tensors& t, const Options& options, const ref::Sample& sample,
                       const TruthOf& truth_of) {
  const ref::Sizes sizes = ref::sizes_of(t.q, t.k, t.v);
  const auto heads = static_cast<double>(std::max<std::int64_t>(sizes.batch * sizes.heads_k, 1));
  // The pattern of dropout depends on where in the batch a head is; gradients of sinks have rows of
  // every batch entry.
  if (heads < 2 || options.dropout || t.sinks ||
      ref::multiply_adds(sizes, options) / heads < kSmallHead) {
    return truth_of(t, sample);
  }
  struct Task {
    Head head;
    ref::Sample sample;
    std::optional<Result<Truth>> truth;
  };
  std::vector<Task> tasks;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    for (std::int64_t h = 0; h < sizes.heads_k; ++h) {
      const Head head{b, h, sizes.group()};
      ref::Sample rows = head.sample(sample);
      if (rows.queries.empty() && rows.keys.empty()) continue;
      tasks.push_back({head, std::move(rows), std::nullopt});
    }
  }
  on_threads(threads_for(sizes, tasks.size()), tasks.size(), [&](std::size_t n) {
    Task& task = tasks[n];
    try {
      task.truth.emplace(truth_of(task.head.tensors(t), task.sample));
    } catch (const std::bad_alloc&) {
      task.truth.emplace(
          Status::out_of_memory({"error against fp64", "std::bad_alloc",
                                 "memory for fp64 copies of one head", "use a smaller case"}));
    }
  });
  Truth out;
  // Rows are ordered by batch and head, as the tasks are.
  for (Task& task : tasks) {
    if (!task.truth->ok()) return task.truth->status();
    append(out.exact, (*task.truth)->exact);
    append(out.naive, (*task.truth)->naive);
    if constexpr (std::is_same_v<Truth, ForwardTruth>) out.tf32 = (*task.truth)->tf32;
  }
  return out;
}

}  // namespace

Result<ForwardTruth> forward_truth_by_heads(const ForwardTensors& tensors, const Options& options,
                                            const ref::Sample& sample) {
  auto out = by_heads<ForwardTruth>(tensors, options, sample,
                                    [&](const ForwardTensors& t, const ref::Sample& rows) {
                                      ref::Sample queries = rows;
                                      queries.keys.clear();  // of backward
                                      return forward_truth(t, options, queries);
                                    });
  if (out.ok()) out->exact.rows = out->naive.rows = sample.queries;
  return out;
}

Result<BackwardTruth> backward_truth_by_heads(const BackwardTensors& tensors,
                                              const Options& options, const ref::Sample& sample) {
  auto out = by_heads<BackwardTruth>(tensors, options, sample,
                                     [&](const BackwardTensors& t, const ref::Sample& rows) {
                                       return backward_truth(t, options, rows);
                                     });
  if (out.ok()) {
    out->exact.queries = out->naive.queries = sample.queries;
    out->exact.keys = out->naive.keys = sample.keys;
  }
  return out;
}

}  // namespace flashlab::lab
