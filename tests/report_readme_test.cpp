// The README's tables.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lab/report/readme.h"
#include "lab/results_json.h"
#include "report_process.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(ReportReadme, TableWithItsProvenance) {
  const RecordedResults recorded[] = {{"bench/results/a.json", sample_comparison()}};
  EXPECT_EQ(readme_tables(recorded),
            "| GFLOP/s (share of roof) | pass | naive | cpu | fa2-plain | fastest vs naive |\n"
            "|---|---|---:|---:|---:|---:|\n"
            "| fp32 · batch 1 · heads 8 · S 2048 · d 64 | forward | 20.0 (8%) | **200 (85%)** | "
            "50.0 (21%) | 10.0x |\n"
            "| fp32 · batch 1 · heads 8 · S 2048 · d 64 | backward | 16.0 (7%) | **160 (68%)** | "
            "unsupported | 10.0x |\n"
            "\n"
            "Measured on Example CPU, 2 threads, avx512; 2026-11-21; commit 1f2e3d4. Command: "
            "`flashlab compare --device cpu --pass both`. All figures: `bench/results/a.json`.\n");
}

TEST(ReportReadme, FilesWithoutResultsSayNothing) {
  const RecordedResults empty[] = {{"a.json", {}}};
  EXPECT_THAT(readme_tables(empty), IsEmpty());
  const RecordedResults hostile[] = {{"a`b.json", hostile_results()}};
  EXPECT_THAT(readme_tables(hostile), Not(HasSubstr("<script>")));
}

TEST(ReportReadme, ReadsAFolder) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_results(folder.path() / "b.json", sample_sweep()).ok());
  ASSERT_TRUE(write_results(folder.path() / "a.json", sample_comparison()).ok());
  { std::ofstream(folder.path() / "notes.txt") << "not results"; }
  const auto tables = readme_tables_of(folder.path());
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  EXPECT_LT(tables->find("a.json"), tables->find("b.json"));
  { std::ofstream(folder.path() / "c.json") << "{"; }
  const auto broken = readme_tables_of(folder.path());
  ASSERT_FALSE(broken.ok());
  EXPECT_THAT(broken.status().message(), HasSubstr("c.json"));
  EXPECT_EQ(readme_tables_of(folder.path() / "absent").status().code(), StatusCode::kIoError);
}

TEST(ReportReadme, ReplacesBetweenItsMarkers) {
  const std::string begin(kReadmeBegin), end(kReadmeEnd);
  const auto made = with_readme_tables("top\n" + begin + "\nold\n" + end + "\nbottom\n", "new\n");
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(*made, "top\n" + begin + "\n\nnew\n\n" + end + "\nbottom\n");
  EXPECT_EQ(*with_readme_tables(*made, "new\n"), *made) << "a second time changes nothing";
  for (const std::string& bad :
       {std::string("none"), begin, end + begin, begin + begin + end, begin + end + end}) {
    const auto refused = with_readme_tables(bad, "new\n");
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_THAT(refused.status().message(), HasSubstr(begin));
  }
}

}  // namespace
}  // namespace flashlab::lab::report
