#pragma once

// The edge of the API: nothing the standard library throws gets past it.

#include <exception>
#include <new>

#include "flashlab/status.h"

namespace flashlab::internal {

/// Runs `body`; exhausted host memory becomes kOutOfMemory, anything else kInternal.
template <class R, class Body>
R guard(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory({"host memory", "std::bad_alloc", "a few kilobytes for the plan",
                                  "free memory and call again"});
  } catch (const std::exception& error) {
    return Status(StatusCode::kInternal, {"flashlab", error.what(), "no exception", ""});
  }
}

}  // namespace flashlab::internal
