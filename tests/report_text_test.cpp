// Escapes, widths and figures.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/text.h"
#include "lab/report/numbers.h"

namespace flashlab::lab::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(ReportText, CleanLeavesOneLineOfValidText) {
  EXPECT_EQ(base::clean("plain"), "plain");
  EXPECT_EQ(base::clean("a\r\nb\tc"), "a b c");
  EXPECT_EQ(base::clean("red\x1b[31m"), "red\xEF\xBF\xBD[31m");
  EXPECT_EQ(base::clean("\xff"), "\xEF\xBF\xBD");
  EXPECT_EQ(base::clean("\xc0\xaf"), "\xEF\xBF\xBD\xEF\xBF\xBD") << "an overlong slash";
  EXPECT_EQ(base::clean("\xed\xa0\x80").find('\xed'), std::string::npos) << "a surrogate";
  EXPECT_EQ(base::clean("\xe2\x80\xae"
                        "abc"),
            "\xEF\xBF\xBD"
            "abc")
      << "right-to-left override";
  EXPECT_EQ(base::clean("\xe4\xb8\xad"), "\xe4\xb8\xad");
  EXPECT_EQ(base::clean("cut \xe4\xb8"), "cut \xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(ReportText, WidthIsThatOfATerminal) {
  EXPECT_EQ(base::display_width("naive"), 5);
  EXPECT_EQ(base::display_width("\xe4\xb8\xad\xe6\x96\x87"), 4);
  EXPECT_EQ(base::display_width("e\xcc\x81"), 1);
  EXPECT_EQ(base::display_width("a \xc2\xb7 b"), 5);
  EXPECT_EQ(base::pad_left("\xe4\xb8\xad", 4), "  \xe4\xb8\xad");
  EXPECT_EQ(base::pad_right("\xe4\xb8\xad", 4), "\xe4\xb8\xad  ");
  EXPECT_EQ(base::pad_right("longer", 3), "longer");
}

TEST(ReportText, WrapsAtSpacesAndCutsLongWords) {
  EXPECT_EQ(base::wrap("one two three", 7), (std::vector<std::string>{"one two", "three"}));
  EXPECT_EQ(base::wrap("abcdefgh", 3), (std::vector<std::string>{"abc", "def", "gh"}));
  EXPECT_EQ(base::wrap("", 10), (std::vector<std::string>{""}));
  EXPECT_EQ(base::wrap("ab", 0), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(base::wrap("\xe4\xb8\xad\xe4\xb8\xad", 3),
            (std::vector<std::string>{"\xe4\xb8\xad", "\xe4\xb8\xad"}));
}

TEST(ReportText, FoldsUnderWhatALineNames) {
  using testing::ElementsAre;
  EXPECT_THAT(base::fold("  plan   one two", 80), ElementsAre("  plan   one two"));
  EXPECT_THAT(base::fold("  plan   one two and three", 20),
              ElementsAre("  plan   one two and", "         three"));
  EXPECT_THAT(base::fold("  time  min 1 · mean 2 · std 3 ms", 31),
              ElementsAre("  time  min 1 · mean 2 ·", "        std 3 ms"));
  EXPECT_THAT(base::fold("a sentence of words", 10), ElementsAre("a sentence", "  of words"));
  EXPECT_THAT(base::fold("  path  /a/long/word/that/stays", 20),
              ElementsAre("  path  /a/long/word/that/stays"));
  EXPECT_THAT(base::fold("", 5), ElementsAre(""));
}

TEST(ReportText, Escapes) {
  EXPECT_EQ(base::escape_xml("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(base::escape_markdown("a|b*c_<d>"), "a\\|b\\*c\\_&lt;d&gt;");
  EXPECT_EQ(base::escape_markdown("two\nlines"), "two lines");
  EXPECT_EQ(base::markdown_code("a `b` c"), "`` a `b` c ``");
  EXPECT_EQ(base::markdown_code("plain"), "`plain`");
  EXPECT_EQ(base::escape_latex("50% & $x_1$ #{}~^\\<"),
            "50\\% \\& \\$x\\_1\\$ \\#\\{\\}\\textasciitilde{}\\textasciicircum{}"
            "\\textbackslash{}\\textless{}");
  EXPECT_EQ(base::csv_field("plain"), "plain");
  EXPECT_EQ(base::csv_field("a,b"), "\"a,b\"");
  EXPECT_EQ(base::csv_field("say \"hi\"\n"), "\"say \"\"hi\"\"\n\"");
  EXPECT_EQ(base::file_name_part("../a b/\xc3\xa9"), "..-a-b---");
}

TEST(ReportNumbers, SignificantDigits) {
  EXPECT_EQ(format_significant(1.23456, 4), "1.235");
  EXPECT_EQ(format_significant(9.9996, 4), "10.00");
  EXPECT_EQ(format_significant(0.99996, 4), "1.000");
  EXPECT_EQ(format_significant(123456, 4), "123456");
  EXPECT_EQ(format_significant(0.00123, 3), "0.00123");
  EXPECT_EQ(format_significant(1e-7, 3), "1.00e-07");
  EXPECT_EQ(format_significant(1e12, 3), "1.00e+12");
  EXPECT_EQ(format_significant(-2.5, 2), "-2.5");
  EXPECT_EQ(format_significant(0, 4), "0");
  EXPECT_EQ(format_significant(5e-324, 3), "4.94e-324");
}

TEST(ReportNumbers, AbsentIsADashAndNanIsSaid) {
  EXPECT_EQ(format_ms({}), "-");
  EXPECT_EQ(format_ms(kNan), "nan");
  EXPECT_EQ(format_ms(HUGE_VAL), "inf");
  EXPECT_EQ(format_percent({}), "-");
  EXPECT_EQ(format_percent(kNan), "nan");
  EXPECT_EQ(format_error({}), "-");
  EXPECT_EQ(format_error(kNan), "nan");
  EXPECT_EQ(format_error(0.0), "0");
  EXPECT_EQ(format_bytes(std::nullopt), "-");
  EXPECT_EQ(format_ratio({}), "-");
  EXPECT_EQ(format_rate({}, RateUnit::kTflops), "-");
}

TEST(ReportNumbers, Units) {
  EXPECT_EQ(format_bytes(512.0), "512 B");
  EXPECT_EQ(format_bytes(1536.0), "1.50 KiB");
  EXPECT_EQ(format_bytes(1023.7 * 1024), "1.00 MiB") << "never four digits and a half";
  EXPECT_EQ(format_bytes(256.0 * (1 << 30)), "256 GiB");
  EXPECT_EQ(format_flops(17.18e9), "17.2 GFLOP");
  EXPECT_EQ(format_percent(0.874), "87%");
  EXPECT_EQ(format_percent(0.004), "0.4%");
  EXPECT_EQ(format_percent(1.02), "102%");
  EXPECT_EQ(format_percent(1e300), "1e+302%");
  EXPECT_EQ(format_ratio(8.714), "8.71x");
  EXPECT_EQ(format_ratio(1.004), "1.00x");
  EXPECT_EQ(format_ratio(0.996), "1.00x") << "the columns of a table stay two decimals wide";
  EXPECT_EQ(format_ratio(0.9949), "0.99x");
  EXPECT_EQ(format_ratio(0.1234), "0.12x");
  EXPECT_EQ(format_ratio(0.0601), "0.060x");
  EXPECT_EQ(format_length(16384), "16k");
  EXPECT_EQ(format_length(1000), "1000");
  EXPECT_EQ(format_rate(0.2123, RateUnit::kGflops), "212");
  EXPECT_EQ(format_rate(0.2123, RateUnit::kTflops), "0.212");
}

TEST(ReportNumbers, RateUnitFollowsTheLargestFigure) {
  Measurement slow, fast, broken;
  slow[kTflops] = 0.2;
  fast[kTflops] = 600;
  broken[kTflops] = kNan;
  const Measurement* small[] = {&slow, nullptr, &broken};
  const Measurement* large[] = {&slow, &fast};
  EXPECT_EQ(rate_unit_for(small), RateUnit::kGflops);
  EXPECT_EQ(rate_unit_for(large), RateUnit::kTflops);
}

}  // namespace
}  // namespace flashlab::lab::report
