#include "errors.h"

#include <utility>

namespace flashlab::python {
namespace {

bool ends_with(const std::string& text, const char* end) {
  const std::string tail(end);
  return text.size() >= tail.size() &&
         text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

PyObject* type_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      if (ends_with(status.detail().argument, ".dtype")) return PyExc_TypeError;
      return PyExc_ValueError;
    case StatusCode::kUnsupported:
      return PyExc_NotImplementedError;
    case StatusCode::kOutOfMemory:
      return PyExc_MemoryError;
    case StatusCode::kIoError:
      return PyExc_OSError;
    default:
      return PyExc_RuntimeError;
  }
}

}  // namespace

void raise(const Status& status) {
  // C++ keeps its options in a struct; here they are arguments.
  constexpr std::string_view kOptions = "options.";
  ErrorDetail detail = status.detail();
  if (detail.argument.starts_with(kOptions)) detail.argument.erase(0, kOptions.size());
  const std::string text = Status(status.code(), std::move(detail)).message();
  PyErr_SetString(type_of(status), text.c_str());
  throw nb::python_error();
}

Status renamed(const Status& status, std::string_view from, std::string_view to) {
  ErrorDetail detail = status.detail();
  const std::string& name = detail.argument;
  if (!name.starts_with(from) ||
      (name.size() > from.size() && name[from.size()] != '.' && name[from.size()] != '[')) {
    return status;
  }
  detail.argument.replace(0, from.size(), to);
  // "8: o must be [batch, …" names it once more.
  const std::string again = ": " + std::string(from) + " must be ";
  if (const auto at = detail.expected.find(again); at != std::string::npos) {
    detail.expected.replace(at + 2, from.size(), to);
  }
  return {status.code(), std::move(detail)};
}

void raise(PyObject* type, const std::string& argument, const std::string& got,
           const std::string& expected, const std::string& remedy) {
  const Status status = Status::invalid({argument, got, expected, remedy});
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

void raise_in(const std::string& argument) {
  nb::python_error cause;
  PyObject* type = nullptr;
  // A BufferError is how a framework says that an array has no such view.
  if (cause.matches(PyExc_BufferError)) type = PyExc_ValueError;
  for (PyObject* same : {PyExc_TypeError, PyExc_ValueError, PyExc_NotImplementedError,
                         PyExc_RuntimeError, PyExc_AttributeError}) {
    if (type == nullptr && cause.matches(same)) type = same;
  }
  if (type == nullptr) throw cause;  // an interrupt, no memory: nobody's argument
  // PyTorch appends the C++ stack; the cause keeps it.
  const std::string text = nb::str(cause.value()).c_str();
  const std::string line = text.substr(0, text.find('\n'));
  nb::raise_from(cause, type, "%s: %s", argument.c_str(), line.c_str());
}

std::string shown(nb::handle value) {
  constexpr std::size_t kLongest = 60;
  const std::string text = nb::repr(value).c_str();
  if (text.size() <= kLongest && text.find('\n') == std::string::npos) return text;
  return std::string("a ") + nb::type_name(value.type()).c_str();
}

}  // namespace flashlab::python
