#pragma once

// For tests that compile kernels.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "runtime/kernel_store/compile.h"
#include "runtime/kernel_store/nvrtc.h"

namespace flashlab::testing {

inline bool in_ci() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string_view(ci) == "true";
}

/// Whether a kernel's source has instructions of Hopper alone.
inline bool needs_hopper(std::string_view source) {
  for (const char* start : {"sm90/", "ladder/fa2_tma", "ladder/fa2_wgmma", "ladder/fa3",
                            "train/cross_entropy_cluster"}) {
    if (source.starts_with(start)) return true;
  }
  return false;
}

/// The same kernel compiled with little optimisation, where nobody looks at how good its code is:
/// Hopper's backward to PTX takes 0.1 s instead of 2.3 (NVRTC 13.0). Older compilers may not know
/// the option.
inline cuda::KernelSpec quick(cuda::KernelSpec spec) {
  const auto nvrtc = cuda::Nvrtc::get();
  if (nvrtc.ok() && (*nvrtc)->major() >= 13) spec.options.emplace_back("-Ofc=max");
  return spec;
}

}  // namespace flashlab::testing

// Under CI a missing compiler is a failure: nothing else there sees the kernels.
#define NEED_COMPILER()                                                   \
  if (auto nvrtc = ::flashlab::cuda::Nvrtc::get(); !nvrtc.ok()) {         \
    if (::flashlab::testing::in_ci()) FAIL() << nvrtc.status().message(); \
    GTEST_SKIP() << nvrtc.status().message();                             \
  }
