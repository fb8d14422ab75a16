#include <fmt/format.h>

#include <vector>

#include "api/backend.h"
#include "api/context_state.h"
#include "api/overlap.h"
#include "api/tensor_rules.h"
#include "flashlab/attention.h"
#include "flashlab/tensor_table.h"
#include "runtime/guard.h"

namespace flashlab {
namespace {

struct NamedTensor {
  std::string name;
  ConstTensor tensor;
  bool output;
};

// The shapes of forward's results, which is what parts and outputs are.
const ShapeRule& kO = row_of(TensorRole::kO).shape;
const ShapeRule& kLse = row_of(TensorRole::kLse).shape;

Status check_extents(const TensorSpec& o, std::int64_t largest) {
  for (int i = 0; i < o.rank; ++i) {
    if (o.shape[i] > largest) {
      return Status::unsupported({fmt::format("o.shape[{}]", i), fmt::format("{}", o.shape[i]),
                                  fmt::format("at most {} on a GPU", largest), "split the merge"});
    }
  }
  return {};
}

// One tensor of a merge; `spec` is normalised.
void check_tensor(internal::TensorRules& check, const std::string& name, TensorSpec& spec,
                  const ShapeRule& rule, const Extents& sizes, const DTypeList& dtypes,
                  Device device) {
  check.structure(name, spec, rule);
  check.shape(name, spec, rule, sizes);
  check.dtype(name, spec, dtypes, "see flashlab::merge");
  check.device(name, spec, device, "the context's device");
}

// Memory of every tensor, and that outputs overlap nothing.
Status check_all_memory(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& t : tensors) {
    if (Status s = internal::check_memory(t.name.c_str(), t.tensor.data, t.tensor.spec); !s.ok())
      return s;
  }
  for (const NamedTensor& out : tensors) {
    if (!out.output) continue;
    for (const NamedTensor& other : tensors) {
      if (&other == &out || !internal::overlap(out.tensor, other.tensor)) continue;
      return internal::overlap_error(out.name + ".data", other.name);
    }
  }
  return {};
}

Status run_merge(const Context& context, Stream stream, std::span<const Partial> given, Tensor o,
                 std::optional<Tensor> lse) {
  if (given.empty()) {
    return Status::invalid({"parts", "no part", "at least one partial attention", ""});
  }
  const Device device = context.device();
  internal::TensorRules check;
  check.structure("o", o.spec, kO);
  Extents sizes;
  for (int i = 0; check.ok() && i < kO.rank; ++i) {
    sizes[kO.extents[static_cast<std::size_t>(i)]] = o.spec.shape[i];
  }
  check_tensor(check, "o", o.spec, kO, sizes, {DType::kFp32, DType::kFp16, DType::kBf16}, device);
  check.output("o", o.spec);
  std::vector<NamedTensor> all = {{"o", o, true}};
  if (lse) {
    check_tensor(check, "lse", lse->spec, kLse, sizes, {DType::kFp32}, device);
    check.output("lse", lse->spec);
    all.push_back({"lse", *lse, true});
  }
  std::vector<Partial> parts(given.begin(), given.end());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("parts[{}]", i);
    check_tensor(check, name + ".o", parts[i].o.spec, kO, sizes, {DType::kFp32}, device);
    check_tensor(check, name + ".lse", parts[i].lse.spec, kLse, sizes, {DType::kFp32}, device);
    all.push_back({name + ".o", parts[i].o, false});
    all.push_back({name + ".lse", parts[i].lse, false});
  }
  if (!check.ok()) return check.status();
  if (Status s = check_all_memory(all); !s.ok()) return s;
  if (o.spec.shape[0] == 0 || o.spec.shape[1] == 0 || o.spec.shape[2] == 0) return {};
  const internal::ContextState& state = context.state();
  const internal::Backend& backend = internal::backend_of(device.kind);
  if (Status s = check_extents(o.spec, backend.largest_extent()); !s.ok()) return s;
  if (Status s = backend.check_stream(state, stream); !s.ok()) return s;
  for (const NamedTensor& t : all) {
    if (Status s = backend.check_memory(state, t.name.c_str(), t.tensor.data); !s.ok()) return s;
  }
  return backend.merge(state, stream, parts, o, lse);
}

}  // namespace

Status merge(const Context& context, Stream stream, std::span<const Partial> parts, Tensor o,
             std::optional<Tensor> lse) {
  return internal::guard<Status>([&] { return run_merge(context, stream, parts, o, lse); });
}

}  // namespace flashlab
