#pragma once

// A model that lies somewhere: its sizes, its tensors where they are mapped, its tokenizer's file.

#include <deque>
#include <filesystem>
#include <string>

#include "flashlab/status.h"
#include "train/model/config.h"
#include "train/weights/hugging_face.h"
#include "train/weights/safetensors.h"

namespace flashlab::train {

struct ModelFiles {
  std::filesystem::path path;  ///< in errors: a file, or a folder of several
  ModelConfig model;
  Layout layout = Layout::kOwn;
  MappedTensors tensors;
  std::filesystem::path tokenizer;  ///< a tokenizer.json; empty: there is none
  std::deque<MappedFile> mapped;    ///< what the tensors point into
};

/// A folder as Hugging Face's library writes it (config.json beside model.safetensors, or beside
/// shards and their index), one of its .safetensors files, or llm.c's file.
/// Errors: kIoError; kInvalidArgument (nothing of that kind; weights of a kind that is not read,
/// with the line that turns them into one that is; an index that does not fit its files).
Result<ModelFiles> open_foreign_model(const std::filesystem::path& path);

/// Whether a folder's config.json is Hugging Face's: a run has one of its own.
bool is_hugging_face_folder(const std::filesystem::path& folder);

}  // namespace flashlab::train
