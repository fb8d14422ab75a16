// Plans of the ladder's forward rungs on every known GPU: what they choose and what they refuse. No
// GPU is needed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "api/context_state.h"
#include "cuda/kernels/ladder/plan.h"
#include "cuda/launch/gpu_plan.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::cuda {
namespace {

using internal::Implementation;
using ::testing::AllOf;
using ::testing::HasSubstr;
using PlanResult = Result<std::shared_ptr<internal::PlanState>>;

constexpr Device kGpu{DeviceKind::kCuda, 0};

// A GPU that is only described, and a context on it.
struct Described {
  explicit Described(const std::string& architecture)
      : gpu(GpuDevice::described(known_gpu(architecture).value())), context(options(), gpu.get()) {}
  static ContextOptions options() {
    ContextOptions out;
    out.device = kGpu;
    out.threads = 1;
    return out;
  }
  std::unique_ptr<GpuDevice> gpu;
  internal::ContextState context;
};

Problem forward_problem(DType dtype, std::int64_t dim, TileOptions tiles = {}) {
  Problem out;
  out.q = out.o = contiguous_spec(dtype, {2, 65, 4, dim}, kGpu);
  out.k = out.v = contiguous_spec(dtype, {2, 96, 2, dim}, kGpu);
  out.lse = contiguous_spec(DType::kFp32, {2, 4, 65}, kGpu);
  out.options.tiles = tiles;
  return out;
}

PlanResult make(std::string_view name, const Described& on, const Problem& problem) {
  Problem normalised;
  const Result<internal::Geometry> geometry = internal::validate(problem, &normalised);
  if (!geometry.ok()) return geometry.status();
  for (const Implementation* rung : ladder_forward_implementations()) {
    if (rung->name == name) return rung->make_plan(on.context, normalised, *geometry);
  }
  for (const Implementation* rung : ladder_hopper_implementations()) {
    if (rung->name == name) return rung->make_plan(on.context, normalised, *geometry);
  }
  return Status(StatusCode::kInternal, {std::string(name), "no such rung", "", ""});
}

const runtime::KernelWork& only_step(const internal::PlanState& plan) {
  return *plan.program()->kernels().at(0).kernel;
}

std::string refusal(std::string_view name, const char* architecture, const Problem& problem) {
  const PlanResult plan = make(name, Described(architecture), problem);
  EXPECT_FALSE(plan.ok()) << name;
  EXPECT_EQ(plan.status().code(), StatusCode::kUnsupported);
  return plan.status().message();
}

TEST(LadderForward, DefaultsFitEveryGpu) {
  for (const std::string& architecture : known_architectures()) {
    const Described on(architecture);
    for (const Implementation* rung : ladder_forward_implementations()) {
      for (const std::int64_t dim : {1, 8, 33, 64, 80, 128}) {
        SCOPED_TRACE(architecture + " " + std::string(rung->name) + " " + std::to_string(dim));
        const PlanResult plan = make(rung->name, on, forward_problem(DType::kFp16, dim));
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        EXPECT_EQ((*plan)->implementation, rung->name);
        const runtime::KernelWork& step = only_step(**plan);
        EXPECT_LE(step.shape.shared_bytes,
                  static_cast<unsigned>(on.gpu->info().shared_bytes_per_block));
        EXPECT_LE(step.shape.threads, 1024u);
        EXPECT_EQ(step.shape.threads % 32, 0u);
      }
    }
  }
}

TEST(LadderForward, GridAndWorkspaceFollowTheOrderOfTheLoops) {
  const Described on("sm_90a");
  const Problem problem = forward_problem(DType::kFp32, 64, {.tile_q = 32, .tile_k = 32});
  const PlanResult first = make("fa1", on, problem), second = make("fa2", on, problem);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(only_step(**first).shape.grid_x, 2u * 4u);
  EXPECT_EQ(only_step(**second).shape.grid_x, 2u * 4u * 3u);
  EXPECT_GE((*first)->workspace_bytes, 2u * 4u * 65u * (64u + 2u) * sizeof(float));
  EXPECT_EQ((*second)->workspace_bytes, 0u);
}

TEST(LadderForward, TooManyThreadsNameRequiredAndAvailable) {
  const Problem problem = forward_problem(DType::kFp32, 64, {.tile_q = 64, .tile_k = 64});
  EXPECT_THAT(refusal("fa2", "sm_90a", problem),
              AllOf(HasSubstr("4096 threads required"), HasSubstr("1024 threads available")));
}

TEST(LadderForward, TooMuchSharedMemoryNamesRequiredAndAvailable) {
  const Problem problem = forward_problem(DType::kFp32, 128, {.tile_q = 4, .tile_k = 256});
  EXPECT_THAT(refusal("fa1", "sm_75", problem), AllOf(HasSubstr("bytes of shared memory required"),
                                                      HasSubstr("at most 65536 bytes available")));
}

TEST(LadderForward, FormsThatCannotWorkAreRefused) {
  const auto ask = [](DType dtype, int q, int k) {
    return forward_problem(dtype, 64, {.tile_q = q, .tile_k = k});
  };
  EXPECT_THAT(refusal("fa2-shuffle", "sm_90a", ask(DType::kFp32, 8, 64)), HasSubstr("32 lanes"));
  EXPECT_THAT(refusal("fa1-shuffle", "sm_90a", ask(DType::kFp32, 8, 12)),
              HasSubstr("power of two"));
  EXPECT_THAT(refusal("fa1-shuffle", "sm_90a", ask(DType::kFp32, 3, 8)), HasSubstr("warps"));
  EXPECT_THAT(refusal("fa2-mma", "sm_90a", ask(DType::kBf16, 24, 64)), HasSubstr("16"));
  EXPECT_THAT(refusal("fa2-mma", "sm_90a", ask(DType::kBf16, 64, 256)), HasSubstr("registers"));
}

TEST(LadderForward, OneSizeGivenTheOtherGivesWay) {
  const PlanResult plan = make("fa2", Described("sm_75"),
                               forward_problem(DType::kFp32, 128, {.tile_q = 64, .tile_k = 0}));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_THAT(only_step(**plan).spec.config, HasSubstr("kTileQ = 64"));
  EXPECT_THAT(only_step(**plan).spec.config, HasSubstr("kTileK = 16"));
}

TEST(LadderForward, HeadDimsBeyond128AndBf16ProductsOnTuringAreRefused) {
  for (const Implementation* rung : ladder_forward_implementations()) {
    EXPECT_THAT(refusal(rung->name, "sm_90a", forward_problem(DType::kFp16, 129)),
                HasSubstr("at most 128"));
  }
  EXPECT_THAT(refusal("fa1-mma", "sm_75", forward_problem(DType::kBf16, 64)), HasSubstr("sm_80"));
}

TEST(LadderForward, TensorCoreRungsDeclareNoFp32) {
  for (const Implementation* rung : ladder_forward_implementations()) {
    const bool mma = rung->name.ends_with("-mma");
    EXPECT_EQ(rung->supported.has(internal::Feature::kFp32), !mma) << rung->name;
  }
}

TEST(LadderHopper, RunsOnHopperAlone) {
  for (const std::string& architecture : known_architectures()) {
    const Described on(architecture);
    for (const Implementation* rung : ladder_hopper_implementations()) {
      SCOPED_TRACE(architecture + " " + std::string(rung->name));
      EXPECT_EQ(rung->runs_on_device(&on.gpu->info()), architecture == "sm_90a");
      if (architecture == "sm_90a") continue;
      EXPECT_THAT(refusal(rung->name, architecture.c_str(), forward_problem(DType::kFp16, 64)),
                  HasSubstr("9.0"));
    }
  }
}

TEST(LadderHopper, EveryHeadDimFitsWithEitherTile) {
  const Described on("sm_90a");
  for (const Implementation* rung : ladder_hopper_implementations()) {
    for (const std::int64_t dim : {8, 64, 72, 128}) {
      for (const int tile_k : {0, 64, 128}) {
        SCOPED_TRACE(std::string(rung->name) + " " + std::to_string(dim));
        const PlanResult plan =
            make(rung->name, on, forward_problem(DType::kBf16, dim, {.tile_k = tile_k}));
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        const runtime::KernelWork& step = only_step(**plan);
        EXPECT_EQ(step.shape.grid_x, 2u * 4u);  // 65 queries are one tile of 128
        EXPECT_LE(step.shape.shared_bytes,
                  static_cast<unsigned>(on.gpu->info().shared_bytes_per_block));
        EXPECT_EQ((*plan)->workspace_bytes, 0u);
      }
    }
  }
}

TEST(LadderHopper, WhatItCannotServeIsRefused) {
  for (const Implementation* rung : ladder_hopper_implementations()) {
    const auto refused = [&](const Problem& problem) {
      return refusal(rung->name, "sm_90a", problem);
    };
    EXPECT_THAT(refused(forward_problem(DType::kFp16, 136)), HasSubstr("up to 128"));
    EXPECT_THAT(refused(forward_problem(DType::kFp16, 33)), HasSubstr("multiple of 8"));
    EXPECT_THAT(refused(forward_problem(DType::kFp16, 64, {.tile_q = 64})), HasSubstr("tile_q"));
    EXPECT_THAT(refused(forward_problem(DType::kFp16, 64, {.tile_k = 96})), HasSubstr("tile_k"));
    Problem narrow = forward_problem(DType::kFp16, 64);
    narrow.q.alignment_bytes = 8;
    EXPECT_THAT(refused(narrow), HasSubstr("16 bytes"));
    Problem empty = forward_problem(DType::kFp16, 64);
    empty.k = empty.v = contiguous_spec(DType::kFp16, {2, 0, 2, 64}, kGpu);
    EXPECT_THAT(refused(empty), HasSubstr("sequence length"));
    EXPECT_FALSE(rung->supported.has(internal::Feature::kFp32)) << rung->name;
  }
  Problem turned = forward_problem(DType::kFp16, 64);
  turned.options.scale = -1.0;
  EXPECT_THAT(refusal("fa3-frozen", "sm_90a", turned), HasSubstr("positive"));
  EXPECT_TRUE(make("fa3-turns", Described("sm_90a"), turned).ok());
}

}  // namespace
}  // namespace flashlab::cuda
