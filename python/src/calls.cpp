// forward and backward: arguments -> planned call -> results of the caller's framework.

#include "calls.h"

#include <array>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "contexts.h"
#include "errors.h"
#include "flashlab/schedule.h"
#include "flashlab/tensor_table.h"
#include "options.h"
#include "plans.h"

namespace flashlab::python {
namespace {

Argument read_argument(const Framework& framework, const char* name, nb::handle array,
                       bool integers = false) {
  const Framework& own = framework_of(array, name);
  if (own.adapter.ptr() != framework.adapter.ptr()) {
    // Two frameworks have two current streams, and neither knows of the other's.
    raise(PyExc_TypeError, name, nb::type_name(array.type()).c_str(), "an array of q's framework",
          "convert it");
  }
  return Argument(own, name, array, integers);
}

Argument read_input(const Framework& framework, const char* name, nb::handle array) {
  Argument argument = read_argument(framework, name, array);
  argument.make_readable(framework);
  return argument;
}

// Seed and offset of dropout, offsets or lengths.
Argument read_integers(const Framework& framework, const char* name, nb::handle array) {
  if (array.is_none()) return {};
  Argument integers = read_argument(framework, name, array, true);
  integers.make_readable(framework);
  return integers;
}

Argument read_optional(const Framework& framework, const char* name, nb::handle array) {
  return array.is_none() ? Argument() : read_input(framework, name, array);
}

// [heads] is one row for every batch entry.
Argument read_slopes(const Framework& framework, nb::handle array) {
  Argument slopes = read_optional(framework, "alibi_slopes", array);
  if (!slopes || slopes.spec().rank != 1) return slopes;
  TensorSpec& spec = slopes.spec();
  spec.shape[1] = spec.shape[0];
  spec.strides[1] = spec.strides[0];
  spec.shape[0] = 1;
  spec.strides[0] = 0;
  spec.rank = 2;
  return slopes;
}

// Right-aligned like NumPy's broadcasting. A mask repeated along the keys by a stride of 0 is one
// column, and is not copied to become a matrix. `k` has its heads in their final place.
Argument read_mask(const Framework& framework, nb::handle array, const Argument& k) {
  if (array.is_none()) return {};
  Argument mask = read_argument(framework, "mask", array);
  TensorSpec& spec = mask.spec();
  if (spec.rank == 4 && spec.strides[3] == 0 && k.spec().rank == 4 &&
      spec.shape[3] == k.spec().shape[1] && spec.shape[3] > 1) {
    spec.shape[3] = 1;
  }
  mask.make_readable(framework);
  while (spec.rank < TensorSpec::kMaxRank) {
    for (int i = spec.rank; i > 0; --i) {
      spec.shape[i] = spec.shape[i - 1];
      spec.strides[i] = spec.strides[i - 1];
    }
    spec.shape[0] = 1;
    spec.strides[0] = 0;
    ++spec.rank;
  }
  return mask;
}

// An output that the caller brings: never a copy, and theirs to be written.
Argument read_output(const Framework& framework, const char* name, nb::handle array) {
  if (array.is_none()) return {};
  Argument out = read_argument(framework, name, array);
  if (out.read_only() || out.copied()) {
    raise(PyExc_ValueError, name, "a read-only array", "an array that can be written",
          "pass a writable one, or none to get a new one");
  }
  return out;
}

constexpr std::size_t kMaxResults = 4;  // o and lse; dq, dk, dv and d_sinks

struct Output {
  Memory memory;
  Tensor tensor;
};

Output make_output(const Framework& framework, const Made& made) {
  Output output;
  output.memory = make_memory(framework, made.factory);
  output.tensor = {output.memory.data, made.spec};
  return output;
}

bool aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

TensorSpec dense_spec(DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  TensorSpec spec = contiguous_spec(dtype, shape, device);
  set_alignment(spec, nullptr);
  return spec;
}

// An array of the caller, None where there is none; `name` is what the caller calls it.
struct Given {
  TensorRole role;
  const char* name;
  nb::handle array;
};

// Tensors of tokens and heads, which PyTorch has the other way round.
bool has_heads(const TensorRow& row) {
  return row.shape.rank == 4 && !row.shape.broadcasts &&
         (row.shape.extents[2] == Extent::kHeadsQ || row.shape.extents[2] == Extent::kHeadsK);
}

// How many tensors a pass has today.
template <class Tensors>
constexpr std::size_t tensors_of() {
  std::size_t count = 0;
  for (const TensorRow& row : kTensors) {
    const bool has = row.template member<Tensors>().access() != Access::kNone;
    if (has && row.served_by != ServedBy::kNone) ++count;
  }
  return count;
}

// The arrays of one call, read by the table of tensors. q, k and v come first.
template <class Tensors>
class CallArguments {
 public:
  CallArguments(const Framework& framework, std::span<const Given> given, bool heads_first)
      : given_(given) {
    for (std::size_t i = 0; i < given.size(); ++i) read(framework, i, heads_first);
  }

  const Argument& operator[](TensorRole role) const { return arguments_[index_of(role)]; }
  bool brought(TensorRole role) const {
    const std::size_t i = index_of(role);
    return i < given_.size() && arguments_[i];
  }
  // What a call gives back, brought by the caller or made.
  bool is_result(const TensorRow& row, bool with_lse) const {
    const TensorMember<Tensors>& member = row.template member<Tensors>();
    if (row.role == TensorRole::kDSinks && !brought(TensorRole::kSinks)) return false;
    return member.access() == Access::kWrite && row.served_by != ServedBy::kNone &&
           (member.required() || with_lse);
  }
  nb::object array(TensorRole role) const { return nb::borrow(given_[index_of(role)].array); }

  void add_to(CallKey& key) const {
    for (std::size_t i = 0; i < given_.size(); ++i) key.add(arguments_[i]);
  }

  Tensors tensors() const {
    Tensors t;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      if (arguments_[i]) {
        row_of(given_[i].role).template member<Tensors>().set(t, arguments_[i].output());
      }
    }
    return t;
  }

  // A row-major result of the call's own sizes.
  TensorSpec made_spec(const TensorRow& row, Device device) const {
    const SequenceSource source{.ragged_q = brought(TensorRole::kCuSeqlensQ),
                                .ragged_k = brought(TensorRole::kCuSeqlensK),
                                .paged_k = brought(TensorRole::kBlockTable),
                                .indexed_k = brought(TensorRole::kCacheBatchIdx)};
    Extents sizes;
    for (TensorRole role : {TensorRole::kV, TensorRole::kK, TensorRole::kQ}) {
      const ShapeRule rule = rule_for(row_of(role).shape, source);
      for (int i = 0; i < rule.rank; ++i) {
        const auto n = static_cast<std::size_t>(i);
        sizes[rule.extents[n]] = (*this)[role].spec().shape[n];
      }
    }
    const ShapeRule rule = rule_for(row.shape, source);
    const DType q = (*this)[TensorRole::kQ].spec().dtype;
    TensorSpec spec;
    spec.dtype = *allowed_dtypes(row.dtype, q, q).begin();
    spec.device = device;
    spec.rank = rule.rank;
    spec.shape = rule.of(sizes);
    std::int64_t stride = 1;
    for (int i = spec.rank - 1; i >= 0; --i) {
      spec.strides[i] = stride;
      stride *= spec.shape[i];
    }
    set_alignment(spec, nullptr);
    return spec;
  }

  // C++ calls forward's output `o`; the caller who brought one called it `out`.
  void require(const Status& status) const {
    if (status.ok()) return;
    Status shown = status;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      if (arguments_[i]) shown = renamed(shown, row_of(given_[i].role).name, given_[i].name);
    }
    raise(shown);
  }

 private:
  void read(const Framework& framework, std::size_t i, bool heads_first) {
    const auto& [role, name, array] = given_[i];
    const TensorRow& row = row_of(role);
    Argument& argument = arguments_[i];
    if (role == TensorRole::kMask) {
      argument = read_mask(framework, array, (*this)[TensorRole::kK]);
      return;
    }
    if (role == TensorRole::kAlibiSlopes) {
      argument = read_slopes(framework, array);
      return;
    }
    if (role == TensorRole::kDropoutState) {
      argument = read_integers(framework, name, array);
      return;
    }
    if (row.dtype == DTypeRule::kIndex || role == TensorRole::kBlockTable) {
      argument = read_integers(framework, name, array);
      return;
    }
    const TensorMember<Tensors>& member = row.template member<Tensors>();
    if (member.access() == Access::kWrite) {
      argument = read_output(framework, name, array);
    } else if (member.required()) {
      argument = read_input(framework, name, array);
    } else {
      argument = read_optional(framework, name, array);
    }
    if (heads_first && has_heads(row)) argument.swap_heads();
  }

  std::size_t index_of(TensorRole role) const {
    std::size_t i = 0;
    while (i < given_.size() && given_[i].role != role) ++i;
    return i;
  }

  std::span<const Given> given_;
  std::array<Argument, tensors_of<Tensors>()> arguments_;
};

template <class Tensors>
PlannedCallPointer plan_call(const Framework& framework, nb::handle like, const Context& context,
                             const CallArguments<Tensors>& in, const Options& options,
                             bool with_lse, bool heads_first) {
  Tensors t = in.tensors();
  for (const TensorRow& row : kTensors) {
    if (!in.is_result(row, with_lse) || in.brought(row.role)) continue;
    row.template member<Tensors>().set(t, {nullptr, in.made_spec(row, context.device())});
  }
  auto plan = prepared_plan(context, describe(t, options));
  in.require(plan.status());
  auto call = std::make_shared<PlannedCall>(std::move(*plan));
  for (const TensorRow& row : kTensors) {
    if (!in.is_result(row, with_lse) || in.brought(row.role)) continue;
    call->add_result(framework, like, *row.template member<Tensors>().get(t).spec,
                     heads_first && has_heads(row));
  }
  call->add_workspace(framework, like);
  return call;
}

// Runs a planned call with the GIL released: on a CPU because it takes long, on a GPU because a
// full queue makes the launch wait, perhaps for somebody's Python callback.
template <class Tensors, class Launch>
Status run(const Framework& framework, const Context& context, const PlannedCall& call,
           const Options& options, const Tensors& tensors, bool as_planned, const Launch& launch) {
  const Stream stream = stream_of(framework, context.device());
  std::optional<Scratch> scratch;
  if (as_planned) scratch.emplace(framework, context, call);
  nb::gil_scoped_release release;
  // Memory that a framework aligned less than planned is planned anew, inside the library.
  Status status = as_planned ? launch(context, stream, call.plan, tensors, scratch->workspace())
                             : launch(context, stream, tensors, options);
  if (status.ok() && framework.synchronous) status = synchronize(context, stream);
  return status;
}

nb::object or_none(const std::optional<Output>& output) {
  return output ? output->memory.array : nb::none();
}

// Plans (remembered), makes what the caller did not bring, runs: a tuple of the pass's results.
template <class Tensors, class Launch>
nb::object call(std::span<const Given> given, const CallOptions& call_options, bool with_lse,
                const Launch& launch) {
  constexpr Pass kPass = std::is_same_v<Tensors, ForwardTensors> ? Pass::kForward : Pass::kBackward;
  const nb::handle q = given[0].array;
  const bool heads_first = call_options.heads_first;
  const Framework& framework = framework_of(q, "q");
  static_assert(tensors_of<Tensors>() <= CallKey::kMaxTensors);
  const CallArguments<Tensors> in(framework, given, heads_first);
  const Options options = options_of(call_options, in[TensorRole::kQ], in[TensorRole::kK]);
  const Device device = in[TensorRole::kQ].spec().device;
  const Context& context = context_of(device, "q");

  CallKey key(kPass, options, device, framework.adapter.ptr(), with_lse);
  key.set_heads_first(heads_first);
  in.add_to(key);
  PlannedCallPointer planned = find_planned(key);
  if (planned == nullptr) {
    planned = remember(key, plan_call(framework, q, context, in, options, with_lse, heads_first));
  }

  Tensors tensors = in.tensors();
  tensors.dropout_seed = seed_of(call_options.scores);
  std::array<Memory, kMaxResults> memory;
  std::array<nb::object, kMaxResults> results;
  std::size_t count = 0, made = 0;
  bool as_planned = true;
  for (const TensorRow& row : kTensors) {
    if (!in.is_result(row, true)) continue;
    nb::object& result = results[count++];
    if (in.brought(row.role)) {
      result = in.array(row.role);
    } else if (in.is_result(row, with_lse)) {
      const Output output = make_output(framework, planned->results[made]);
      row.template member<Tensors>().set(tensors, output.tensor);
      as_planned &= aligned(output.tensor);
      result = output.memory.array;
      memory[made++] = output.memory;
    } else {
      result = nb::none();
    }
  }
  in.require(run(framework, context, *planned, options, tensors, as_planned, launch));
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), results[i].release().ptr());
  }
  return tuple;
}

std::array<Given, 15> forward_arrays(nb::handle q, nb::handle k, nb::handle v,
                                     const CallOptions& given, nb::handle mask, nb::handle out) {
  return {{{TensorRole::kQ, "q", q},
           {TensorRole::kK, "k", k},
           {TensorRole::kV, "v", v},
           {TensorRole::kO, "out", out},
           {TensorRole::kMask, "mask", mask},
           {TensorRole::kAlibiSlopes, "alibi_slopes", given.scores.alibi_slopes},
           {TensorRole::kDropoutState, "dropout_seed", state_of(given.scores)},
           {TensorRole::kSinks, "sinks", given.sequences.sinks},
           {TensorRole::kCuSeqlensQ, "cu_seqlens_q", given.sequences.cu_seqlens_q},
           {TensorRole::kCuSeqlensK, "cu_seqlens_k", given.sequences.cu_seqlens_k},
           {TensorRole::kSeqUsedQ, "seqused_q", given.sequences.seqused_q},
           {TensorRole::kSeqUsedK, "seqused_k", given.sequences.seqused_k},
           {TensorRole::kBlockTable, "block_table", given.sequences.block_table},
           {TensorRole::kCacheBatchIdx, "cache_batch_idx", given.sequences.cache_batch_idx},
           {TensorRole::kLeftPadK, "leftpad_k", given.sequences.leftpad_k}}};
}

// forward(), by a schedule where there is one.
struct ForwardLaunch {
  std::optional<Tensor> order;

  Status operator()(const Context& context, Stream stream, const Plan& plan,
                    const ForwardTensors& tensors, Workspace workspace) const {
    return order ? flashlab::forward(context, stream, plan, tensors, workspace, *order)
                 : flashlab::forward(context, stream, plan, tensors, workspace);
  }
  Status operator()(const Context& context, Stream stream, const ForwardTensors& tensors,
                    const Options& options) const {
    if (!order) return flashlab::forward(context, stream, tensors, options);
    return Status::invalid({"schedule", "given beside an output of odd alignment",
                            "an output that is aligned to 16 bytes", "pass none"});
  }
};

Argument read_schedule(const Framework& framework, nb::handle array) {
  Argument order = read_argument(framework, "schedule", array, true);
  if (order.read_only() || order.copied()) {
    raise(PyExc_ValueError, "schedule", "a read-only array", "an array that can be written",
          "pass what flashlab.torch.schedule gave");
  }
  return order;
}

}  // namespace

nb::object forward(nb::handle q, nb::handle k, nb::handle v, const CallOptions& given,
                   nb::handle mask, bool return_lse, nb::handle out) {
  const auto arrays = forward_arrays(q, k, v, given, mask, out);
  if (given.schedule.is_none()) {
    return call<ForwardTensors>(arrays, given, return_lse, ForwardLaunch{});
  }
  const Argument order = read_schedule(framework_of(q, "q"), given.schedule);
  return call<ForwardTensors>(arrays, given, return_lse, ForwardLaunch{order.output()});
}

nb::object schedule(nb::handle q, nb::handle k, nb::handle v, const CallOptions& given,
                    nb::handle out) {
  const auto arrays = forward_arrays(q, k, v, given, nb::none(), nb::none());
  const Framework& framework = framework_of(q, "q");
  const CallArguments<ForwardTensors> in(framework, arrays, false);
  const Options options = options_of(given, in[TensorRole::kQ], in[TensorRole::kK]);
  const Context& context = context_of(in[TensorRole::kQ].spec().device, "q");
  ForwardTensors tensors = in.tensors();
  tensors.dropout_seed = seed_of(given.scores);
  tensors.o.spec = in.made_spec(row_of(TensorRole::kO), context.device());
  tensors.lse = Tensor{nullptr, in.made_spec(row_of(TensorRole::kLse), context.device())};
  const Result<Plan> plan = prepared_plan(context, describe(tensors, options));
  in.require(plan.status());
  const std::optional<TensorSpec> spec = schedule_spec(*plan);
  if (!spec) return nb::none();
  if (out.is_none()) return nb::make_tuple(spec->shape[0], spec->shape[1]);
  const Argument order = read_schedule(framework, out);
  const Output o = make_output(framework, result(framework, q, tensors.o.spec));
  const Output lse = make_output(framework, result(framework, q, tensors.lse->spec));
  tensors.o.data = o.tensor.data;
  tensors.lse->data = lse.tensor.data;
  const Stream stream = stream_of(framework, context.device());
  Status status;
  {
    nb::gil_scoped_release release;
    status = flashlab::schedule(context, stream, *plan, tensors, order.output());
    if (status.ok() && framework.synchronous) status = synchronize(context, stream);
  }
  in.require(status);
  return nb::borrow(out);
}

nb::object backward(nb::handle d_o, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
                    nb::handle lse, nb::handle d_lse, const CallOptions& given, nb::handle mask,
                    const GivenGradients& gradients) {
  const Given arrays[] = {{TensorRole::kQ, "q", q},
                          {TensorRole::kK, "k", k},
                          {TensorRole::kV, "v", v},
                          {TensorRole::kO, "o", o},
                          {TensorRole::kLse, "lse", lse},
                          {TensorRole::kDO, "d_o", d_o},
                          {TensorRole::kDLse, "d_lse", d_lse},
                          {TensorRole::kDQ, "dq", gradients.dq},
                          {TensorRole::kDK, "dk", gradients.dk},
                          {TensorRole::kDV, "dv", gradients.dv},
                          {TensorRole::kMask, "mask", mask},
                          {TensorRole::kAlibiSlopes, "alibi_slopes", given.scores.alibi_slopes},
                          {TensorRole::kDropoutState, "dropout_seed", state_of(given.scores)},
                          {TensorRole::kSinks, "sinks", given.sequences.sinks},
                          {TensorRole::kDSinks, "d_sinks", gradients.d_sinks},
                          {TensorRole::kCuSeqlensQ, "cu_seqlens_q", given.sequences.cu_seqlens_q},
                          {TensorRole::kCuSeqlensK, "cu_seqlens_k", given.sequences.cu_seqlens_k},
                          {TensorRole::kSeqUsedQ, "seqused_q", given.sequences.seqused_q},
                          {TensorRole::kSeqUsedK, "seqused_k", given.sequences.seqused_k}};
  return call<BackwardTensors>(arrays, given, true, [](const auto&... arguments) {
    return flashlab::backward(arguments...);
  });
}

nb::object merge(nb::handle parts, nb::handle dtype_name, bool return_lse) {
  const auto list = nb::steal<nb::list>(PySequence_List(parts.ptr()));
  if (!list.is_valid() || nb::len(list) == 0) {
    PyErr_Clear();
    raise(PyExc_ValueError, "parts", shown(parts), "a sequence of (o, lse) pairs", "");
  }
  struct Part {
    nb::object o, lse;
    std::string o_name, lse_name;
    Argument read_o, read_lse;
  };
  std::vector<Part> read(nb::len(list));
  const Framework* framework = nullptr;
  for (std::size_t i = 0; i < read.size(); ++i) {
    const std::string name = "parts[" + std::to_string(i) + "]";
    const auto pair = nb::steal<nb::list>(PySequence_List(nb::object(list[i]).ptr()));
    if (!pair.is_valid() || nb::len(pair) != 2) {
      PyErr_Clear();
      raise(PyExc_ValueError, name, shown(nb::object(list[i])), "a pair (o, lse)", "");
    }
    Part& part = read[i];
    part.o = pair[0];
    part.lse = pair[1];
    part.o_name = name + ".o";
    part.lse_name = name + ".lse";
    if (framework == nullptr) framework = &framework_of(part.o, part.o_name.c_str());
    part.read_o = read_input(*framework, part.o_name.c_str(), part.o);
    part.read_lse = read_input(*framework, part.lse_name.c_str(), part.lse);
    for (const Argument* array : {&part.read_o, &part.read_lse}) {
      if (array->spec().dtype != DType::kFp32) {
        raise(PyExc_TypeError, std::string(array->name()) + ".dtype",
              to_string(array->spec().dtype), "fp32", "attention's out= may be float32");
      }
    }
  }
  DType dtype = DType::kFp32;
  if (!PyUnicode_Check(dtype_name.ptr()) || !dtype_of(nb::str(dtype_name).c_str(), dtype)) {
    raise(PyExc_ValueError, "dtype", shown(dtype_name), "\"fp32\", \"fp16\" or \"bf16\"", "");
  }
  const TensorSpec& model = read.front().read_o.spec();
  const Context& context = context_of(model.device, "parts[0].o");
  const auto& shape = model.shape;
  const Output o = make_output(
      *framework,
      result(*framework, read.front().o,
             dense_spec(dtype, {shape[0], shape[1], shape[2], shape[3]}, model.device)));
  std::optional<Output> lse;
  if (return_lse) {
    lse = make_output(
        *framework, result(*framework, read.front().o,
                           dense_spec(DType::kFp32, {shape[0], shape[2], shape[1]}, model.device)));
  }
  std::vector<Partial> partials;
  for (const Part& part : read) partials.push_back({part.read_o.input(), part.read_lse.input()});
  const Stream stream = stream_of(*framework, model.device);
  Status status;
  {
    nb::gil_scoped_release release;
    status = flashlab::merge(context, stream, partials, o.tensor,
                             lse ? std::optional<Tensor>(lse->tensor) : std::nullopt);
    if (status.ok() && framework->synchronous) status = synchronize(context, stream);
  }
  require(status);
  return nb::make_tuple(o.memory.array, or_none(lse));
}

}  // namespace flashlab::python
