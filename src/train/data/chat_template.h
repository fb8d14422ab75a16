#pragma once

// A tokenizer's chat template: the part of Jinja in which those of Llama 3, Qwen, SmolLM and their
// like are written.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::train {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant"
  std::string content;
};

/// Words that templates know beside the messages; empty: they have none.
struct ChatWords {
  std::string bos_token, eos_token;
};

struct ChatTemplate {
  std::string source;
  ChatWords words;
};

/// The template of a tokenizer's folder: chat_template.jinja, or the member chat_template of
/// tokenizer_config.json, which has the words. Errors: kInvalidArgument (the folder has none).
Result<ChatTemplate> read_chat_template(const std::filesystem::path& folder);

/// The messages as `source` writes them, and behind them the beginning of the model's turn. Lines
/// of statements leave nothing behind, as transformers has it (trim_blocks, lstrip_blocks). Errors:
/// kInvalidArgument, the template's own refusal; kUnsupported, naming the word of Jinja that is not
/// known here, and the line where it stands.
Result<std::string> render_chat(std::string_view source, const std::vector<ChatMessage>& messages,
                                const ChatWords& words);

}  // namespace flashlab::train
