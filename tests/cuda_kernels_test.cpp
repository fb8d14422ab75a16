// The list of kernel variants, made for GPUs that are only described, and one variant per kernel
// through the compiler. Spills are judged by tools/check_kernels.py, on more variants.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/known_gpus.h"
#include "cuda/jit/nvrtc.h"
#include "cuda/launch/merge.h"
#include "lab/kernels/precompile.h"
#include "lab/kernels/variants.h"

namespace flashlab::lab {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const KernelVariant& variant) {
  return variant.implementation + " " + variant.spec.source + " " + variant.spec.entry + "\n" +
         variant.spec.config;
}

std::set<std::string> texts_of(const std::vector<KernelVariant>& list) {
  std::set<std::string> texts;
  for (const KernelVariant& variant : list) texts.insert(text_of(variant));
  return texts;
}

TEST(KnownGpus, AreNamedByTheirArchitecture) {
  for (const std::string& name : cuda::known_architectures()) {
    const auto info = cuda::known_gpu(name);
    ASSERT_TRUE(info.has_value()) << name;
    EXPECT_EQ(info->architecture(), name);
    EXPECT_GE(info->shared_bytes_per_block, 64 * 1024);
  }
  EXPECT_EQ(cuda::known_gpu("sm_90")->architecture(), "sm_90a");
  EXPECT_FALSE(cuda::known_gpu("sm_70").has_value());
  EXPECT_FALSE(cuda::known_gpu("").has_value());
}

TEST(DescribedGpu, MakesPlansAndRunsNothing) {
  const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu("sm_80"));
  EXPECT_TRUE(gpu->is_described());
  const auto kernel = gpu->kernel({"merge.cu", "flash_fwd_merge", "struct Config {};", {}});
  ASSERT_FALSE(kernel.ok());
  EXPECT_THAT(kernel.status().message(), HasSubstr("only described"));
  cuda::GpuAllocator allocator(*gpu);
  EXPECT_FALSE(allocator.allocate(256, 256, Stream{}, Tag{}).ok());
}

TEST(KernelVariants, ArchitecturesThatAreNotKnownAreRefused) {
  const auto list = kernel_variants("sm_12", VariantSelection::kCommon);
  ASSERT_FALSE(list.ok());
  EXPECT_EQ(list.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(list.status().message(), HasSubstr("sm_90a"));
}

TEST(KernelVariants, EveryArchitectureHasProductionKernels) {
  for (const std::string& name : cuda::known_architectures()) {
    const auto list = kernel_variants(name, VariantSelection::kSmoke);
    ASSERT_TRUE(list.ok()) << list.status().message();
    EXPECT_FALSE(list->empty()) << name;
    bool forward = false, backward = false;
    for (const KernelVariant& variant : *list) {
      if (name != "sm_75" && !variant.production) continue;
      forward |= variant.spec.entry.find("flash_fwd") != std::string::npos;
      backward |= variant.spec.entry.find("flash_bwd") != std::string::npos;
    }
    EXPECT_TRUE(forward && backward) << name;
  }
}

// Deliberate faults (kernels/tile/mutation.h) are for tests, which add kMutation to a Config.
TEST(KernelVariants, EachIsListedOnceFitsItsGpuAndHasNoFault) {
  for (const auto& [name, selection] : {std::pair{"sm_75", VariantSelection::kRepresentative},
                                        {"sm_80", VariantSelection::kAll},
                                        {"sm_90a", VariantSelection::kRepresentative},
                                        {"sm_120a", VariantSelection::kCommon}}) {
    const auto list = kernel_variants(name, selection);
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(texts_of(*list).size(), list->size());
    for (const KernelVariant& variant : *list) {
      const auto limit = static_cast<unsigned>(cuda::known_gpu(name)->shared_bytes_per_block);
      EXPECT_LE(variant.shared_bytes, limit) << name << " " << variant.problem;
      EXPECT_GE(variant.threads, 32u) << text_of(variant);
      EXPECT_LE(variant.threads, 1024u) << text_of(variant);
      EXPECT_THAT(variant.spec.entry, HasSubstr("flash_"));
      EXPECT_THAT(variant.spec.config, Not(HasSubstr("kMutation"))) << text_of(variant);
    }
  }
}

TEST(PublicMerge, PrintsNoFaultEither) {
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    EXPECT_THAT(cuda::merge_kernel(dtype, 4).config, Not(HasSubstr("kMutation")));
  }
}

TEST(KernelVariants, SmallerListsAndOtherSizesStayInsideTheWholeList) {
  const auto all = kernel_variants("sm_90a", VariantSelection::kAll);
  ASSERT_TRUE(all.ok());
  const std::set<std::string> whole = texts_of(*all);
  for (const auto part :
       {VariantSelection::kCommon, VariantSelection::kSmoke, VariantSelection::kRepresentative}) {
    const auto list = kernel_variants("sm_90a", part);
    ASSERT_TRUE(list.ok());
    EXPECT_LT(list->size(), all->size());
    for (const KernelVariant& variant : *list) {
      EXPECT_TRUE(whole.contains(text_of(variant))) << variant.problem << "\n" << text_of(variant);
    }
  }

  // Config holds no length, batch or head count: other sizes may choose among the variants of the
  // list, never outside it.
  std::vector<cases::Case> other;
  for (const std::int64_t seqlen : {1, 17, 130, 512, 1000, 3000, 16384}) {
    for (const std::int64_t batch : {1, 5}) {
      for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
        for (const std::int64_t head_dim : {64, 128, 256}) {
          cases::Case c;
          c.batch = batch;
          c.heads_q = 6;
          c.heads_k = 3;
          c.seqlen_q = seqlen;
          c.seqlen_k = 16384 / seqlen + 3;
          c.head_dim = c.head_dim_v = head_dim;
          c.dtype = dtype;
          c.causal = Causal::kBottomRight;
          other.push_back(c);
        }
      }
    }
  }
  for (const KernelVariant& variant :
       variants_of(*cuda::known_gpu("sm_90a"), other, /*production_only=*/false)) {
    EXPECT_TRUE(whole.contains(text_of(variant))) << variant.problem << "\n" << text_of(variant);
  }
}

bool in_ci() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string(ci) == "true";
}

// Under CI a missing compiler is a failure: nothing else there sees the kernels.
#define NEED_COMPILER()                               \
  if (auto nvrtc = cuda::Nvrtc::get(); !nvrtc.ok()) { \
    if (in_ci()) FAIL() << nvrtc.status().message();  \
    GTEST_SKIP() << nvrtc.status().message();         \
  }

class Smoke : public ::testing::TestWithParam<const char*> {};

TEST_P(Smoke, OneVariantOfEachKernelCompiles) {
  NEED_COMPILER();
  const auto list = kernel_variants(GetParam(), VariantSelection::kSmoke);
  ASSERT_TRUE(list.ok());
  std::string folder = (fs::temp_directory_path() / "flashlab-kernels-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  PrecompileOptions options;
  options.folder = folder;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::size_t announced = 0;
  options.progress = [&](std::size_t, const std::string&) { ++announced; };
  const auto compiled = precompile(*list, GetParam(), options);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  EXPECT_EQ(compiled->size(), list->size());
  EXPECT_EQ(announced, list->size());
  for (const CompiledVariant& kernel : *compiled) {
    SCOPED_TRACE(kernel.variant.implementation + " " + kernel.variant.spec.entry + ": " +
                 kernel.variant.problem);
    EXPECT_TRUE(kernel.status.ok()) << kernel.status.message();
    EXPECT_GT(kernel.use.registers, 0);
    EXPECT_LE(kernel.use.registers * static_cast<int>(kernel.variant.threads), 65536);
  }
  // A second round finds everything; others may read what they will use.
  const auto again = precompile(*list, GetParam(), options);
  ASSERT_TRUE(again.ok());
  for (const CompiledVariant& kernel : *again) EXPECT_EQ(kernel.seconds, 0);
  EXPECT_NE(fs::status(folder).permissions() & fs::perms::others_read, fs::perms::none);
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Architectures, Smoke, ::testing::Values("sm_80"));

TEST(Precompile, StopsWhenCancelledAndRefusesAFolderOthersMayWriteTo) {
  NEED_COMPILER();
  const auto list = kernel_variants("sm_80", VariantSelection::kSmoke);
  ASSERT_TRUE(list.ok());
  std::string folder = (fs::temp_directory_path() / "flashlab-kernels-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::atomic<bool> cancelled{true};
  PrecompileOptions options;
  options.folder = folder;
  options.cancel = &cancelled;
  const auto none = precompile(*list, "sm_80", options);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
  fs::permissions(folder, fs::perms::others_write, fs::perm_options::add);
  const auto refused = precompile(*list, "sm_80", options);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("chmod go-w"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace flashlab::lab
