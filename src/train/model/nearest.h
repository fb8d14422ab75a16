#pragma once

// A refusal of an unknown name that says which known one is nearest.

#include <string>
#include <vector>

#include "flashlab/status.h"

namespace flashlab::train {

struct UnknownName {
  std::string argument;
  std::string got;
  std::vector<std::string> known;
};

/// "config.json: key: got "hiden", expected family, ...; did you mean hidden?"
Status unknown_name(const UnknownName& what);

/// Keys of a model's file, as parse_model reads them.
std::vector<std::string> model_keys();

}  // namespace flashlab::train
