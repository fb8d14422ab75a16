// What a first call waits for: nothing on common shapes where their kernels came with the library,
// else a compilation that is told of once. Against the stand-ins for driver and compiler.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "flashlab/attention.h"
#include "lab/kernels/precompile.h"
#include "runtime/kernel_store/cache.h"

namespace flashlab {
namespace {

namespace fs = std::filesystem;

constexpr Device kGpu{DeviceKind::kCuda, 0};
constexpr std::uintptr_t kMemory = 0x100000000000;

// The folder of shipped kernels is looked for once in a process: made before the first test.
class FirstCall : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (fs::temp_directory_path() / "flashlab-first-call-XXXXXX").string();
    folder() = mkdtemp(name.data());
    setenv("FAKE_CUDA", "gpu", 1);
    setenv("FLASHLAB_NVRTC", FLASHLAB_FAKE_DRIVER, 1);
    setenv("FAKE_NVRTC_LOG", (folder() / "compilations").c_str(), 1);
    setenv("XDG_DATA_HOME", folder().c_str(), 1);
    setenv("FLASHLAB_CACHE", "/proc/nowhere", 1);  // a home that is read only
    ASSERT_NE(dlopen(FLASHLAB_FAKE_DRIVER, RTLD_NOW), nullptr) << dlerror();
    const auto list = lab::kernel_variants("sm_90a", lab::VariantSelection::kShipped);
    ASSERT_TRUE(list.ok());
    lab::PrecompileOptions options;
    options.folder = (folder() / "flashlab/kernels").string();
    const auto made = lab::precompile(*list, "sm_90a", options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    ASSERT_GT(compilations(), 50);
    ASSERT_NE(cuda::KernelCache::shipped(), nullptr);
  }
  static void TearDownTestSuite() { fs::remove_all(folder()); }

  void SetUp() override {
    auto made = Context::create({.device = kGpu});
    ASSERT_TRUE(made.ok()) << made.status().message();
    context_.emplace(std::move(made).value());
  }

  static fs::path& folder() {
    static fs::path path;
    return path;
  }
  static std::ptrdiff_t compilations() {
    std::ifstream log(folder() / "compilations");
    return std::count(std::istreambuf_iterator<char>(log), {}, '\n');
  }

  Status forward_of(DType dtype, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t dim,
                    bool causal) {
    std::uintptr_t next = kMemory;
    const auto view = [&](std::int64_t seqlen, std::int64_t heads) {
      next += 0x1000000;
      return tensor(reinterpret_cast<void*>(next), {1, seqlen, heads, dim}, dtype, kGpu);
    };
    const ForwardTensors call{.q = view(seqlen_q, 8),
                              .k = view(seqlen_k, 2),
                              .v = view(seqlen_k, 2),
                              .o = view(seqlen_q, 8)};
    Options options;
    if (causal) options.causal = Causal::kBottomRight;
    return forward(*context_, {}, call, options);
  }

  std::optional<Context> context_;
};

TEST_F(FirstCall, OfACommonShapeCompilesNothing) {
  const auto before = compilations();
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
    for (const std::int64_t dim : {64, 128}) {
      for (const bool causal : {false, true}) {
        for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 3000}, {40, 40}, {777, 1111}}) {
          const Status status = forward_of(dtype, seqlen_q, seqlen_k, dim, causal);
          ASSERT_TRUE(status.ok()) << status.message();
        }
      }
    }
  }
  EXPECT_EQ(compilations(), before);
  ASSERT_TRUE(forward_of(DType::kBf16, 64, 64, 72, false).ok());
  EXPECT_GT(compilations(), before) << "a shape that is not common";
}

TEST_F(FirstCall, ALongCompilationIsToldOfOnce) {
  static std::atomic<int> told{0};
  lab::when_compiling_takes_long([] { ++told; });
  ASSERT_TRUE(forward_of(DType::kBf16, 64, 64, 80, false).ok());
  EXPECT_EQ(told, 0) << "it took no half second";
  setenv("FAKE_NVRTC_MS", "700", 1);
  ASSERT_TRUE(forward_of(DType::kBf16, 64, 64, 96, false).ok());
  EXPECT_EQ(told, 1);
  ASSERT_TRUE(forward_of(DType::kBf16, 64, 64, 104, false).ok());
  EXPECT_EQ(told, 1);
  lab::when_compiling_takes_long({});
}

class ShippedNear : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "flashlab-shipped-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = fs::canonical(name);
    fs::create_directories(root_ / "lib/machine");
    std::ofstream(file()) << "a library";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string file() const { return (root_ / "lib/machine/library.so").string(); }
  std::string found() const { return cuda::KernelCache::shipped_near(file().c_str()); }
  std::string put(const char* below) const {
    const fs::path folder = root_ / below / "share/flashlab/kernels";
    fs::create_directories(folder);
    return folder.string();
  }

  fs::path root_;
};

TEST_F(ShippedNear, TheNearestOfThreeFoldersCounts) {
  EXPECT_EQ(found(), "");
  EXPECT_EQ(cuda::KernelCache::shipped_near((file() + "?").c_str()), "");
  for (const char* below : {"", "lib", "lib/machine"}) {
    const std::string folder = put(below);
    EXPECT_EQ(found(), folder);
  }
  fs::create_symlink(file(), root_ / "link.so");
  EXPECT_EQ(cuda::KernelCache::shipped_near((root_ / "link.so").c_str()), put("lib/machine"));
}

// Whoever can replace the library may say what it runs; nobody else but root.
TEST_F(ShippedNear, OnlyFoldersOfTheLibrarysOwnerOrOfRootCount) {
  if (::geteuid() != 0) GTEST_SKIP() << "skipped: only root can give a file away";
  constexpr uid_t kSomebody = 12345, kAnother = 23456;
  const std::string near = put("lib"), far = put("");
  const auto own = [](const std::string& path, uid_t user) {
    ASSERT_EQ(::chown(path.c_str(), user, static_cast<gid_t>(-1)), 0);
  };
  own(near, kAnother);
  EXPECT_EQ(found(), far) << "the library is root's";
  own(far, kAnother);
  EXPECT_EQ(found(), "");
  own(file(), kSomebody);
  EXPECT_EQ(found(), "");
  own(far, kSomebody);
  EXPECT_EQ(found(), far);
  own(near, 0);
  EXPECT_EQ(found(), near);
}

}  // namespace
}  // namespace flashlab
