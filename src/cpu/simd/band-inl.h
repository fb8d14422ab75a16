#pragma once

// The keys that a query sees by its place alone, and the queries that see a key: what a Band says,
// not clamped to the lengths.

#include "cpu/simd/gemm-inl.h"

namespace flashlab::internal::simd {
namespace FLASHLAB_ISA {
namespace {

/// The first key of the chunk that key `at` lies in, below 0 too.
HWY_INLINE int64_t chunk_begin(const Band& band, int64_t at) {
  const int64_t rest = at % band.chunk;
  return at - rest - (rest < 0 ? band.chunk : 0);
}

/// The mutation lets every query see one key too many.
HWY_INLINE int64_t band_end(const Band& band) {
  return kMutation == Mutation::kShiftedMask ? band.end + 1 : band.end;
}

HWY_INLINE int64_t first_key_of(const Band& band, int64_t query) {
  const int64_t first = query + band.begin;
  if (band.chunk == 0) return first;
  const int64_t chunk = chunk_begin(band, query + band.shift);
  return first > chunk ? first : chunk;
}
HWY_INLINE int64_t end_key_of(const Band& band, int64_t query) {
  const int64_t end = query + band_end(band);
  if (band.chunk == 0) return end;
  const int64_t chunk = chunk_begin(band, query + band.shift) + band.chunk;
  return end < chunk ? end : chunk;
}

HWY_INLINE int64_t first_query_of(const Band& band, int64_t key) {
  const int64_t first = key - band_end(band) + 1;
  if (band.chunk == 0) return first;
  const int64_t chunk = chunk_begin(band, key) - band.shift;
  return first > chunk ? first : chunk;
}
HWY_INLINE int64_t end_query_of(const Band& band, int64_t key) {
  const int64_t end = key - band.begin + 1;
  if (band.chunk == 0) return end;
  const int64_t chunk = chunk_begin(band, key) + band.chunk - band.shift;
  return end < chunk ? end : chunk;
}

}  // namespace
}  // namespace FLASHLAB_ISA
}  // namespace flashlab::internal::simd
