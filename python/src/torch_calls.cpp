// What flashlab.torch calls: forward and backward by position, because keywords cost a microsecond.

#include "calls.h"
#include "positional.h"

namespace flashlab::python {
namespace {

// flashlab.torch._call.Call, a named tuple.
class TorchCall {
 public:
  explicit TorchCall(PyObject* call) : call_(call) {}

  nb::handle mask() const { return at(kMask); }
  CallOptions options(PyObject* heads_first) const {
    const ScoreOptions scores{at(kWindow),   at(kSoftcap),     at(kAlibiSlopes),
                              at(kDropoutP), at(kDropoutSeed), at(kAttentionChunk),
                              at(kAlignment)};
    return {at(kCausal),
            at(kScale),
            at(kPrecision),
            is_true(at(kDeterministic).ptr()),
            scores,
            nb::none(),
            is_true(heads_first),
            {at(kCuSeqlensQ), at(kCuSeqlensK), at(kSeqUsedQ), at(kSeqUsedK), at(kMaxSeqlenQ),
             at(kMaxSeqlenK), at(kSinks)},
            at(kSchedule)};
  }

 private:
  // In the order of its members.
  enum Member : Py_ssize_t {
    kMask,
    kScale,
    kCausal,
    kPrecision,
    kDeterministic,
    kWindow,
    kAlignment,
    kSoftcap,
    kDropoutP,
    kAlibiSlopes,
    kDropoutSeed,
    kCuSeqlensQ,
    kCuSeqlensK,
    kSeqUsedQ,
    kSeqUsedK,
    kSinks,
    kMaxSeqlenQ,
    kMaxSeqlenK,
    kAttentionChunk,
    kSchedule,
  };

  nb::handle at(Member member) const {
    PyObject* value = PyTuple_GetItem(call_, member);
    if (value == nullptr) throw nb::python_error();
    return value;
  }
  PyObject* call_;
};

}  // namespace

PyObject* torch_forward(PyObject*, PyObject* const* a, Py_ssize_t count) noexcept {
  return guarded("torch_forward", count, 5, [&] {
    const TorchCall call(a[3]);
    return forward(a[0], a[1], a[2], call.options(a[4]), call.mask(), true, nb::none());
  });
}

PyObject* torch_backward(PyObject*, PyObject* const* a, Py_ssize_t count) noexcept {
  return guarded("torch_backward", count, 12, [&] {
    const TorchCall call(a[7]);
    return backward(a[0], a[1], a[2], a[3], a[4], a[5], a[6], call.options(a[8]), call.mask(),
                    {a[9], a[10], a[11]});
  });
}

}  // namespace flashlab::python
