// Proves that the checks of GPU kernels can fail: every kernel family with one deliberate fault at
// a time (cuda/kernels/tile/mutation.h). Without a GPU each mutant is compiled and must be other
// code than the kernel; on a GPU the acceptance rule must reject it, and accept the kernel.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "api/context_state.h"
#include "api/implementation.h"
#include "cuda/kernels/merge/launch_arguments.h"
#include "cuda/kernels/merge/plan.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_compiler.h"
#include "cuda_gpu.h"
#include "cuda_mutants.h"
#include "lab/check/check.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::testing {
namespace {

using cases::Case;
using device::Mutation;

// Kernels that are tested together: those of `entry` in the plans of `problem`.
struct Family {
  const char* name;
  Mutant kernels;
  Case problem;
  std::vector<Mutation> faults;
  friend void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }
};

const std::vector<Mutation> kForwardFaults = {Mutation::kWrongScale, Mutation::kShiftedMask,
                                              Mutation::kDroppedTile, Mutation::kUnmaskedTail,
                                              Mutation::kStaleSums};
// An unmasked tail has no effect in backward: its keys are zeros and their gradients not stored.
const std::vector<Mutation> kBackwardFaults = {
    Mutation::kWrongScale,   Mutation::kShiftedMask,   Mutation::kDroppedTile,
    Mutation::kMissingDelta, Mutation::kUnscaledGradQ, Mutation::kMissingLseGradient};

constexpr const char* kHopperRungs[] = {"fa2-tma", "fa2-wgmma", "fa3", "fa3-turns", "fa3-frozen"};

// Lengths beside the edges of all tiles, with room for a tail in the last one; grouped heads.
Case small(DType dtype) {
  Case out;
  out.batch = 1;
  out.heads_q = 2;
  out.heads_k = 1;
  out.seqlen_q = 150;
  out.seqlen_k = 300;
  out.head_dim = out.head_dim_v = 64;
  out.dtype = dtype;
  out.lse_gradient = true;
  return out;
}

Case few_queries(DType dtype) {
  Case out = small(dtype);
  out.seqlen_q = 17;
  out.seqlen_k = 2000;
  return out;
}

// So many tiles that none is cut: a row of one block sees several blocks of keys.
Case many_heads(DType dtype) {
  Case out = small(dtype);
  out.heads_q = 264;
  out.heads_k = 132;
  return out;
}

// So few tiles before so many keys that the keys are shared out and the parts merged.
Case many_keys(DType dtype) {
  Case out = small(dtype);
  out.seqlen_k = 4000;
  return out;
}

Case featured(Case out) {
  out.seqlen_k = out.seqlen_q;
  out.window = Window{40, 30};
  out.softcap = 2.0f;
  out.alibi = true;
  out.dropout = 0.3f;
  return out;
}

std::vector<Family> families() {
  const Case fp32 = small(DType::kFp32), fp16 = small(DType::kFp16);
  // What sends fp32 blocks down their other paths: rows of very different scales, few channels.
  Case guarded = fp32, narrow = fp32;
  guarded.fill = cases::Fill::kMixedScales;
  narrow.head_dim = narrow.head_dim_v = 4;

  std::vector<Family> out;
  const auto add = [&](const char* name, const char* implementation, Pass pass, const char* entry,
                       const Case& problem, std::vector<Mutation> faults) {
    out.push_back({name, {implementation, pass, entry, {}}, problem, std::move(faults)});
  };
  const Pass forward = Pass::kForward, backward = Pass::kBackward;
  add("sm80_forward", "sm80", forward, "", fp16, kForwardFaults);
  add("sm80_merge", "sm80", forward, "flash_fwd_sm80_merge", few_queries(DType::kFp16),
      {Mutation::kStaleSums});
  // Enough keys for parts of a tile in several blocks.
  Case decoded = few_queries(DType::kFp16);
  decoded.seqlen_q = 3;
  add("decode", "decode", forward, "flash_fwd_decode", decoded, kForwardFaults);
  add("sm80_backward", "sm80", backward, "", fp16, kBackwardFaults);
  add("sm90_forward", "sm90", forward, "flash_fwd_sm90", many_heads(DType::kFp16), kForwardFaults);
  add("sm90_stream", "sm90", forward, "flash_fwd_sm90", many_keys(DType::kFp16),
      {Mutation::kWrongScale, Mutation::kShiftedMask, Mutation::kDroppedTile,
       Mutation::kUnmaskedTail});
  add("sm90_merge", "sm90", forward, "flash_fwd_sm90_merge", many_keys(DType::kFp16),
      {Mutation::kStaleSums});
  add("sm90_backward", "sm90", backward, "", fp16, kBackwardFaults);
  add("fp32_forward", "sm80", forward, "flash_fwd_fp32", fp32, kForwardFaults);
  add("fp32_forward_guarded", "sm80", forward, "flash_fwd_fp32_guarded", guarded, kForwardFaults);
  add("fp32_merge", "sm80", forward, "flash_fwd_fp32_merge", few_queries(DType::kFp32),
      {Mutation::kStaleSums});
  add("fp32_backward", "sm80", backward, "", fp32, kBackwardFaults);
  const std::vector<Mutation> walk = {Mutation::kWrongScale, Mutation::kShiftedMask,
                                      Mutation::kDroppedTile, Mutation::kUnscaledGradQ};
  add("fp32_backward_guarded", "sm80", backward, "flash_bwd_fp32_guarded", guarded, walk);
  add("fp32_backward_plain", "sm80", backward, "flash_bwd_fp32_plain", narrow, walk);
  for (const char* rung :
       {"fa1", "fa1-vector", "fa1-shuffle", "fa2", "fa2-vector", "fa2-shuffle"}) {
    add(rung, rung, forward, "", fp32, kForwardFaults);
  }
  add("fa1-mma", "fa1-mma", forward, "", fp16, kForwardFaults);
  add("fa2-mma", "fa2-mma", forward, "", fp16, kForwardFaults);
  for (const char* rung : kHopperRungs) {
    add(rung, rung, forward, "", fp16, kForwardFaults);
  }
  add("fa2_backward", "fa2", backward, "", fp32, kBackwardFaults);
  add("fa2-deterministic", "fa2-deterministic", backward, "", fp32, kBackwardFaults);
  add("fa2-mma_backward", "fa2-mma", backward, "", fp16, kBackwardFaults);
  // Windows, softcap, ALiBi and dropout: all at once, since each fault is of one.
  const std::vector<Mutation> forward_features = {Mutation::kShiftedLeft,
                                                  Mutation::kShiftedDistance, Mutation::kOtherPairs,
                                                  Mutation::kUnscaledKeep, Mutation::kWrongScale};
  std::vector<Mutation> backward_features = forward_features;
  backward_features.push_back(Mutation::kMissingSlope);
  // Few channels: seven compilations of 1.4 s each instead of 3.2 s with 64 of them, and masks,
  // distances and dropout are the same code.
  Case thin = featured(fp16);
  thin.head_dim = thin.head_dim_v = 16;
  add("sm80_forward_features", "sm80", forward, "", thin, forward_features);
  add("sm80_backward_features", "sm80", backward, "", featured(fp16), backward_features);
  add("sm90_forward_features", "sm90", forward, "", featured(fp16), forward_features);
  add("sm90_backward_features", "sm90", backward, "", featured(fp16), backward_features);
  add("fp32_forward_features", "sm80", forward, "flash_fwd_fp32", featured(fp32), forward_features);
  add("fp32_backward_features", "sm80", backward, "flash_bwd_fp32_plain", featured(fp32),
      backward_features);
  add("naive_forward", "naive", forward, "", fp32, {Mutation::kWrongScale, Mutation::kShiftedMask});
  add("naive_backward", "naive", backward, "", fp32,
      {Mutation::kWrongScale, Mutation::kShiftedMask, Mutation::kMissingDelta,
       Mutation::kMissingLseGradient, Mutation::kUnscaledGradQ});
  return out;
}

// What a fault shows in: a diagonal for a shifted one, growing maxima for stale sums.
Case problem_for(const Family& family, Mutation fault) {
  Case out = family.problem;
  if (fault == Mutation::kShiftedMask) {
    out.causal = Causal::kTopLeft;
    out.seqlen_q = out.seqlen_k = out.seqlen_q > 16 ? 200 : 16;
  }
  const bool plain = out.fill == cases::Fill::kNormal && out.seqlen_q > 64;
  if (fault == Mutation::kStaleSums && plain) out.fill = cases::Fill::kLargeScores;
  out.name = fmt::format("{} with fault {}", family.name, static_cast<int>(fault));
  return out;
}

Mutant mutant_of(const Family& family, Mutation fault) {
  Mutant out = family.kernels;
  out.fault = fault;
  return out;
}

// PTX without what depends on the line at which something stands, and without the fault's number.
std::string code_of(const std::string& ptx) {
  std::istringstream lines(ptx);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(".section") != std::string::npos) break;  // debug information, to the end
    bool kept = true;
    for (const char* word : {".loc", ".file", "kMutation"}) {
      kept = kept && line.find(word) == std::string::npos;
    }
    if (kept) out += line + "\n";
  }
  return out;
}

// Each text compiled once, to PTX: machine code would take several times as long and say no more.
class Compiler {
 public:
  std::string code(const cuda::KernelSpec& spec) {
    auto [place, fresh] = known_.try_emplace(spec.entry + "\n" + spec.config);
    if (fresh) place->second = compiled(spec);
    return place->second;
  }
  // Empty when two kernels can come out as the same code, else a line in which they differ. NVRTC
  // does not always write the same for the same text (a vector load more or less; NVRTC 13.0,
  // fa1-vector: one time in four), so each is compiled until one has been seen of both. They change
  // places from attempt to attempt: in turns alone each came out in a way of its own 30 times
  // (fp32_backward beside eight other processes, 2026-11-21).
  std::string difference(const cuda::KernelSpec& one, const cuda::KernelSpec& other) {
    std::set<std::string> ones{code(one)}, others;
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      for (const bool first : {attempt % 2 == 1, attempt % 2 == 0}) {
        const std::string fresh = compiled(first ? one : other);
        if ((first ? others : ones).contains(fresh)) return "";
        (first ? ones : others).insert(fresh);
      }
    }
    std::istringstream left(*ones.begin()), right(*others.begin());
    std::string a, b;
    do {
      a.clear();
      b.clear();
      std::getline(left, a);
      std::getline(right, b);
    } while (a == b && (left || right));
    return fmt::format("{} and {} kinds of code in {} attempts, here \"{}\" and \"{}\"",
                       ones.size(), others.size(), kMaxAttempts, a, b);
  }

 private:
  static constexpr int kMaxAttempts = 30;

  static std::string compiled(const cuda::KernelSpec& spec) {
    const auto image =
        cuda::compile_image(quick(spec), needs_hopper(spec.source) ? "compute_90a" : "compute_80");
    EXPECT_TRUE(image.ok()) << spec.entry << ": " << image.status().message();
    return image.ok() ? code_of(image->kernel.image) : "";
  }

  std::map<std::string, std::string> known_;
};

constexpr auto kUnknown = static_cast<Mutation>(98), kOtherUnknown = static_cast<Mutation>(99);

class EveryFamily : public ::testing::TestWithParam<Family> {};

TEST_P(EveryFamily, MutantsCompileToOtherCode) {
  NEED_COMPILER();
  const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu("sm_90a"));
  ContextOptions options;
  options.device = kGpu;
  options.threads = 1;
  const internal::ContextState context(options, gpu.get());
  const Family& family = GetParam();
  Compiler compiler;
  // Compared with a fault that no kernel knows, so that texts differ in one number: NVRTC 13.0 has
  // been seen to number registers differently for a Config with and without the member. The
  // control: two such faults are the same kernel.
  const auto first = family.faults.front();
  const Case plain = problem_for(family, first);
  const auto sound = kernels_of(context, mutant_of(family, kUnknown), plain);
  const auto other = kernels_of(context, mutant_of(family, kOtherUnknown), plain);
  for (const auto& shipped : kernels_of(context, mutant_of(family, Mutation::kNone), plain)) {
    EXPECT_EQ(shipped.config.find("kMutation"), std::string::npos);
  }
  for (std::size_t i = 0; i < sound.size(); ++i) {
    EXPECT_EQ(compiler.difference(sound[i], other[i]), "") << sound[i].entry;
  }
  for (const Mutation fault : family.faults) {
    const Case problem = problem_for(family, fault);
    const auto kernels = kernels_of(context, mutant_of(family, kUnknown), problem);
    const auto mutants = kernels_of(context, mutant_of(family, fault), problem);
    ASSERT_EQ(kernels.size(), mutants.size());
    bool differs = false;
    for (std::size_t i = 0; i < kernels.size() && !differs; ++i) {
      ASSERT_NE(mutants[i].config.find("kMutation"), std::string::npos);
      differs = compiler.code(kernels[i]) != compiler.code(mutants[i]);
    }
    EXPECT_TRUE(differs) << problem.name << ": no kernel reads it";
  }
}

// The outputs of the family's pass that the acceptance rule rejects.
std::vector<std::string> rejected(const Context& context, const Mutant& mutant,
                                  const Case& problem) {
  use_mutant(mutant);
  lab::CheckRun run;
  run.cases = {problem};
  run.implementations = {mutant.implementation};
  run.options.passes = {mutant.pass};
  run.options.repeat = false;
  const lab::CheckSummary summary = lab::check_cases(context, run);
  std::vector<std::string> out;
  for (const lab::CheckReport& report : summary.reports) {
    EXPECT_EQ(report.status, lab::RunStatus::kOk) << report.failure();
    for (const lab::CheckItem& item : report.items) {
      if (!item.passed) out.push_back(item.what + ": " + item.message);
    }
  }
  EXPECT_EQ(summary.reports.size(), 1u);
  return out;
}

// Fills the cache with all kernels of a family, several at a time: compiling is most of the work.
void compile_all(const Context& context, const Family& family) {
  std::vector<cuda::KernelSpec> specs;
  for (const Mutation fault : family.faults) {
    for (const Mutation each : {Mutation::kNone, fault}) {
      for (auto& spec :
           kernels_of(context.state(), mutant_of(family, each), problem_for(family, fault)))
        specs.push_back(std::move(spec));
    }
  }
  const std::string architecture = context.state().gpu()->info().architecture();
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned n = 0; n < std::max(1u, std::thread::hardware_concurrency()); ++n) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < specs.size(); i = next++)
        (void)cuda::image_of(specs[i], architecture);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(EveryFamily, MutantsAreRejected) {
  auto context = Context::create({.device = kGpu});
  if (!context.ok()) GTEST_SKIP() << "no GPU: " << context.status().message();
  const std::string& name = GetParam().kernels.implementation;
  const bool hopper = name == "sm90" || std::ranges::count(kHopperRungs, name) > 0;
  if (hopper && context->state().gpu()->info().architecture() != "sm_90a") {
    GTEST_SKIP() << name << " runs on Hopper alone";
  }
  std::string folder =
      (std::filesystem::temp_directory_path() / "flashlab-mutants-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(setenv("FLASHLAB_CACHE", folder.c_str(), 1), 0);
  const Family& family = GetParam();
  compile_all(*context, family);
  for (const Mutation fault : family.faults) {
    const Case problem = problem_for(family, fault);
    // A context of its own: it has no plan of another mutant.
    const auto fresh = Context::create({.device = kGpu});
    const auto sound = rejected(*fresh, mutant_of(family, Mutation::kNone), problem);
    EXPECT_TRUE(sound.empty()) << problem.name << ": without the fault " << sound.front();
    const auto again = Context::create({.device = kGpu});
    const auto faulty = rejected(*again, mutant_of(family, fault), problem);
    EXPECT_FALSE(faulty.empty()) << problem.name << ": nobody noticed";
    if (!faulty.empty()) fmt::print("{}: {}\n", problem.name, faulty.front());
  }
  unsetenv("FLASHLAB_CACHE");
  std::filesystem::remove_all(folder);
}

// The public merge has no plan: its kernel is launched here, on rows of one head.
class PublicMerge : public GpuTest {
 protected:
  static constexpr int kParts = 3, kRows = 50, kColumns = 32;

  // The largest difference from the same merge on the CPU.
  float worst_difference(const cuda::KernelSpec& spec) {
    device::MergeArguments arguments{};
    std::vector<Partial> host;
    std::vector<std::vector<float>> o(kParts), lse(kParts);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (std::size_t part = 0; part < kParts; ++part) {
      for (int i = 0; i < kRows * kColumns; ++i) o[part].push_back(normal(random));
      for (int i = 0; i < kRows; ++i) lse[part].push_back(normal(random));
      host.push_back({tensor(o[part].data(), {1, kRows, 1, kColumns}),
                      tensor(lse[part].data(), {1, 1, kRows})});
      arguments.parts[part] = {{upload(o[part].data(), o[part].size() * 4), 0, kColumns, 0},
                               {upload(lse[part].data(), lse[part].size() * 4), 0, 0, 1}};
    }
    std::vector<float> expected(kRows * kColumns), got(expected.size());
    const auto cpu = Context::create();
    EXPECT_TRUE(
        merge(*cpu, Stream{}, host, tensor(expected.data(), {1, kRows, 1, kColumns}), std::nullopt)
            .ok());
    void* out = allocate(got.size() * 4);
    arguments.output = {{out, 0, kColumns, 0}, {nullptr, 0, 0, 0}};
    arguments.count = kParts;
    arguments.batch = arguments.heads = 1;
    arguments.seqlen = kRows;
    arguments.columns = kColumns;
    const auto kernel = cuda::load_kernel(*gpu_, spec);
    EXPECT_TRUE(kernel.ok()) << kernel.status().message();
    const auto current = gpu_->current();
    void* parameters[] = {&arguments};
    const cuda::LaunchShape shape{.grid_x = 1, .threads = 128};
    EXPECT_TRUE(cuda::launch(*gpu_, **kernel, shape, nullptr, parameters).ok());
    wait();
    download(got.data(), out, got.size() * 4);
    float worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::abs(got[i] - expected[i]));
    }
    return worst;
  }
};

TEST_F(PublicMerge, MutantIsRejected) {
  cuda::KernelSpec spec = cuda::merge_kernel(DType::kFp32, 4);
  constexpr float kBound = 1e-5f;  // cuda_inputs_test.cpp holds merges to less
  EXPECT_LT(worst_difference(spec), kBound);
  spec.config = with_fault(spec.config, Mutation::kStaleSums);
  EXPECT_GT(worst_difference(spec), kBound);
}

TEST(PublicMergeCode, MutantCompilesToOtherCode) {
  NEED_COMPILER();
  Compiler compiler;
  cuda::KernelSpec spec = cuda::merge_kernel(DType::kFp32, 4);
  const std::string sound = compiler.code(spec);
  spec.config = with_fault(spec.config, Mutation::kStaleSums);
  EXPECT_TRUE(sound != compiler.code(spec));
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryFamily, ::testing::ValuesIn(families()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace flashlab::testing
