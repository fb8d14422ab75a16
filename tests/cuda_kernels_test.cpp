// The list of kernel variants, made for GPUs that are only described, and one variant per kernel
// through the compiler. How good the code is, registers and spills, tools/check_kernels.py judges
// on more variants.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api/backend.h"
#include "api/context_state.h"
#include "api/implementation.h"
#include "cuda/kernels/merge/plan.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_compiler.h"
#include "lab/data/case_data.h"
#include "lab/kernels/precompile.h"
#include "lab/kernels/variants.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/kernel_store/kernel.h"
#include "runtime/kernel_store/nvrtc.h"
#include "runtime/kernel_store/sources.h"

namespace flashlab::lab {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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
  const auto kernel =
      cuda::load_kernel(*gpu, {"merge/kernel.cu", "flash_fwd_merge", "struct Config {};", {}});
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
      if (!variant.production) continue;
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
      // These are work of one thread.
      const std::string& entry = variant.spec.entry;
      const bool single = entry == "lab_spin" || entry == "flash_opt_loss_scale" ||
                          entry == "flash_fwd_loss_of_sum";
      EXPECT_GE(variant.threads, single ? 1u : 32u) << text_of(variant);
      EXPECT_LE(variant.threads, 1024u) << text_of(variant);
      EXPECT_THAT(variant.spec.entry, AnyOf(HasSubstr("flash_"), StartsWith("lab_")));
      EXPECT_THAT(variant.spec.config, Not(HasSubstr("kMutation"))) << text_of(variant);
    }
  }
}

// "ladder/fa2.cu flash_fwd_fa2" of every kernel in the device sources.
std::set<std::string> kernels_in_sources() {
  const std::regex kernel("__global__[^{;]*?((?:flash|lab)_[a-z0-9_]+)\\(");
  std::set<std::string> out;
  for (const cuda::EmbeddedSource* file = cuda::kEmbeddedSources; file->name != nullptr; ++file) {
    const std::string name = file->name, text = file->text;
    if (!name.ends_with(".cu")) continue;
    const std::size_t before = out.size();
    for (std::sregex_iterator at(text.begin(), text.end(), kernel), end; at != end; ++at) {
      out.insert(name + " " + at->str(1));
    }
    EXPECT_GT(out.size(), before) << name;
  }
  return out;
}

// A kernel that no list names is compiled by nobody before somebody runs it.
TEST(KernelVariants, EveryKernelOfTheSourcesIsListedForEveryArchitecture) {
  const std::set<std::string> there = kernels_in_sources();
  for (const std::string& name : cuda::known_architectures()) {
    const auto list = kernel_variants(name, VariantSelection::kSmoke);
    ASSERT_TRUE(list.ok()) << list.status().message();
    std::set<std::string> listed;
    for (const KernelVariant& each : *list) {
      listed.insert(each.spec.source + " " + each.spec.entry);
    }
    for (const std::string& kernel : there) {
      const bool newer = kernel.starts_with("sm80/") || kernel.starts_with("decode/") ||
                         kernel.starts_with("schedule/") || kernel.starts_with("train/") ||
                         kernel.ends_with("flash_bwd_fa2_mma");
      const bool hopper = flashlab::testing::needs_hopper(kernel);
      EXPECT_EQ(listed.contains(kernel),
                !(newer && name == "sm_75") && !(hopper && name != "sm_90a"))
          << name << " " << kernel;
    }
  }
}

TEST(PublicMerge, IsReadyWherePrecompiledKernelsAre) {
  const auto list = kernel_variants("sm_75", VariantSelection::kCommon);
  ASSERT_TRUE(list.ok());
  const std::set<std::string> texts = texts_of(*list);
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (const int vector : {4, 1}) {
      const cuda::KernelSpec spec = cuda::merge_kernel(dtype, vector);
      EXPECT_TRUE(texts.contains("merge " + spec.source + " " + spec.entry + "\n" + spec.config));
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

// The driver's ptxas has not run: nothing is known of registers, and nothing is wrong.
TEST(Precompile, PtxHasNoReportAndIsNoFailure) {
  NEED_COMPILER();
  std::string folder = (fs::temp_directory_path() / "flashlab-ptx-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  KernelVariant variant;
  variant.spec = {"config_types.h", "nothing", "extern \"C\" __global__ void nothing() {}\n", {}};
  PrecompileOptions options;
  options.folder = folder;
  for (const char* round : {"compiled", "found"}) {
    const auto compiled = precompile({variant}, "compute_80", options);
    ASSERT_TRUE(compiled.ok() && compiled->size() == 1) << round;
    EXPECT_TRUE(compiled->front().status.ok()) << compiled->front().status.message();
    EXPECT_FALSE(compiled->front().use.has_value()) << round;
    EXPECT_GT(compiled->front().image_bytes, 0) << round;
  }
  fs::remove_all(folder);
}

class Smoke : public ::testing::TestWithParam<const char*> {};

TEST_P(Smoke, OneVariantOfEachKernelCompiles) {
  NEED_COMPILER();
  auto list = kernel_variants(GetParam(), VariantSelection::kSmoke);
  ASSERT_TRUE(list.ok());
  for (KernelVariant& variant : *list) variant.spec = flashlab::testing::quick(variant.spec);
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
    ASSERT_TRUE(kernel.use.has_value());
    EXPECT_GT(kernel.use->registers, 0);
    EXPECT_LE(kernel.use->registers * static_cast<int>(kernel.variant.threads), 65536);
  }
  // A second round finds everything; others may read what they will use.
  const auto again = precompile(*list, GetParam(), options);
  ASSERT_TRUE(again.ok());
  for (const CompiledVariant& kernel : *again) EXPECT_EQ(kernel.seconds, 0);
  EXPECT_NE(fs::status(folder).permissions() & fs::perms::others_read, fs::perms::none);
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Architectures, Smoke, ::testing::Values("sm_80"));

// ---- what runs where no implementation is named ------------------------------------------------

constexpr Device kGpu{DeviceKind::kCuda, 0};

using PlanResult = Result<std::shared_ptr<internal::PlanState>>;

// A GPU that is only described, and the plan that a call gets there.
struct Described {
  explicit Described(const std::string& architecture)
      : gpu(cuda::GpuDevice::described(cuda::known_gpu(architecture).value())),
        context(options(), gpu.get()) {}
  static ContextOptions options() {
    ContextOptions out;
    out.device = kGpu;
    out.threads = 1;
    return out;
  }
  PlanResult plan(const cases::Case& c, Pass pass) const {
    Problem normalised;
    const auto geometry = internal::validate(problem_of(c, pass, "", kGpu), &normalised);
    if (!geometry.ok()) return geometry.status();
    const auto candidates =
        internal::backend_of(DeviceKind::kCuda).candidates(&gpu->info(), geometry->head_dim);
    return internal::plan_with_first(context, candidates, normalised, *geometry);
  }
  std::unique_ptr<cuda::GpuDevice> gpu;
  internal::ContextState context;
};

struct Call {
  DType dtype;
  std::int64_t head_dim;
  cases::MaskKind mask;
  bool deterministic;
};

// By hand: a tensor-core rung for fp16 forward, else the best of those on plain cores; naive where
// no rung goes.
const char* expected_on_turing(const Call& call, Pass pass) {
  if (call.mask != cases::MaskKind::kNone || call.head_dim > 128) return "naive";
  if (pass == Pass::kBackward) return call.deterministic ? "fa2-deterministic" : "fa2";
  return call.dtype == DType::kFp16 ? "fa2-mma" : "fa2-shuffle";
}

std::vector<Call> default_calls() {
  std::vector<Call> out;
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const auto mask :
           {cases::MaskKind::kNone, cases::MaskKind::kBool, cases::MaskKind::kAdditive}) {
        for (const bool deterministic : {false, true}) {
          out.push_back({dtype, head_dim, mask, deterministic});
        }
      }
    }
  }
  return out;
}

cases::Case case_of(const Call& call) {
  cases::Case c;
  c.batch = 1;
  c.heads_q = 4;
  c.heads_k = 2;
  c.seqlen_q = c.seqlen_k = 300;
  c.head_dim = c.head_dim_v = call.head_dim;
  c.dtype = call.dtype;
  c.mask = call.mask;
  c.causal = Causal::kBottomRight;
  c.deterministic = call.deterministic;
  return c;
}

TEST(Default, OnTuringIsTheBestRungThatServesTheProblem) {
  const Described turing("sm_75");
  for (const Call& call : default_calls()) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const cases::Case c = case_of(call);
      SCOPED_TRACE(c.describe() + (pass == Pass::kForward ? " forward" : " backward"));
      const PlanResult plan = turing.plan(c, pass);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      EXPECT_EQ((*plan)->implementation, expected_on_turing(call, pass));
      const std::string& chosen = (*plan)->implementation;
      const std::string& reason = (*plan)->reasons.back();
      // The choice is named once, and not among those that were passed over.
      EXPECT_THAT(reason, StartsWith(chosen + " is the first that serves the problem"));
      EXPECT_EQ(reason.find(", " + chosen + ","), std::string::npos) << reason;
      EXPECT_FALSE(reason.ends_with(" " + chosen)) << reason;
    }
  }
}

// Kernels of the default plans; of those with masks, which differ in how a mask is read only, fp16.
std::vector<KernelVariant> default_kernels_on_turing() {
  const Described turing("sm_75");
  std::set<std::string> known;
  std::vector<KernelVariant> out;
  for (const Call& call : default_calls()) {
    const bool plain = call.mask == cases::MaskKind::kNone;
    if (!plain && (call.dtype != DType::kFp16 || call.head_dim != 64)) continue;
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const PlanResult plan = turing.plan(case_of(call), pass);
      EXPECT_TRUE(plan.ok()) << plan.status().message();
      if (!plan.ok()) continue;
      for (const auto& [step, kernel] : (*plan)->program()->kernels()) {
        KernelVariant variant;
        variant.spec = flashlab::testing::quick(kernel->spec);
        variant.threads = kernel->shape.threads;
        variant.problem = case_of(call).describe();
        if (known.insert(text_of(variant)).second) out.push_back(std::move(variant));
      }
    }
  }
  return out;
}

TEST(Default, OnTuringCompiles) {
  NEED_COMPILER();
  const std::vector<KernelVariant> list = default_kernels_on_turing();
  ASSERT_GT(list.size(), 50u);
  std::string folder = (fs::temp_directory_path() / "flashlab-kernels-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  PrecompileOptions options;
  options.folder = folder;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const auto compiled = precompile(list, "sm_75", options);
  fs::remove_all(folder);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  ASSERT_EQ(compiled->size(), list.size());
  for (const CompiledVariant& kernel : *compiled) {
    SCOPED_TRACE(kernel.variant.spec.entry + ": " + kernel.variant.problem);
    EXPECT_TRUE(kernel.status.ok()) << kernel.status.message();
    ASSERT_TRUE(kernel.use.has_value());
    EXPECT_LE(kernel.use->registers * static_cast<int>(kernel.variant.threads), 65536);
  }
}

TEST(Default, OnTuringRefusesTf32InWords) {
  cases::Case c = case_of({DType::kFp32, 64, cases::MaskKind::kNone, false});
  c.precision = Precision::kTf32;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const PlanResult plan = Described("sm_75").plan(c, pass);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(plan.status().message(),
                AllOf(HasSubstr("lacks tf32"), HasSubstr("fa2-shuffle"), HasSubstr("naive")));
  }
}

// Hopper has kernels of its own before them. Forward leaves fp32, odd head dims and fp32 masks of
// large heads; backward leaves masks, and a fixed order of additions to head dim 128.
TEST(Default, OnNewerGpusIsSm80) {
  for (const std::string& name : cuda::known_architectures()) {
    if (name == "sm_75") continue;
    const Described newer(name);
    const auto defaults = internal::backend_of(DeviceKind::kCuda).candidates(&newer.gpu->info());
    ASSERT_EQ(defaults.size(), name == "sm_90a" ? 3u : 2u) << name;
    EXPECT_EQ(defaults.back()->name, "sm80") << name;
    EXPECT_EQ(defaults.front()->name, name == "sm_90a" ? "sm90" : "decode") << name;
    // Wider heads have scores in memory; what that lacks is said.
    cases::Case wide = case_of({DType::kBf16, 320, cases::MaskKind::kNone, false});
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const PlanResult plan = newer.plan(wide, pass);
      ASSERT_TRUE(plan.ok()) << name << " " << plan.status().message();
      EXPECT_EQ((*plan)->implementation, "naive") << name;
    }
    wide.softcap = 20.0f;
    EXPECT_THAT(newer.plan(wide, Pass::kForward).status().message(), HasSubstr("softcap"));
    for (const Call& call : default_calls()) {
      cases::Case c = case_of(call);
      c.precision = c.dtype == DType::kFp32 ? Precision::kTf32 : Precision::kIeee;
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const PlanResult plan = newer.plan(c, pass);
        ASSERT_TRUE(plan.ok()) << name << " " << plan.status().message();
        const bool forward =
            c.head_dim % 8 == 0 && (c.mask != cases::MaskKind::kAdditive || c.head_dim <= 192);
        const bool backward = c.head_dim % 8 == 0 && c.mask == cases::MaskKind::kNone &&
                              (!c.deterministic || c.head_dim > 128);
        const bool hopper = name == "sm_90a" && c.dtype != DType::kFp32 &&
                            (pass == Pass::kForward ? forward : backward);
        EXPECT_EQ((*plan)->implementation, hopper ? "sm90" : "sm80") << c.describe();
      }
    }
  }
}

// The default selection of `precompile` holds what the default plans launch.
TEST(Default, OnTuringIsWhatPrecompileHolds) {
  const auto list = kernel_variants("sm_75", VariantSelection::kCommon);
  ASSERT_TRUE(list.ok()) << list.status().message();
  const std::set<std::string> held = texts_of(*list);
  const Described turing("sm_75");
  for (const KernelVariant& variant : *list) EXPECT_TRUE(variant.production);
  for (const DType dtype : {DType::kFp16, DType::kBf16, DType::kFp32}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      const Call call{dtype, head_dim, cases::MaskKind::kNone, false};
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const PlanResult plan = turing.plan(case_of(call), pass);
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        for (const auto& [step, kernel] : (*plan)->program()->kernels()) {
          const cuda::KernelSpec& spec = kernel->spec;
          EXPECT_TRUE(held.contains((*plan)->implementation + " " + spec.source + " " + spec.entry +
                                    "\n" + spec.config))
              << spec.entry << spec.config;
        }
      }
    }
  }
}

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
