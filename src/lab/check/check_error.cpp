#include <algorithm>
#include <limits>
#include <new>

#include "lab/check/check_heads.h"
#include "lab/check/check_sequences.h"
#include "lab/check/check_truth.h"

namespace flashlab::lab {

namespace ref = flashlab::reference;
using cases::Case;

struct ErrorOracle::Impl {
  ref::Sample sample;
  std::optional<ForwardTruth> forward;  // the one of the pass
  std::optional<BackwardTruth> backward;
};

ErrorOracle::ErrorOracle(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ErrorOracle::ErrorOracle(ErrorOracle&&) noexcept = default;
ErrorOracle& ErrorOracle::operator=(ErrorOracle&&) noexcept = default;
ErrorOracle::~ErrorOracle() = default;

Result<ErrorOracle> ErrorOracle::create(const CaseData& data, Pass pass) {
  const Case& c = data.problem();
  if (pass == Pass::kBackward && c.gradient_mode == GradientMode::kAccumulate) {
    return Status::invalid({"gradient_mode", "accumulate", "overwrite",
                            "the error of an accumulating call needs the values before it"});
  }
  try {
    auto impl = std::make_unique<Impl>();
    const ForwardTensors t = data.host_forward_tensors();
    const ref::Sizes sizes = ref::sizes_of(t.q, t.k, t.v);
    impl->sample = c.ragged() ? sample_of_ragged(c) : sample_of(c, sizes);
    if (pass == Pass::kForward) {
      auto truth = c.ragged() ? forward_truth_by_sequences(c, t)
                              : forward_truth_by_heads(t, c.options(), impl->sample);
      if (!truth.ok()) return truth.status();
      impl->forward = std::move(*truth);
    } else {
      const BackwardTensors b = data.host_backward_tensors();
      auto truth = c.ragged() ? backward_truth_by_sequences(c, b)
                              : backward_truth_by_heads(b, c.options(), impl->sample);
      if (!truth.ok()) return truth.status();
      impl->backward = std::move(*truth);
    }
    return ErrorOracle(std::move(impl));
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory({"error against fp64", "std::bad_alloc",
                                  "memory for fp64 copies of one head", "use a smaller case"});
  }
}

ErrorVsFp64 ErrorOracle::error_of(const CaseData& data) const {
  const std::vector<ref::Verdict> verdicts =
      impl_->forward ? judge(data.host_forward_tensors(), *impl_->forward)
                     : judge(data.host_backward_tensors(), *impl_->backward);
  ErrorVsFp64 out;
  out.sample = impl_->sample.description;
  out.accepted = true;
  double worst_excess = -std::numeric_limits<double>::infinity();
  for (const ref::Verdict& verdict : verdicts) {
    out.accepted = out.accepted && verdict.passed;
    if (verdict.tensor != "lse") {
      out.error = std::max(out.error, verdict.max_error);
      out.naive_error = std::max(out.naive_error, verdict.naive_error);
    }
    const double excess = verdict.passed ? verdict.max_error - verdict.bound
                                         : std::numeric_limits<double>::infinity();
    if (out.worst.empty() || excess > worst_excess) {
      worst_excess = excess;
      out.worst = verdict.message();
    }
  }
  return out;
}

Result<ErrorVsFp64> error_vs_fp64(const CaseData& data, Pass pass) {
  auto oracle = ErrorOracle::create(data, pass);
  if (!oracle.ok()) return oracle.status();
  return oracle->error_of(data);
}

}  // namespace flashlab::lab
