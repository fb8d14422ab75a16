// What a terminal shows, and what is computed for it: groups, winners, ratios, crossover, model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/text.h"
#include "lab/report/crossover.h"
#include "lab/report/group.h"
#include "lab/report/headline.h"
#include "lab/report/ladder.h"
#include "lab/report/model.h"
#include "lab/report/table.h"
#include "lab/results/results_json.h"
#include "lab/results/verdict.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

std::string title_of(const cases::Case& problem, std::string_view separator = " · ") {
  return attention_subject().title(labels_of(problem), separator);
}

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(ReportGroup, ProblemsComeTogetherPassesInOrder) {
  ResultFile file = sample_comparison();
  std::reverse(file.results.begin(), file.results.end());
  file.results[0].labels.set("case", std::string("another name"));
  file.results[1].labels.set("seed", std::uint64_t{7});
  const std::vector<Group> groups = group_by_problem(file);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(groups[0].passes, ElementsAre("forward", "backward"));
  ASSERT_EQ(groups[0].rows.size(), 3u);
  EXPECT_EQ(groups[0].rows[0].label, "fa2-plain");
}

TEST(ReportGroup, NothingMeasuredTwiceIsDropped) {
  ResultFile file = sample_comparison();
  file.results.push_back(file.results[2]);
  file.results.push_back(file.results[2]);
  file.results.back().device = "cuda:0";
  const std::vector<Group> groups = group_by_problem(file);
  std::vector<std::string> labels;
  for (const Row& row : groups[0].rows) labels.push_back(row.label);
  EXPECT_THAT(labels,
              ElementsAre("naive", "cpu (cpu)", "fa2-plain", "cpu (cpu) #2", "cpu (cuda:0)"));
}

TEST(ReportGroup, TitlesSayWhatIsNotDefault) {
  cases::Case problem = sample_case(4096, DType::kBf16);
  EXPECT_EQ(title_of(problem), "bf16 · batch 1 · heads 8 · S 4096 · d 64");
  problem.heads_k = 2;
  problem.seqlen_k = 128;
  problem.head_dim_v = 32;
  problem.causal = Causal::kBottomRight;
  problem.mask = cases::MaskKind::kBool;
  problem.scale = 0.5f;
  EXPECT_EQ(title_of(problem, ", "),
            "bf16, batch 1, heads 8 over 2, S 4096 x 128, d 64, values 32, causal, bottom-right + "
            "boolean mask, scale 0.5");
  EXPECT_EQ(attention_subject().family_slug(labels_of(problem)),
            "B1_H8kv2_d64v32_bf16_Sq4096_causal-bottom-right+bool_scale0.5");
  problem.name = "gpt2-small";
  EXPECT_THAT(title_of(problem), StartsWith("gpt2-small · bf16"));
  problem.name = "sweep b1 s4096";
  EXPECT_THAT(title_of(problem), Not(HasSubstr("sweep")));
}

TEST(ReportGroup, RelativeToMustHaveResults) {
  const ResultFile file = sample_comparison();
  EXPECT_EQ(*resolve_relative_to(file, ""), "naive");
  EXPECT_EQ(*resolve_relative_to(file, "cpu"), "cpu");
  EXPECT_EQ(*resolve_relative_to(ResultFile{}, ""), "");
  const auto unknown = resolve_relative_to(file, "cudnn");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.status().message(), HasSubstr("--relative-to"));
  EXPECT_THAT(unknown.status().message(), HasSubstr("cudnn"));
  EXPECT_THAT(unknown.status().message(), HasSubstr("naive, cpu, fa2-plain"));
}

TEST(ReportGroup, WinnersSkipWhatDidNotRunEveryPass) {
  ResultFile file = sample_comparison();
  file.results[4][kError] = 1e-9;  // fa2-plain, forward only
  const std::vector<Group> groups = group_by_problem(file);
  EXPECT_EQ(labels(best_of(groups[0], kMedianMs, 0)), "cpu");
  EXPECT_EQ(labels(best_of(groups[0], kPeakBytes)), "cpu")
      << "fa2-plain needs less but has no backward";
  EXPECT_EQ(labels(best_of(groups[0], kError)), "naive");
}

TEST(ReportGroup, TheYardstickAndNanDoNotWin) {
  ResultFile file = sample_comparison();
  for (const char* pass : {"forward", "backward"}) {
    file.results.push_back(sample_result("reference", pass, sample_case(), 1, 0));
    file.results.back()[kError] = 0;
  }
  file.results[2][kError] = std::nan("");
  const std::vector<Group> groups = group_by_problem(file);
  EXPECT_EQ(labels(best_of(groups[0], kError)), "naive");
  EXPECT_TRUE(std::isnan(*groups[0].find("cpu")->worst(kError)))
      << "backward's number must not hide it";
}

TEST(ReportTable, ComparisonLooksAsDocumented) {
  const std::string text = comparison_table(sample_comparison(), {"naive", 80, false});
  EXPECT_EQ(text,
            "fp32 · batch 1 · heads 8 · S 2048 · d 64\n"
            "                      forward              backward           peak    error\n"
            "implementation      ms GFLOP/s roof      ms GFLOP/s roof    memory  vs fp64\n"
            "naive            429.5    20.0   8%    1342    16.0   7%   551 MiB  4.0e-07\n"
            "  forward: scores 20.00 + softmax 15.00 + values 10.00 ms\n"
            "cpu              42.95     200  85%   134.2     160  68%  32.3 MiB  5.0e-07\n"
            "fa2-plain        171.8    50.0  21%       -       -    -  16.1 MiB  5.0e-07\n"
            "  forward only: fa2-plain\n"
            "\n"
            "compared with naive    forward speed   backward speed    memory\n"
            "cpu                            10.0x            10.0x    0.059x\n"
            "fa2-plain                      2.50x                -    0.058x\n"
            "\n"
            "fastest        forward cpu (42.95 ms), backward cpu (134.2 ms)\n"
            "least memory   cpu (32.3 MiB)\n"
            "most accurate  naive (4.0e-07)\n");
}

TEST(ReportTable, WhatReadingBoundsHasBytesASecondAndTheShareOfThatRoof) {
  cases::Case decode = sample_case(32768, DType::kBf16), prefill = decode;
  decode.seqlen_q = 1;
  decode.set_cache(64);
  prefill.set_cache(64);
  ResultFile file;
  file.environment.read_gb_per_s = 4000;
  file.environment.roof_bf16_gflops = 600'000;
  for (const cases::Case& problem : {decode, prefill}) {
    Measurement r = sample_result("decode", "forward", problem, 1e5, 0);
    const double ms[] = {problem.ideal_bytes(Pass::kForward) / 3e9};
    r.set_times(ms, problem.flops(Pass::kForward), problem.ideal_bytes(Pass::kForward));
    r[kRoofShare] = 0.5;
    r.set_read_share(file.environment);
    file.results.push_back(r);
  }
  EXPECT_DOUBLE_EQ(*file.results[0][kRoofShare], 0.75);
  EXPECT_EQ(file.results[0].roof_name, kRoofOfReads);
  EXPECT_DOUBLE_EQ(*file.results[1][kRoofShare], 0.5) << "its products take longer";
  const std::string text = comparison_table(file, {"", 80, false});
  EXPECT_THAT(text, HasSubstr("implementation      ms    GB/s roof"));
  EXPECT_THAT(text, HasSubstr("3000  75%"));
  EXPECT_THAT(text, HasSubstr("implementation      ms TFLOP/s roof"));
  EXPECT_THAT(text, Not(HasSubstr("above 100%")));
  Measurement fp32 = file.results[0];
  fp32[kRoofShare] = 0.8, fp32.roof_name = "units: fp16 tensor cores / 3";
  fp32.set_read_share(file.environment);
  EXPECT_DOUBLE_EQ(*fp32[kRoofShare], 0.8) << "of its own units it has the larger share";
  file.environment.read_gb_per_s.reset();
  file.results[0][kRoofShare] = 0.1;
  file.results[0].set_read_share(file.environment);
  EXPECT_DOUBLE_EQ(*file.results[0][kRoofShare], 0.1);
}

TEST(ReportTable, OnACpuWhatMemoryBindsHasNoShareOfProducts) {
  cases::Case decode = sample_case(2048, DType::kFp32);
  decode.seqlen_q = 1;
  decode.set_cache(0);
  ResultFile file;
  file.environment.copy_gb_per_s = 10;
  file.environment.roof_bf16_gflops = 200;
  Measurement r = sample_result("cpu", "forward", decode, 1e5, 0);
  const double ms[] = {decode.ideal_bytes(Pass::kForward) / 4e6};
  r.set_times(ms, decode.flops(Pass::kForward), decode.ideal_bytes(Pass::kForward));
  Measurement fp64 = r;
  fp64[kRoofShare].reset();
  fp64.set_read_share(file.environment);
  EXPECT_EQ(fp64.roof_name, "") << "what its products could do is not known";
  r[kRoofShare] = 0.6;
  r.set_read_share(file.environment);
  EXPECT_DOUBLE_EQ(*r[kRoofShare], 0.6) << "copies allow more than it takes: products bind";
  r[kRoofShare] = 0.02;
  r.set_read_share(file.environment);
  EXPECT_EQ(r.roof_name, kRoofOfReads);
  EXPECT_FALSE(r[kRoofShare]);
  EXPECT_FALSE(judge_throughput(r, file.environment));
  file.results.push_back(r);
  EXPECT_THAT(comparison_table(file, {"", 80, false}), HasSubstr("GB/s roof"));
}

TEST(ReportTable, FitsIntoItsWidthWhateverTheNames) {
  for (const int width : {40, 80, 120}) {
    for (const ResultFile& file : {sample_comparison(), sample_sweep(), hostile_results()}) {
      const std::vector<Group> groups = group_by_problem(file);
      for (const std::string& line : lines_of(comparison_table(file, {"naive", width, false}))) {
        // Only hostile files have a third pass and figures like 1e+300, which take their room.
        const int limit = std::max(width, 80) + (groups[0].passes.size() > 2 ? 21 + 11 : 0);
        EXPECT_LE(base::display_width(line), limit) << line;
        EXPECT_EQ(line.find('\x1b'), std::string::npos) << "no escapes but our own";
      }
    }
  }
}

TEST(ReportTable, ColoursChangeNothingElse) {
  const ResultFile file = sample_comparison();
  const std::string plain = comparison_table(file, {"naive", 100, false});
  const std::string coloured = comparison_table(file, {"naive", 100, true});
  EXPECT_THAT(coloured, HasSubstr("\x1b[32m   42.95\x1b[0m"));
  std::string stripped;
  for (std::size_t at = 0; at < coloured.size(); ++at) {
    if (coloured[at] == '\x1b') {
      at = coloured.find('m', at);
    } else {
      stripped += coloured[at];
    }
  }
  EXPECT_EQ(stripped, plain);
}

TEST(ReportTable, ARowWithoutFiguresSaysWhyInTheirPlace) {
  ResultFile file = sample_comparison();
  const std::string why =
      "scores alone need 256 GiB (8 x 65536 x 65536 x 8 B), 139 GiB on the device";
  for (const int i : {0, 1}) {
    file.results[i] =
        failed_result("naive", file.results[i].pass, sample_case(), RunStatus::kOutOfMemory, why);
  }
  const std::string text = comparison_table(file, {"naive", 120, false});
  EXPECT_THAT(text, HasSubstr("naive           out of memory: " + why + "\n"));
  EXPECT_THAT(text, Not(HasSubstr("compared with"))) << "there is nothing to compare with";
}

TEST(ReportTable, NoResultsAndOneResult) {
  EXPECT_EQ(comparison_table({}, {}), "no results\n");
  EXPECT_THAT(bench_table_header(attention_subject(), RateUnit::kTflops),
              StartsWith("implementation"));
  ResultFile one;
  one.results.push_back(sample_result("cpu", "forward", sample_case(), 2000, 0));
  const std::string text = comparison_table(one, {});
  EXPECT_THAT(text, HasSubstr("TFLOP/s"));
  EXPECT_THAT(text, HasSubstr("2.00"));
  EXPECT_THAT(text, HasSubstr("fastest        forward cpu"));
}

TEST(ReportTable, BenchColumnsDoNotMove) {
  ResultFile file = sample_comparison();
  file.environment.date_utc = "2026-11-21T03:40:00Z";
  std::string table = bench_table_header(attention_subject(), RateUnit::kGflops);
  for (const Measurement& r : file.results) table += bench_table_line(r, RateUnit::kGflops);
  const std::vector<std::string> lines = lines_of(table);
  ASSERT_EQ(lines.size(), file.results.size() + 1);
  const std::size_t status = lines[0].find("status");
  for (const std::string& line : lines) {
    EXPECT_THAT(line, Not(HasSubstr("2026")));
    EXPECT_EQ(line[status - 1], ' ');
    EXPECT_NE(line[status], ' ');
  }
  EXPECT_THAT(lines[1].substr(status), StartsWith("ok"));
  EXPECT_THAT(lines[6].substr(status), StartsWith("unsupported  required backward"));

  Measurement& longest = file.results[0];
  longest.implementation = "flashlab.naive.checkpoint=qkv";
  const SharedLabels shared{
      .names = {}, .text = "", .name_width = static_cast<int>(longest.implementation.size())};
  const std::string header = bench_table_header(attention_subject(), RateUnit::kGflops, shared);
  for (const Measurement& r : file.results) {
    EXPECT_THAT(bench_table_line(r, RateUnit::kGflops, shared).substr(header.find("device")),
                StartsWith("cpu "));
  }
}

TEST(ReportTable, ARoofThatIsPassedIsNamed) {
  ResultFile file = sample_comparison();
  const auto note = [&] {
    const std::string text = comparison_table(file, {"naive", 80, false});
    const std::size_t at = text.find("roof above 100%");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  file.results[2][kRoofShare] = 1.02;
  EXPECT_EQ(note(), "") << "a CPU's roof has no name: its clock changed";
  file.results[2].roof_name = "fp32 FMA";
  EXPECT_EQ(note(),
            "roof above 100%: of fp32 FMA; tensor cores multiply the operands in parts, and");
  file.results[2].roof_name = "mma.sync bf16";
  EXPECT_EQ(note(), "roof above 100%: of mma.sync bf16; wgmma multiplies faster");
  file.results[2].roof_name = std::string(kRoofOfUnits) + "bf16 tensor cores";
  EXPECT_EQ(note(), "") << "the clock's own spread";
  file.results[2].roof_name = "mma.sync bf16";
  file.results[2][kRoofShare] = 0.98;
  EXPECT_EQ(note(), "");
}

TEST(ReportTable, OnANarrowTerminalWhatIsSharedStandsOnce) {
  cases::Case a = sample_case(), b = sample_case();
  b.seqlen_q = b.seqlen_k = 4 * a.seqlen_q;
  const Subject& subject = attention_subject();
  EXPECT_TRUE(shared_labels(subject, {labels_of(a)}, "cpu", 200).text.empty());
  const SharedLabels one = shared_labels(subject, {labels_of(a)}, "cpu", 80);
  const SharedLabels two = shared_labels(subject, {labels_of(a), labels_of(b)}, "cpu", 80);
  EXPECT_THAT(one.text, StartsWith("cpu · dtype "));
  EXPECT_THAT(one.text, HasSubstr(" · Sq "));
  EXPECT_THAT(two.text, Not(HasSubstr(" · Sq ")));
  EXPECT_THAT(two.text, HasSubstr(" · Sk = Sq "));
  const Measurement r = sample_result("cpu", "forward", a, 2000, 0);
  for (const SharedLabels* each : {&one, &two}) {
    const SharedLabels& shared = *each;
    const std::vector<std::string> lines =
        lines_of(bench_table_header(subject, RateUnit::kGflops, shared) +
                 bench_table_line(r, RateUnit::kGflops, shared));
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_THAT(lines[1], EndsWith(" status"));
    EXPECT_EQ(lines[2].substr(lines[1].find("status"), 2), "ok");
    EXPECT_LE(lines[1].size(), 80u);
  }
}

TEST(ReportCrossover, FromWhichLengthOn) {
  const std::vector<Crossover> list = crossovers(sample_sweep(), "naive");
  ASSERT_EQ(list.size(), 4u) << "two head dims, two passes";
  for (const Crossover& c : list) {
    EXPECT_EQ(c.implementation, "cpu");
    EXPECT_EQ(c.batch_heads, 4);
    ASSERT_TRUE(c.from.has_value());
    EXPECT_EQ(*c.from, 1024);
    EXPECT_EQ(c.longest, 16384) << "out of memory counts for the one that ran";
    EXPECT_NEAR(c.shortest_speed_up, 100.0 / 150, 1e-9);
    EXPECT_NEAR(c.longest_speed_up, 5, 1e-9);
    EXPECT_EQ(to_string(c), "from S 1k");
  }
  EXPECT_THAT(crossover_table(sample_sweep(), "naive"),
              HasSubstr("cpu             forward   fp32, causal  32      4"));
  EXPECT_THAT(crossover_table(sample_comparison(), "naive"), IsEmpty());
}

TEST(ReportCrossover, ADipInTheMiddleMovesTheCrossover) {
  ResultFile file = sample_sweep();
  for (Measurement& r : file.results) {
    if (r.implementation == "cpu" && r.labels.whole("seqlen_q") == 2048) r[kMedianMs] = 1e6;
    if (r.implementation == "naive" && r.labels.whole("head_dim") == 64 &&
        r.status == RunStatus::kOk) {
      r[kMedianMs] = 1e-6;
    }
  }
  for (const Crossover& c : crossovers(file, "naive")) {
    EXPECT_EQ(*c.from, c.head_dim == 64 ? 8192 : 4096);
  }
  const std::vector<Crossover> reversed = crossovers(file, "cpu");
  ASSERT_FALSE(reversed.empty());
  EXPECT_EQ(to_string(reversed[0]), "not up to S 16k");
}

TEST(ReportModel, CountsByHand) {
  cases::Case p = sample_case(128);
  p.batch = p.heads_q = p.heads_k = 1;
  const ModelledCost naive = modelled_cost(p, Pass::kForward, Algorithm::kNaive);
  EXPECT_EQ(naive.flops, 2.0 * 128 * 128 * 128);
  // q k, S, P v; S, P, o, lse
  EXPECT_EQ(naive.read_bytes, 3.0 * 128 * 64 * 4 + 2.0 * 128 * 128 * 4);
  EXPECT_EQ(naive.written_bytes, 2.0 * 128 * 128 * 4 + 128 * 64 * 4 + 128 * 4);
  const ModelledCost flash = modelled_cost(p, Pass::kForward, Algorithm::kFlash, {64, 64});
  EXPECT_EQ(flash.flops, naive.flops);
  EXPECT_EQ(flash.read_bytes, 128.0 * 64 * 4 + 2 * 128.0 * 128 * 4)
      << "k and v for two query tiles";
  EXPECT_EQ(flash.written_bytes, 128.0 * 64 * 4 + 128 * 4);
  p.causal = Causal::kTopLeft;
  const ModelledCost causal = modelled_cost(p, Pass::kForward, Algorithm::kFlash, {64, 64});
  EXPECT_EQ(causal.flops, flash.flops * 3 / 4) << "three of four tiles";
  EXPECT_EQ(modelled_cost(p, Pass::kForward, Algorithm::kNaive).flops, naive.flops);
  EXPECT_EQ(modelled_cost(p, Pass::kBackward, Algorithm::kNaive).flops, naive.flops * 5 / 2);
  const Caches large{1 << 30, 1 << 30};
  EXPECT_LT(modelled_cost(p, Pass::kForward, Algorithm::kNaive, {}, large).bytes(),
            naive.bytes() / 2);
}

TEST(ReportModel, LongSequencesFavourTiles) {
  const cases::Case p = sample_case(16384);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const ModelledCost naive = modelled_cost(p, pass, Algorithm::kNaive);
    const ModelledCost flash = modelled_cost(p, pass, Algorithm::kFlash, {256, 256});
    EXPECT_GT(naive.bytes(), 2 * flash.bytes());
  }
}

TEST(ReportModel, TilesAreTheResults) {
  ResultFile file = sample_comparison();
  const auto tile_of_cpu = [&] {
    for (const ModelRow& row : model_rows(group_by_problem(file).front(), {})) {
      if (row.label == "cpu" && row.pass == "forward") return row.tile;
    }
    return Tile{0, 0};
  };
  EXPECT_EQ(tile_of_cpu().q, Tile().q) << "a record without tiles";
  file.results[2].plan = "query tile 96 x key block 192";  // words are for people
  file.results[2].tile_q = 128;
  file.results[2].tile_k = 176;
  const auto again = parse_results(to_json(file), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  file = *again;
  EXPECT_EQ(tile_of_cpu().q, 128);
  EXPECT_EQ(tile_of_cpu().k, 176);
}

TEST(ReportModel, KnowsHowAnImplementationGoesAboutIt) {
  EXPECT_EQ(algorithm_of("reference"), std::nullopt);
  EXPECT_EQ(algorithm_of("naive"), Algorithm::kNaive);
  EXPECT_EQ(algorithm_of("sm90"), Algorithm::kFlash);
}

TEST(ReportHeadline, SaysWhoWinsAndByHowMuch) {
  const Headline head = headline(sample_comparison(), "naive");
  EXPECT_EQ(head.title, "Attention on Example CPU, 2 threads");
  EXPECT_THAT(head.sentences, Contains("cpu is the fastest in 2 of 2 comparisons."));
  EXPECT_THAT(head.sentences, Contains(HasSubstr("10.0x the speed of naive")));
  EXPECT_THAT(head.sentences, Contains(HasSubstr("There it reaches 85% of the measured roof")));
  EXPECT_THAT(head.sentences, Contains(HasSubstr("1 of 6 measurements has no figures")));
  EXPECT_THAT(headline({}, "").sentences, ElementsAre("Nothing was measured."));
}

TEST(ReportTable, TheLadderShowsWhatEachRungGains) {
  ResultFile file;
  const cases::Case problem = sample_case();
  for (const auto& [name, gflops] :
       {std::pair{"cpu", 90.0}, {"naive", 10.0}, {"fa2-plain", 15.0}}) {
    file.results.push_back(sample_result(name, "forward", problem, gflops, 0));
  }
  file.results.push_back(sample_result("cublas", "forward", problem, 50, 0));
  const std::vector<std::string> lines = lines_of(ladder_table(file, rungs_of(DeviceKind::kCpu)));
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[2], StartsWith("  naive"));
  EXPECT_THAT(lines[3], testing::AllOf(StartsWith("  fa2-plain"), HasSubstr("1.50x     1.50x")));
  EXPECT_THAT(lines[4], testing::AllOf(StartsWith("  cpu"), HasSubstr("6.00x     9.00x")));
}

}  // namespace
}  // namespace flashlab::lab::report
