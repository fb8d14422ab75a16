// Streams of a program on this processor, and collectives among its steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "runtime/program/executor.h"
#include "runtime/program/observer.h"

namespace flashlab::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A group whose sum is twice one's own: two ranks that hold the same.
class Twins final : public Communicator {
 public:
  Twins() : Communicator(0, 2) {}
  std::string_view transport() const noexcept override { return "twins"; }
  Status failure() const override { return {}; }
  bool tells_of_failure() const noexcept override { return true; }

  std::vector<std::string> called;
  std::thread::id thread;

 private:
  Status carry_out(const CollectiveCall& call) override {
    called.emplace_back(call.name);
    thread = std::this_thread::get_id();
    const auto* from = static_cast<const float*>(call.from);
    auto* to = static_cast<float*>(call.to);
    for (std::size_t i = 0; i < call.bytes / sizeof(float); ++i) to[i] = 2 * from[i];
    return {};
  }
};

Step host(std::string name, std::function<Status()> function, int stream = 0,
          std::vector<int> depends_on = {}) {
  return {.name = std::move(name),
          .work = HostWork{[function = std::move(function)](auto) { return function(); }, {}},
          .stream = stream,
          .depends_on = std::move(depends_on)};
}

struct Heard final : internal::StepObserver {
  std::vector<std::string> names;
  void step_finished(std::string_view name, double) override { names.emplace_back(name); }
};

TEST(CpuStreams, ACollectiveIsAStepOfItsOwnStream) {
  Executor here;
  Program& program = here.program();
  const Place data = {program.add_tensor("data")};
  const int beside = program.add_stream(0);
  float numbers[2] = {0, 0};
  const int write =
      program.add(host("write", [&] { return numbers[0] = 3, numbers[1] = 4, Status(); }));
  const int add = program.add(
      {.name = "add",
       .work =
           CollectiveWork{
               .kind = Collective::kAllReduce, .from = data, .to = data, .bytes = sizeof numbers},
       .stream = beside,
       .depends_on = {write}});
  float read = 0;
  program.add(host("read", [&] { return read = numbers[1], Status(); }, 0, {add}));
  EXPECT_THAT(program.to_string(), HasSubstr("all-reduce of 8 bytes of fp32 in group 0  after 0"));
  void* tensors[] = {numbers};
  const Stream streams[2] = {};
  EXPECT_THAT(here.enqueue({.tensors = tensors, .streams = streams}).message(),
              HasSubstr("groups of the call"));
  Twins twins;
  Communicator* groups[] = {&twins};
  Heard heard;
  {
    const internal::ObserveSteps observed(heard);
    ASSERT_TRUE(here.enqueue({.tensors = tensors, .streams = streams, .groups = groups}).ok());
  }
  EXPECT_EQ(read, 8);
  EXPECT_EQ(numbers[0], 6);
  EXPECT_THAT(twins.called, ElementsAre("add"));
  EXPECT_NE(twins.thread, std::this_thread::get_id());
  EXPECT_THAT(heard.names, ElementsAre("write", "read", "add"));
}

// Each waits for the other's first step: in one thread they would wait for ever.
TEST(CpuStreams, RunBesideEachOther) {
  Executor here;
  Program& program = here.program();
  const int beside = program.add_stream(0);
  std::atomic<int> met = 0;
  const auto meet = [&] {
    ++met;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (met < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    return Status();
  };
  program.add(host("here", meet));
  program.add(host("there", meet, beside));
  const Stream streams[2] = {};
  ASSERT_TRUE(here.enqueue({.streams = streams}).ok());
  EXPECT_EQ(met, 2);
}

TEST(CpuStreams, WhatAStepThrowsIsAFailure) {
  for (const bool beside : {false, true}) {
    Executor here;
    Program& program = here.program();
    const int other = program.add_stream(0);
    const auto throws = []() -> Status { throw std::bad_alloc(); };
    const int thrown = program.add(host("throws", throws, beside ? other : 0));
    program.add(host("after", [] { return Status(); }, beside ? 0 : other, {thrown}));
    const Stream streams[2] = {};
    EXPECT_EQ(here.enqueue({.streams = streams}).code(), StatusCode::kOutOfMemory);
  }
}

TEST(CpuStreams, NoStepBeginsAfterAFailureOnAnother) {
  Executor here;
  Program& program = here.program();
  const int beside = program.add_stream(0);
  const int fails = program.add(host(
      "fails",
      [] {
        return Status(StatusCode::kDeviceError, {"a rank", "nothing", "an answer", ""});
      },
      beside));
  bool went_on = false;
  program.add(host("after", [&] { return went_on = true, Status(); }, 0, {fails}));
  const Stream streams[2] = {};
  EXPECT_THAT(here.enqueue({.streams = streams}).message(), HasSubstr("a rank"));
  EXPECT_FALSE(went_on);
}

}  // namespace
}  // namespace flashlab::runtime
