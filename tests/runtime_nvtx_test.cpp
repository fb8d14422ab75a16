// Ranges as a profiler sees them: against a tool that is as strict as NVIDIA's (nvtx_tool.h), and
// against NVIDIA's own where CUPTI is installed.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "runtime/library/library.h"
#include "runtime/library/nvidia_libraries.h"
#include "runtime/program/nvtx.h"
#include "runtime/program/nvtx_api.h"

namespace flashlab::runtime {
namespace {

class Ranges : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", FLASHLAB_FAKE_NVTX, 1), 0);
    void* tool = dlopen(FLASHLAB_FAKE_NVTX, RTLD_NOW);
    ASSERT_NE(tool, nullptr) << dlerror();
    listen_ = reinterpret_cast<decltype(listen_)>(dlsym(tool, "fake_nvtx_listen"));
    ranges_ = reinterpret_cast<decltype(ranges_)>(dlsym(tool, "fake_nvtx_ranges"));
    const auto is_attached = reinterpret_cast<int (*)()>(dlsym(tool, "fake_nvtx_is_attached"));
    static_cast<void>(nvtx_listened_to());  // attaches
    ASSERT_EQ(is_attached(), 1) << "the tool was not loaded or refused the program";
    listen_(0);
  }
  void (*listen_)(int) = nullptr;
  const char* (*ranges_)() = nullptr;
};

TEST_F(Ranges, AToolMayBeginAndEndToListenAtAnyTime) {
  EXPECT_FALSE(nvtx_listened_to());
  {
    const NvtxRange before("before");
    listen_(1);
    EXPECT_TRUE(nvtx_listened_to());
    const NvtxRange outer("outer");
    const NvtxRange inner("inner");
  }
  EXPECT_STREQ(ranges_(), "/outer\n/outer/inner\n");
  {
    const NvtxRange last("last");
    listen_(0);
    const NvtxRange unheard("unheard");
  }
  EXPECT_STREQ(ranges_(), "/last\n");
}

TEST_F(Ranges, EveryThreadHasItsOwn) {
  listen_(1);
  const NvtxRange range("main");
  std::thread([] {
    NvtxPath path;
    path.move_to("forward / layer 0", "attention");
    path.move_to("forward / layer 1", "layer 1");
  }).join();
  const NvtxRange inner("inner");
  EXPECT_STREQ(ranges_(),
               "/main\n/forward\n/forward/layer 0\n/forward/layer 0/attention\n"
               "/forward/layer 1\n/main/inner\n");
}

TEST(NvidiasTool, TakesTheTables) {
  const cuda::NvidiaLibrary cupti = cuda::cupti_library();
  const auto library = cuda::Library::open(cupti.soname, cupti.candidates(), cupti.remedy);
  if (!library.ok()) GTEST_SKIP() << library.status().message();
  using Initialize = int(const void* (*)(std::uint32_t));
  auto* initialize = reinterpret_cast<Initialize*>(library->symbol("cuptiNvtxInitialize2"));
  ASSERT_NE(initialize, nullptr);
  EXPECT_EQ(initialize(nvtx_export_table), 0);
  const auto* callbacks = static_cast<const NvtxCallbacks*>(nvtx_export_table(kNvtxTableCallbacks));
  void*** core = nullptr;
  ASSERT_EQ(callbacks->GetModuleFunctionTable(kNvtxModuleCore, &core, nullptr), 1);
  EXPECT_NE(*core[kNvtxRangePushA], nullptr);
  EXPECT_NE(*core[kNvtxRangePop], nullptr);
}

}  // namespace
}  // namespace flashlab::runtime
