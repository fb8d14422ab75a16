#pragma once

// The learned numbers of a model in safetensors files: whole tensors under the names that other
// programs know, whoever has which part of them.

#include <filesystem>

#include "flashlab/status.h"
#include "train/run/parameters.h"
#include "train/run/ranks.h"
#include "train/weights/safetensors.h"

namespace flashlab::train {

/// What a checkpoint's folder has of them.
struct ParameterFile {
  const char* name;
  bool moments;
};
inline constexpr ParameterFile kParameterFiles[] = {{"model.safetensors", false},
                                                    {"optimizer.safetensors", true}};

/// Writes both files, tensor by tensor, the ranks in turn; when this ends all have synced. All call
/// it alike, and it is the same on all. Errors: kIoError, naming the rank; a lost rank.
Status write_parameters(const std::filesystem::path& folder, const ParameterStore& store,
                        const Ranks& ranks);
/// Reads them: each rank the numbers that its store has, and its part of what the digest is of.
/// All call it alike, and it is the same on all. Errors: those of load_weights; a lost rank.
Status read_parameters(const std::filesystem::path& folder, ParameterStore& store,
                       const Ranks& ranks);

/// Errors: kIoError, kInvalidArgument (damaged; another model's weights: the first missing or
/// misshapen tensor is named; a tensor that the model does not have). A refused file changes
/// nothing.
Status load_weights(const std::filesystem::path& file, ParameterStore& store);
/// Weights alone, for other programs. Precondition: the store has all of them.
Status save_weights(const std::filesystem::path& file, const ParameterStore& store);

/// An arena of the store as files hold it, and weights of that form into the store. Errors: those
/// of load_weights; `source` names them.
StoredTensors stored(const ParameterStore& store, std::byte* arena);
Status put_weights(const std::filesystem::path& source, const StoredTensors& tensors,
                   ParameterStore& store);

}  // namespace flashlab::train
