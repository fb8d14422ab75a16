#include "train/plan/autocast.h"

namespace flashlab::train {

Element autocast_result(OperationClass operation_class, Element low, Element widest_input) {
  switch (operation_class) {
    case OperationClass::kProduct:
    case OperationClass::kAttention:
      return low;
    case OperationClass::kSoftmax:
    case OperationClass::kNorm:
    case OperationClass::kLoss:
    case OperationClass::kOptimizer:
      return Element::kFp32;
    case OperationClass::kElementwise:
    case OperationClass::kCopy:
    case OperationClass::kCommunication:
      break;
  }
  return widest_input;
}

std::vector<AutocastRow> autocast_toy(Element low) {
  const struct {
    const char* what;
    OperationClass operation_class;
    const char* why;
  } kLayers[] = {
      {"fc1: linear, no bias", OperationClass::kProduct, "products have the low type's speed"},
      {"relu", OperationClass::kElementwise, "as its input"},
      {"ln: layer norm", OperationClass::kNorm, "its sums and quotients need the bits"},
      {"fc2: logits", OperationClass::kProduct, "its fp32 input is rounded"},
      {"loss: cross-entropy", OperationClass::kLoss, "exponentials and their sum"},
  };
  std::vector<AutocastRow> out = {{"parameters", Element::kFp32, "what the optimizer changes"}};
  Element element = Element::kFp32;
  for (const auto& layer : kLayers) {
    element = autocast_result(layer.operation_class, low, element);
    out.push_back({layer.what, element, layer.why});
  }
  out.push_back({"gradients of parameters", out.front().element, "as the parameters"});
  return out;
}

}  // namespace flashlab::train
