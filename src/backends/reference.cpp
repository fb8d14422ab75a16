#include "backends/reference.h"

#include <new>
#include <vector>

#include "cpu/sequences/key_rows.h"
#include "cpu/sequences/sequences.h"
#include "reference/oracle.h"

namespace flashlab::internal {
namespace {

namespace ref = flashlab::reference;

std::int64_t row_offset(const TensorSpec& spec, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t index[3] = {b, s, h};
  std::int64_t offset = 0;
  for (int d = 0; d < 3; ++d) {
    if (spec.shape[static_cast<std::size_t>(d)] > 1) {
      offset += index[d] * spec.strides[static_cast<std::size_t>(d)];
    }
  }
  return offset;
}

// values [rows, width] into a tensor [batch, seqlen, heads, width].
void write_rows(const Tensor& to, const std::vector<ref::Row>& rows,
                const std::vector<double>& values, bool add) {
  const std::int64_t width = to.spec.shape[3];
  const double* from = values.data();
  for (const ref::Row& row : rows) {
    const std::int64_t base = row_offset(to.spec, row.batch, row.position, row.head);
    for (std::int64_t d = 0; d < width; ++d, ++from) {
      const double before = add ? ref::load(to.data, to.spec.dtype, base + d) : 0.0;
      ref::store(to.data, to.spec.dtype, base + d, before + *from);
    }
  }
}

class ReferencePlan final : public PlanState {
 public:
  Status forward(ContextState&, Stream, const ForwardTensors& given, Workspace) const override {
    return guarded([&] {
      ForwardTensors t = given;
      const KeyRows rows(geometry, given);
      const std::vector<char> k = gather(t.k, rows.k()), v = gather(t.v, rows.v());
      const auto sizes = ref::sizes_of(t.q, t.k, t.v);
      const auto result = ref::forward(t, problem.options, ref::Sample::everything(sizes));
      if (!result.ok()) return result.status();
      write_rows(t.o, result->rows, result->o, false);
      if (t.lse) {
        for (std::size_t n = 0; n < result->rows.size(); ++n) {
          const ref::Row& row = result->rows[n];
          ref::store(t.lse->data, t.lse->spec.dtype,
                     row_offset(t.lse->spec, row.batch, row.head, row.position), result->lse[n]);
        }
      }
      return Status();
    });
  }

  Status backward(ContextState&, Stream, const BackwardTensors& t, Workspace) const override {
    return guarded([&] {
      const auto sizes = ref::sizes_of(t.q, t.k, t.v);
      const auto result = ref::backward(t, problem.options, ref::Sample::everything(sizes),
                                        ref::Statistics::kGiven);
      if (!result.ok()) return result.status();
      const bool add = problem.options.gradient_mode == GradientMode::kAccumulate;
      write_rows(t.dq, result->queries, result->dq, add);
      write_rows(t.dk, result->keys, result->dk, add);
      write_rows(t.dv, result->keys, result->dv, add);
      for (std::size_t h = 0; t.d_sinks && h < result->d_sinks.size(); ++h) {
        const auto index = static_cast<std::int64_t>(h);
        const double before = add ? ref::load(t.d_sinks->data, DType::kFp32, index) : 0.0;
        ref::store(t.d_sinks->data, DType::kFp32, index, before + result->d_sinks[h]);
      }
      return Status();
    });
  }

 private:
  // The rows of a sequence in pages, one after the other; `tensor` becomes theirs.
  static std::vector<char> gather(ConstTensor& tensor, const std::int64_t* rows) {
    if (rows == nullptr) return {};
    const auto size = static_cast<std::int64_t>(size_of(tensor.spec.dtype));
    const auto shape = tensor.spec.shape;
    std::vector<char> copy;
    for (std::int64_t n = 0; n < shape[1]; ++n) {
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        const char* row =
            static_cast<const char*>(tensor.data) + (rows[n] + h * tensor.spec.strides[2]) * size;
        copy.insert(copy.end(), row, row + shape[3] * size);
      }
    }
    tensor.spec = contiguous_spec(tensor.spec.dtype, {1, shape[1], shape[2], shape[3]});
    tensor.data = copy.data();
    return copy;
  }

  template <class Body>
  static Status guarded(const Body& body) {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return Status::out_of_memory({"reference", "std::bad_alloc", "memory for fp64 results",
                                    "use a smaller problem or another implementation"});
    }
  }
};

Result<std::shared_ptr<PlanState>> make_plan(const ContextState&, const Problem& problem,
                                             const Geometry&) {
  auto state = std::make_shared<ReferencePlan>();
  const bool forward = problem.pass == Pass::kForward;
  const bool wide = problem.q.dtype == DType::kFp64;
  state->steps.push_back(
      {PlanStep::Kind::kKernel,
       forward ? "reference_forward" : "reference_backward",
       wide ? "plain loops, long double, 1 thread" : "plain loops, fp64, 1 thread",
       {}});
  state->reasons.push_back("the oracle: slow on purpose; its fp64 copies are not in the workspace");
  return std::shared_ptr<PlanState>(std::move(state));
}

}  // namespace

const Implementation& reference_implementation() {
  static const Implementation implementation = {
      "reference", DeviceKind::kCpu, "fp64 plain loops: the truth the others are compared with",
      dense_features() | sequence_features() | cache_features() |
          FeatureSet{Feature::kFp64, Feature::kFp32, Feature::kFp16, Feature::kBf16},
      plan_dense_or_sequences<&make_plan>};
  return implementation;
}

}  // namespace flashlab::internal
