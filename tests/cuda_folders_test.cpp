// A folder of precompiled kernels that is refused is named with a remedy, whatever serves in its
// place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cuda_compiler.h"
#include "runtime/kernel_store/cache.h"
#include "runtime/kernel_store/compile.h"

namespace flashlab::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Refused : public ::testing::Test {
 protected:
  Refused() {
    std::string name = (fs::temp_directory_path() / "flashlab-images-XXXXXX").string();
    root_ = mkdtemp(name.data());
    precompiled_ = (root_ / "precompiled").string();
    fs::create_directory(precompiled_);
    setenv("FLASHLAB_CACHE", (root_ / "cache").c_str(), 1);
    setenv("FLASHLAB_PRECOMPILED", precompiled_.c_str(), 1);
  }
  ~Refused() override {
    for (const char* name : {"FLASHLAB_CACHE", "FLASHLAB_PRECOMPILED"}) unsetenv(name);
    fs::remove_all(root_);
  }
  // Puts an entry in and lets others write there.
  void fill_and_open() {
    const auto key = key_of(spec_, "sm_80");
    ASSERT_TRUE(key.ok());
    ASSERT_TRUE(KernelCache(precompiled_).store(*key, {"a kernel", "", "by hand"}).ok());
    ASSERT_EQ(image_of(spec_, "sm_80")->origin, ImageOrigin::kPrecompiled);
    ASSERT_EQ(chmod(precompiled_.c_str(), 0777), 0);
  }

  const KernelSpec spec_{"config_types.h",
                         "nothing",
                         "struct Config {};\nextern \"C\" __global__ void nothing() {}\n",
                         {}};
  fs::path root_;
  std::string precompiled_;
};

TEST_F(Refused, PrecompiledFolderIsNamedBesideWhatServes) {
  NEED_COMPILER();
  fill_and_open();
  const auto reason = AllOf(HasSubstr("precompiled kernels in " + precompiled_),
                            HasSubstr("others may write to"), HasSubstr("chmod go-w"));
  for (const auto origin : {ImageOrigin::kCompiler, ImageOrigin::kCache}) {
    const auto image = image_of(spec_, "sm_80");
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image->origin, origin);
    EXPECT_THAT(image->cache_warning, reason);
  }
  // Both folders, each once, though the cache is tried for reading and for writing.
  ASSERT_EQ(chmod((root_ / "cache").c_str(), 0777), 0);
  const std::string both = image_of(spec_, "sm_80")->cache_warning;
  EXPECT_THAT(both, AllOf(reason, HasSubstr("; kernel cache " + (root_ / "cache").string())));
  EXPECT_EQ(both.find("; kernel cache"), both.rfind("; kernel cache"));
  ASSERT_EQ(chmod(precompiled_.c_str(), 0755), 0);
  EXPECT_THAT(image_of(spec_, "sm_80")->cache_warning, IsEmpty());
}

TEST_F(Refused, PrecompiledFolderIsNamedWhereThereIsNoCompiler) {
  // In a process of its own: a compiler is looked for once.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto without_compiler = [&] {
    setenv("FLASHLAB_NVRTC", "/nowhere/libnvrtc.so.13", 1);
    const auto image = image_of(spec_, "sm_80");
    std::fprintf(stderr, "%s\n", image.status().message().c_str());
    fs::remove_all(root_);
    std::exit(image.status().code() != StatusCode::kUnsupported);
  };
  EXPECT_EXIT(
      {
        fill_and_open();
        without_compiler();
      },
      ::testing::ExitedWithCode(0),
      "pip install nvidia-cuda-nvrtc.*; not used: precompiled kernels in .*others may write to.*"
      "chmod go-w ");
  EXPECT_EXIT(
      {
        setenv("FLASHLAB_PRECOMPILED", "/nowhere", 1);
        without_compiler();
      },
      ::testing::ExitedWithCode(0), "not used: precompiled kernels in /nowhere: .*No such file");
  EXPECT_EXIT(without_compiler(), ::testing::ExitedWithCode(0), Not(HasSubstr("not used")))
      << "an empty folder";
}

}  // namespace
}  // namespace flashlab::cuda
