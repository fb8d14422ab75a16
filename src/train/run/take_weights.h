#pragma once

// Weights of any program into a store, whatever their types, names and rows.

#include <filesystem>

#include "train/run/parameters.h"
#include "train/weights/folder.h"

namespace flashlab::train {

/// A run's folder (its newest checkpoint), one of its step-N, or what open_foreign_model opens.
/// Errors: those of find_checkpoint, load_state and open_foreign_model.
Result<ModelFiles> open_model(const std::filesystem::path& path);

/// Fills the store, whose model has `files`' sizes, or a shorter context or vocabulary.
/// Errors: kInvalidArgument, all tensors that do not fit with name, shape and what was expected; a
/// number that is none.
Status take_weights(const ModelFiles& files, const ParameterStore& store);

}  // namespace flashlab::train
