// The legal tilings of the Hopper forward kernel, the table of measured ones, and what the planner
// makes of it: on any machine, with a stand-in for the measuring. On a GPU every legal tiling runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "api/backend.h"
#include "cuda/launch/sm90_forward_table.h"
#include "cuda_compiler.h"
#include "cuda_described_plan.h"
#include "cuda_gpu.h"
#include "flashlab/version.h"
#include "lab/measure/gpu_loop.h"
#include "lab/tune/tune.h"
#include "runtime/kernel_store/compile.h"
#include "runtime/program/program.h"

namespace flashlab::lab {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSharedLimit = 232448;  // bytes a block may have

const cuda::DeviceInfo& hopper() {
  static const cuda::DeviceInfo info = *cuda::known_gpu("sm_90a");
  return info;
}

cases::Case problem_of_dim(std::int64_t dim, Causal causal) {
  cases::Case out;
  out.dtype = DType::kBf16;
  out.batch = 4;
  out.heads_q = out.heads_k = 16;
  out.seqlen_q = out.seqlen_k = 4096;
  out.head_dim = out.head_dim_v = dim;
  out.causal = causal;
  return out;
}

TilingCandidates candidates(std::int64_t dim, Causal causal) {
  auto made = tiling_candidates(hopper(), problem_of_dim(dim, causal));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

TEST(TuneCandidates, AreWhatFitsRegistersAndSharedMemory) {
  EXPECT_EQ(candidates(64, Causal::kNone).tilings.size(), 16u);
  EXPECT_EQ(candidates(64, Causal::kTopLeft).tilings.size(), 8u);
  EXPECT_EQ(candidates(128, Causal::kTopLeft).tilings.size(), 6u);
  EXPECT_EQ(candidates(256, Causal::kTopLeft).tilings.size(), 1u);
}

TilingCandidates candidates_of_one_head(std::int64_t dim) {
  cases::Case one_head = problem_of_dim(dim, Causal::kTopLeft);
  one_head.batch = one_head.heads_q = one_head.heads_k = 1;
  auto made = tiling_candidates(hopper(), one_head);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

// One consumer has nothing beside its exponentials: only where tiles are fewer than
// multiprocessors.
TEST(TuneCandidates, AreOfOneConsumerWhereTilesAreFew) {
  const auto few = candidates_of_one_head(128).tilings;
  const auto many = candidates(128, Causal::kTopLeft).tilings;
  const auto alone = [](const auto& tilings) {
    return std::count_if(tilings.begin(), tilings.end(),
                         [](const auto& tiling) { return tiling.consumers == 1; });
  };
  EXPECT_EQ(alone(few), 4);
  EXPECT_EQ(alone(many), 0);
  EXPECT_EQ(few.size(), many.size() + 4);
}

TEST(TuneCandidates, HoldTheRulesForEveryCall) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const int dim_v : {8, 64, 128, dim, 256}) {
      for (int bits = 0; bits < 64; ++bits) {
        const cuda::Sm90ForwardNeeds needs{.head_dim = dim,
                                           .head_dim_v = dim_v,
                                           .seqlen_k = (bits & 1) != 0 ? 512 : 8192,
                                           .bounded = (bits & 2) != 0,
                                           .window = (bits & 6) == 6,
                                           .score_terms = (bits & 8) != 0,
                                           .many_score_terms = (bits & 24) == 24,
                                           .few_tiles = (bits & 32) != 0,
                                           .one_round = (bits & 32) != 0,
                                           .seqlen_q = (bits & 1) != 0 ? 512 : 8192};
        const auto legal = cuda::legal_sm90_forward_tilings(needs, kSharedLimit);
        EXPECT_THAT(legal,
                    ::testing::Contains(cuda::choose_sm90_forward_tiling(needs, kSharedLimit)))
            << dim << " " << dim_v << " " << bits;
        for (const auto& tiling : legal) {
          EXPECT_LE(cuda::sm90_forward_shared_bytes(tiling, dim, dim_v), kSharedLimit);
        }
      }
    }
  }
}

TEST(TuneCandidates, RefuseWhatTheKernelDoesNotServe) {
  cases::Case fp32 = problem_of_dim(64, Causal::kNone);
  fp32.dtype = DType::kFp32;
  EXPECT_THAT(tiling_candidates(hopper(), fp32).status().message(), HasSubstr("lacks fp32"));
  EXPECT_THAT(tiling_candidates(*cuda::known_gpu("sm_80"), problem_of_dim(64, Causal::kNone))
                  .status()
                  .message(),
              HasSubstr("8.0"));
}

// What was seen of ten rounds of every tiling: `fast` of them takes 0.9 ms, the others 1 ms.
MeasureTilings stand_in(std::size_t fast, double spread) {
  return [=](const TilingCandidates& all) -> TilingTimes {
    std::vector<Result<std::vector<double>>> out;
    for (std::size_t i = 0; i < all.tilings.size(); ++i) {
      std::vector<double> ms;
      for (int round = 0; round < 10; ++round) {
        ms.push_back((i == fast ? 0.9 : 1.0) + spread * (round - 4.5));
      }
      out.emplace_back(std::move(ms));
    }
    return out;
  };
}

constexpr std::size_t kFast = 4;

std::string table_text(std::size_t fast = kFast, double spread = 0.001) {
  auto row = tune(candidates(128, Causal::kTopLeft), stand_in(fast, spread));
  EXPECT_TRUE(row.ok()) << row.status().message();
  Environment environment;
  environment.gpu = hopper().name;
  environment.driver = "580.65";
  environment.date_utc = "2026-11-23T20:00:00Z";
  return tuning_table(environment, std::vector<TunedProblem>{std::move(*row)});
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return at == text.npos ? text : text.replace(at, what.size(), by);
}

/// A plan of causal bf16 at head dim 128 that follows a table.
std::shared_ptr<internal::PlanState> plan_by(const cuda::Sm90ForwardTable* table,
                                             std::int64_t seqlen = 4096, Options options = {}) {
  options.causal = Causal::kTopLeft;
  const Problem problem = testing::described_problem(
      DType::kBf16, Pass::kForward,
      {.batch = 4, .seqlen_q = seqlen, .seqlen_k = seqlen, .heads = 16, .dim = 128}, options);
  const auto gpu = cuda::GpuDevice::described(hopper());
  internal::ContextState context(ContextOptions{}, gpu.get());
  if (table != nullptr) context.tuning = std::make_shared<cuda::Sm90ForwardTable>(*table);
  Problem normalised;
  const auto geometry = internal::validate(problem, &normalised);
  EXPECT_TRUE(geometry.ok());
  auto made = cuda::plan_sm90_forward(context, normalised, *geometry);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

std::string config(const internal::PlanState& plan) {
  return plan.program()->kernels().back().kernel->spec.config;
}
std::string reasons(const internal::PlanState& plan) {
  std::string out;
  for (const std::string& reason : plan.reasons) out += reason + "\n";
  return out;
}

TEST(Tune, KeepsTheFastestTilingIfItIsFasterThanNoise) {
  const TilingCandidates all = candidates(128, Causal::kTopLeft);
  ASSERT_NE(all.rule, kFast);
  EXPECT_EQ(tune(all, stand_in(kFast, 0.001))->best, kFast);
  EXPECT_EQ(tune(all, stand_in(kFast, 0.1))->best, all.rule);
  const auto lost = [](const TilingCandidates&) -> TilingTimes {
    return Status::unsupported({"GPU", "none", "one", ""});
  };
  EXPECT_EQ(tune(all, lost).status().code(), StatusCode::kUnsupported);
  const auto wrong = [](const TilingCandidates& of) -> TilingTimes {
    return std::vector<Result<std::vector<double>>>(of.tilings.size(),
                                                    Status::invalid({"tiling", "wrong", "", ""}));
  };
  EXPECT_THAT(tune(all, wrong).status().message(), HasSubstr("wrong"));
}

TEST(TuningTable, IsFollowedByThePlanner) {
  const auto table = cuda::parse_sm90_forward_table(table_text(), "/t.json");
  ASSERT_TRUE(table.ok()) << table.status().message();
  const auto made = plan_by(&*table);
  EXPECT_THAT(config(*made), AllOf(HasSubstr("kConsumers = 2"), HasSubstr("kBlockKeys = 128")));
  EXPECT_THAT(reasons(*made),
              AllOf(HasSubstr("row 1 of tuning table /t.json (2026-11-23, driver 580.65"),
                    HasSubstr("0.9 ms there, the rule's 1 ms")));
  const std::string rule = config(*plan_by(nullptr));
  EXPECT_NE(rule, config(*made));
  // Between the same powers of two, and no further.
  EXPECT_EQ(config(*plan_by(&*table, 2056)), config(*made));
  EXPECT_EQ(config(*plan_by(&*table, 4104)), rule);
  EXPECT_EQ(config(*plan_by(&*table, 2048)), rule);
  // Bits that are promised everywhere do not depend on it.
  Options deterministic;
  deterministic.deterministic = true;
  EXPECT_EQ(config(*plan_by(&*table, 4096, deterministic)), rule);
}

TEST(TuningTable, IsRefusedWithOneMessageWhereItIsDamagedOrForeign) {
  const std::string good = table_text(), rule = config(*plan_by(nullptr));
  const auto refused = [&](const std::string& text, const char* why) {
    const auto table = cuda::parse_sm90_forward_table(text, "/t.json");
    ASSERT_FALSE(table.ok()) << why;
    EXPECT_THAT(table.status().message(), AllOf(HasSubstr("tuning table /t.json"), HasSubstr(why)));
    cuda::Sm90ForwardTable none;
    none.path = "/t.json";
    none.status = table.status();
    const auto made = plan_by(&none);
    EXPECT_EQ(config(*made), rule);
    EXPECT_THAT(reasons(*made), HasSubstr(why));
  };
  refused("", "no JSON");
  refused(good.substr(0, good.size() / 2), "no JSON");
  refused(std::string(100000, '['), "no JSON");
  refused("[]", "schema");
  refused(replaced(good, "tuning/1", "tuning/2"), "flashlab.tuning/2");
  refused(replaced(good, std::string("\"version\": \"") + version(), "\"version\": \"9.9.9"),
          "9.9.9");
  refused(replaced(good, "\"stages_k\": 3", "\"stages_k\": \"3\""), "another type");
  refused(replaced(good, "\"stages_k\": 3", "\"stages_k\": 2.5"), "\"stages_k\" is 2.5");
  refused(replaced(good, "\"seqlen_q\"", "\"seqlen\""), "row 1, call: \"seqlen_q\" is missing");
  // As a table it is whole; for this GPU or this kernel it is none.
  for (const auto& [text, why] :
       {std::pair(replaced(good, "\"gpu\": \"H200", "\"gpu\": \"H100"), "figures of H100"),
        std::pair(replaced(good, "\"stages_k\": 3", "\"stages_k\": 9"), "row 1")}) {
    const auto table = cuda::parse_sm90_forward_table(text, "/t.json");
    ASSERT_TRUE(table.ok()) << table.status().message();
    const auto made = plan_by(&*table);
    EXPECT_EQ(config(*made), rule);
    EXPECT_THAT(reasons(*made), AllOf(HasSubstr("the rule's tiling"), HasSubstr(why)));
  }
}

TEST(TuningTable, IsReadOnlyFromAFileThatOthersCannotWrite) {
  const std::string path = ::testing::TempDir() + "flashlab_tuning.json";
  EXPECT_THAT(cuda::read_sm90_forward_table("/nowhere/t.json", false).status().message(),
              HasSubstr("No such file"));
  EXPECT_THAT(cuda::read_sm90_forward_table("/", false).status().message(),
              HasSubstr("no regular file"));
  std::ofstream(path) << table_text();
  EXPECT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_TRUE(cuda::read_sm90_forward_table(path, true).ok());
  EXPECT_EQ(::chmod(path.c_str(), 0666), 0);
  EXPECT_THAT(cuda::read_sm90_forward_table(path, false).status().message(),
              AllOf(HasSubstr("others may write"), HasSubstr("chmod go-w")));
  std::remove(path.c_str());
}

// The formula of registers, by the compiler: the tightest legal tiling of each number of
// consumers that no plan of the rule compiles.
TEST(TuneCandidates, DoNotSpill) {
  NEED_COMPILER();
  struct Tight {
    std::int64_t dim;
    int consumers, block_keys, stages_q;
  };
  for (const Tight& tight : {Tight{64, 3, 128, 1}, Tight{128, 2, 128, 2}, Tight{128, 1, 128, 2}}) {
    const bool one_head = tight.consumers == 1;
    const TilingCandidates all =
        one_head ? candidates_of_one_head(tight.dim) : candidates(tight.dim, Causal::kTopLeft);
    cuda::Sm90ForwardTable table;
    table.gpu = hopper().name;
    for (const auto& t : all.tilings) {
      if (t.consumers == tight.consumers && t.block_keys == tight.block_keys &&
          t.stages_q == tight.stages_q) {
        table.rows.push_back({.call = all.call, .tiling = t});
      }
    }
    ASSERT_EQ(table.rows.size(), 1u);
    const auto gpu = cuda::GpuDevice::described(hopper());
    internal::ContextState context(ContextOptions{}, gpu.get());
    context.tuning = std::make_shared<cuda::Sm90ForwardTable>(table);
    const Problem problem = testing::described_problem(DType::kBf16, Pass::kForward,
                                                       {.batch = one_head ? 1 : 4,
                                                        .seqlen_q = 4096,
                                                        .seqlen_k = 4096,
                                                        .heads = one_head ? 1 : 16,
                                                        .dim = tight.dim},
                                                       {.causal = Causal::kTopLeft});
    Problem normalised;
    const auto geometry = internal::validate(problem, &normalised);
    ASSERT_TRUE(geometry.ok());
    const auto made = cuda::plan_sm90_forward(context, normalised, *geometry);
    ASSERT_TRUE(made.ok());
    ASSERT_THAT(reasons(**made), HasSubstr("row 1"));
    const auto& spec = (*made)->program()->kernels().front().kernel->spec;
    const auto compiled = cuda::compile_image(spec, "sm_90a");
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    const auto use = cuda::resource_use(compiled->kernel.log, spec.entry);
    ASSERT_TRUE(use.ok()) << use.status().message();
    EXPECT_EQ(use->spill_store_bytes + use->spill_load_bytes, 0) << tight.dim;
  }
}

// The instrument's launch: the tiling of the problem's plan, and what the products of a step need.
TEST(Sm90Loop, IsTheKernelsLoopInClocks) {
  const auto loop = sm90_loop(hopper(), problem_of_dim(128, Causal::kTopLeft));
  ASSERT_TRUE(loop.ok()) << loop.status().message();
  EXPECT_EQ(loop->spec.entry, "flash_fwd_sm90_loop");
  EXPECT_EQ(loop->ideal_clocks, 1536);  // 3 x 64 queries, 64 keys, 2 x 128 columns
  EXPECT_EQ(sm90_loop(hopper(), problem_of_dim(256, Causal::kNone))->ideal_clocks, 2048);
  cases::Case capped = problem_of_dim(128, Causal::kNone);
  capped.softcap = 30.0f;
  EXPECT_THAT(sm90_loop(hopper(), capped).status().message(), HasSubstr("got softcap"));
  EXPECT_FALSE(sm90_loop(*cuda::known_gpu("sm_80"), problem_of_dim(64, Causal::kNone)).ok());
  // Two consumers of two blocks: from the first beginning to the last end.
  const auto clocks = loop_clocks({100, 300, 110, 320, 7, 207, 5, 205}, 2, 10);
  ASSERT_TRUE(clocks.ok());
  EXPECT_THAT(*clocks, ::testing::ElementsAre(22, 20.2));
  EXPECT_FALSE(loop_clocks({100, 300, 110, 0}, 2, 10).ok());
}

class TuneOnGpu : public testing::GpuTest {};

TEST_F(TuneOnGpu, TheLoopKeepsTensorCoresBusy) {
  if (gpu_->info().major != 9) GTEST_SKIP() << "no Hopper GPU";
  MeasureOptions options;
  options.warmup = 1;
  options.repeats = 3;
  for (const std::int64_t dim : {64, 128, 256}) {
    const auto reading = read_sm90_loop(*context_, problem_of_dim(dim, Causal::kNone), options);
    ASSERT_TRUE(reading.ok()) << reading.status().message();
    EXPECT_GE(reading->clocks.median, reading->ideal_clocks);
    EXPECT_LE(reading->clocks.median, 3 * reading->ideal_clocks);
  }
}

// A row of a table changes results by rounding alone: every legal tiling is accepted beside fp64.
TEST_F(TuneOnGpu, EveryLegalTilingIsRight) {
  const cuda::DeviceInfo& device = gpu_->info();
  if (device.major != 9) GTEST_SKIP() << "no Hopper GPU";
  MeasureOptions options;
  options.warmup = 1;
  options.repeats = 2;
  for (const std::int64_t dim : {64, 96, 128, 256}) {
    for (const Causal causal : {Causal::kNone, Causal::kTopLeft}) {
      cases::Case problem = problem_of_dim(dim, causal);
      problem.batch = 1;
      problem.heads_q = problem.heads_k = 2;
      problem.seqlen_q = problem.seqlen_k = 777;
      const auto all = tiling_candidates(device, problem);
      ASSERT_TRUE(all.ok()) << all.status().message();
      const TilingTimes times = measure_tilings(*context_, options, *all);
      ASSERT_TRUE(times.ok()) << times.status().message();
      for (const auto& each : *times) EXPECT_TRUE(each.ok()) << each.status().message();
    }
  }
}

}  // namespace
}  // namespace flashlab::lab
