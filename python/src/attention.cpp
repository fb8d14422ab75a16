// flashlab.attention: who has to take the call, asked in as little time as possible.

#include <utility>

#include "arrays.h"
#include "calls.h"
#include "positional.h"

namespace flashlab::python {
namespace {

enum : Py_ssize_t {
  kQ,
  kK,
  kV,
  kCausal,
  kScale,
  kMask,
  kReturnLse,
  kPrecision,
  kDeterministic,
  kOut,
  kWindow,
  kSoftcap,
  kAlibiSlopes,
  kDropoutP,
  kDropoutSeed,
  kCuSeqlensQ,
  kCuSeqlensK,
  kSeqUsedQ,
  kSeqUsedK,
  kMaxSeqlenQ,
  kMaxSeqlenK,
  kSinks,
  kAttentionChunk,
  kCount
};

// Takes over the answer of a call, which is null after an error.
bool was_true(PyObject* answer) {
  const nb::object owned = nb::steal(answer);
  if (!owned.is_valid()) throw nb::python_error();
  return is_true(owned.ptr());
}

// The questions of _arrays.Torch.gate_of, in its order.
class Gate {
 public:
  explicit Gate(nb::handle questions) : questions_(questions) {}

  bool somebody_has_to_see_operators() const {
    return ask(0) || ask(1) || ask(2) || ask(3) || ask(4);
  }
  bool deterministic() const { return ask(5); }
  bool gradients_are_recorded() const { return ask(6); }

 private:
  bool ask(Py_ssize_t index) const {
    return was_true(PyObject_CallNoArgs(PyTuple_GetItem(questions_.ptr(), index)));
  }
  nb::handle questions_;
};

bool requires_grad(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("requires_grad");
  return was_true(PyObject_GetAttr(tensor, name));
}

// Whether kernels are all that a call on torch tensors asks for. Something else than torch's own
// types is Python's to deal with, or to refuse.
bool plain(const Framework& framework, PyObject* const* arguments) {
  if (!framework.gate.is_valid()) return false;
  const Gate gate(framework.gate);
  bool leaf = requires_grad(arguments[kQ]);
  for (const auto& [name, index] : {std::pair{"k", kK},
                                    {"v", kV},
                                    {"mask", kMask},
                                    {"alibi_slopes", kAlibiSlopes},
                                    {"sinks", kSinks}}) {
    PyObject* array = arguments[index];
    if (array == Py_None && index != kK && index != kV) continue;
    if (!framework_of(array, name).gate.is_valid()) return false;
    leaf = leaf || requires_grad(array);
  }
  return !gate.somebody_has_to_see_operators() && !(leaf && gate.gradients_are_recorded());
}

nb::object by_torch(PyObject* const* arguments) {
  const nb::object function = nb::module_::import_("flashlab").attr("_by_torch");
  nb::object result = nb::steal(PyObject_Vectorcall(function.ptr(), arguments, kCount, nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

nb::object run(PyObject* const* arguments) {
  const Framework& framework = framework_of(arguments[kQ], "q");
  bool deterministic = is_true(arguments[kDeterministic]);
  const ScoreOptions scores{arguments[kWindow],      arguments[kSoftcap],
                            arguments[kAlibiSlopes], arguments[kDropoutP],
                            arguments[kDropoutSeed], arguments[kAttentionChunk]};
  if (framework.torch) {
    // PyTorch's generator draws a seed.
    const bool draws = arguments[kDropoutSeed] == Py_None && dropout_of(scores) != 0;
    if (draws || !plain(framework, arguments)) return by_torch(arguments);
    deterministic = deterministic || Gate(framework.gate).deterministic();
  }
  const bool return_lse = is_true(arguments[kReturnLse]);
  const SequenceOptions sequences{
      arguments[kCuSeqlensQ], arguments[kCuSeqlensK], arguments[kSeqUsedQ], arguments[kSeqUsedK],
      arguments[kMaxSeqlenQ], arguments[kMaxSeqlenK], arguments[kSinks]};
  const CallOptions options{arguments[kCausal],
                            arguments[kScale],
                            arguments[kPrecision],
                            deterministic,
                            scores,
                            nb::none(),
                            false,
                            sequences};
  nb::object both = forward(arguments[kQ], arguments[kK], arguments[kV], options, arguments[kMask],
                            return_lse, arguments[kOut]);
  return return_lse ? both : nb::object(nb::borrow(PyTuple_GetItem(both.ptr(), 0)));
}

}  // namespace

PyObject* attention(PyObject*, PyObject* const* arguments, Py_ssize_t count) noexcept {
  return guarded("attention", count, kCount, [&] { return run(arguments); });
}

}  // namespace flashlab::python
