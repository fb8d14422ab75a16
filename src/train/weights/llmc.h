#pragma once

// llm.c's file of GPT-2's weights: a header of 256 int32 (magic 20240326, version, context, words,
// layers, heads, width, rows of the padded table), then all tensors, each for all layers.

#include <filesystem>
#include <string_view>

#include "train/model/config.h"
#include "train/weights/safetensors.h"

namespace flashlab::train {

/// Whether bytes begin as such a file does.
bool is_llmc(std::string_view bytes);

struct LlmcModel {
  ModelConfig model;
  MappedTensors tensors;  ///< a layer each, under GPT-2's names
};
/// Errors: kInvalidArgument (a version that is neither 3, fp32, nor 5, bf16; a size that does not
/// fit the header's numbers).
Result<LlmcModel> map_llmc(const std::filesystem::path& path, std::string_view bytes);

/// Of tensors under GPT-2's names, matrices as [outputs, inputs], all fp32 or all bf16; the table
/// is padded to rows of 128. Errors: kIoError.
Status write_llmc(const std::filesystem::path& path, const ModelConfig& model,
                  const StoredTensors& tensors);

}  // namespace flashlab::train
