// CSV, Markdown, LaTeX and the log.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lab/report/formats.h"
#include "report_process.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// RFC 4180, read back: fields of records.
std::vector<std::vector<std::string>> parse_csv(const std::string& text) {
  std::vector<std::vector<std::string>> records(1);
  std::string field;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        field += '"';
        ++at;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',' || c == '\n') {
      if (c == '\n' && !field.empty() && field.back() == '\r') field.pop_back();
      records.back().push_back(field);
      field.clear();
      if (c == '\n') records.emplace_back();
    } else {
      field += c;
    }
  }
  records.pop_back();
  return records;
}

std::string field(const std::vector<std::vector<std::string>>& csv, std::size_t row,
                  const std::string& name) {
  for (std::size_t i = 0; i < csv[0].size(); ++i) {
    if (csv[0][i] == name) return csv[row][i];
  }
  ADD_FAILURE() << "no column " << name;
  return {};
}

TEST(ReportFormats, CsvKeepsEveryDigitAndLeavesAbsentEmpty) {
  const ResultFile file = sample_comparison();
  const auto csv = parse_csv(to_csv(file));
  ASSERT_EQ(csv.size(), file.results.size() + 1);
  EXPECT_EQ(field(csv, 3, "implementation"), "cpu");
  EXPECT_EQ(std::stod(field(csv, 3, "median_ms")), *file.results[2][kMedianMs]);
  EXPECT_EQ(field(csv, 3, "peak_bytes"),
            std::to_string(std::llround(*file.results[2][kPeakBytes])));
  EXPECT_EQ(field(csv, 3, "workspace_bytes"), "");
  EXPECT_EQ(field(csv, 6, "status"), "unsupported");
  EXPECT_EQ(field(csv, 6, "median_ms"), "");
  EXPECT_EQ(field(csv, 1, "mask"), "none");
}

TEST(ReportFormats, CsvSurvivesAnything) {
  const ResultFile file = hostile_results();
  const auto csv = parse_csv(to_csv(file));
  ASSERT_EQ(csv.size(), file.results.size() + 1);
  for (std::size_t i = 0; i < csv.size(); ++i) {
    ASSERT_EQ(csv[i].size(), csv[0].size()) << "record " << i;
    if (i > 0) {
      EXPECT_EQ(field(csv, i, "plan"), file.results[i - 1].plan);
      EXPECT_EQ(field(csv, i, "implementation"), file.results[i - 1].implementation);
    }
  }
  EXPECT_EQ(field(csv, 1, "median_ms"), "nan");
  EXPECT_THAT(to_csv({}), StartsWith("implementation,device,pass,dtype,batch"));
}

TEST(ReportFormats, MarkdownTables) {
  const std::string text = to_markdown(sample_comparison(), "naive");
  EXPECT_THAT(text, StartsWith("# Attention, measured\n"));
  EXPECT_THAT(text, HasSubstr("## fp32 · batch 1 · heads 8 · S 2048 · d 64\n"));
  EXPECT_THAT(text, HasSubstr("| cpu | **42.95** | 200 | 85% | 10.0x | **134.2** |"));
  EXPECT_THAT(text, HasSubstr("- fa2-plain, backward: unsupported: required backward"));
  EXPECT_THAT(text, HasSubstr("- fastest: forward cpu (42.95 ms), backward cpu (134.2 ms)\n"));
  EXPECT_THAT(text, HasSubstr("- command: `flashlab compare --device cpu --pass both`"));
  EXPECT_THAT(text, HasSubstr("- **warning**: another program uses the CPU (stop it)"));
  EXPECT_THAT(to_markdown(sample_comparison(), ""), Not(HasSubstr("vs naive")));
  EXPECT_THAT(to_markdown({}, ""), HasSubstr("No results."));
}

TEST(ReportFormats, MarkdownRowsKeepTheirColumns) {
  const std::string text = to_markdown(hostile_results(), "");
  std::size_t columns = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("- command: ``", 0) != 0) {
      EXPECT_EQ(line.find('<'), std::string::npos) << line;
    }
    if (line.empty() || line[0] != '|') {
      columns = 0;
      continue;
    }
    std::size_t bars = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    }
    if (columns == 0) columns = bars;
    EXPECT_EQ(bars, columns) << line;
  }
}

TEST(ReportFormats, LatexIsBalancedAndEscaped) {
  const std::string text = to_latex(sample_comparison(), "naive");
  EXPECT_THAT(text, HasSubstr("\\usepackage{booktabs}"));
  EXPECT_THAT(text, HasSubstr("\\multicolumn{4}{c}{forward}"));
  EXPECT_THAT(text, HasSubstr("cpu & \\textbf{42.95} & 200 & 85\\%"));
  EXPECT_THAT(text, HasSubstr(" & -- "));
  for (const ResultFile& file : {sample_comparison(), hostile_results()}) {
    int depth = 0, opened = 0, closed = 0;
    const std::string latex = to_latex(file, "naive");
    for (std::size_t i = 0; i < latex.size(); ++i) {
      if (latex[i] == '\\') {
        opened += latex.compare(i, 6, "\\begin") == 0;
        closed += latex.compare(i, 4, "\\end") == 0;
        ++i;
        continue;
      }
      depth += (latex[i] == '{') - (latex[i] == '}');
      ASSERT_GE(depth, 0);
    }
    EXPECT_EQ(depth, 0);
    EXPECT_EQ(opened, closed);
  }
}

TEST(ReportFormats, LogAppendsAndKeepsWhatIsThere) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "log.md";
  ASSERT_TRUE(append_log(path, sample_comparison(), "naive").ok());
  const std::string first = read_file(path);
  EXPECT_THAT(first, StartsWith("## 2026-11-21T03:40:00Z\n"));
  { std::ofstream(path, std::ios::app) << "my own note, no line end"; }
  ASSERT_TRUE(append_log(path, sample_comparison(), "").ok());
  const std::string both = read_file(path);
  EXPECT_THAT(both, StartsWith(first + "my own note, no line end\n\n## 2026-11-21T03:40:00Z\n"));
}

TEST(ReportFormats, LogFailuresNameTheFileAndARemedy) {
  const TemporaryFolder folder;
  const Status missing = append_log(folder.path() / "no" / "log.md", sample_comparison(), "");
  EXPECT_EQ(missing.code(), StatusCode::kIoError);
  EXPECT_THAT(missing.message(), HasSubstr("log.md"));
  EXPECT_EQ(missing.detail().remedy, "make the folder first");
  const Status is_folder = append_log(folder.path(), sample_comparison(), "");
  EXPECT_EQ(is_folder.detail().remedy, "name a file in that folder");
  const Status full = append_log("/dev/full", sample_comparison(), "");
  EXPECT_EQ(full.code(), StatusCode::kIoError);
  EXPECT_THAT(full.detail().remedy, HasSubstr("free some space"));
}

}  // namespace
}  // namespace flashlab::lab::report
