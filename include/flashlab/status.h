#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace flashlab {

/// Why a call did not do what was asked. The library never prints, exits or throws across its API.
enum class StatusCode {
  kOk,
  kInvalidArgument,  ///< the call can never work as written: shapes, strides, types, overlaps
  kUnsupported,      ///< well-formed, but not built for this device or implementation (yet)
  kOutOfMemory,      ///< the allocator refused; nothing was written
  kDeviceError,      ///< the driver, the run-time compiler or the device reported a failure
  kIoError,          ///< a file could not be read or written
  kInternal,         ///< a broken invariant of the library itself: please report it
};

/// "invalid argument", "unsupported", ...
const char* to_string(StatusCode code) noexcept;

/// The parts of an error message; message() leaves out empty ones.
struct ErrorDetail {
  std::string argument;  ///< which argument, e.g. "k.shape[2]"
  std::string got;       ///< what was found there
  std::string expected;  ///< what would have been accepted
  std::string remedy;    ///< what to do about it
};

/// The outcome of a call: success, or a code with its detail. Three words, cheap to copy and to
/// move; success allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, ErrorDetail detail)
      : code_(code), detail_(std::make_shared<const ErrorDetail>(std::move(detail))) {}

  static Status invalid(ErrorDetail detail) {
    return {StatusCode::kInvalidArgument, std::move(detail)};
  }
  static Status unsupported(ErrorDetail detail) {
    return {StatusCode::kUnsupported, std::move(detail)};
  }
  static Status out_of_memory(ErrorDetail detail) {
    return {StatusCode::kOutOfMemory, std::move(detail)};
  }

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  /// All empty for success.
  const ErrorDetail& detail() const noexcept;

  /// One line for a person: "q.shape[3]: got 0, expected at least 1; give every head a dimension".
  std::string message() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  // Not the detail itself: a call returns some twenty statuses on its way, and to make and destroy
  // four strings in each takes as long as the call's checks.
  std::shared_ptr<const ErrorDetail> detail_;
};

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : state_(std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const noexcept { return std::holds_alternative<T>(state_); }

  /// Precondition for value(): ok().
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// The failure; an ok Status when there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace flashlab
