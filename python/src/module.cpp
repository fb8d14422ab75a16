// flashlab._core: the C++ API on arrays of any framework. The documented front is the package.

#include <nanobind/nanobind.h>

#include <unistd.h>

#include <cstdio>

#include "calls.h"
#include "contexts.h"
#include "flashlab/flashlab.h"
#include "positional.h"
#include "ranks.h"
#include "runtime/kernel_store/compile.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Positional = PyObject*(PyObject*, PyObject* const*, Py_ssize_t) noexcept;

PyCFunction positional(Positional* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef functions[] = {
    {"torch_forward", positional(flashlab::python::torch_forward), METH_FASTCALL,
     "What flashlab.torch calls, by position."},
    {"torch_backward", positional(flashlab::python::torch_backward), METH_FASTCALL,
     "What flashlab.torch calls, by position."},
    {"attention", positional(flashlab::python::attention), METH_FASTCALL,
     "What flashlab.attention calls, by position: it costs half of what keywords do."},
    {nullptr, nullptr, 0, nullptr}};

// Once, and only to a person at a terminal.
void tell_of_compilations() {
  if (::isatty(STDERR_FILENO) != 1) return;
  flashlab::cuda::when_compiling_takes_long([] {
    std::fputs(
        "flashlab: compiling kernels for this GPU, about a second each; they are kept for later "
        "calls\n",
        stderr);
  });
}

}  // namespace

NB_MODULE(_core, m) {
  using nb::handle;
  namespace fp = flashlab::python;

  m.doc() = "Exact attention on arrays of any framework that speaks DLPack.";
  m.attr("version") = flashlab::version();
  m.attr("commit") = flashlab::build_commit();

  tell_of_compilations();
  // What modules hold when the interpreter ends is not worth a word.
  nb::set_leak_warnings(false);
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw nb::python_error();
  m.def(
      "forward",
      [](handle q, handle k, handle v, handle causal, handle scale, handle mask, handle precision,
         handle deterministic, handle return_lse, handle out, handle implementation, handle window,
         handle softcap, handle alibi_slopes, handle dropout_p, handle dropout_seed,
         handle cu_seqlens_q, handle cu_seqlens_k, handle seqused_q, handle seqused_k,
         handle max_seqlen_q, handle max_seqlen_k, handle sinks, handle attention_chunk,
         handle block_table, handle cache_batch_idx, handle leftpad_k, handle schedule) {
        const fp::SequenceOptions sequences{cu_seqlens_q,    cu_seqlens_k, seqused_q, seqused_k,
                                            max_seqlen_q,    max_seqlen_k, sinks,     block_table,
                                            cache_batch_idx, leftpad_k};
        const fp::ScoreOptions scores{window,    softcap,      alibi_slopes,
                                      dropout_p, dropout_seed, attention_chunk};
        return fp::forward(q, k, v,
                           {causal, scale, precision, fp::is_true(deterministic.ptr()), scores,
                            implementation, false, sequences, schedule},
                           mask, fp::is_true(return_lse.ptr()), out);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "causal"_a = nb::none(), "scale"_a = nb::none(),
      "mask"_a = nb::none(), "precision"_a.none() = "ieee", "deterministic"_a.none() = false,
      "return_lse"_a.none() = true, "out"_a = nb::none(), "implementation"_a = nb::none(),
      "window"_a = nb::none(), "softcap"_a = nb::none(), "alibi_slopes"_a = nb::none(),
      "dropout_p"_a.none() = 0.0, "dropout_seed"_a = nb::none(), "cu_seqlens_q"_a = nb::none(),
      "cu_seqlens_k"_a = nb::none(), "seqused_q"_a = nb::none(), "seqused_k"_a = nb::none(),
      "max_seqlen_q"_a = nb::none(), "max_seqlen_k"_a = nb::none(), "sinks"_a = nb::none(),
      "attention_chunk"_a = nb::none(), "block_table"_a = nb::none(),
      "cache_batch_idx"_a = nb::none(), "leftpad_k"_a = nb::none(), "schedule"_a = nb::none(),
      "(o, lse or None): softmax(scale q k^T + mask) v and the scores' log-sum-exp.");
  m.def(
      "backward",
      [](handle d_o, handle q, handle k, handle v, handle o, handle lse, handle d_lse,
         handle causal, handle scale, handle mask, handle precision, handle deterministic,
         handle dq, handle dk, handle dv, handle implementation, handle window, handle softcap,
         handle alibi_slopes, handle dropout_p, handle dropout_seed, handle cu_seqlens_q,
         handle cu_seqlens_k, handle seqused_q, handle seqused_k, handle max_seqlen_q,
         handle max_seqlen_k, handle sinks, handle d_sinks, handle attention_chunk) {
        const fp::SequenceOptions sequences{cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
                                            max_seqlen_q, max_seqlen_k, sinks};
        const fp::ScoreOptions scores{window,    softcap,      alibi_slopes,
                                      dropout_p, dropout_seed, attention_chunk};
        return fp::backward(d_o, q, k, v, o, lse, d_lse,
                            {causal, scale, precision, fp::is_true(deterministic.ptr()), scores,
                             implementation, false, sequences},
                            mask, {dq, dk, dv, d_sinks});
      },
      "d_o"_a, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, nb::kw_only(), "d_lse"_a = nb::none(),
      "causal"_a = nb::none(), "scale"_a = nb::none(), "mask"_a = nb::none(),
      "precision"_a.none() = "ieee", "deterministic"_a.none() = false, "dq"_a = nb::none(),
      "dk"_a = nb::none(), "dv"_a = nb::none(), "implementation"_a = nb::none(),
      "window"_a = nb::none(), "softcap"_a = nb::none(), "alibi_slopes"_a = nb::none(),
      "dropout_p"_a.none() = 0.0, "dropout_seed"_a = nb::none(), "cu_seqlens_q"_a = nb::none(),
      "cu_seqlens_k"_a = nb::none(), "seqused_q"_a = nb::none(), "seqused_k"_a = nb::none(),
      "max_seqlen_q"_a = nb::none(), "max_seqlen_k"_a = nb::none(), "sinks"_a = nb::none(),
      "d_sinks"_a = nb::none(), "attention_chunk"_a = nb::none(),
      "(dq, dk, dv), and d_sinks where there are sinks: the gradients of forward's inputs.");
  m.def(
      "schedule",
      [](handle q, handle k, handle v, handle causal, handle window, handle deterministic,
         handle cu_seqlens_q, handle cu_seqlens_k, handle seqused_q, handle seqused_k,
         handle max_seqlen_q, handle max_seqlen_k, handle out) {
        const fp::SequenceOptions sequences{cu_seqlens_q, cu_seqlens_k, seqused_q,
                                            seqused_k,    max_seqlen_q, max_seqlen_k};
        const nb::object none = nb::none(), zero = nb::float_(0.0), ieee = nb::str("ieee");
        const fp::ScoreOptions scores{window, none, none, zero, none};
        return fp::schedule(
            q, k, v,
            {causal, none, ieee, fp::is_true(deterministic.ptr()), scores, none, false, sequences},
            out);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "causal"_a = nb::none(), "window"_a = nb::none(),
      "deterministic"_a.none() = false, "cu_seqlens_q"_a = nb::none(),
      "cu_seqlens_k"_a = nb::none(), "seqused_q"_a = nb::none(), "seqused_k"_a = nb::none(),
      "max_seqlen_q"_a = nb::none(), "max_seqlen_k"_a = nb::none(), "out"_a = nb::none(),
      "The shape of a call's schedule or None; with out: filled.");
  m.def(
      "configure_cpu", [](int threads, const char* isa) { fp::configure_cpu(threads, isa); },
      nb::kw_only(), "threads"_a = 0, "isa"_a = "automatic",
      "How the CPU is used: before the first call that runs on it.");
  m.def(
      "append",
      [](handle k_cache, handle v_cache, handle k_new, handle v_new, handle cache_seqlens,
         handle block_table, handle cache_batch_idx, handle cu_seqlens_new, handle seqused_after,
         handle rotary_cos, handle rotary_sin, handle rotary_positions, handle q,
         handle cu_seqlens_q, handle interleaved, handle consecutive) {
        return fp::append(k_cache, v_cache, k_new, v_new, cache_seqlens,
                          {block_table, cache_batch_idx, cu_seqlens_new, seqused_after, rotary_cos,
                           rotary_sin, rotary_positions, q, cu_seqlens_q,
                           fp::is_true(interleaved.ptr()), fp::is_true(consecutive.ptr())});
      },
      "k_cache"_a, "v_cache"_a, "k_new"_a, "v_new"_a, "cache_seqlens"_a, nb::kw_only(),
      "block_table"_a = nb::none(), "cache_batch_idx"_a = nb::none(),
      "cu_seqlens_new"_a = nb::none(), "seqused_after"_a = nb::none(), "rotary_cos"_a = nb::none(),
      "rotary_sin"_a = nb::none(), "rotary_positions"_a = nb::none(), "q"_a = nb::none(),
      "cu_seqlens_q"_a = nb::none(), "interleaved"_a.none() = false, "consecutive"_a.none() = true,
      "Writes new rows into a cache; q turned by its positions, or None.");
  m.def(
      "merge",
      [](handle parts, handle dtype, bool return_lse) {
        return fp::merge(parts, dtype, return_lse);
      },
      "parts"_a, nb::kw_only(), "dtype"_a = "fp32", "return_lse"_a = true,
      "(o, lse or None): attention over the union of disjoint sets of keys.");
  fp::define_ranks(m);
}
