// The options of a call out of Python's arguments.

#include "options.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "errors.h"

namespace flashlab::python {
namespace {

bool equal(nb::handle text, const char* expected) {
  return PyUnicode_Check(text.ptr()) && PyUnicode_CompareWithASCIIString(text.ptr(), expected) == 0;
}

Causal causal_of(const CallOptions& call, const Argument& q, const Argument& k) {
  const nb::handle given = call.causal;
  if (given.is_none() || given.ptr() == Py_False) return Causal::kNone;
  if (equal(given, "top-left")) return Causal::kTopLeft;
  if (equal(given, "bottom-right")) return Causal::kBottomRight;
  if (given.ptr() != Py_True) {
    raise(PyExc_ValueError, "causal", shown(given), "False, True, \"top-left\" or \"bottom-right\"",
          "");
  }
  const std::int64_t seqlen_q = q.spec().shape[1], seqlen_k = k.spec().shape[1];
  const bool lists = call.sequences.have_lengths();
  if (lists || (q.spec().rank == 4 && k.spec().rank == 4 && seqlen_q != seqlen_k)) {
    raise(PyExc_ValueError, "causal",
          lists ? "True with sequences of any lengths"
                : "True with seqlen_q " + std::to_string(seqlen_q) + " and seqlen_k " +
                      std::to_string(seqlen_k),
          lists ? "an alignment, because lengths may differ"
                : "an alignment, because the lengths differ",
          "pass \"top-left\" (query i sees keys 0..i, as PyTorch's is_causal) or "
          "\"bottom-right\" (the last query sees every key, as flash-attn's causal)");
  }
  return Causal::kTopLeft;
}

// A float of Python, or what becomes one. `expected` also says what is wrong with others.
double number_of(const char* name, nb::handle given, const char* expected) {
  const double value = PyFloat_AsDouble(given.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    raise(PyExc_TypeError, name, shown(given), expected, "");
  }
  return value;
}

[[noreturn]] void refuse_window(nb::handle given) {
  raise(PyExc_ValueError, "window", shown(given),
        "(left, right) or (left, right, \"top-left\" or \"bottom-right\"), keys, None for no bound",
        "");
}

std::optional<Alignment> alignment_of(nb::handle given) {
  if (equal(given, "top-left")) return Alignment::kTopLeft;
  if (equal(given, "bottom-right")) return Alignment::kBottomRight;
  return std::nullopt;
}

Window window_of(const ScoreOptions& given) {
  const auto parts = nb::steal<nb::list>(PySequence_List(given.window.ptr()));
  if (!parts.is_valid()) PyErr_Clear();
  if (!parts.is_valid() || nb::len(parts) < 2 || nb::len(parts) > 3) refuse_window(given.window);
  Window window;
  std::optional<std::int64_t>* const sides[] = {&window.left, &window.right};
  for (std::size_t side = 0; side < 2; ++side) {
    const nb::object part = parts[side];
    if (part.is_none()) continue;
    const long long value = PyLong_AsLongLong(part.ptr());
    const bool failed = PyErr_Occurred() != nullptr;
    PyErr_Clear();
    if (failed) refuse_window(given.window);
    *sides[side] = value;
  }
  const nb::object alignment =
      nb::len(parts) == 3 ? nb::object(parts[2]) : nb::borrow(given.alignment);
  if (alignment.is_none() && nb::len(parts) == 2) return window;
  const std::optional<Alignment> known = alignment_of(alignment);
  if (!known) refuse_window(given.window);
  window.alignment = *known;
  return window;
}

// One alignment of window and causal, where lengths differ.
void check_alignment(nb::handle given, const Options& options, const Argument& q,
                     const Argument& k) {
  const std::int64_t seqlen_q = q.spec().shape[1], seqlen_k = k.spec().shape[1];
  if (q.spec().rank != 4 || k.spec().rank != 4 || seqlen_q == seqlen_k) return;
  const Alignment alignment = options.window->alignment;
  const std::string lengths =
      "seqlen_q " + std::to_string(seqlen_q) + " and seqlen_k " + std::to_string(seqlen_k);
  if (options.causal == Causal::kNone && alignment == Alignment::kOfCausal) {
    raise(PyExc_ValueError, "window", shown(given) + " with " + lengths,
          "an alignment, because the lengths differ",
          "pass (left, right, \"top-left\") (around key i of query i) or (left, right, "
          "\"bottom-right\") (around key i + seqlen_k - seqlen_q, as flash-attn)");
  }
  const bool unlike = options.causal == Causal::kTopLeft ? alignment == Alignment::kBottomRight
                                                         : options.causal == Causal::kBottomRight &&
                                                               alignment == Alignment::kTopLeft;
  if (unlike) {
    raise(PyExc_ValueError, "window", shown(given) + " beside causal with " + lengths,
          "causal's alignment", "pass (left, right), which takes it over");
  }
}

// As above, where only the call knows lengths.
void check_alignment_of_lists(nb::handle given, const Options& options) {
  const bool open =
      options.causal == Causal::kNone && options.window->alignment == Alignment::kOfCausal;
  if (!open) return;
  raise(PyExc_ValueError, "window", shown(given) + " with sequences of any lengths",
        "an alignment, because lengths may differ",
        "pass (left, right, \"top-left\") or (left, right, \"bottom-right\")");
}

// A chunk takes its alignment from causal or a window; `unequal` says why one is needed.
void set_chunk(nb::handle given, const char* unequal, Options& options) {
  if (given.is_none()) return;
  const nb::object number = nb::steal(PyNumber_Index(given.ptr()));
  const long long keys = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : 0;
  PyErr_Clear();
  if (keys <= 0) {
    raise(PyExc_ValueError, "attention_chunk", shown(given), "a number of keys > 0, or None", "");
  }
  const bool open = options.causal == Causal::kNone &&
                    (!options.window || options.window->alignment == Alignment::kOfCausal);
  if (open && unequal != nullptr) {
    raise(PyExc_ValueError, "attention_chunk", shown(given) + unequal,
          "an alignment, because lengths may differ",
          "pass causal or window=(None, None, \"top-left\" or \"bottom-right\")");
  }
  options.attention_chunk = keys;
}

std::optional<std::int64_t> hint_of(const char* name, nb::handle given, bool has_lengths) {
  if (given.is_none()) return std::nullopt;
  const nb::object number = nb::steal(PyNumber_Index(given.ptr()));
  const long long value = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : -1;
  PyErr_Clear();
  if (value < 0) raise(PyExc_ValueError, name, shown(given), "a length >= 0, or None", "");
  if (!has_lengths) {
    raise(PyExc_ValueError, name, shown(given), "None without cu_seqlens or seqused of that side",
          "arrays of equal lengths say theirs");
  }
  return value;
}

void set_score_options(const ScoreOptions& given, bool lists, Options& options, const Argument& q,
                       const Argument& k) {
  if (!given.window.is_none()) {
    const Window window = window_of(given);
    const bool aligns =
        !given.attention_chunk.is_none() && window.alignment != Alignment::kOfCausal;
    if (window.left || window.right || aligns) {
      options.window = window;
      if (lists) {
        check_alignment_of_lists(given.window, options);
      } else {
        check_alignment(given.window, options, q, k);
      }
    }
  }
  const bool unequal =
      q.spec().rank == 4 && k.spec().rank == 4 && q.spec().shape[1] != k.spec().shape[1];
  set_chunk(given.attention_chunk,
            lists     ? " with sequences of any lengths"
            : unequal ? " with unequal lengths"
                      : nullptr,
            options);
  if (!given.softcap.is_none()) {
    constexpr const char* kExpected = "a finite number > 0 in fp32, or None";
    const auto cap = static_cast<float>(number_of("softcap", given.softcap, kExpected));
    if (!(cap > 0 && std::isfinite(cap))) {
      raise(PyExc_ValueError, "softcap", shown(given.softcap), kExpected, "");
    }
    options.softcap = cap;
  }
  if (const float p = dropout_of(given); p != 0) options.dropout = p;
}

void set_scale(nb::handle given, const Argument& q, Options& options) {
  const bool wide = q.spec().dtype == DType::kFp64;
  const char* expected = wide ? "a finite number, or None for 1/sqrt(head_dim)"
                              : "a number that is finite in fp32, or None for 1/sqrt(head_dim)";
  const double scale = number_of("scale", given, expected);
  if (!std::isfinite(wide ? scale : static_cast<double>(static_cast<float>(scale)))) {
    raise(PyExc_ValueError, "scale", shown(given), expected, "");
  }
  options.scale = scale;
}

// A tuple or a list has numbers; anything else is an array on q's device.
bool is_state(nb::handle seed) {
  return !seed.is_none() && !nb::isinstance<nb::tuple>(seed) && !nb::isinstance<nb::list>(seed);
}

}  // namespace

float dropout_of(const ScoreOptions& given) {
  constexpr const char* kExpected = "a probability from 0 to below 1 in fp32; 0 drops nothing";
  const double p = number_of("dropout_p", given.dropout_p, kExpected);
  if (!(p >= 0 && static_cast<float>(p) < 1)) {
    raise(PyExc_ValueError, "dropout_p", shown(given.dropout_p), kExpected, "");
  }
  return static_cast<float>(p);
}

nb::handle state_of(const ScoreOptions& given) {
  const bool read = is_state(given.dropout_seed) && dropout_of(given) != 0;
  return read ? given.dropout_seed : nb::handle(nb::none());
}

DropoutSeed seed_of(const ScoreOptions& given) {
  if (is_state(given.dropout_seed) || dropout_of(given) == 0) return {};
  DropoutSeed seed;
  bool read = false;
  if (!given.dropout_seed.is_none()) {
    const auto parts = nb::steal<nb::list>(PySequence_List(given.dropout_seed.ptr()));
    if (parts.is_valid() && nb::len(parts) == 2) {
      seed.seed = PyLong_AsUnsignedLongLongMask(nb::object(parts[0]).ptr());
      seed.offset = PyLong_AsUnsignedLongLongMask(nb::object(parts[1]).ptr());
      read = PyErr_Occurred() == nullptr;
    }
    PyErr_Clear();
  }
  if (!read) {
    raise(PyExc_ValueError, "dropout_seed", shown(given.dropout_seed),
          "(seed, offset), two integers, or an int64 array of both on q's device",
          "attention and attention_backward take the same pair, each step of training another");
  }
  return seed;
}

Options options_of(const CallOptions& given, const Argument& q, const Argument& k) {
  Options options;
  options.causal = causal_of(given, q, k);
  options.deterministic = given.deterministic;
  if (PyUnicode_Check(given.implementation.ptr())) {
    options.implementation = nb::str(given.implementation).c_str();
  } else if (!given.implementation.is_none()) {
    raise(PyExc_TypeError, "implementation", shown(given.implementation),
          "a name, or None for the device's own choice", "");
  }
  if (!given.scale.is_none()) set_scale(given.scale, q, options);
  if (equal(given.precision, "tf32")) {
    options.precision = Precision::kTf32;
  } else if (!equal(given.precision, "ieee")) {
    raise(PyExc_ValueError, "precision", shown(given.precision), "\"ieee\" or \"tf32\"", "");
  }
  const SequenceOptions& sequences = given.sequences;
  set_score_options(given.scores, sequences.have_lengths(), options, q, k);
  options.max_seqlen_q =
      hint_of("max_seqlen_q", sequences.max_seqlen_q,
              !sequences.cu_seqlens_q.is_none() || !sequences.seqused_q.is_none());
  options.max_seqlen_k =
      hint_of("max_seqlen_k", sequences.max_seqlen_k,
              !sequences.cu_seqlens_k.is_none() || !sequences.seqused_k.is_none());
  return options;
}

}  // namespace flashlab::python
