#include "flashlab/status.h"

namespace flashlab {

const char* to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfMemory:
      return "out of memory";
    case StatusCode::kDeviceError:
      return "device error";
    case StatusCode::kIoError:
      return "input/output error";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown status";
}

std::string Status::message() const {
  if (ok()) return "ok";
  std::string text = detail_.argument.empty() ? std::string(to_string(code_)) : detail_.argument;
  if (!detail_.got.empty()) text += ": got " + detail_.got;
  if (!detail_.expected.empty()) {
    text += detail_.got.empty() ? ": expected " : ", expected ";
    text += detail_.expected;
  }
  if (!detail_.remedy.empty()) text += "; " + detail_.remedy;
  return text;
}

}  // namespace flashlab
