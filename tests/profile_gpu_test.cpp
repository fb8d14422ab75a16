// Records of a GPU's kernels: CUPTI's, against a stand-in for the library; which step a kernel
// belongs to; occupancy.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "profile/attention_run.h"
#include "profile/kernel_match.h"
#include "profile/launch_facts.h"
#include "profile/ledger.h"
#include "profile/nsight.h"
#include "runtime/cuda/cupti.h"

namespace flashlab {
namespace {

using cuda::Activity;
using cuda::Cupti;
using Kind = Activity::Kind;

class Records : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("FLASHLAB_CUPTI", FLASHLAB_FAKE_CUPTI, 1), 0);
    ASSERT_EQ(unsetenv("FAKE_CUPTI"), 0);
  }
};

// What opening gives is remembered: those that fail have a process of their own.
int open_in(const char* library, const char* mode) {
  setenv("FLASHLAB_CUPTI", library, 1);
  setenv("FAKE_CUPTI", mode, 1);
  const auto cupti = Cupti::get();
  if (cupti.ok()) return 0;
  const std::string message = cupti.status().message();
  const bool says_why = message.find("FLASHLAB_CUPTI names a file") != std::string::npos;
  if (cupti.status().code() != StatusCode::kUnsupported || !says_why) return 1;
  return message.find("API 10") != std::string::npos ? 2 : 3;
}

TEST_F(Records, ALibraryThatIsMissingOrOldIsRefusedWithARemedy) {
  EXPECT_EXIT(std::_Exit(open_in(FLASHLAB_FAKE_CUPTI, "old")), ::testing::ExitedWithCode(2), "");
  EXPECT_EXIT(std::_Exit(open_in("/no/libcupti.so", "")), ::testing::ExitedWithCode(3), "");
  // libm is a library, but none of CUPTI's.
  EXPECT_EXIT(std::_Exit(open_in("libm.so.6", "")), ::testing::ExitedWithCode(3), "");
}

TEST_F(Records, KernelsMemsetsAndCopiesInOrder) {
  const auto cupti = Cupti::get();
  ASSERT_TRUE(cupti.ok()) << cupti.status().message();
  ASSERT_TRUE((*cupti)->start().ok());
  const auto found = (*cupti)->stop();
  ASSERT_TRUE(found.ok()) << found.status().message();
  ASSERT_EQ(found->size(), 4u);
  const std::vector<Activity>& all = *found;
  EXPECT_EQ(all[0].kind, Kind::kCopy);
  EXPECT_TRUE(all[0].with_host);
  EXPECT_EQ(profile::readable_kernel(all[1].name), "cublasLt::splitKreduce_kernel<32>");
  EXPECT_EQ(all[2].kind, Kind::kMemset);
  EXPECT_EQ(all[2].end_ns - all[2].start_ns, 50u);
  EXPECT_EQ(all[3].name, "flash_fwd_test");
  EXPECT_EQ(all[3].end_ns - all[3].start_ns, 500u);
  EXPECT_EQ(all[3].blocks, 4 * 5 * 6);
  EXPECT_EQ(all[3].threads, 384);
  EXPECT_EQ(all[3].registers, 168);
  EXPECT_EQ(all[3].shared_bytes, 1024);
  // Nothing is left for the next time.
  ASSERT_TRUE((*cupti)->start().ok());
  EXPECT_EQ((*cupti)->stop()->size(), 4u);
}

TEST_F(Records, ARefusalNamesItsRemedy) {
  const auto cupti = Cupti::get();
  ASSERT_TRUE(cupti.ok());
  ASSERT_EQ(setenv("FAKE_CUPTI", "refused", 1), 0);
  const Status refused = (*cupti)->start();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("NVreg_RestrictProfilingToAdminUsers"), std::string::npos);
  EXPECT_NE(refused.message().find("INSUFFICIENT_PRIVILEGES"), std::string::npos);
  ASSERT_EQ(setenv("FAKE_CUPTI", "busy", 1), 0);
  EXPECT_NE((*cupti)->start().message().find("another profiler"), std::string::npos);
  ASSERT_EQ(setenv("FAKE_CUPTI", "lost", 1), 0);
  ASSERT_TRUE((*cupti)->start().ok());
  const auto lost = (*cupti)->stop();
  ASSERT_FALSE(lost.ok());
  EXPECT_NE(lost.status().message().find("3 lost records"), std::string::npos);
}

lab::Measurement measured(const char* implementation) {
  lab::Measurement out;
  out.implementation = implementation;
  out.pass = "forward";
  out[lab::kMedianMs] = 0.002;
  out[lab::kTflops] = 3;  // 6e6 FLOPs
  out[lab::kGbPerS] = 500;
  return out;
}

TEST_F(Records, KernelsOfAnAttentionCall) {
  profile::AttentionInstrument instrument({132, 2048, 32, 65536, 233472, 1024});
  int flushed = 0, called = 0;
  const lab::RepeatedCall again = {.flush = [&] { return ++flushed, Status(); },
                                   .call = [&] { return ++called, Status(); }};
  instrument.record(measured("sm80"), again);
  EXPECT_EQ(instrument.why_not(), "");
  EXPECT_GE(called, 5);
  EXPECT_EQ(flushed, called);
  const std::vector<lab::Measurement> all = {measured("sm80"), measured("naive")};
  const profile::Recording r = profile::recording_of(all, instrument.calls());
  ASSERT_EQ(r.events.size(), 4u) << "three of the stand-in's, and the call nobody recorded";
  EXPECT_EQ(r.events[0].kernel, "cublasLt::splitKreduce_kernel<32>");
  EXPECT_EQ(r.events[1].kernel, "memset");
  EXPECT_EQ(r.events[1].event_class, "copy");
  const profile::Event& main = r.events[2];
  EXPECT_EQ(main.kernel, "flash_fwd_test");
  EXPECT_DOUBLE_EQ(main.duration_ms, 5e-4);
  EXPECT_DOUBLE_EQ(main.start_ms, 2e-4);
  EXPECT_DOUBLE_EQ(main.flops, 6e6) << "the longest has the call's work";
  EXPECT_DOUBLE_EQ(main.bytes, 1e6) << "and its traffic";
  ASSERT_TRUE(main.launch.has_value());
  EXPECT_EQ(main.launch->registers, 168);
  EXPECT_DOUBLE_EQ(main.launch->occupancy, 12.0 / 64);
  EXPECT_EQ(r.events[3].name, "attention / naive / naive");
  EXPECT_DOUBLE_EQ(r.events[3].start_ms, 7e-4) << "after the call before it";
  EXPECT_NE(r.clock.find("CUPTI"), std::string::npos);
}

TEST_F(Records, ACallThatCannotBeRecordedIsLeftOutWithItsReason) {
  profile::AttentionInstrument instrument(profile::MultiprocessorLimits{});
  const auto fine = [] { return Status(); };
  const auto broken = [] { return Status(StatusCode::kDeviceError, {"GPU", "lost", "", ""}); };
  instrument.record(measured("sm80"), {.flush = fine, .call = broken});
  EXPECT_NE(instrument.why_not().find("lost"), std::string::npos);
  ASSERT_EQ(setenv("FAKE_CUPTI", "refused", 1), 0);
  instrument.record(measured("sm80"), {.flush = fine, .call = fine});
  EXPECT_NE(instrument.why_not().find("INSUFFICIENT_PRIVILEGES"), std::string::npos);
  EXPECT_TRUE(instrument.calls().empty());
}

Activity kernel(const char* name) {
  Activity out;
  out.name = name;
  return out;
}
Activity memset_activity() {
  Activity out;
  out.kind = Kind::kMemset;
  return out;
}
runtime::Step kernel_step(const char* entry) {
  return {.name = entry, .work = runtime::KernelWork{{"", entry, "", {}}, {}, {}}};
}
runtime::Step product_step() {
  return {.name = "product", .work = runtime::ProductWork{}};
}
runtime::Step memset_step() {
  return {.name = "zero", .work = runtime::MemsetWork{}};
}

using Steps = std::vector<std::size_t>;
const char* const kReduce = "_ZN8cublasLt19splitKreduce_kernelILi32EEEvPf";

TEST(Matching, KernelsAreKnownByNameAndProductsByTheirNeighbours) {
  const std::vector<runtime::Step> steps = {kernel_step("norm"), product_step(),    product_step(),
                                            memset_step(),       kernel_step("dq"), product_step()};
  EXPECT_EQ(profile::match_steps({kernel("norm"), kernel("gemm"), kernel("gemm"), memset_activity(),
                                  kernel("dq"), kernel("gemm")},
                                 steps),
            (Steps{0, 1, 2, 3, 4, 5}));
  // The first product has its parts added up; the second zeroes its counters first.
  EXPECT_EQ(profile::match_steps(
                {kernel("norm"), kernel("gemm"), kernel(kReduce), memset_activity(), kernel("gemm"),
                 memset_activity(), kernel("dq"), kernel("gemm"), kernel(kReduce)},
                steps),
            (Steps{0, 1, 1, 2, 2, 3, 4, 5, 5}));
}

TEST(Matching, ListsThatDoNotFitAreRefused) {
  const std::vector<runtime::Step> steps = {kernel_step("norm"), product_step(), kernel_step("dq")};
  const auto refused = [&](const std::vector<Activity>& activities) {
    return !profile::match_steps(activities, steps).has_value();
  };
  EXPECT_FALSE(refused({kernel("norm"), kernel("gemm"), kernel("dq")}));
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({kernel("norm"), kernel("dq")}));
  EXPECT_TRUE(refused({kernel("gemm"), kernel("norm"), kernel("dq")}));
  EXPECT_TRUE(refused({kernel("norm"), kernel("gemm"), kernel("gemm"), kernel("dq")}));
  EXPECT_TRUE(refused({kernel("norm"), kernel("gemm"), kernel("dq"), kernel("dq")}));
  EXPECT_TRUE(refused({kernel("norm"), kernel(kReduce), kernel("gemm"), kernel("dq")}));
}

TEST(Names, CppNamesLoseResultAndParameters) {
  EXPECT_EQ(profile::readable_kernel("flash_bwd_sm80"), "flash_bwd_sm80");
  EXPECT_EQ(profile::readable_kernel("_Z4copyIfEvPT_PKS0_"), "copy<float>");
  EXPECT_EQ(profile::readable_kernel(std::string(200, 'x')).size(), 96u);
}

TEST(Counters, NcusLinesBecomeMeansByKernel) {
  const auto rows = profile::parse_ncu(
      "==PROF== Connected to process 7\n"
      "\"ID\",\"Kernel Name\",\"Block Size\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n"
      "\"0\",\"flash_fwd(int)\",\"(256, 1, 1)\",\"gpu__time_duration.sum\",\"ns\",\"36,000\"\n"
      "\"1\",\"flash_fwd(int)\",\"(256, 1, 1)\",\"gpu__time_duration.sum\",\"us\",\"38\"\n"
      "\"1\",\"flash_fwd(int)\",\"(256, 1, 1)\",\"a.ratio\",\"\",\"n/a\"\n"
      "\"2\",\"adamw\",\"(256, 1, 1)\",\"a.ratio\",\"\",\"0.5\"\r\n"
      "\"3\",\"cut of");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].kernel, "flash_fwd");
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_DOUBLE_EQ(rows[0].metrics.at("gpu__time_duration.sum"), 37);
  EXPECT_FALSE(rows[0].metrics.contains("a.ratio"));
  EXPECT_DOUBLE_EQ(rows[1].metrics.at("a.ratio"), 0.5);
  EXPECT_TRUE(profile::parse_ncu("==ERROR== The user does not have permission\n").empty());
}

TEST(Counters, BandwidthsAreInOneUnitAndTheLongestWaitsInWords) {
  const std::string head =
      "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\","
      "\"Metric Value\"\n";
  const auto line = [](const char* metric, const char* unit, const char* value) {
    return fmt::format("\"0\",\"flash_fwd\",\"{}\",\"{}\",\"{}\"\n", metric, unit, value);
  };
  const auto stall = [&](const char* reason, const char* value) {
    return line(
        fmt::format("smsp__average_warps_issue_stalled_{}_per_issue_active.ratio", reason).c_str(),
        "inst", value);
  };
  const auto rows =
      profile::parse_ncu(head + line("dram__bytes.sum.per_second", "Tbyte/second", "3.5") +
                         line("lts__t_bytes.sum.per_second", "byte/second", "5,100,000,000,000") +
                         stall("barrier", "1.25") + stall("long_scoreboard", "0.5") +
                         stall("wait", "0.75") + stall("gmma", "4") + stall("membar", "0.01"));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_DOUBLE_EQ(rows[0].metrics.at("dram__bytes.sum.per_second"), 3500);
  EXPECT_DOUBLE_EQ(rows[0].metrics.at("lts__t_bytes.sum.per_second"), 5100);
  EXPECT_EQ(profile::longest_waits(rows[0]),
            "asynchronous matrix products 4.0, a barrier 1.2, a fixed latency 0.8");
  EXPECT_EQ(profile::longest_waits({}), "");
}

TEST(Counters, TheCommandNamesKernelsAndLeavesClocksAlone) {
  using Detail = profile::NcuDetail;
  const auto words = profile::ncu_command("/opt/ncu", {"log.csv"}, {{"a", "b"}, 49},
                                          {"flashlab", "x"}, Detail::kFew);
  EXPECT_EQ(words.front(), "/opt/ncu");
  EXPECT_EQ(words.back(), "x");
  const auto value = [&](const char* flag) {
    return *(std::find(words.begin(), words.end(), flag) + 1);
  };
  EXPECT_EQ(value("--kernel-name"), "regex:^(a|b)$");
  EXPECT_EQ(value("--launch-skip"), "49");
  EXPECT_EQ(value("--launch-count"), "49");
  EXPECT_EQ(value("--clock-control"), "none");
  EXPECT_EQ(value("--log-file"), "log.csv");
  const std::string metrics = value("--metrics");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), ','), 3);
  const auto of = [](Detail detail) {
    const auto all = profile::ncu_command("ncu", {"f", true}, {{"a"}}, {"x"}, detail);
    EXPECT_EQ(all[1], "--export");
    EXPECT_EQ(std::find(all.begin(), all.end(), "--launch-count"), all.end());
    return *(std::find(all.begin(), all.end(), "--metrics") + 1);
  };
  EXPECT_NE(of(Detail::kAll).find("stalled_gmma"), std::string::npos);
  EXPECT_EQ(of(Detail::kCommon).find("stalled_gmma"), std::string::npos) << "Hopper's alone";
  EXPECT_NE(of(Detail::kCommon).find("stalled_long_scoreboard"), std::string::npos);
}

TEST(Counters, NcuIsFoundByItsVariable) {
  ASSERT_EQ(setenv("FLASHLAB_NCU", "/bin/sh", 1), 0);
  EXPECT_EQ(profile::find_ncu(), "/bin/sh");
  ASSERT_EQ(setenv("FLASHLAB_NCU", "/no/ncu", 1), 0);
  EXPECT_EQ(profile::find_ncu(), "");
  unsetenv("FLASHLAB_NCU");
}

// One multiprocessor of an H200.
constexpr profile::MultiprocessorLimits kHopper = {132, 2048, 32, 65536, 233472, 1024};

TEST(Occupancy, RegistersSharedMemoryAndThreadsLimitIt) {
  const auto blocks = [](int threads, int registers, std::int64_t shared) {
    return profile::resident_blocks(
        {.threads = threads, .registers = registers, .shared_bytes = shared}, kHopper);
  };
  EXPECT_EQ(blocks(128, 255, 0), 2);     // 8 warps of 8192 registers
  EXPECT_EQ(blocks(384, 168, 0), 1);     // 12 warps of 5376
  EXPECT_EQ(blocks(256, 32, 0), 8);      // all 64 warps
  EXPECT_EQ(blocks(32, 16, 0), 32);      // the most blocks there can be
  EXPECT_EQ(blocks(128, 32, 75776), 3);  // 74 KiB and the reserved one each
  EXPECT_EQ(blocks(1024, 80, 0), 0);     // does not run
}

TEST(Occupancy, WavesCountTheWholeGpu) {
  const auto facts = profile::complete(
      {.blocks = 396, .threads = 128, .registers = 255, .shared_bytes = 0}, kHopper);
  EXPECT_DOUBLE_EQ(facts.occupancy, 8.0 / 64);
  EXPECT_DOUBLE_EQ(facts.waves, 1.5);
}

TEST(Occupancy, TheLongestKernelIsTheOneWithMostTime) {
  profile::Recording recording;
  recording.spans.push_back({"step 1", false, 0, 10});
  for (const auto& [name, ms, blocks] :
       {std::tuple{"a", 3.0, 1}, std::tuple{"b", 2.0, 2}, std::tuple{"b", 2.5, 3}}) {
    profile::Event event;
    event.kernel = name;
    event.duration_ms = ms;
    event.launch = profile::LaunchFacts{.blocks = blocks};
    recording.events.push_back(event);
  }
  ASSERT_TRUE(profile::longest_launch(recording).has_value());
  EXPECT_EQ(profile::longest_launch(recording)->blocks, 3);
  EXPECT_FALSE(profile::longest_launch({}).has_value());
}

}  // namespace
}  // namespace flashlab
