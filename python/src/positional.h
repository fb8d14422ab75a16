#pragma once

// Functions that Python calls by position only: parsing keywords costs a microsecond.

#include <nanobind/nanobind.h>

#include <exception>
#include <new>

namespace flashlab::python {

namespace nb = nanobind;

inline bool is_true(PyObject* value) {
  const int truth = PyObject_IsTrue(value);
  if (truth < 0) throw nb::python_error();
  return truth == 1;
}

/// Checks the number of arguments, and turns exceptions into Python's.
template <class Call>
PyObject* guarded(const char* name, Py_ssize_t got, Py_ssize_t expected,
                  const Call& call) noexcept {
  if (got != expected) {
    return PyErr_Format(PyExc_TypeError, "%s: got %zd arguments, expected %zd", name, got,
                        expected);
  }
  try {
    return call().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace flashlab::python
