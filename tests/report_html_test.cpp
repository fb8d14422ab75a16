// The page: what it says, and that a static check of it passes - and can fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lab/report/cells.h"
#include "lab/report/group.h"
#include "lab/report/html.h"
#include "lab/report/svg.h"
#include "lab/results/baseline.h"
#include "report_process.h"
#include "report_samples.h"

namespace flashlab::lab::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Outcome check(const std::string& html) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "report.html";
  std::ofstream(path) << html;
  return run_python({FLASHLAB_HTML_CHECK, path.string()});
}

ResultFile many_results() {
  ResultFile file;
  file.environment = sample_environment();
  for (int i = 0; i < 25; ++i) {
    for (const char* name : {"cpu", "naive", "fa2-plain", "reference"}) {
      for (const char* pass : {"forward", "backward"}) {
        file.results.push_back(sample_result(name, pass, sample_case(64 * (i + 1)), 100 + i, i));
      }
    }
  }
  return file;
}

TEST(ReportHtml, SaysWhatWasMeasured) {
  const std::string html = to_html(sample_comparison(), {"naive", nullptr, ""});
  EXPECT_THAT(html, HasSubstr("<h1>Attention on Example CPU, 2 threads</h1>"));
  EXPECT_THAT(html, HasSubstr("<li><b>10.0x</b>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"n first best\">42.95</td>"));
  EXPECT_THAT(html, HasSubstr("backward: unsupported: required backward; supported forward"));
  EXPECT_THAT(html, HasSubstr("another program uses the CPU<br/>Remedy: stop it"));
  EXPECT_THAT(html, HasSubstr("<pre><code>flashlab compare --device cpu --pass both</code></pre>"));
  for (const char* id : {"comparison", "performance", "memory", "accuracy", "model", "details",
                         "environment", "reproduce", "reading"}) {
    EXPECT_THAT(html, HasSubstr("<section id=\"" + std::string(id) + "\""));
    EXPECT_THAT(html, HasSubstr("<a href=\"#" + std::string(id) + "\">"));
  }
  EXPECT_THAT(html, Not(HasSubstr("id=\"crossover\""))) << "there is one length only";
  EXPECT_THAT(html, Not(HasSubstr("id=\"baseline\"")));
}

TEST(ReportHtml, NamesAreExplained) {
  ResultFile file = sample_comparison();
  file.results.push_back(sample_result("torch.flash", "forward", sample_case(), 100, 0));
  file.results.push_back(sample_result("nobody's", "forward", sample_case(), 100, 0));
  const std::string html = to_html(file, {"naive", nullptr, ""});
  EXPECT_THAT(html, HasSubstr("<dt>naive</dt><dd>the formula, scores in memory</dd>"));
  EXPECT_THAT(html, HasSubstr("<dt>torch.flash</dt><dd>peer: PyTorch&#39;s "));
  EXPECT_THAT(html, Not(HasSubstr("<dt>nobody")));
}

// Figures and heads do not wrap, so that a column is as wide as its widest text.
TEST(ReportHtml, TheComparisonFitsAPageOf1400Pixels) {
  const ResultFile file = sample_comparison();
  const std::string html = to_html(file, {"naive", nullptr, ""});
  const std::string style = "main.wrap{max-width:";
  const std::size_t at = html.find(style);
  ASSERT_NE(at, std::string::npos);
  const double page = std::min(std::stod(html.substr(at + style.size())), 1400.0 - 15);
  constexpr double kPadding = 24, kAround = 40 + 50 + 2;  // of a cell; of page, section and frame
  const CellTable table = cells_of(group_by_problem(file).at(0), "naive");
  double width = 9 * 14 + kPadding;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    double widest = text_width(table.columns[i].name, 13);
    for (const CellRow& row : table.rows) {
      widest = std::max(widest, text_width(row.cells.at(i).text, 14));
    }
    width += widest + kPadding;
  }
  EXPECT_GT(table.columns.size(), 9u);
  EXPECT_LT(width, page - kAround);
}

TEST(ReportHtml, PassesTheCheckWhateverTheResults) {
  ResultFile one;
  one.results.push_back(sample_result("cpu", "forward", sample_case(), 100, 0));
  ResultFile failed;
  failed.results.push_back(
      failed_result("cpu", "forward", sample_case(), RunStatus::kOutOfMemory, "too large"));
  for (const ResultFile& file : {ResultFile{}, one, failed, sample_comparison(), sample_sweep(),
                                 many_results(), hostile_results()}) {
    for (const char* base : {"", "naive", "absent"}) {
      const std::string html = to_html(file, {base, nullptr, ""});
      const Outcome outcome = check(html);
      EXPECT_EQ(outcome.code, 0) << outcome.output;
      // The page's own stands at its end; what results say never opens another.
      EXPECT_EQ(html.find("<script"), html.rfind("<script"));
      EXPECT_THAT(html, Not(HasSubstr("http:")));
      EXPECT_THAT(html, Not(HasSubstr("https:")));
    }
  }
}

TEST(ReportHtml, SweepsFoldTheirTables) {
  const std::string html = to_html(many_results(), {"naive", nullptr, ""});
  EXPECT_THAT(html, HasSubstr("<caption>Milliseconds, forward</caption>"));
  EXPECT_THAT(html, HasSubstr("<details>\n<summary>fp32 · batch 1 · heads 8 · S 64 · d 64"));
  EXPECT_LT(html.find("id=\"performance\""), html.find("id=\"comparison\""))
      << "pictures first where there are many problems";
  EXPECT_LT(html.size(), 3'000'000u);
}

TEST(ReportHtml, BaselineVerdicts) {
  const ResultFile old_file = sample_comparison();
  ResultFile now = old_file;
  for (auto* ms : {&now.results[2][kMedianMs], &now.results[2][kMinMs], &now.results[2][kMaxMs]}) {
    **ms *= 3;
  }
  for (ResultFile* file : {&now}) {
    for (Measurement& r : file->results) r[kRoofShare].reset();
  }
  const BaselineReport report = compare_with_baseline(old_file, now);
  ASSERT_TRUE(report.regression()) << report.summary();
  const std::string html = to_html(now, {"naive", &report, "last <week>.json"});
  EXPECT_THAT(html, HasSubstr("<p class=\"callout regression\"><b>last &lt;week&gt;.json</b>: "));
  EXPECT_THAT(html, HasSubstr("<td class=\"bad\">slower</td>"));
  EXPECT_EQ(check(html).code, 0);
}

TEST(ReportHtml, NanIsShownAsBad) {
  ResultFile file = sample_comparison();
  file.results[2][kError] = std::nan("");
  EXPECT_THAT(to_html(file, {}), HasSubstr("<td class=\"n bad\">nan</td>"));
}

/// A page changed in one place must be found out.
struct Damage {
  const char* what;
  const char* from;
  const char* to;
  const char* finding;
};

class ReportHtmlCheck : public ::testing::TestWithParam<Damage> {};

TEST_P(ReportHtmlCheck, FindsIt) {
  const Damage& damage = GetParam();
  std::string html = to_html(sample_comparison(), {"naive", nullptr, ""});
  const std::size_t at = html.find(damage.from);
  ASSERT_NE(at, std::string::npos) << damage.from;
  html.replace(at, std::string(damage.from).size(), damage.to);
  const Outcome outcome = check(html);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr(damage.finding));
}

INSTANTIATE_TEST_SUITE_P(
    Damages, ReportHtmlCheck,
    ::testing::Values(
        Damage{"Unclosed", "</section>", "", "not well-formed"},
        Damage{"Entity", "<main class=\"wrap\">", "<main class=\"wrap\">a & b", "not well-formed"},
        Damage{"MissingTarget", "href=\"#memory\"", "href=\"#nowhere\"", "nowhere, which is not"},
        Damage{"DoubleId", "id=\"memory\"", "id=\"comparison\"", "stands twice"},
        Damage{"Link", "href=\"#memory\"", "href=\"https://example.com\"", "leads out"},
        Damage{"Script", "<main class=\"wrap\">", "<main class=\"wrap\"><script>0</script>",
               "does not belong"},
        Damage{"Image", "<main class=\"wrap\">", "<main class=\"wrap\"><img src=\"x.png\"/>",
               "leads out"},
        Damage{"Handler", "<main class=\"wrap\"", "<main onclick=\"x()\" class=\"wrap\"", "script"},
        Damage{"Font", "<style>", "<style>@import 'x.css';", "fetches"},
        Damage{"Background", "<style>", "<style>b{background:url(x.png)}", "fetches"},
        Damage{"Language", " lang=\"en\"", "", "no language"},
        Damage{"TwoHeads", "<h2", "<h1>x</h1><h2", "2 <h1>"},
        Damage{"Silent", "role=\"img\"", "", "without role"},
        Damage{"Doctype", "<!DOCTYPE html>", "", "DOCTYPE"}),
    [](const auto& info) { return std::string(info.param.what); });

TEST(ReportHtmlCheck, SaysHowToUseIt) {
  const Outcome outcome = run_python({FLASHLAB_HTML_CHECK});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("usage:"));
}

}  // namespace
}  // namespace flashlab::lab::report
