#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "lab/results/baseline.h"
#include "lab/results/results_json.h"
#include "lab/results/verdict.h"
#include "lab/subjects/attention/attention_subject.h"

namespace flashlab::lab {
namespace {

using testing::HasSubstr;

Measurement timed(double ms, double spread = 0.01) {
  Measurement out;
  out.labels = labels_of(cases::Case{});
  out.implementation = "cpu";
  out.device = "cpu";
  out.pass = "forward";
  out.samples = 30;
  out[kMedianMs] = ms;
  out[kMinMs] = ms * (1 - 2 * spread);
  out[kQ1Ms] = ms * (1 - spread);
  out[kQ3Ms] = ms * (1 + spread);
  out[kMaxMs] = ms * (1 + 2 * spread);
  return out;
}

ResultFile file_of(Measurement result) {
  ResultFile out;
  out.environment.cpu_model = "test processor";
  out.results = {std::move(result)};
  return out;
}

CaseChange judge_one(const Measurement& before, const Measurement& now) {
  return compare_with_baseline(file_of(before), file_of(now)).changes.at(0);
}

TEST(ResultsJson, RoundTripKeepsTheUnmeasuredEmpty) {
  Measurement result = timed(1.25);
  cases::Case problem;
  problem.causal = Causal::kBottomRight;
  problem.mask = cases::MaskKind::kBool;
  problem.seed = ~std::uint64_t{0};
  problem.scale = -0.5f;
  result.labels = labels_of(problem);
  result[kPeakBytes] = std::int64_t{1} << 40;
  result.parts = {{"scores", 0.5}};
  const std::string text = to_json(file_of(result));
  EXPECT_THAT(text, HasSubstr("\"tflops\": null"));
  const auto back = parse_results(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  const Measurement& read = back->results.at(0);
  EXPECT_EQ(case_key(read), case_key(result));
  EXPECT_EQ(case_of(read.labels).seed, problem.seed);
  EXPECT_EQ(read.labels, result.labels);
  EXPECT_EQ(read[kMedianMs], result[kMedianMs]);
  EXPECT_EQ(read[kPeakBytes], result[kPeakBytes]);
  EXPECT_FALSE(read[kTflops].has_value());
  EXPECT_FALSE(read[kRoofShare].has_value());
  EXPECT_EQ(to_json(*back), text);
}

TEST(ResultsJson, EveryTruncationIsRefused) {
  const std::string text = to_json(file_of(timed(1)), -1);
  for (std::size_t length = 0; length + 2 < text.size(); length += 7) {
    const auto read = parse_results(std::string_view(text).substr(0, length), "cut.json");
    ASSERT_FALSE(read.ok()) << length;
    EXPECT_THAT(read.status().message(), HasSubstr("cut.json"));
    EXPECT_FALSE(read.status().detail().remedy.empty());
  }
}

TEST(ResultsJson, WrongContentsAreNamed) {
  const std::string good = to_json(file_of(timed(1)));
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return parse_results(text).status().message();
  };
  EXPECT_THAT(with("flashlab.bench/1", "flashlab.bench/9"), HasSubstr("schema"));
  EXPECT_THAT(with("\"status\": \"ok\"", "\"status\": \"fine\""), HasSubstr("results[0].status"));
  EXPECT_THAT(with("\"batch\": 2", "\"batch\": -2"), HasSubstr("results[0].batch"));
  EXPECT_THAT(with("\"batch\": 2", "\"other\": 2"), HasSubstr("results[0].batch"));
  EXPECT_THAT(with("\"median_ms\": 1.0", "\"median_ms\": \"1\""), HasSubstr("median_ms"));
  EXPECT_FALSE(parse_results("[]").ok());
  // Deep enough for a function that recurses to overflow the stack.
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_THAT(with("\"flashlab.bench/1\"", deep), HasSubstr("nested over 64 levels"));
  EXPECT_THAT(with("\"batch\": 2", "\"batch\": " + deep), HasSubstr("nested over 64 levels"));
}

TEST(ResultsJson, AFailedWriteKeepsTheOldFile) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("results-" + std::to_string(getpid()));
  fs::create_directories(folder);
  auto writer = ResultWriter::create(folder / "run.json", ResultFile{});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->add(timed(1)).ok());
  EXPECT_EQ(read_results(folder / "run.json")->results.size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  fs::remove_all(folder);
  EXPECT_EQ(writer->add(timed(2)).code(), StatusCode::kIoError);
  EXPECT_EQ(writer->file().results.size(), 2u);
  if (fs::exists("/dev/full")) {
    const Status full = write_results("/dev/full", file_of(timed(1)));
    EXPECT_EQ(full.code(), StatusCode::kIoError);
    EXPECT_THAT(full.message(), HasSubstr("No space left"));
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
}

TEST(Baseline, VerdictsFollowTheSpread) {
  EXPECT_EQ(judge_one(timed(10), timed(10.1)).change, Change::kSame);
  EXPECT_EQ(judge_one(timed(10), timed(12)).change, Change::kSlower);
  EXPECT_EQ(judge_one(timed(12), timed(10)).change, Change::kFaster);
  EXPECT_EQ(judge_one(timed(10, 0.3), timed(12, 0.3)).change, Change::kAmbiguous);
}

TEST(Baseline, TheSameBinaryIsTheSame) {
  // Two runs of one program on a busy machine: medians some percent apart, quartiles as wide.
  EXPECT_EQ(judge_one(timed(10, 0.08), timed(10.3, 0.08)).change, Change::kSame);
  EXPECT_EQ(judge_one(timed(10, 0.02), timed(9.7, 0.04)).change, Change::kSame);
  EXPECT_EQ(judge_one(timed(10, 0.6), timed(10.3, 0.6)).change, Change::kAmbiguous)
      << "an interval that would hide a third says nothing";
}

TEST(Baseline, AWideSpreadAllowsNoFirmVerdict) {
  Measurement before = timed(30);
  before[kLowMs] = 25;
  before[kHighMs] = 42;  // 57% of the median apart
  const CaseChange change = judge_one(before, timed(10));
  EXPECT_EQ(change.change, Change::kAmbiguous);
  EXPECT_THAT(change.note, HasSubstr("the baseline's time lies anywhere from 25 to 42 ms"));
  EXPECT_EQ(judge_one(timed(10), before).change, Change::kAmbiguous);
  EXPECT_EQ(judge_one(timed(30), timed(10)).change, Change::kFaster);
}

TEST(Baseline, ACaseThatStandsTwiceIsSaid) {
  ResultFile before = file_of(timed(20));
  before.results.push_back(timed(10));
  const BaselineReport report = compare_with_baseline(before, file_of(timed(10)));
  EXPECT_EQ(report.same, 1);
  EXPECT_THAT(report.cautions, testing::Contains(HasSubstr("1 of 2 results in the baseline")));
  EXPECT_THAT(compare_with_baseline(file_of(timed(10)), file_of(timed(10))).cautions,
              testing::Not(testing::Contains(HasSubstr("the last of each case counts"))));
}

TEST(Baseline, OnlyAMeasuredRoofMakesTheMachineTheCause) {
  Measurement before = timed(10);
  Measurement now = timed(13);
  before[kRoofShare] = now[kRoofShare] = 0.85;
  EXPECT_EQ(judge_one(before, now).change, Change::kSlower) << "shares alone accuse nobody";
  before[kRoofTflops] = 0.13;
  now[kRoofTflops] = 0.10;
  const CaseChange change = judge_one(before, now);
  EXPECT_EQ(change.change, Change::kAmbiguous);
  EXPECT_THAT(change.note, HasSubstr("a roof of 130 GFLOP/s then, 100 now"));
  now.roof_name = "units: bf16 tensor cores";
  EXPECT_EQ(judge_one(before, now).change, Change::kSlower) << "roofs of two kinds say nothing";
  now.roof_name.clear();
  now[kRoofTflops] = 0.13;
  EXPECT_EQ(judge_one(before, now).change, Change::kSlower);
}

TEST(Baseline, ADoctoredFileIsFound) {
  for (const double factor : {2.0, 6.0}) {
    Measurement before = timed(10);
    before[kRoofShare] = 0.85;
    Measurement doctored = before;
    doctored[kMedianMs] = 10 / factor;
    EXPECT_EQ(judge_one(doctored, before).change, Change::kSlower) << factor;
  }
}

TEST(Baseline, OtherThreadsOrAnotherProcessorAreNamedAndNotBlamed) {
  ResultFile before = file_of(timed(5)), now = file_of(timed(10));
  before.environment.threads_used = 2;
  now.environment.threads_used = 1;
  const BaselineReport report = compare_with_baseline(before, now);
  EXPECT_EQ(report.changes[0].change, Change::kMissing);
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_THAT(report.summary(), HasSubstr("threads 2 then, 1 now"));
  now.environment.threads_used = 2;
  now.environment.cpu_model = "another processor";
  EXPECT_THAT(compare_with_baseline(before, now).summary(),
              HasSubstr("processor test processor then, another processor now"));
}

TEST(Baseline, NoTimeIsNeverFaster) {
  Measurement nothing = timed(10), zero = timed(10);
  nothing[kMedianMs].reset();
  zero[kMedianMs] = 0;
  for (const Measurement& before : {nothing, zero}) {
    const BaselineReport report = compare_with_baseline(file_of(before), file_of(timed(10)));
    EXPECT_EQ(report.faster, 0);
    EXPECT_EQ(report.exit_code(), 1);
    EXPECT_THAT(report.summary(), HasSubstr("the baseline has no time for it"));
  }
}

TEST(Baseline, AnotherWindowWidensTheIntervalAndKeepsTheQuickerTime) {
  Measurement first = timed(12);
  first[kError] = 1e-7;
  first.join_window(timed(10));
  EXPECT_EQ(first[kMedianMs], 10);
  EXPECT_EQ(first[kError], 1e-7);
  const Interval interval = *time_interval(first);
  EXPECT_LE(interval.low, 10);
  EXPECT_GE(interval.high, 12);
}

TEST(Statistics, ADriftingWindowIsWiderThanItsQuartiles) {
  std::vector<double> steady(30, 1.0), drifting;
  for (int i = 0; i < 30; ++i) drifting.push_back(1 + 0.01 * i);
  EXPECT_EQ(window_interval(steady).high, 1.0);
  EXPECT_LT(window_interval(drifting).low, median_interval(*summarize(drifting)).low);
}

TEST(Baseline, WhatNoLongerRunsIsARegressionAndNewCasesAreNot) {
  Measurement broken = timed(10);
  broken.status = RunStatus::kOutOfMemory;
  broken[kMedianMs].reset();
  const auto report = compare_with_baseline(file_of(timed(10)), file_of(broken));
  EXPECT_EQ(report.slower, 1);
  EXPECT_EQ(report.exit_code(), 3);
  EXPECT_THAT(report.summary(), HasSubstr("1 slower"));
  Measurement other = timed(10);
  other.labels.set("seqlen_q", std::uint64_t{77});
  const auto missing = compare_with_baseline(file_of(timed(10)), file_of(other));
  EXPECT_EQ(missing.missing, 2);
  EXPECT_EQ(missing.exit_code(), 1) << "nothing was compared";
  EXPECT_THAT(missing.summary(), HasSubstr("nothing was compared"));
}

TEST(Verdict, ThresholdsOfEveryMetric) {
  EXPECT_EQ(judge_roof_share(0.87).grade, Grade::kGood);
  EXPECT_EQ(judge_roof_share(0.5).grade, Grade::kFair);
  EXPECT_EQ(judge_roof_share(0.2).grade, Grade::kPoor);
  EXPECT_EQ(judge_roof_share(0.397).text, "poor: 39.7% of the measured roof (below 40%)");
  Measurement units = timed(1);
  units.roof_name = std::string(kRoofOfUnits) + "bf16 tensor cores";
  units[kRoofShare] = 0.5;
  EXPECT_EQ(judge_throughput(units, {})->text, "good: 50% of the measured roof (above 48%)");
  units[kRoofShare] = 0.3;
  EXPECT_EQ(judge_throughput(units, {})->grade, Grade::kPoor);
  // What waits for memory is judged by its reads, on an A100 too.
  units.device = "cuda:0", units[kTflops] = 9, units.roof_name = kRoofOfReads;
  units[kRoofShare] = 0.9;
  Environment on_a100;
  on_a100.gpu = "NVIDIA A100-SXM4-80GB";
  EXPECT_EQ(judge_throughput(units, on_a100)->text,
            "good: 90% of the measured read roof (above 60%)");
  EXPECT_EQ(judge_speedup(40, 10).grade, Grade::kGood);
  EXPECT_EQ(judge_speedup(15, 10).grade, Grade::kPoor);
  EXPECT_EQ(judge_roof_share(0.0 / 0.0).grade, Grade::kPoor);
  Measurement a100 = timed(1);
  a100.device = "cuda:0";
  a100[kTflops] = 160;
  Environment environment;
  environment.gpu = "NVIDIA A100-SXM4-80GB";
  EXPECT_EQ(judge_throughput(a100, environment)->grade, Grade::kGood);
  a100[kTflops] = 90;
  EXPECT_EQ(judge_throughput(a100, environment)->grade, Grade::kPoor);
}

}  // namespace
}  // namespace flashlab::lab
