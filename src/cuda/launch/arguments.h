#pragma once

// From a validated problem to what kernels are launched with. A plan knows everything but the
// addresses; those are patched into each launch's parameter block.

#include <array>
#include <cstdint>

#include "api/problem.h"
#include "cuda/kernels/arguments.h"
#include "cuda/kernels/sequence_arguments.h"
#include "flashlab/tensor_table.h"
#include "runtime/program/parameters.h"

namespace flashlab::cuda {

device::Shape shape_of(const internal::Geometry& geometry);

/// Whether softcap takes its form for large caps (kernels/tile/score.h).
inline constexpr float kUsualCap = 64.0f;
bool softcap_is_wide(const internal::Geometry& geometry);

/// The pass's arguments with every address null.
device::ForwardArguments forward_arguments(const Problem& problem,
                                           const internal::Geometry& geometry);
device::BackwardArguments backward_arguments(const Problem& problem,
                                             const internal::Geometry& geometry);

/// The buffer of a tensor in the program of an attention plan: tensors come first, by role, then
/// the workspace regions in their order.
constexpr int buffer_of(TensorRole role) {
  return static_cast<int>(role);
}

/// The scalars of a call: what its dropout is drawn by, and, of a call with lengths, what it has
/// less than the plan: rows of the tensors of queries and of keys (or of an entry of a batch),
/// sequences, pages or entries of a cache, and strides between rows of block_table and between
/// heads of lse and d_lse.
enum CallScalar : int {
  kSeedScalar,
  kOffsetScalar,
  kRowsQScalar,
  kRowsKScalar,
  kSequencesScalar,
  kCacheEntriesScalar,
  kTableStrideScalar,
  kLseStrideScalar,
  kDLseStrideScalar,
  kCallScalars
};
using CallScalars = std::array<std::uint64_t, kCallScalars>;

/// `lengths`: of a call with lengths; others have two scalars alone.
CallScalars scalars_of(const ForwardTensors& tensors, bool lengths);
CallScalars scalars_of(const BackwardTensors& tensors, bool lengths);
/// The same of a problem, with zeros for what dropout is drawn by.
CallScalars scalars_of(const Problem& problem);

constexpr int buffer_of_region(int region) {
  return static_cast<int>(kTensorRoles) + region;
}

/// Lists of sequences with every address null, and their patches `offset` bytes into the kernel's
/// parameters. `tile_q`, `tile_k`: rows of a slot.
device::Sequences sequences_of(const Problem& problem, const internal::Geometry& geometry,
                               int tile_q, int tile_k);
void patch_sequences(runtime::ParameterBlock& block, const Problem& problem, std::size_t offset);

/// Whether keys and values lie where an index, a padding or a table of pages says.
inline bool has_cache(const Problem& problem) {
  return problem.block_table || problem.cache_batch_idx || problem.leftpad_k;
}

/// Where keys lie in a cache, with every address null, and its patches likewise.
device::KeyCache cache_of(const Problem& problem, const internal::Geometry& geometry);
void patch_cache(runtime::ParameterBlock& block, const Problem& problem, std::size_t offset);

/// Adds the patches of the tensors and of the first `regions` regions for the pass's arguments,
/// which lie `offset` bytes into the kernel's parameters.
void patch_addresses(runtime::ParameterBlock& block, const Problem& problem, int regions,
                     std::size_t offset = 0);

}  // namespace flashlab::cuda
