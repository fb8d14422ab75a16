#pragma once

// For tests that compile kernels.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "runtime/kernel_store/nvrtc.h"

namespace flashlab::testing {

inline bool in_ci() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string_view(ci) == "true";
}

}  // namespace flashlab::testing

// Under CI a missing compiler is a failure: nothing else there sees the kernels.
#define NEED_COMPILER()                                                   \
  if (auto nvrtc = ::flashlab::cuda::Nvrtc::get(); !nvrtc.ok()) {         \
    if (::flashlab::testing::in_ci()) FAIL() << nvrtc.status().message(); \
    GTEST_SKIP() << nvrtc.status().message();                             \
  }
