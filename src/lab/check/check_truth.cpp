#include "lab/check/check_truth.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <new>
#include <type_traits>

#include "lab/check/check_sequences.h"
#include "lab/data/case_data_fill.h"

namespace flashlab::lab {

namespace ref = flashlab::reference;
using cases::Case;

namespace {

constexpr std::int64_t kSampleRows = 64, kSampleHeads = 8;

// values [rows, width] into [batch, seqlen, heads, width], or [rows] into [batch, heads, seqlen].
void store_rows(const Tensor& to, const std::vector<ref::Row>& rows,
                const std::vector<double>& values) {
  const TensorSpec& spec = to.spec;
  const std::int64_t width = spec.rank == 4 ? spec.shape[3] : 1;
  std::size_t next = 0;
  for (const ref::Row& row : rows) {
    const std::int64_t second = spec.rank == 4 ? row.position : row.head;
    const std::int64_t third = spec.rank == 4 ? row.head : row.position;
    std::int64_t base = 0;
    if (spec.shape[0] > 1) base += row.batch * spec.strides[0];
    if (spec.shape[1] > 1) base += second * spec.strides[1];
    if (spec.shape[2] > 1) base += third * spec.strides[2];
    for (std::int64_t d = 0; d < width; ++d) {
      ref::store(to.data, spec.dtype, base + d, values[next++]);
    }
  }
}

// Adds what the gradient tensors hold to both answers: what an accumulating backward must give.
void add_initial(const Tensor& gradient, const std::vector<ref::Row>& rows,
                 std::vector<double>& exact, std::vector<double>& naive) {
  const TensorSpec& spec = gradient.spec;
  const auto width = static_cast<std::size_t>(spec.shape[3]);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::int64_t base = 0;
    if (spec.shape[0] > 1) base += rows[r].batch * spec.strides[0];
    if (spec.shape[1] > 1) base += rows[r].position * spec.strides[1];
    if (spec.shape[2] > 1) base += rows[r].head * spec.strides[2];
    for (std::size_t d = 0; d < width; ++d) {
      const double before =
          ref::load(gradient.data, spec.dtype, base + static_cast<std::int64_t>(d));
      exact[r * width + d] += before;
      naive[r * width + d] = ref::round_to(spec.dtype, naive[r * width + d] + before);
    }
  }
}

// The inputs of a tf32 call as its naive formula multiplies them: rounded to 11 significant bits.
class RoundedInputs {
 public:
  template <class Tensors>
  Tensors round(Tensors t) {
    t.q = rounded(t.q);
    t.k = rounded(t.k);
    t.v = rounded(t.v);
    if constexpr (std::is_same_v<Tensors, BackwardTensors>) t.d_o = rounded(t.d_o);
    return t;
  }

 private:
  ConstTensor rounded(const ConstTensor& from) {
    const TensorSpec& s = from.spec;
    if (s.dtype != DType::kFp32) return from;  // a d_o of another type has no more bits than tf32
    ConstTensor out;
    out.spec = contiguous_spec(s.dtype, {s.shape[0], s.shape[1], s.shape[2], s.shape[3]});
    std::vector<float>& copy = copies_.emplace_back(static_cast<std::size_t>(s.elements()));
    out.data = copy.data();
    copy_tensor(from, Tensor{copy.data(), out.spec});
    for (float& value : copy) value = ref::round_to_tf32(value);
    return out;
  }
  std::deque<std::vector<float>> copies_;
};

bool is_tf32(const Options& options, DType dtype) {
  return options.precision == Precision::kTf32 && dtype == DType::kFp32;
}

}  // namespace

ref::Sample sample_of(const Case& c, const ref::Sizes& sizes) {
  if (ref::multiply_adds(sizes, c.options()) < kSampledMultiplyAdds)
    return ref::Sample::everything(sizes);
  return ref::Sample::seeded(sizes, kSampleRows, kSampleHeads, c.seed);
}

Result<ForwardTruth> forward_truth(const ForwardTensors& t, const Options& options,
                                   const ref::Sample& sample) {
  auto exact = ref::forward(t, options, sample);
  if (!exact.ok()) return exact.status();
  const bool tf32 = is_tf32(options, t.q.spec.dtype);
  RoundedInputs inputs;
  auto naive = ref::naive_yardstick(tf32 ? inputs.round(t) : t, options, sample, *exact);
  if (!naive.ok()) return naive.status();
  return ForwardTruth{std::move(*exact), std::move(*naive), tf32};
}

Result<BackwardTruth> backward_truth(const BackwardTensors& t, const Options& options,
                                     const ref::Sample& sample) {
  BackwardTruth out;
  RoundedInputs inputs;
  const BackwardTensors multiplied = is_tf32(options, t.q.spec.dtype) ? inputs.round(t) : t;
  const auto both = [&](const ref::Sample& part, ref::Statistics statistics, BackwardTruth* to) {
    auto exact = ref::backward(t, options, part, statistics);
    if (!exact.ok()) return exact.status();
    auto naive = ref::naive_yardstick(multiplied, options, part, *exact,
                                      statistics == ref::Statistics::kGiven);
    if (!naive.ok()) return naive.status();
    *to = {std::move(*exact), std::move(*naive)};
    return Status();
  };
  if (sample.all) {
    if (Status s = both(sample, ref::Statistics::kRecomputed, &out); !s.ok()) return s;
    return out;
  }
  // A few keys' gradients need the LSE and delta of every query: those come from o and lse.
  ref::Sample queries = sample, keys = sample;
  queries.keys.clear();
  keys.queries.clear();
  BackwardTruth of_keys;
  if (Status s = both(queries, ref::Statistics::kRecomputed, &out); !s.ok()) return s;
  if (Status s = both(keys, ref::Statistics::kGiven, &of_keys); !s.ok()) return s;
  const auto take_keys = [](ref::BackwardRows& to, ref::BackwardRows& from) {
    to.keys = std::move(from.keys);
    to.dk = std::move(from.dk);
    to.dv = std::move(from.dv);
    to.dk_dont_care = std::move(from.dk_dont_care);
    to.dv_dont_care = std::move(from.dv_dont_care);
  };
  take_keys(out.exact, of_keys.exact);
  take_keys(out.naive, of_keys.naive);
  return out;
}

std::vector<ref::Verdict> judge(const ForwardTensors& t, const ForwardTruth& truth) {
  std::vector<ref::Verdict> out;
  out.push_back(ref::compare({"o", t.o, truth.exact.rows, truth.exact.o, truth.naive.o,
                              &truth.exact.dont_care, t.q.spec.dtype}));
  if (!t.lse) return out;
  std::vector<double> magnitude = truth.exact.magnitude;
  if (truth.tf32) {
    // Two operands, each rounded to 11 bits by at most 2^-11 of it, move a score by at most 2^-10
    // of its terms; compare_lse allows 2^-21.
    for (double& row : magnitude) row *= 2048;
  }
  out.push_back(ref::compare_lse(*t.lse, truth.exact.rows, truth.exact.lse, magnitude));
  return out;
}

std::vector<ref::Verdict> judge(const BackwardTensors& t, const BackwardTruth& truth) {
  const DType type = t.q.spec.dtype;
  const ref::BackwardRows &exact = truth.exact, &naive = truth.naive;
  std::vector<ref::Verdict> out = {
      ref::compare({"dq", t.dq, exact.queries, exact.dq, naive.dq, &exact.dq_dont_care, type}),
      ref::compare({"dk", t.dk, exact.keys, exact.dk, naive.dk, &exact.dk_dont_care, type}),
      ref::compare({"dv", t.dv, exact.keys, exact.dv, naive.dv, &exact.dv_dont_care, type})};
  if (!t.d_sinks || exact.d_sinks.empty()) return out;  // a sample has not every row of a head
  std::vector<ref::Row> heads;
  for (std::int64_t h = 0; h < t.d_sinks->spec.shape[0]; ++h) heads.push_back({0, h, 0});
  ConstTensor got = *t.d_sinks;  // as [batch, seqlen, heads, width]
  got.spec = contiguous_spec(DType::kFp32, {1, 1, t.d_sinks->spec.shape[0], 1});
  out.push_back(ref::compare({"d_sinks", got, heads, exact.d_sinks, naive.d_sinks, nullptr,
                              type == DType::kFp64 ? DType::kFp32 : type}));
  return out;
}

RunStatus run_status(const Status& status) {
  if (status.code() == StatusCode::kUnsupported) return RunStatus::kUnsupported;
  if (status.code() == StatusCode::kOutOfMemory) return RunStatus::kOutOfMemory;
  return RunStatus::kError;
}

CaseTruth::CaseTruth(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CaseTruth::CaseTruth(CaseTruth&&) noexcept = default;
CaseTruth& CaseTruth::operator=(CaseTruth&&) noexcept = default;
CaseTruth::~CaseTruth() = default;

Result<CaseTruth> CaseTruth::create(const Case& problem, const CheckOptions& options) {
  CaseDataOptions data_options;
  data_options.backward =
      problem.has_backward() &&
      std::ranges::find(options.passes, Pass::kBackward) != options.passes.end();
  data_options.memory_limit_bytes = options.memory_limit_bytes;
  data_options.trap_reads_past_end = options.trap_reads_past_end;
  data_options.memory = options.memory;
  auto data = CaseData::create(problem, data_options);
  if (!data.ok()) return data.status();
  try {
    auto impl = std::make_unique<Impl>(std::move(*data));
    const ForwardTensors t = impl->data.host_forward_tensors();
    const ref::Sizes sizes = ref::sizes_of(t.q, t.k, t.v);
    impl->sample = problem.ragged() ? sample_of_ragged(problem) : sample_of(problem, sizes);
    auto forward = problem.ragged() ? forward_truth_by_sequences(problem, t)
                                    : forward_truth(t, problem.options(), impl->sample);
    if (!forward.ok()) return forward.status();
    impl->forward = std::move(*forward);
    // A sample's keys need an implementation's o and lse: that truth is found when they exist.
    if (data_options.backward && impl->sample.all) {
      const BackwardTensors b = impl->data.host_backward_tensors();
      // The naive backward starts from the naive forward, as an implementation's from its own.
      store_rows(t.o, impl->forward->naive.rows, impl->forward->naive.o);
      store_rows(*t.lse, impl->forward->naive.rows, impl->forward->naive.lse);
      auto backward = problem.ragged() ? backward_truth_by_sequences(problem, b)
                                       : backward_truth(b, problem.options(), impl->sample);
      if (Status s = impl->data.reset_outputs(Pass::kForward); !s.ok()) return s;
      if (!backward.ok()) return backward.status();
      impl->backward = std::move(*backward);
      if (problem.gradient_mode == GradientMode::kAccumulate) {
        BackwardTruth& truth = *impl->backward;
        add_initial(b.dq, truth.exact.queries, truth.exact.dq, truth.naive.dq);
        add_initial(b.dk, truth.exact.keys, truth.exact.dk, truth.naive.dk);
        add_initial(b.dv, truth.exact.keys, truth.exact.dv, truth.naive.dv);
        for (std::size_t h = 0; h < truth.exact.d_sinks.size(); ++h) {
          const auto before = static_cast<double>(static_cast<const float*>(b.d_sinks->data)[h]);
          truth.exact.d_sinks[h] += before;
          truth.naive.d_sinks[h] = ref::round_to(DType::kFp32, truth.naive.d_sinks[h] + before);
        }
      }
    }
    return CaseTruth(std::move(impl));
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory(
        {"check", "std::bad_alloc", "memory for the oracle's results", "use a smaller case"});
  }
}

}  // namespace flashlab::lab
