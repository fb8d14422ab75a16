// forward and backward: arguments -> planned call -> results of the caller's framework.

#include "calls.h"

#include <optional>
#include <string>
#include <vector>

#include "contexts.h"
#include "errors.h"
#include "plans.h"

namespace flashlab::python {
namespace {

// A value as a message shows it: an array's repr would be pages.
std::string shown(nb::handle value) {
  constexpr std::size_t kLongest = 60;
  const std::string text = nb::repr(value).c_str();
  if (text.size() <= kLongest && text.find('\n') == std::string::npos) return text;
  return std::string("a ") + nb::type_name(value.type()).c_str();
}

bool equal(nb::handle text, const char* expected) {
  return PyUnicode_Check(text.ptr()) && PyUnicode_CompareWithASCIIString(text.ptr(), expected) == 0;
}

Causal causal_of(nb::handle given, const Argument& q, const Argument& k) {
  if (given.is_none() || given.ptr() == Py_False) return Causal::kNone;
  if (equal(given, "top-left")) return Causal::kTopLeft;
  if (equal(given, "bottom-right")) return Causal::kBottomRight;
  if (given.ptr() != Py_True) {
    raise(PyExc_ValueError, "causal", shown(given), "False, True, \"top-left\" or \"bottom-right\"",
          "");
  }
  const std::int64_t seqlen_q = q.spec().shape[1], seqlen_k = k.spec().shape[1];
  if (q.spec().rank == 4 && k.spec().rank == 4 && seqlen_q != seqlen_k) {
    raise(PyExc_ValueError, "causal",
          "True with seqlen_q " + std::to_string(seqlen_q) + " and seqlen_k " +
              std::to_string(seqlen_k),
          "an alignment, because the lengths differ",
          "pass \"top-left\" (query i sees keys 0..i, as PyTorch's is_causal) or "
          "\"bottom-right\" (the last query sees every key, as flash-attn's causal)");
  }
  return Causal::kTopLeft;
}

Options options_of(const CallOptions& given, const Argument& q, const Argument& k) {
  Options options;
  options.causal = causal_of(given.causal, q, k);
  options.deterministic = given.deterministic;
  if (PyUnicode_Check(given.implementation.ptr())) {
    options.implementation = nb::str(given.implementation).c_str();
  } else if (!given.implementation.is_none()) {
    raise(PyExc_TypeError, "implementation", shown(given.implementation),
          "a name, or None for the device's own choice", "");
  }
  if (!given.scale.is_none()) {
    const double scale = PyFloat_AsDouble(given.scale.ptr());
    if (scale == -1.0 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      raise(PyExc_TypeError, "scale", shown(given.scale), "a number, or None for 1/sqrt(head_dim)",
            "");
    }
    options.scale = scale;
  }
  if (equal(given.precision, "tf32")) {
    options.precision = Precision::kTf32;
  } else if (!equal(given.precision, "ieee")) {
    raise(PyExc_ValueError, "precision", shown(given.precision), "\"ieee\" or \"tf32\"", "");
  }
  return options;
}

Argument read_argument(const Framework& framework, const char* name, nb::handle array) {
  const Framework& own = framework_of(array, name);
  if (own.adapter.ptr() != framework.adapter.ptr()) {
    // Two frameworks have two current streams, and neither knows of the other's.
    raise(PyExc_TypeError, name, nb::type_name(array.type()).c_str(), "an array of q's framework",
          "convert it");
  }
  return Argument(own, name, array);
}

Argument read_input(const Framework& framework, const char* name, nb::handle array) {
  Argument argument = read_argument(framework, name, array);
  argument.make_readable(framework);
  return argument;
}

Argument read_optional(const Framework& framework, const char* name, nb::handle array) {
  return array.is_none() ? Argument() : read_input(framework, name, array);
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

// C++ calls the output `o`; the caller who brought one called it `out`.
void require_forward(const Status& status, const Argument& out) {
  if (!status.ok()) raise(out ? renamed(status, "o", "out") : status);
}

TensorSpec dense_spec(DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  TensorSpec spec = contiguous_spec(dtype, shape, device);
  set_alignment(spec, nullptr);
  return spec;
}

// What forward reads.
struct ForwardInputs {
  Argument q, k, v, mask, out;

  ForwardTensors tensors() const {
    ForwardTensors t;
    t.q = q.input();
    t.k = k.input();
    t.v = v.input();
    if (mask) t.mask = mask.input();
    if (out) t.o = out.output();
    return t;
  }
};

PlannedCallPointer plan_forward(const Framework& framework, nb::handle like, const Context& context,
                                const ForwardInputs& in, const Options& options, bool with_lse,
                                bool heads_first) {
  const Device device = context.device();
  const TensorSpec& q = in.q.spec();
  const std::int64_t batch = q.shape[0], seqlen_q = q.shape[1], heads = q.shape[2];
  const DType lse_type = q.dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32;
  ForwardTensors t = in.tensors();
  if (!in.out) {
    t.o.spec = dense_spec(q.dtype, {batch, seqlen_q, heads, in.v.spec().shape[3]}, device);
  }
  if (with_lse) t.lse = Tensor{nullptr, dense_spec(lse_type, {batch, heads, seqlen_q}, device)};
  auto plan = prepared_plan(context, describe(t, options));
  require_forward(plan.status(), in.out);
  auto call = std::make_shared<PlannedCall>(std::move(*plan));
  if (!in.out) call->add_result(framework, like, t.o.spec, heads_first);
  if (with_lse) call->add_result(framework, like, t.lse->spec);
  call->add_workspace(framework, like);
  return call;
}

// What backward reads.
struct BackwardInputs {
  Argument d_o, q, k, v, o, lse, d_lse, mask;
  Argument dq, dk, dv;  // where the caller brings them

  BackwardTensors tensors() const {
    BackwardTensors t;
    t.q = q.input();
    t.k = k.input();
    t.v = v.input();
    t.o = o.input();
    t.lse = lse.input();
    t.d_o = d_o.input();
    if (d_lse) t.d_lse = d_lse.input();
    if (mask) t.mask = mask.input();
    if (dq) t.dq = dq.output();
    if (dk) t.dk = dk.output();
    if (dv) t.dv = dv.output();
    return t;
  }
};

PlannedCallPointer plan_backward(const Framework& framework, nb::handle like,
                                 const Context& context, const BackwardInputs& in,
                                 const Options& options, bool heads_first) {
  BackwardTensors t = in.tensors();
  const auto gradient = [&](const Argument& of) {
    const TensorSpec& s = of.spec();
    TensorSpec spec = s;
    spec.strides[3] = 1;
    for (int i = 2; i >= 0; --i) spec.strides[i] = spec.strides[i + 1] * s.shape[i + 1];
    set_alignment(spec, nullptr);
    return spec;
  };
  if (!in.dq) t.dq.spec = gradient(in.q);
  if (!in.dk) t.dk.spec = gradient(in.k);
  if (!in.dv) t.dv.spec = gradient(in.v);
  auto plan = prepared_plan(context, describe(t, options));
  require(plan.status());
  auto call = std::make_shared<PlannedCall>(std::move(*plan));
  for (const TensorSpec* spec : {&t.dq.spec, &t.dk.spec, &t.dv.spec}) {
    call->add_result(framework, like, *spec, heads_first);
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

}  // namespace

nb::object forward(nb::handle q, nb::handle k, nb::handle v, const CallOptions& given,
                   nb::handle mask, bool return_lse, nb::handle out) {
  const Framework& framework = framework_of(q, "q");
  ForwardInputs in;
  in.q = read_input(framework, "q", q);
  in.k = read_input(framework, "k", k);
  in.v = read_input(framework, "v", v);
  in.out = read_output(framework, "out", out);
  if (given.heads_first) {
    for (Argument* argument : {&in.q, &in.k, &in.v, &in.out}) argument->swap_heads();
  }
  in.mask = read_mask(framework, mask, in.k);
  const Options options = options_of(given, in.q, in.k);
  const Device device = in.q.spec().device;
  const Context& context = context_of(device, "q");

  CallKey key(Pass::kForward, options, device, framework.adapter.ptr(), return_lse);
  key.set_heads_first(given.heads_first);
  for (const Argument* argument : {&in.q, &in.k, &in.v, &in.mask, &in.out}) key.add(*argument);
  PlannedCallPointer call = find_planned(key);
  if (call == nullptr) {
    call = remember(
        key, plan_forward(framework, q, context, in, options, return_lse, given.heads_first));
  }

  ForwardTensors tensors = in.tensors();
  std::optional<Output> o, lse;
  bool as_planned = true;
  if (!in.out) {
    o = make_output(framework, call->results.front());
    tensors.o = o->tensor;
    as_planned &= aligned(tensors.o);
  }
  if (return_lse) {
    lse = make_output(framework, call->results.back());
    tensors.lse = lse->tensor;
    as_planned &= aligned(*tensors.lse);
  }
  const Status status =
      run(framework, context, *call, options, tensors, as_planned,
          [](const auto&... arguments) { return flashlab::forward(arguments...); });
  require_forward(status, in.out);
  return nb::make_tuple(in.out ? nb::borrow(out) : or_none(o), or_none(lse));
}

nb::object backward(nb::handle d_o, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
                    nb::handle lse, nb::handle d_lse, const CallOptions& given, nb::handle mask,
                    const GivenGradients& gradients) {
  const Framework& framework = framework_of(q, "q");
  BackwardInputs in;
  in.q = read_input(framework, "q", q);
  in.k = read_input(framework, "k", k);
  in.v = read_input(framework, "v", v);
  in.o = read_input(framework, "o", o);
  in.lse = read_input(framework, "lse", lse);
  in.d_o = read_input(framework, "d_o", d_o);
  in.d_lse = read_optional(framework, "d_lse", d_lse);
  in.dq = read_output(framework, "dq", gradients.dq);
  in.dk = read_output(framework, "dk", gradients.dk);
  in.dv = read_output(framework, "dv", gradients.dv);
  if (given.heads_first) {
    for (Argument* argument : {&in.q, &in.k, &in.v, &in.o, &in.d_o, &in.dq, &in.dk, &in.dv}) {
      argument->swap_heads();
    }
  }
  in.mask = read_mask(framework, mask, in.k);
  const Options options = options_of(given, in.q, in.k);
  const Device device = in.q.spec().device;
  const Context& context = context_of(device, "q");

  CallKey key(Pass::kBackward, options, device, framework.adapter.ptr(), true);
  key.set_heads_first(given.heads_first);
  for (const Argument* argument : {&in.q, &in.k, &in.v, &in.o, &in.lse, &in.d_o, &in.d_lse,
                                   &in.mask, &in.dq, &in.dk, &in.dv}) {
    key.add(*argument);
  }
  PlannedCallPointer call = find_planned(key);
  if (call == nullptr) {
    call = remember(key, plan_backward(framework, q, context, in, options, given.heads_first));
  }

  BackwardTensors tensors = in.tensors();
  bool as_planned = true;
  std::optional<Output> made[3];
  const auto gradient = [&](int at, nb::handle brought, Tensor& tensor) {
    if (!brought.is_none()) return nb::borrow(brought);
    made[at] = make_output(framework, call->results[static_cast<std::size_t>(at)]);
    tensor = made[at]->tensor;
    as_planned &= aligned(tensor);
    return made[at]->memory.array;
  };
  const nb::object dq = gradient(0, gradients.dq, tensors.dq);
  const nb::object dk = gradient(1, gradients.dk, tensors.dk);
  const nb::object dv = gradient(2, gradients.dv, tensors.dv);
  require(run(framework, context, *call, options, tensors, as_planned,
              [](const auto&... arguments) { return flashlab::backward(arguments...); }));
  return nb::make_tuple(dq, dk, dv);
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
