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

const ErrorDetail& Status::detail() const noexcept {
  static const ErrorDetail none;
  return detail_ != nullptr ? *detail_ : none;
}

std::string Status::message() const {
  if (ok()) return "ok";
  const ErrorDetail& d = detail();
  std::string text = d.argument.empty() ? std::string(to_string(code_)) : d.argument;
  if (!d.got.empty()) text += ": got " + d.got;
  if (!d.expected.empty()) {
    text += d.got.empty() ? ": expected " : ", expected ";
    text += d.expected;
  }
  if (!d.remedy.empty()) text += "; " + d.remedy;
  return text;
}

}  // namespace flashlab
