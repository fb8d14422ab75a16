// The lines between this program and its Python worker: what is asked, and what is accepted.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lab/machine/child_process.h"
#include "lab/python/python_messages.h"

namespace flashlab::lab {
namespace {

using Json = nlohmann::json;

const std::array<Pass, 1> kForward = {Pass::kForward};
const std::vector<std::string> kNames = {"cpu", "torch.flash"};

cases::Case problem() {
  cases::Case out;
  out.batch = 2;
  out.heads_q = out.heads_k = 3;
  out.seqlen_q = out.seqlen_k = 32;
  out.head_dim = out.head_dim_v = 16;
  return out;
}

// A row as the worker writes it, with `changes` over it.
std::string row(const Json& changes = Json::object()) {
  Json out = {{"event", "result"},
              {"implementation", "cpu"},
              {"pass", "forward"},
              {"status", "ok"},
              {"message", ""},
              {"samples_ms", {2.0, 1.0, 4.0}},
              {"peak_bytes", 100},
              {"error_vs_fp64", 1e-6},
              {"naive_error_vs_fp64", 2e-6},
              {"error_sample", "all"},
              {"plan", "p"}};
  out.update(changes);
  return out.dump();
}

Result<PythonMessage> parsed(const std::string& line) {
  const cases::Case c = problem();
  const MeasureOptions measure;
  const PythonRequest request{c, kForward, kNames, measure};
  return parse_message(line, &request, "cpu");
}

TEST(PythonMessages, ARequestHoldsEverything) {
  cases::Case c = problem();
  c.causal = Causal::kBottomRight;
  c.precision = Precision::kTf32;
  c.scale = -0.5f;
  c.seqlen_k = 48;
  c.seed = 9;
  MeasureOptions measure;
  measure.warmup = 4;
  measure.repeats = 5;
  measure.max_total_ms = 6;
  const Json line = Json::parse(to_json_line({c, kForward, kNames, measure}));
  EXPECT_EQ(line["problem"], Json({{"dtype", "tf32"},
                                   {"batch", 2},
                                   {"heads_q", 3},
                                   {"heads_k", 3},
                                   {"head_dim", 16},
                                   {"head_dim_v", 16},
                                   {"seqlen_q", 32},
                                   {"seqlen_k", 48},
                                   {"mask", "causal-bottom-right"},
                                   {"scale", -0.5},
                                   {"seed", 9},
                                   {"lengths", nullptr},
                                   {"cache", nullptr}}));
  c.set_sequences({{3, 4}, {5, 6}});
  const Json ragged = Json::parse(to_json_line({c, kForward, kNames, measure}));
  EXPECT_EQ(ragged["problem"]["lengths"], Json::parse("[[3, 4], [5, 6]]"));
  EXPECT_EQ(line["passes"], Json({"forward"}));
  EXPECT_EQ(line["implementations"], Json(kNames));
  EXPECT_EQ(line["warmup"], 4);
  EXPECT_EQ(line["repeats"], 5);
  EXPECT_EQ(line["max_total_ms"], 6.0);
}

TEST(PythonMessages, ARowGetsItsStatistics) {
  const auto message = parsed(row());
  ASSERT_TRUE(message.ok()) << message.status().message();
  const Measurement& r = message->result;
  EXPECT_EQ(r[kMedianMs], 2.0);
  EXPECT_EQ(r[kMinMs], 1.0);
  EXPECT_EQ(r[kMaxMs], 4.0);
  EXPECT_EQ(r.samples, 3);
  EXPECT_DOUBLE_EQ(*r[kTflops], problem().flops(Pass::kForward) / 2.0 * 1e-9);
  EXPECT_DOUBLE_EQ(*r[kTflopsPeak], problem().flops(Pass::kForward) / 1.0 * 1e-9);
  EXPECT_DOUBLE_EQ(*r[kGbPerS], problem().ideal_bytes(Pass::kForward) / 2.0 * 1e-6);
  EXPECT_EQ(r[kPeakBytes], 100);
  EXPECT_EQ(r[kError], 1e-6);
  EXPECT_FALSE(r[kRoofShare]);
  EXPECT_EQ(r.labels.whole("seqlen_q"), 32u);
}

TEST(PythonMessages, WhatHasNoFiguresIsStillARow) {
  const auto message = parsed(row({{"status", "oom"},
                                   {"message", "9 GiB"},
                                   {"samples_ms", nullptr},
                                   {"peak_bytes", nullptr},
                                   {"error_vs_fp64", nullptr}}));
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->result.status, RunStatus::kOutOfMemory);
  EXPECT_EQ(message->result.message, "9 GiB");
  EXPECT_FALSE(message->result[kMedianMs] || message->result[kPeakBytes]);
}

TEST(PythonMessages, WhatIsNotByTheProtocolIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> kWrong = {
      {"", "JSON object"},
      {"Traceback (most recent call last):", "JSON object"},
      {"[]", "JSON object"},
      {"1e999", "JSON object"},
      {"{\"event\": \"result\"", "JSON object"},
      {std::string("\0\xff\x1b[2J", 6), "JSON object"},
      {std::string(100'000, '{'), "nested too deeply"},
      {"{}", "event is not there"},
      {"{\"event\": 3}", "event is not a string"},
      {"{\"event\": \"odd\"}", "event is not one that is expected here"},
      {"{\"event\": \"end\"}", "lost is not there"},
      {"{\"event\": \"missing\", \"modules\": []}", "modules is not"},
      {"{\"event\": \"ready\", \"protocol\": -1}", "protocol is not"},
      {row({{"implementation", "naive"}}), "implementation is not one that was asked for"},
      {row({{"pass", "backward"}}), "pass is not one that was asked for"},
      {row({{"status", "fine"}}), "status is not"},
      {row({{"message", nullptr}}), "message is not a string"},
      {row({{"samples_ms", Json::array()}}), "samples_ms is not there"},
      {row({{"samples_ms", nullptr}}), "samples_ms is not there"},
      {row({{"samples_ms", {1.0, -1.0}}}), "samples_ms is not an array"},
      {row({{"samples_ms", {"1"}}}), "samples_ms is not an array"},
      {row({{"peak_bytes", -5}}), "peak_bytes is not"},
      {row({{"peak_bytes", 1.5}}), "peak_bytes is not"},
      {row({{"error_vs_fp64", "small"}}), "error_vs_fp64 is not"},
      {row({{"error_vs_fp64", -1.0}}), "error_vs_fp64 is not"},
      {row({{"plan", 7}}), "plan is not a string"},
  };
  for (const auto& [line, reason] : kWrong) {
    const auto message = parsed(line);
    ASSERT_FALSE(message.ok()) << line;
    const std::string text = message.status().message();
    EXPECT_NE(text.find(reason), std::string::npos) << text;
    // Bytes of an unknown program never reach the terminal.
    for (const char c : text) EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
  }
}

TEST(PythonMessages, ARowIsAcceptedOnlyWhereOneWasAskedFor) {
  EXPECT_FALSE(parse_message(row(), nullptr, "cpu").ok());
}

TEST(PythonMessages, Progress) {
  const auto progress = parse_progress("progress 2.5 10 timing forward");
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->done, 2.5);
  EXPECT_EQ(progress->total, 10);
  EXPECT_EQ(progress->words, "timing forward");
  for (const char* note : {"", "progress", "progress 1", "progress 1 0 x", "progress -1 2 x",
                           "progress nan nan x", "UserWarning: progress 1 2 x"}) {
    EXPECT_FALSE(parse_progress(note)) << note;
  }
}

// Everything that a program prints until it has ended.
ChildProcess::Lines all_of(ChildProcess& child) {
  ChildProcess::Lines out;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(300);
  while (!child.ended() && std::chrono::steady_clock::now() < deadline) {
    ChildProcess::Lines more = child.read(20);
    for (auto& line : more.results) out.results.push_back(std::move(line));
    for (auto& line : more.notes) out.notes.push_back(std::move(line));
  }
  return out;
}

std::unique_ptr<ChildProcess> shell(const std::string& script) {
  auto child = ChildProcess::start({"/bin/sh", "-c", script});
  EXPECT_TRUE(child.ok()) << child.status().message();
  return child.ok() ? std::move(*child) : nullptr;
}

using Texts = std::vector<std::string>;

TEST(ChildProcess, BothStreamsTheLastLineAndTheEnd) {
  auto child = shell("read x; echo \"got $x\"; echo; echo note >&2; printf rest; exit 3");
  ASSERT_TRUE(child);
  EXPECT_TRUE(child->send("a line"));
  const auto lines = all_of(*child);
  EXPECT_EQ(lines.results, (Texts{"got a line", "", "rest"}));
  EXPECT_EQ(lines.notes, Texts{"note"});
  EXPECT_EQ(child->how_it_ended(), "exit code 3");
}

TEST(ChildProcess, LongOutputIsReadWhole) {
  auto child = shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
  ASSERT_TRUE(child);
  const auto lines = all_of(*child);
  ASSERT_EQ(lines.results.size(), 20000u);
  EXPECT_EQ(lines.results.back(), "line 19999");
}

TEST(ChildProcess, SignalsAndProgramsThatStayBehind) {
  auto child = shell("sleep 1000 & echo $!; kill -SEGV $$");
  ASSERT_TRUE(child);
  const auto lines = all_of(*child);  // although sleep keeps the pipes open
  ASSERT_EQ(lines.results.size(), 1u);
  EXPECT_TRUE(child->how_it_ended().starts_with("signal 11")) << child->how_it_ended();
  // Ended too; whoever adopts it may take a moment to bury it.
  const std::string state = "/proc/" + lines.results[0] + "/stat";
  bool runs = true;
  for (int i = 0; i < 10000 && runs; ++i) {
    std::ifstream file(state);
    std::string number, name, letter;
    runs = (file >> number >> name >> letter) && letter != "Z";
    if (runs) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(runs);
}

TEST(ChildProcess, OneThatIsGoneTakesNoInput) {
  auto child = shell("exit 0");
  ASSERT_TRUE(child);
  all_of(*child);
  std::signal(SIGPIPE, SIG_IGN);
  EXPECT_FALSE(child->send("anybody there?"));
}

TEST(ChildProcess, WhatCannotBeStarted) {
  const auto child = ChildProcess::start({"/no/such/program"});
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.status().code(), StatusCode::kIoError);
  EXPECT_NE(child.status().message().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace flashlab::lab
