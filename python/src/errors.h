#pragma once

// Status -> Python exception.

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "flashlab/flashlab.h"

namespace flashlab::python {

namespace nb = nanobind;

/// Throws the exception that fits:
///   TypeError            a dtype or an array type
///   ValueError           a shape, a stride, an option
///   RuntimeError         a device, a driver, a broken invariant
///   NotImplementedError  well-formed, but refused as unsupported
///   MemoryError          no memory
[[noreturn]] void raise(const Status& status);

/// Throws `type` with "argument: got …, expected …; remedy".
[[noreturn]] void raise(PyObject* type, const std::string& argument, const std::string& got,
                        const std::string& expected, const std::string& remedy);

/// The status with an argument of another name: C++ says `o` of what the caller brought as `out`.
Status renamed(const Status& status, std::string_view from, std::string_view to);

inline void require(const Status& status) {
  if (!status.ok()) raise(status);
}

/// Puts the argument's name before the exception that a framework has set, and throws it.
[[noreturn]] void raise_in(const std::string& argument);

/// A value as a message shows it: of an array its type, since its repr would be pages.
std::string shown(nb::handle value);

}  // namespace flashlab::python
