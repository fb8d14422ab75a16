#pragma once

#include <nanobind/nanobind.h>

#include "arrays.h"
#include "flashlab/attention.h"

namespace flashlab::python {

namespace nb = nanobind;

/// What changes scores and probabilities, as Python gave it.
struct ScoreOptions {
  nb::handle window = nb::none();        ///< None, (left, right) or (left, right, alignment)
  nb::handle softcap = nb::none();       ///< None or a number > 0
  nb::handle alibi_slopes = nb::none();  ///< None, [heads] or [batch, heads]
  double dropout_p = 0;
  nb::handle dropout_seed = nb::none();  ///< None, (seed, offset), or an array of both, [2] int64
};

/// The options that forward and backward share, as Python gave them.
struct CallOptions {
  nb::handle causal, scale, precision;
  bool deterministic = false;
  nb::handle implementation = nb::none();
  /// Tensors of rank 4 are [batch, heads, seqlen, head_dim], results too (dense as [batch, seqlen,
  /// heads, head_dim] in memory). PyTorch's alone.
  bool heads_first = false;
  ScoreOptions scores{};
};

/// Options as the library takes them; `q` and `k` say whether causal=True needs an alignment.
/// Raises ValueError or TypeError with argument, got, expected and remedy.
Options options_of(const CallOptions& given, const Argument& q, const Argument& k);

/// The array that holds seed and offset of dropout, on q's device; None where there is none.
nb::handle state_of(const CallOptions& given);
/// Seed and offset given as numbers, modulo 2^64; zeros where they are in an array or left out.
DropoutSeed seed_of(nb::handle given);

}  // namespace flashlab::python
