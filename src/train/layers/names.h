#pragma once

// The names of a family's tensors: those of its files, and of what is one tensor here.

#include <string>
#include <vector>

#include "train/model/config.h"

namespace flashlab::train {

/// Of tensors outside the layers; norms without ".weight".
struct ModelNames {
  const char* embedding;
  const char* final_norm;
  const char* head;
};
ModelNames names_of(Family family);

/// Of one layer; norms and products without ".weight" and ".bias". A product whose `parts` are
/// empty is one tensor in files, too.
struct BlockNames {
  std::string attention_norm, qkv, output, mlp_norm, up, down;
  std::vector<std::string> qkv_parts, up_parts;
  std::string q_norm, k_norm;              ///< where every head is normed
  std::string attention_after, mlp_after;  ///< where what a branch adds is normed
};
BlockNames names_of(Family family, int layer);

/// parts with what follows each.
std::vector<std::string> with_suffix(const std::vector<std::string>& parts, const char* suffix);

}  // namespace flashlab::train
