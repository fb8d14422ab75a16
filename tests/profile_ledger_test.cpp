// Sums of the ledger, and what the trace and the stacks make of the same events.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "profile/ledger.h"
#include "profile/questions.h"
#include "profile/roofline.h"
#include "profile/trace.h"
#include "profile_samples.h"

namespace flashlab::profile {
namespace {

TEST(Ledger, AddsUpByEveryKeyToTheSameTime) {
  const Recording r = layered_recording();
  EXPECT_NEAR(r.busy_ms(), 10, 1e-12);
  for (const LedgerKey key : {LedgerKey::kKernel, LedgerKey::kOperation, LedgerKey::kClass,
                              LedgerKey::kLayer, LedgerKey::kPhase}) {
    double ms = 0, share = 0, flops = 0;
    for (const LedgerRow& row : make_ledger(r, {.key = key})) {
      ms += row.total_ms;
      share += row.share;
      flops += row.flops;
    }
    EXPECT_NEAR(ms, 10, 1e-9) << to_string(key);
    EXPECT_NEAR(share, 1, 1e-9) << to_string(key);
    EXPECT_NEAR(flops, 20.1e9, 1) << to_string(key);
  }
}

TEST(Ledger, RowsHaveRatesRoofsAndWhatBindsThem) {
  const std::vector<LedgerRow> rows = make_ledger(layered_recording(), {});
  ASSERT_EQ(rows.front().key, "product");
  EXPECT_EQ(rows.front().calls, 4);
  EXPECT_DOUBLE_EQ(rows.front().total_ms, 8);
  EXPECT_DOUBLE_EQ(*rows.front().gflops_per_s, 2500);
  // 20e9 FLOPs at 4000 GFLOP/s are 5 ms; 20e6 bytes at 20 GB/s are 1 ms.
  EXPECT_EQ(rows.front().bound, "arithmetic");
  EXPECT_DOUBLE_EQ(*rows.front().roof_share, 5.0 / 8);
  EXPECT_TRUE(rows.front().phase.empty()) << "products run in two phases";
  EXPECT_EQ(rows[1].key, "softmax");
  EXPECT_EQ(rows[1].bound, "memory");
  EXPECT_DOUBLE_EQ(*rows[1].roof_share, 0.4);
}

TEST(Ledger, SortsCutsAndFiltersByPhase) {
  const Recording r = layered_recording();
  std::size_t left_out = 0;
  const auto top = make_ledger(
      r, {.key = LedgerKey::kOperation, .order = LedgerOrder::kMean, .top = 2}, &left_out);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(left_out, 5u);
  EXPECT_EQ(top[0].key, "layer 1 / mlp / d down");
  const auto names = make_ledger(r, {.key = LedgerKey::kLayer, .order = LedgerOrder::kName});
  EXPECT_EQ(names[0].key, "layer 0");
  const auto backward = make_ledger(r, {.phase = "backward"});
  ASSERT_EQ(backward.size(), 1u);
  EXPECT_DOUBLE_EQ(backward[0].share, 1);
}

TEST(Ledger, TheHostsTimeIsAColumnWhereItIsKnown) {
  Recording r = layered_recording();
  EXPECT_EQ(ledger_table(make_ledger(r, {}), LedgerKey::kKernel, 100).find("host ms"),
            std::string::npos);
  for (Event& event : r.events) event.host_ms = 0.004;
  const std::vector<LedgerRow> rows = make_ledger(r, {});
  EXPECT_NEAR(rows.front().host_ms, 0.016, 1e-12) << "four products";
  EXPECT_NEAR(rows.front().host_mean_ms, 0.004, 1e-12);
  EXPECT_NE(ledger_table(rows, LedgerKey::kKernel, 100).find("host ms  host/op"),
            std::string::npos);
  EXPECT_NE(ledger_csv(rows, LedgerKey::kKernel).find("product,product,,4,8,2,0.8,0.016,0.004,"),
            std::string::npos)
      << ledger_csv(rows, LedgerKey::kKernel);
  const auto all = answers(r);
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const Answer& answer) {
    return answer.answer == "0.0280 ms for 7 operations, 4.00 us each";
  }));
}

TEST(Ledger, TableFitsEightyColumns) {
  Recording r = layered_recording();
  r.events.front().host_ms = 1;
  const auto rows = make_ledger(r, {.key = LedgerKey::kOperation});
  const std::string table = ledger_table(rows, LedgerKey::kOperation, 80);
  for (std::size_t at = 0; at < table.size();) {
    const std::size_t end = table.find('\n', at);
    EXPECT_LE(end - at, 80u) << table.substr(at, end - at);
    at = end + 1;
  }
}

TEST(Overhead, IsOfTheGpusTimeOfAStepWhereThereIsOne) {
  Recording r;
  r.spans = {{"warm-up 1", true, 0, 50, 50}, {"step 1", false, 50, 5.6, 4.8}};
  EXPECT_FALSE(r.overhead().has_value()) << "nothing to compare with";
  r.plain_step_ms = 5.0;
  EXPECT_NEAR(*r.overhead(), 0.12, 1e-9) << "wall clocks";
  r.device_step_ms = 4.7;
  EXPECT_NEAR(*r.overhead(), 4.8 / 4.7 - 1, 1e-9);
  r.spans[1].device_ms.reset();
  EXPECT_NEAR(*r.overhead(), 0.12, 1e-9) << "recorded by pairs of events";
}

TEST(Account, KernelsAndGapsAreTheWholeSpan) {
  Recording r = recording_of({{"a", "a", "product", "forward", 2},
                              {"b", "b", "product", "forward", 3},
                              {"c", "c", "product", "forward", 1}},
                             2, 0.5);
  r.events[4].start_ms -= 1;  // of the second step: b begins while a runs, and c waits longer
  const auto account = r.account();
  ASSERT_TRUE(account.has_value());
  EXPECT_DOUBLE_EQ(account->span_ms, 7);
  EXPECT_DOUBLE_EQ(account->gaps_ms, (1 + 1.5) / 2);
  EXPECT_DOUBLE_EQ(account->covered_ms, (6 + 5.5) / 2);
  EXPECT_DOUBLE_EQ(account->longest_gap_ms, 1.5);
  EXPECT_EQ(account->longest_gap_after, "b");
  EXPECT_FALSE(account->explained.has_value()) << "nobody else measured these steps";
  EXPECT_DOUBLE_EQ(account->filled, (6 / 7.5 + 5.5 / 7.5) / 2) << "of the steps' wall time";
  for (StepSpan& span : r.spans) span.device_ms = 7.07;
  EXPECT_DOUBLE_EQ(r.account()->filled, 5.75 / 7.07);
  EXPECT_NEAR(*r.account()->explained, 0.99, 1e-3);
  const std::string text = [&] {
    std::string all;
    for (const Answer& a : answers(r)) all += a.answer + "\n";
    return all;
  }();
  EXPECT_NE(text.find("99.0% of what the events measured"), std::string::npos) << text;
  EXPECT_FALSE(Recording().account().has_value());
}

TEST(Questions, AnswerWhatRanAndNothingElse) {
  const Recording r = layered_recording();
  std::string all;
  for (const Answer& a : answers(r)) all += a.question + ": " + a.answer + "\n";
  EXPECT_NE(all.find("6.50 ms of 10.0 ms"), std::string::npos) << all;
  EXPECT_NE(all.find("product, 3 calls"), std::string::npos) << all;
  EXPECT_NE(all.find("product, 4 calls"), std::string::npos) << all;
  EXPECT_NE(all.find("76.9% of forward alone (inference), 80.0% of the step"), std::string::npos)
      << all;
  EXPECT_NE(all.find("1.00 ms against 4.00 ms: 0.25 of the time"), std::string::npos) << all;
  const Recording without = recording_of({{"layer 0 / mlp / down", "product", "product"}});
  for (const Answer& a : answers(without)) {
    EXPECT_EQ(a.question.find("Softmax"), std::string::npos);
  }
}

TEST(Trace, RangesAreNestedAndNoDurationIsNegative) {
  const Recording r = layered_recording();
  const auto json = nlohmann::json::parse(chrome_trace(r, {1.0, 2.0}));
  struct Range {
    double start, end;
    std::string name;
  };
  std::vector<Range> ranges;
  std::size_t counters = 0;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "C") ++counters;
    if (e["ph"] != "X") continue;
    EXPECT_GE(e["dur"].get<double>(), 0);
    ranges.push_back({e["ts"], e["ts"].get<double>() + e["dur"].get<double>(), e["name"]});
  }
  EXPECT_EQ(counters, 2u);
  for (const Range& a : ranges) {
    for (const Range& b : ranges) {
      const bool apart = a.end <= b.start || b.end <= a.start;
      const bool inside =
          (a.start >= b.start && a.end <= b.end) || (b.start >= a.start && b.end <= a.end);
      EXPECT_TRUE(apart || inside) << a.name << " and " << b.name;
    }
  }
  const auto count = [&](const char* name) {
    return std::count_if(ranges.begin(), ranges.end(),
                         [&](const Range& range) { return range.name == name; });
  };
  EXPECT_EQ(count("forward"), 2);
  EXPECT_EQ(count("attention"), 2) << "one range around scores, softmax and values in each step";
  EXPECT_EQ(count("scores"), 2);
  EXPECT_EQ(count("warm-up 1"), 1);
}

TEST(Trace, KernelsOfOneOperationShareItsMemoryAndNeverCross) {
  Recording r = recording_of({{"layer 0 / attention / d attention", "prepare", "attention"},
                              {"layer 0 / attention / d attention", "main", "attention"},
                              {"layer 0 / mlp / down", "product", "product"}},
                             1);
  for (int i = 0; i < 3; ++i) r.events[static_cast<std::size_t>(i)].operation = i / 2;
  r.events[2].start_ms -= 0.25;  // before the kernel before it has ended
  const auto json = nlohmann::json::parse(chrome_trace(r, {10, 20}));
  std::vector<double> memory, starts;
  for (const auto& e : json["traceEvents"]) {
    if (e["ph"] == "C") memory.push_back(e["args"]["bytes"]);
    if (e["ph"] == "X" && e["args"].contains("kernel")) starts.push_back(e["ts"]);
  }
  EXPECT_EQ(memory, (std::vector<double>{10, 20}));
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(starts[2], 7000) << "from the end of the kernel before it";
}

TEST(Trace, StreamsHaveTracksAndRunBesideEachOther) {
  Recording r = recording_of({{"a", "a", "product"}, {"b", "b", "copy"}, {"c", "c", "product"}}, 1);
  r.events[1].stream = 1;
  r.events[1].start_ms = r.events[0].start_ms + 0.5;
  r.events[1].duration_ms = 4;
  const auto json = nlohmann::json::parse(chrome_trace(r, {}));
  std::map<std::string, std::pair<int, double>> tracks;  // by kernel: thread and begin
  double step_end = 0;
  std::size_t named = 0;
  for (const auto& e : json["traceEvents"]) {
    named += e["name"] == "thread_name" ? 1 : 0;
    if (e["ph"] == "X" && e["args"].contains("kernel")) {
      tracks[e["args"]["kernel"]] = {e["tid"], e["ts"]};
    }
    if (e["name"] == "step 1") step_end = e["ts"].get<double>() + e["dur"].get<double>();
  }
  EXPECT_EQ(named, 2u);
  EXPECT_EQ(tracks["a"], std::pair(1, 5000.0));
  EXPECT_EQ(tracks["b"], std::pair(2, 5500.0));
  EXPECT_EQ(tracks["c"], std::pair(1, 7000.0)) << "it does not wait for the other stream";
  EXPECT_DOUBLE_EQ(step_end, 9500) << "a step ends with the last of all streams";
}

TEST(Trace, FoldedStacksAddUpToOneStep) {
  const std::string folded = folded_stacks(layered_recording());
  EXPECT_NE(folded.find("forward;layer 0;attention;scores 2000\n"), std::string::npos) << folded;
  long sum = 0;
  for (std::size_t at = 0; at < folded.size();) {
    const std::size_t end = folded.find('\n', at);
    const std::string line = folded.substr(at, end - at);
    sum += std::stol(line.substr(line.rfind(' ')));
    at = end + 1;
  }
  EXPECT_EQ(sum, 10000);
}

TEST(Pictures, NameEveryKernelAndNeedRoofs) {
  Recording r = layered_recording();
  EXPECT_NE(flame_graph(r, false).find("scores: 2.00 ms, 20.0%"), std::string::npos);
  EXPECT_NE(roofline_picture(r, false).find("softmax: 100 GFLOP/s at 12.5 FLOPs per byte"),
            std::string::npos)
      << roofline_picture(r, false);
  r.roofs.gflops.reset();
  EXPECT_TRUE(roofline_picture(r, false).empty());
}

TEST(Pictures, NamesOfKernelsAtOnePlaceStandBelowEachOther) {
  std::vector<SampleEvent> events;
  for (int i = 0; i < 6; ++i) {
    events.push_back(
        {"a", "kernel " + std::to_string(i), "norm", "forward", 1 + 1e-3 * i, 1e6, 3e6});
  }
  for (int i = 0; i < 200; ++i) {
    Recording r = recording_of(events);
    r.roofs = {100.0 + 0.37 * i, 7.3, "given"};
    EXPECT_NE(roofline_picture(r, false).find(">kernel 5<"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashlab::profile
