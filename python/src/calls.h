#pragma once

#include <nanobind/nanobind.h>

#include "options.h"

namespace flashlab::python {

nb::object forward(nb::handle q, nb::handle k, nb::handle v, const CallOptions& options,
                   nb::handle mask, bool return_lse, nb::handle out);

/// What flashlab::schedule fills for the call: its shape (rows, columns), or None where nothing is
/// put in order. With `out`, an int32 array of that shape, fills and returns it.
nb::object schedule(nb::handle q, nb::handle k, nb::handle v, const CallOptions& options,
                    nb::handle out);

/// Gradients that the caller brings are written and returned; the others are made.
struct GivenGradients {
  nb::handle dq, dk, dv;
  nb::handle d_sinks = nb::none();
};

/// As flashlab.attention: forward for whom nothing else has to happen, else (a torch.Tensor with
/// requires_grad, under autocast, seen by a mode or a transform) flashlab.torch.attention.
/// Arguments by position, in the order of flashlab.attention's.
PyObject* attention(PyObject* module, PyObject* const* arguments, Py_ssize_t count) noexcept;

/// The same two, for flashlab.torch: q, k, v, mask, scale, causal, precision, deterministic,
/// heads_first by position; and d_o, q, k, v, o, lse, d_lse, mask, scale, causal, precision,
/// deterministic, heads_first. They answer (o, lse) and (dq, dk, dv).
PyObject* torch_forward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) noexcept;
PyObject* torch_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) noexcept;

nb::object backward(nb::handle d_o, nb::handle q, nb::handle k, nb::handle v, nb::handle o,
                    nb::handle lse, nb::handle d_lse, const CallOptions& options, nb::handle mask,
                    const GivenGradients& gradients);

/// What an append is given beside the cache, the new rows and the lengths before.
struct GivenAppend {
  nb::handle block_table, cache_batch_idx, cu_seqlens_new;
  nb::handle seqused_after;  ///< is written
  nb::handle rotary_cos, rotary_sin, rotary_positions;
  nb::handle q, cu_seqlens_q;
  bool interleaved = false;  ///< which pairs turn
  bool consecutive = true;   ///< whether query i turns by the position of new row i
};

/// q, turned, or None without q. Arrays of the cache are written.
nb::object append(nb::handle k_cache, nb::handle v_cache, nb::handle k_new, nb::handle v_new,
                  nb::handle cache_seqlens, const GivenAppend& given);

nb::object merge(nb::handle parts, nb::handle dtype, bool return_lse);

}  // namespace flashlab::python
