#pragma once

// The models of this engine as Hugging Face's library describes them: config.json, names of
// tensors, and how their rows lie. One entry for each architecture; a new one is a new entry.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "flashlab/status.h"
#include "train/data/tokenizer.h"
#include "train/model/config.h"
#include "train/plan/step_plan.h"

namespace flashlab::train {

/// Who has named and laid out the tensors of a file.
enum class Layout : std::uint8_t {
  kOwn,          ///< this engine: the course's names, or GPT-2's
  kHuggingFace,  ///< transformers
  kLlmc,         ///< GPT-2's names, every matrix as [outputs, inputs]
};

/// What a tensor's first axis counts: a file may have more of some than the model takes.
enum class Rows : std::uint8_t {
  kExact,
  kVocabulary,  ///< padded behind the last word
  kPositions,   ///< those of the model in the file; a shorter context takes the first ones
};

/// A part of a parameter as a file holds it.
struct FilePart {
  std::string name;            ///< without what stands before every name, such as "transformer."
  bool transposed = false;     ///< [columns, rows]
  std::int64_t halves_of = 0;  ///< rows of a head of so many elements: the pair (2i, 2i + 1) of
                               ///< RoPE here is (i, i + half) there; 0: as here
  Rows rows = Rows::kExact;
};
FilePart file_part(Layout layout, const ModelConfig& model, const ParameterPart& part);

/// A tensor's name without the prefixes that modules around a model give it.
std::string bare_name(Layout layout, std::string_view name);
/// The name under which the library itself keeps a tensor of this bare name.
std::string full_name(const ModelConfig& model, const std::string& bare);

/// Whether the tensor is computed and not learned: a mask, an angle.
bool is_buffer(std::string_view bare);
/// The tensor that a second one of this name must be equal to: a head tied to the embedding.
std::optional<std::string> tied_to(const ModelConfig& model, std::string_view bare);

/// config.json as transformers 4 and 5 write it. Dropout is none of it: a run has its own.
/// Errors: kInvalidArgument, naming the key that is missing, or what is not computed here.
Result<ModelConfig> read_hugging_face_config(std::string_view json, std::string_view source);

/// What stands beside the weights so that the library's Auto classes open the folder: config.json
/// as transformers 5 writes it and, where the tokens have a text, tokenizer.json and its own
/// configuration. Names and contents.
std::map<std::string, std::string> hugging_face_files(const ModelConfig& model, Element element,
                                                      const Tokenizer& tokenizer);

}  // namespace flashlab::train
