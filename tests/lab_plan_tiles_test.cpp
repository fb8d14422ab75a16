// A plan names the tiles of its products as numbers: those that its words give to people, for every
// implementation, on a CPU and on every GPU that can be described.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "api/backend.h"
#include "api/context_state.h"
#include "api/implementation.h"
#include "case.h"
#include "lab/data/case_data.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/program/program.h"

namespace flashlab::lab {
namespace {

std::int64_t number(const std::string& text, const char* pattern) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(pattern)) ? std::stoll(found[1]) : 0;
}

struct Tile {
  std::int64_t q = 0, k = 0;
};

// What the words of a plan say: the kernel that multiplies tiles, not one that takes what another
// one marked, and not those before and behind it.
Tile tile_in_words(const internal::PlanState& plan) {
  std::string text;
  for (const PlanStep& step : plan.steps) {
    if (step.configuration.find("marked") == std::string::npos) text += step.configuration + '\n';
  }
  for (const std::string& reason : plan.reasons) text += reason + '\n';
  if (plan.program() != nullptr) {
    for (const runtime::Step& step : plan.program()->steps()) text += step.configuration + '\n';
  }
  Tile out;
  for (const char* words :
       {"query tile (\\d+)", "tiles? of (\\d+) queries x", "tiles of (\\d+) queries, in steps",
        "keys, in steps of (\\d+) queries", "kTileQ (\\d+)"}) {
    if (out.q == 0) out.q = number(text, words);
  }
  for (const char* words : {"key (?:tile|block) (\\d+)", "tiles? of \\d+ queries x (\\d+) keys",
                            "tiles of \\d+ queries, in steps of (\\d+) keys",
                            "tile of (\\d+) keys, in steps", "kTileK (\\d+)"}) {
    if (out.k == 0) out.k = number(text, words);
  }
  return out;
}

class PlanTiles : public ::testing::Test {
 protected:
  // Plans of every implementation of the context's device that serves a call.
  void look_at_all(const internal::ContextState& context, Device device) {
    for (const DType dtype : {DType::kBf16, DType::kFp32}) {
      for (const std::int64_t head_dim : {64, 128, 256}) {
        for (const bool causal : {false, true}) {
          cases::Case c;
          c.dtype = dtype;
          c.batch = 1;
          c.heads_q = c.heads_k = 2;
          c.seqlen_q = c.seqlen_k = 700;
          c.head_dim = c.head_dim_v = head_dim;
          if (causal) c.causal = Causal::kTopLeft;
          for (const Pass pass : {Pass::kForward, Pass::kBackward})
            look_at(context, device, c, pass);
        }
      }
    }
  }

  void look_at(const internal::ContextState& context, Device device, const cases::Case& c,
               Pass pass) {
    Problem problem;
    const auto geometry = internal::validate(problem_of(c, pass, "", device), &problem);
    ASSERT_TRUE(geometry.ok());
    const auto required = internal::required_features(problem, *geometry);
    for (const auto* each : internal::backend_of(device.kind).implementations()) {
      if (!required.minus(each->supported).empty()) continue;
      if (!each->runs_on_device(context.gpu() ? &context.gpu()->info() : nullptr)) continue;
      const auto plan = each->make_plan(context, problem, *geometry);
      if (!plan.ok()) continue;
      SCOPED_TRACE(fmt::format("{} {} {}", each->name, to_string(pass), c.describe()));
      const Tile said = tile_in_words(**plan);
      EXPECT_EQ((*plan)->tile_q, said.q);
      EXPECT_EQ((*plan)->tile_k, said.k);
      const bool whole =
          each->name == "naive" || each->name == "reference" || each->name == "cublas";
      EXPECT_EQ((*plan)->tile_q > 0 && (*plan)->tile_k > 0, !whole);
      ++plans_;
    }
  }

  int plans_ = 0;
};

TEST_F(PlanTiles, OnACpuAreWhatThePlanSays) {
  ContextOptions options;
  options.threads = 3;
  const auto context = Context::create(options);
  ASSERT_TRUE(context.ok());
  look_at_all(context->state(), {});
  EXPECT_GE(plans_, 3 * 24) << "cpu, fa2-plain and naive, each in 24 cases";
}

TEST_F(PlanTiles, OnEveryDescribedGpuAreWhatThePlanSays) {
  for (const std::string& architecture : cuda::known_architectures()) {
    SCOPED_TRACE(architecture);
    const auto gpu = cuda::GpuDevice::described(*cuda::known_gpu(architecture));
    ContextOptions options;
    options.device = {DeviceKind::kCuda, 0};
    options.threads = 1;
    const internal::ContextState context(options, gpu.get());
    const int before = plans_;
    look_at_all(context, options.device);
    EXPECT_GE(plans_ - before, 24) << "naive at least";
  }
}

}  // namespace
}  // namespace flashlab::lab
