#pragma once

#include <nanobind/nanobind.h>

#include "arrays.h"
#include "flashlab/attention.h"

namespace flashlab::python {

namespace nb = nanobind;

/// What changes scores and probabilities, as Python gave it.
struct ScoreOptions {
  nb::handle window;        ///< None, (left, right) or (left, right, alignment)
  nb::handle softcap;       ///< None or a number > 0
  nb::handle alibi_slopes;  ///< None, [heads] or [batch, heads]
  nb::handle dropout_p;     ///< a number
  nb::handle dropout_seed;  ///< None, (seed, offset), or an array of both, [2] int64
  nb::handle attention_chunk = nb::none();  ///< None or a number of keys > 0
  /// That of a window of two numbers: None is causal's. PyTorch's operators say it apart.
  nb::handle alignment = nb::none();
};

/// Where sequences lie, and what every row has beside them, as Python gave it.
struct SequenceOptions {
  nb::handle cu_seqlens_q = nb::none(), cu_seqlens_k = nb::none();  ///< None or [batch + 1]
  nb::handle seqused_q = nb::none(), seqused_k = nb::none();        ///< None or [batch]
  nb::handle max_seqlen_q = nb::none(), max_seqlen_k = nb::none();  ///< None or a hint
  nb::handle sinks = nb::none();                                    ///< None or [heads]
  nb::handle block_table = nb::none();      ///< None or [batch, pages of a sequence]
  nb::handle cache_batch_idx = nb::none();  ///< None or [batch], as leftpad_k
  nb::handle leftpad_k = nb::none();

  bool have_lengths() const {
    return !(cu_seqlens_q.is_none() && cu_seqlens_k.is_none() && seqused_q.is_none() &&
             seqused_k.is_none() && cache_batch_idx.is_none() && leftpad_k.is_none());
  }
};

/// The options that forward and backward share, as Python gave them.
struct CallOptions {
  nb::handle causal, scale, precision;
  bool deterministic = false;
  ScoreOptions scores{};
  nb::handle implementation = nb::none();
  /// Tensors of rank 4 are [batch, heads, seqlen, head_dim], results too (dense as [batch, seqlen,
  /// heads, head_dim] in memory). PyTorch's alone.
  bool heads_first = false;
  SequenceOptions sequences{};
  nb::handle schedule = nb::none();  ///< of forward: None, or what schedule() filled
};

/// Options as the library takes them; `q` and `k` say whether an alignment is needed. Raises
/// ValueError or TypeError with argument, got, expected and remedy, in Python's words.
Options options_of(const CallOptions& given, const Argument& q, const Argument& k);

/// The probability of dropping, from 0 to below 1. Raises as options_of.
float dropout_of(const ScoreOptions& given);
/// The array that holds seed and offset of dropout, on q's device; None where there is none.
nb::handle state_of(const ScoreOptions& given);
/// Seed and offset given as numbers, modulo 2^64; zeros where they are in an array or nothing is
/// dropped. Raises ValueError where something is dropped without a seed.
DropoutSeed seed_of(const ScoreOptions& given);

}  // namespace flashlab::python
