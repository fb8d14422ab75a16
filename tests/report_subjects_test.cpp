// Files, tables and pages take any subject; what was recorded before there was more than one is
// still read.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "lab/report/formats.h"
#include "lab/report/group.h"
#include "lab/report/headline.h"
#include "lab/report/html.h"
#include "lab/report/plots.h"
#include "lab/report/table.h"
#include "lab/results/baseline.h"
#include "lab/results/results_json.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ResultFile sums() {
  ResultFile file;
  for (const std::uint64_t rows : {1024, 4096}) {
    for (const char* form : {"naive", "vector"}) {
      Measurement& r = file.results.emplace_back();
      r.subject = "weighted-sum";
      r.implementation = form;
      r.device = "cpu";
      r.pass = "forward";
      r.labels.set("dtype", std::string("fp32"));
      r.labels.set("rows", rows);
      r.labels.set("dim", std::uint64_t{64});
      r.labels.set("seed", std::uint64_t{1});
      const double ms = static_cast<double>(rows) * (r.implementation == "naive" ? 4e-4 : 1e-4);
      const double samples[] = {ms * 0.999, ms, ms, ms * 1.001};
      r.set_times(samples, 2.0 * 64 * static_cast<double>(rows),
                  4.0 * 65 * static_cast<double>(rows));
    }
  }
  return file;
}

TEST(Subjects, EveryOneSaysWhatItsTablesNeed) {
  for (const Subject* subject : subjects()) {
    EXPECT_EQ(find_subject(subject->name), subject);
    EXPECT_TRUE(std::any_of(subject->columns.begin(), subject->columns.end(),
                            [](const ShownColumn& c) { return c.place == Place::kEachPass; }))
        << subject->name;
    const auto axis =
        std::find_if(subject->labels.begin(), subject->labels.end(),
                     [&](const LabelSpec& spec) { return spec.name == subject->axis; });
    ASSERT_NE(axis, subject->labels.end()) << subject->name;
    EXPECT_EQ(axis->kind, LabelKind::kWhole);
    for (const char* name : {"median_ms", "min_ms", "q1_ms", "q3_ms"}) {
      EXPECT_TRUE(std::any_of(subject->columns.begin(), subject->columns.end(),
                              [&](const ShownColumn& c) { return c.column.name == name; }))
          << subject->name << " lacks " << name;
    }
  }
}

TEST(Subjects, AFileOfAnotherSubjectComesBack) {
  const ResultFile file = sums();
  const std::string text = to_json(file);
  const auto back = parse_results(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(to_json(*back), text);
  EXPECT_EQ(back->results[3].labels, file.results[3].labels);
  EXPECT_THAT(text, AllOf(HasSubstr("\"subject\": \"weighted-sum\""), Not(HasSubstr("seqlen"))));
  std::string other = text;
  other.replace(other.find("weighted-sum"), 12, "unheard-of-x");
  EXPECT_THAT(parse_results(other).status().message(), HasSubstr("results[0].subject"));
}

TEST(Subjects, TablesPlotsAndPagesTakeIt) {
  const ResultFile file = sums();
  const std::string table = comparison_table(file, {.relative_to = "naive"});
  EXPECT_THAT(table, AllOf(HasSubstr("fp32 · rows 1024 · dim 64"), HasSubstr("GB/s"),
                           HasSubstr("4.00x"), HasSubstr("fastest        forward vector")));
  EXPECT_THAT(to_csv(file), HasSubstr("implementation,device,pass,dtype,rows,dim,seed,status"));
  EXPECT_THAT(to_markdown(file, ""), HasSubstr("# Weighted sum, measured"));
  const std::string page =
      to_html(file, {.relative_to = "naive", .baseline = nullptr, .baseline_name = ""});
  EXPECT_THAT(page, AllOf(HasSubstr("Weighted sum"), Not(HasSubstr("heads"))));
  const std::vector<Plot> plots = make_plots(file);
  ASSERT_FALSE(plots.empty());
  EXPECT_THAT(plots[0].name, HasSubstr("weighted_sum_d64_fp32"));
  EXPECT_THAT(plots[0].file_svg, HasSubstr("rows of x"));
  const BaselineReport same = compare_with_baseline(file, file);
  EXPECT_EQ(same.same, 4) << same.summary();
}

TEST(Subjects, RecordsMadeBeforeAreRead) {
  int read = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(FLASHLAB_RECORDS)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream stream(entry.path());
    std::stringstream text;
    text << stream.rdbuf();
    // Records of other instruments have schemas of their own.
    if (text.str().find("\"flashlab.bench/1\"") == std::string::npos) continue;
    const auto file = parse_results(text.str(), entry.path().string());
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_FALSE(file->results.empty());
    EXPECT_EQ(compare_with_baseline(*file, *file).slower, 0);
    ++read;
  }
  EXPECT_GT(read, 5);
}

TEST(Ties, TimesWithinTheNoiseAreAlike) {
  ResultFile file = sample_comparison();
  file.results[4] = file.results[2];  // cpu's forward time again, 1% later
  file.results[4].implementation = "fa2-plain";
  for (const Column& column : {kMedianMs, kMinMs, kMaxMs}) *file.results[4][column] *= 1.01;
  const std::vector<Group> groups = group_by_problem(file);
  EXPECT_EQ(labels(best_of(groups[0], kMedianMs, 0)), "cpu and fa2-plain alike");
  EXPECT_EQ(labels(best_of(groups[0], kMedianMs, 1)), "cpu");
  EXPECT_THAT(comparison_table(file, {}), HasSubstr("forward cpu and fa2-plain alike ("));
}

TEST(Headline, FiguresBelongTogether) {
  ResultFile file = sample_comparison();
  // The share was taken in windows in which both were slower than in the samples.
  file.results[2][kRoofShare] = 0.73;
  file.results[2][kRoofTflops] = 0.1;
  const Headline head = headline(file, "naive");
  std::string all;
  for (const std::string& sentence : head.sentences) all += sentence + "\n";
  EXPECT_THAT(all, HasSubstr("73% of the measured roof (73.0 of 100 GFLOP/s in the same windows)"));
  // The error that it names is the one of the table of accuracy.
  file.results[2][kError] = 5e-7;
  file.results[2][kNaiveError] = 4e-7;
  cases::Case small = sample_case(64);
  file.results.push_back(sample_result("cpu", "forward", small, 200, 0));
  file.results.back()[kError] = 2e-7;
  file.results.back()[kNaiveError] = 1e-7;
  all.clear();
  for (const std::string& sentence : headline(file, "naive").sentences) all += sentence + "\n";
  EXPECT_THAT(all, HasSubstr("at most 1.25x that of the naive formula"));
}

TEST(Headline, ComesAgainstTheQuickestPeer) {
  ResultFile file = sample_comparison();
  const cases::Case problem = sample_case();
  EXPECT_THAT(headline(file, "naive").sentences, Not(testing::Contains(HasSubstr("peer"))));
  file.results.push_back(sample_result("cudnn", "forward", problem, 160, 0));
  file.results.push_back(sample_result("cublas", "forward", problem, 50, 0));
  const Headline head = headline(file, "naive");
  EXPECT_THAT(head.sentences[0],
              HasSubstr("The quickest peer takes 1.25x the time of the quickest"));
  EXPECT_THAT(head.sentences[1], HasSubstr("cuBLASLt's composition takes 4.00x the time"));
  EXPECT_EQ(head.tiles[0].figure, "1.25x");
  // One that is quicker than all of ours is said just so.
  file.results.push_back(sample_result("torch.cudnn", "forward", problem, 400, 0));
  const Headline lost = headline(file, "naive");
  EXPECT_THAT(lost.sentences[0], HasSubstr("The quickest peer takes 0.50x the time"));
  EXPECT_EQ(lost.tiles[0].figure, "0.50x");
}

TEST(Subjects, AnInterruptedRunSaysSoEverywhere) {
  ResultFile file = sums();
  file.planned = 48;
  const char* words = "interrupted, 4 of 48 measured";
  EXPECT_THAT(to_csv(file), HasSubstr(words));
  EXPECT_THAT(to_markdown(file, ""), HasSubstr(words));
  EXPECT_THAT(to_latex(file, ""), HasSubstr(words));
  EXPECT_THAT(to_html(file, {}), HasSubstr(words));
  EXPECT_THAT(log_section(file, ""), HasSubstr(words));
  const std::string json = to_json(file);
  EXPECT_THAT(json, AllOf(HasSubstr("\"planned\": 48"), HasSubstr("\"interrupted\": true")));
  EXPECT_TRUE(parse_results(json)->interrupted());
  file.planned = 4;
  EXPECT_THAT(to_csv(file), Not(HasSubstr("interrupted")));
  EXPECT_THAT(to_html(file, {}), Not(HasSubstr("interrupted,")));
}

TEST(Subjects, ARowWithFewerSamplesIsAnInterruptedRunToo) {
  ResultFile file = sums();
  file.planned = 4;
  file.results.back().cut_short = true;
  const char* words = "interrupted, 3 of 4 measured, 1 in part";
  EXPECT_THAT(to_csv(file), HasSubstr(words));
  EXPECT_THAT(to_markdown(file, ""), HasSubstr(words));
  EXPECT_THAT(to_latex(file, ""), HasSubstr(words));
  EXPECT_THAT(to_html(file, {}), HasSubstr(words));
  EXPECT_THAT(to_json(file), HasSubstr("\"interrupted\": true"));
  EXPECT_TRUE(parse_results(to_json(file))->results.back().cut_short);
}

}  // namespace
}  // namespace flashlab::lab::report
