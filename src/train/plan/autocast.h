#pragma once

// What automatic mixed precision does to a small network: which operation computes in which type.

#include <string>
#include <vector>

#include "train/plan/operation.h"

namespace flashlab::train {

/// The type of an operation's result where fp32 parameters meet automatic mixed precision: products
/// and attention in `low`; norms, softmax and losses in fp32; everything else as its widest input.
Element autocast_result(OperationClass operation_class, Element low, Element widest_input);

/// "first layer's output", fp16: one row of what a person asks of the toy model.
struct AutocastRow {
  std::string what;
  Element element = Element::kFp32;
  std::string why;
};

/// Linear, ReLU, LayerNorm, Linear, cross-entropy, with fp32 parameters.
std::vector<AutocastRow> autocast_toy(Element low);

}  // namespace flashlab::train
