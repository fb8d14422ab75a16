#pragma once

// Weights for other programs.

#include <filesystem>
#include <optional>

#include "train/data/tokenizer.h"
#include "train/run/take_weights.h"

namespace flashlab::train {

enum class ExportForm : std::uint8_t {
  kHuggingFace,  ///< a folder that from_pretrained opens: GPT-2, or the course's model as Llama
  kLlmc,         ///< llm.c's file: GPT-2 in fp32 or bf16
  kSafetensors,  ///< a file under this engine's names
};

struct ExportOptions {
  ExportForm form = ExportForm::kHuggingFace;
  std::optional<Element> element;  ///< of every tensor; none: as the weights have it
};

/// The type of the weights, by their embedding.
Element element_of(const ModelFiles& files);

/// Writes the model to `path`, a new or empty folder or a file, whole or not at all.
/// Errors: those of take_weights; kInvalidArgument (a model or a type that the form does not have,
/// a folder that holds something); kIoError.
Status export_model(const ModelFiles& files, const Tokenizer& tokenizer,
                    const ExportOptions& options, const std::filesystem::path& path);

}  // namespace flashlab::train
