// What flashlab.torch calls: forward and backward by position, because keywords cost a microsecond.

#include "calls.h"
#include "positional.h"

namespace flashlab::python {
PyObject* torch_forward(PyObject*, PyObject* const* a, Py_ssize_t count) noexcept {
  return guarded("torch_forward", count, 9, [&] {
    const CallOptions options{a[5], a[4], a[6], is_true(a[7]), nb::none(), is_true(a[8])};
    return forward(a[0], a[1], a[2], options, a[3], true, nb::none());
  });
}

PyObject* torch_backward(PyObject*, PyObject* const* a, Py_ssize_t count) noexcept {
  return guarded("torch_backward", count, 13, [&] {
    const CallOptions options{a[9], a[8], a[10], is_true(a[11]), nb::none(), is_true(a[12])};
    return backward(a[0], a[1], a[2], a[3], a[4], a[5], a[6], options, a[7],
                    {nb::none(), nb::none(), nb::none()});
  });
}

}  // namespace flashlab::python
