#pragma once

#include <string_view>

namespace flashlab::train {

/// data/tinyshakespeare.txt: 1,115,394 characters of Shakespeare's plays, in the public domain.
std::string_view shipped_text() noexcept;

}  // namespace flashlab::train
