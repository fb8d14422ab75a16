// The options of a call out of Python's arguments.

#include "options.h"

#include <cstdint>
#include <string>

#include "errors.h"

namespace flashlab::python {
namespace {

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

[[noreturn]] void refuse_window(nb::handle given) {
  raise(PyExc_ValueError, "window", shown(given),
        "(left, right) or (left, right, \"top-left\" or \"bottom-right\"), keys, -1 for no bound",
        "");
}

Window window_of(nb::handle given) {
  const auto parts = nb::steal<nb::list>(PySequence_List(given.ptr()));
  if (!parts.is_valid()) PyErr_Clear();
  if (!parts.is_valid() || nb::len(parts) < 2 || nb::len(parts) > 3) refuse_window(given);
  Window window;
  std::int64_t* const sides[] = {&window.left, &window.right};
  for (std::size_t side = 0; side < 2; ++side) {
    const long long value = PyLong_AsLongLong(nb::object(parts[side]).ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse_window(given);
    }
    *sides[side] = value;
  }
  if (nb::len(parts) == 2) return window;
  const nb::object alignment = parts[2];
  if (equal(alignment, "top-left")) {
    window.alignment = Alignment::kTopLeft;
  } else if (equal(alignment, "bottom-right")) {
    window.alignment = Alignment::kBottomRight;
  } else {
    refuse_window(given);
  }
  return window;
}

void set_score_options(const ScoreOptions& given, Options& options) {
  if (!given.window.is_none()) options.window = window_of(given.window);
  if (!given.softcap.is_none()) {
    const double cap = PyFloat_AsDouble(given.softcap.ptr());
    if (cap == -1.0 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      raise(PyExc_TypeError, "softcap", shown(given.softcap), "a number > 0, or None", "");
    }
    options.softcap = static_cast<float>(cap);
  }
  if (given.dropout_p != 0) options.dropout = static_cast<float>(given.dropout_p);
}

// A tuple or a list has numbers; anything else is an array on q's device.
bool is_state(nb::handle seed) {
  return !seed.is_none() && !nb::isinstance<nb::tuple>(seed) && !nb::isinstance<nb::list>(seed);
}

}  // namespace

nb::handle state_of(const CallOptions& given) {
  return is_state(given.scores.dropout_seed) ? given.scores.dropout_seed : nb::handle(nb::none());
}

DropoutSeed seed_of(nb::handle given) {
  if (given.is_none() || is_state(given)) return {};
  const auto parts = nb::steal<nb::list>(PySequence_List(given.ptr()));
  DropoutSeed seed;
  if (parts.is_valid() && nb::len(parts) == 2) {
    seed.seed = PyLong_AsUnsignedLongLongMask(nb::object(parts[0]).ptr());
    seed.offset = PyLong_AsUnsignedLongLongMask(nb::object(parts[1]).ptr());
  }
  if (!parts.is_valid() || nb::len(parts) != 2 || PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(PyExc_ValueError, "dropout_seed", shown(given), "(seed, offset), two integers", "");
  }
  return seed;
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
  set_score_options(given.scores, options);
  return options;
}

}  // namespace flashlab::python
