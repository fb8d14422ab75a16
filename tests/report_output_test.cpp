// The folder a run leaves behind, also on a bad day.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "lab/report/output.h"
#include "lab/results/results_json.h"
#include "report_process.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kTime = "2026-11-21T03:40:00Z";

/// A program in `folder` that behaves as the shell lines say.
std::string make_program(const fs::path& folder, const std::string& lines) {
  const fs::path path = folder / "converter";
  { std::ofstream(path) << "#!/bin/sh\n" << lines << "\n"; }
  chmod(path.c_str(), 0755);
  return path.string();
}

TEST(ReportOutput, FoldersOfOneSecondDoNotCollide) {
  const TemporaryFolder folder;
  const fs::path parent = folder.path() / "deep" / "results";
  const auto first = make_output_folder(parent, kTime);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(*first, parent / "2026-11-21T03-40-00Z");
  { std::ofstream(*first / "results.json") << "precious"; }
  const auto second = make_output_folder(parent, kTime);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*second, parent / "2026-11-21T03-40-00Z-2");
  EXPECT_EQ(read_file(*first / "results.json"), "precious");
}

TEST(ReportOutput, ATimeCannotLeaveItsFolder) {
  const TemporaryFolder folder;
  for (const char* time : {"../../x", "..", "", "/etc", "a b\n"}) {
    const auto made = make_output_folder(folder.path(), time);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->parent_path(), folder.path());
    EXPECT_EQ(made->filename().string().find_first_of("/\n "), std::string::npos);
  }
}

TEST(ReportOutput, AFileInTheWayIsNamedAndKept) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "results";
  { std::ofstream(file) << "mine"; }
  for (const fs::path& parent : {file, file / "deeper"}) {
    const auto made = make_output_folder(parent, kTime);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kIoError);
    EXPECT_THAT(made.status().message(), HasSubstr("results"));
    EXPECT_THAT(made.status().detail().remedy, HasSubstr("--output"));
  }
  EXPECT_EQ(read_file(file), "mine");
}

TEST(ReportOutput, AnUnwritableFolderIsAnErrorWithARemedy) {
  if (geteuid() == 0) {
    // Root may write anywhere but into what the kernel makes up.
    const auto made = make_output_folder("/proc/results", kTime);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kIoError);
    return;
  }
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0555);
  const auto made = make_output_folder(folder.path(), kTime);
  chmod(folder.path().c_str(), 0755);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.status().detail().remedy, HasSubstr("may write"));
}

TEST(ReportOutput, WritesEverything) {
  const TemporaryFolder folder;
  WriteOptions options;
  options.html.relative_to = "naive";
  options.png = false;
  const WrittenFiles written = write_report(folder.path(), sample_comparison(), options);
  ASSERT_TRUE(written.status.ok()) << written.status.message();
  std::vector<std::string> names;
  for (const fs::path& path : written.files) {
    EXPECT_GT(fs::file_size(path), 100u) << path;
    names.push_back(path.lexically_relative(folder.path()).generic_string());
  }
  EXPECT_THAT(names,
              ElementsAre("results.json", "results.csv", "report.html", "results.md", "results.tex",
                          "plots/roof_shares.svg", "plots/performance_B1_H8_d64_fp32_S2048.svg",
                          "plots/memory_B1_H8_d64_fp32_S2048.svg"));
  const auto back = read_results(folder.path() / "results.json");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->results.size(), 6u);
}

TEST(ReportOutput, OneFailureDoesNotStopTheOthers) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path() / "results.csv");  // cannot be replaced by a file
  { std::ofstream(folder.path() / "plots") << "a file"; }
  WriteOptions options;
  options.png = false;
  const WrittenFiles written = write_report(folder.path(), sample_comparison(), options);
  EXPECT_EQ(written.status.code(), StatusCode::kIoError);
  EXPECT_THAT(written.status.message(), HasSubstr("results.csv"));
  EXPECT_TRUE(fs::exists(folder.path() / "results.json"));
  EXPECT_TRUE(fs::exists(folder.path() / "report.html"));
  EXPECT_EQ(read_file(folder.path() / "plots"), "a file");
  const WrittenFiles nowhere = write_report(folder.path() / "absent", sample_comparison(), options);
  EXPECT_EQ(nowhere.status.code(), StatusCode::kIoError);
  EXPECT_THAT(nowhere.files, IsEmpty());
}

TEST(ReportOutput, PngsByAProgram) {
  const TemporaryFolder folder, programs;
  WriteOptions options;
  // The last word is the SVG, the one before it the PNG.
  options.converter = make_program(programs.path(), "cp \"$5\" \"$4\"");
  const WrittenFiles written = write_report(folder.path(), sample_comparison(), options);
  ASSERT_TRUE(written.status.ok()) << written.status.message();
  EXPECT_THAT(written.notes, IsEmpty());
  EXPECT_TRUE(fs::exists(folder.path() / "plots" / "roof_shares.png"));
}

TEST(ReportOutput, WithoutTheProgramThereIsANote) {
  const TemporaryFolder folder, programs;
  WriteOptions options;
  options.converter = "no-such-converter-anywhere";
  const WrittenFiles written = write_report(folder.path(), sample_comparison(), options);
  EXPECT_TRUE(written.status.ok()) << "PNGs are a convenience";
  ASSERT_EQ(written.notes.size(), 1u);
  EXPECT_THAT(written.notes[0],
              HasSubstr("no PNG pictures: no-such-converter-anywhere: got no such program"));
  EXPECT_THAT(written.notes[0], HasSubstr("librsvg2-bin"));

  const fs::path svg = folder.path() / "plots" / "roof_shares.svg", png = folder.path() / "x.png";
  const Status failed =
      convert_to_png(make_program(programs.path(), "echo half > \"$4\"; exit 7"), svg, png);
  EXPECT_EQ(failed.code(), StatusCode::kIoError);
  EXPECT_THAT(failed.message(), HasSubstr("exit code 7"));
  EXPECT_FALSE(fs::exists(png)) << "half a picture is none";
}

}  // namespace
}  // namespace flashlab::lab::report
