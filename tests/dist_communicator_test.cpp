// Collectives over shared memory between real processes: what arrives, whose bits, and what is
// refused.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "dist/sums/tree_sum.h"
#include "dist_ranks.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;
using testing::AllOf;
using testing::HasSubstr;

constexpr DType kTypes[] = {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16};

Bytes slice(const Bytes& all, std::size_t begin, std::size_t size) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

void append(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// Empty when `got` is what is expected.
std::string differs(const std::string& what, const Status& status, const Bytes& got,
                    const Bytes& expected) {
  if (!status.ok()) return fmt::format("{}: {}", what, status.message());
  return got == expected ? "" : fmt::format("{}: other bytes; ", what);
}

TEST(TreeSum, AddsNeighboursFirst) {
  const std::vector<float> values = {1e8F, 1.25F, -1e8F, 3.5F, 0.1F};
  std::vector<const void*> parts;
  for (const float& value : values) parts.push_back(&value);
  float sum = 0;
  const auto add = [](float a, float b) { return a + b; };
  tree_sum(parts, &sum, 1, DType::kFp32);
  EXPECT_EQ(sum, add(add(add(values[0], values[1]), add(values[2], values[3])), values[4]));
  // Another order gives another sum, or this test shows nothing.
  EXPECT_NE(sum, add(add(add(add(values[0], values[1]), values[2]), values[3]), values[4]));
  tree_sum({parts.data(), 3}, &sum, 1, DType::kFp32);
  EXPECT_EQ(sum, add(add(values[0], values[1]), values[2]));
}

TEST(TreeSum, RoundsNarrowTypesOnce) {
  // 256 + 1 + 1 is 258 in bf16 when rounded once, and 256 when each addition rounds to even.
  const std::uint16_t big = bf16_from_float(256), one = bf16_from_float(1);
  const std::vector<const void*> parts = {&big, &one, &one};
  std::uint16_t sum = 0;
  tree_sum(parts, &sum, 1, DType::kBf16);
  EXPECT_EQ(float_from_bf16(sum), 258);
}

// All kinds of one type and size, in place and not.
std::string check_all(Communicator& group, std::size_t count, DType dtype) {
  const int n = group.size(), me = group.rank();
  const auto ranks = static_cast<std::size_t>(n), rank = static_cast<std::size_t>(me);
  const std::size_t bytes = count * size_of(dtype);
  const std::string type = to_string(dtype);
  std::string wrong;
  const Bytes mine = values_of(me, count, dtype), sum = sum_of(n, count, dtype);
  Bytes out(bytes);
  CollectiveCall call{.kind = Collective::kAllReduce,
                      .from = mine.data(),
                      .to = out.data(),
                      .bytes = bytes,
                      .dtype = dtype,
                      .name = "test"};
  Status status = group.run(call);
  wrong += differs("all-reduce " + type, status, out, sum);
  out = mine;
  status = group.all_reduce(out.data(), count, dtype, "in place");
  wrong += differs("all-reduce in place " + type, status, out, sum);

  const Bytes wide = values_of(me, count * ranks, dtype);
  const Bytes wide_sum = sum_of(n, count * ranks, dtype);
  out.assign(bytes, 0);
  call.kind = Collective::kReduceScatter;
  call.from = wide.data();
  call.to = out.data();
  status = group.run(call);
  wrong += differs("reduce-scatter " + type, status, out, slice(wide_sum, rank * bytes, bytes));
  Bytes place = wide;
  call.from = place.data();
  call.to = place.data() + rank * bytes;
  status = group.run(call);
  wrong += differs("reduce-scatter in place " + type, status, slice(place, rank * bytes, bytes),
                   slice(wide_sum, rank * bytes, bytes));

  Bytes gathered, turned;
  for (int other = 0; other < n; ++other) {
    append(gathered, values_of(other, count, dtype));
    append(turned, slice(values_of(other, count * ranks, dtype), rank * bytes, bytes));
  }
  Bytes all(bytes * ranks);
  status = group.all_gather(mine.data(), all.data(), bytes, "test");
  wrong += differs("all-gather", status, all, gathered);
  all.assign(bytes * ranks, 0);
  std::copy(mine.begin(), mine.end(), all.begin() + static_cast<std::ptrdiff_t>(rank * bytes));
  status = group.all_gather(all.data() + rank * bytes, all.data(), bytes, "in place");
  wrong += differs("all-gather in place", status, all, gathered);
  call = {.kind = Collective::kAllToAll, .from = wide.data(), .to = all.data(), .bytes = bytes};
  status = group.run(call);
  wrong += differs("all-to-all", status, all, turned);
  for (int root = 0; root < n; ++root) {
    out = mine;
    status = group.broadcast(out.data(), bytes, root, "test");
    wrong +=
        differs(fmt::format("broadcast from {}", root), status, out, values_of(root, count, dtype));
  }
  if (!group.barrier("test").ok()) wrong += "barrier";
  return wrong;
}

// Parts above a limit are read where they lie, where the system lets ranks do so.
TEST(SharedRanks, TheSameWithoutStaging) {
  for (const int size : {2, 3, 5}) {
    const auto ends = run_ranks({.size = size, .direct_bytes = 2}, [](Communicator& group) {
      std::string wrong;
      for (const std::size_t count : {1, 17, 4200}) {
        for (const DType dtype : kTypes) wrong += check_all(group, count, dtype);
      }
      return wrong + check_all(group, 35001, DType::kFp32);  // several pieces
    });
    for (const RankEnd& end : ends) EXPECT_EQ(end.said, "") << size << " ranks";
  }
}

// The root has done its part before the other finds that nothing can be read: that is no success.
TEST(SharedRanks, WhatCannotBeReadIsAFailure) {
  const auto ends = run_ranks(
      {.size = 2, .timeout_s = 2, .direct_bytes = 2}, [](Communicator& group) -> std::string {
        constexpr std::size_t kBytes = 1 << 16;
        Bytes mine(kBytes);
        const Status before = group.broadcast(mine.data(), kBytes, 0, "whole");
        if (!before.ok()) return before.message();
        void* hidden =
            ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
        const Status status =
            group.broadcast(group.rank() == 0 ? hidden : mine.data(), kBytes, 0, "hidden");
        return status.ok() ? "read what is hidden" : "failed";
      });
  // The system may forbid all reading: then the root dies of staging it.
  if (ends[0].wait_status != 0) GTEST_SKIP() << "ranks may not read one another";
  for (const RankEnd& end : ends) EXPECT_EQ(end.said, "failed");
}

TEST(SharedRanks, EveryCollectiveOfEveryTypeAndSize) {
  for (const int size : {1, 2, 3, 4, 5}) {
    const auto ends = run_ranks({.size = size}, [](Communicator& group) {
      std::string wrong;
      // Nothing, one element, less than a line, a round and a bit, many rounds.
      for (const std::size_t count : {0, 1, 17, 1100, 4200}) {
        for (const DType dtype : kTypes) wrong += check_all(group, count, dtype);
      }
      return wrong;
    });
    for (const RankEnd& end : ends) {
      EXPECT_EQ(end.said, "") << size << " ranks";
      EXPECT_EQ(end.wait_status, 0);
    }
  }
}

TEST(SharedRanks, BitsDependOnNoTiming) {
  const auto ends = run_ranks({.size = 3}, [](Communicator& group) -> std::string {
    constexpr std::size_t kCount = 5000;
    const Bytes mine = values_of(group.rank(), kCount, DType::kFp32);
    const Bytes sum = sum_of(3, kCount, DType::kFp32);
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    for (int turn = 0; turn < 40; ++turn) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      Bytes out = mine;
      const Status status = group.all_reduce(out.data(), kCount, DType::kFp32, "turn");
      if (!status.ok()) return status.message();
      if (out != sum) return fmt::format("other bits in turn {}", turn);
    }
    return "";
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.said, "");
}

TEST(SharedRanks, WhoLeavesInGoodOrderIsMissedByNobodyElse) {
  SegmentOptions options{.size = 3, .chunk_bytes = 4096, .host = "testhost", .build = "test"};
  const Result<int> descriptor = Segment::descriptor_for(options);
  ASSERT_TRUE(descriptor.ok());
  // Rank 2 leaves at once; rank 0 waits for rank 1, which takes longer than a look around.
  std::vector<Forked> ranks;
  for (const int rank : {0, 1, 2}) {
    ranks.push_back(fork_one([&, rank]() -> std::string {
      options.rank = rank;
      auto segment = Segment::enter(*descriptor, options);
      if (!segment.ok()) return segment.status().message();
      if (rank == 0) {
        const std::string first = (*segment)->wait_for(1, Count::kWritten, 1).message();
        return first + "|" + (*segment)->wait_for(2, Count::kWritten, 1).message();
      }
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        (*segment)->advance(Count::kWritten, 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
      return "";
    }));
  }
  ::close(*descriptor);
  const std::string said = ranks[0].wait().said;
  EXPECT_TRUE(said.starts_with("ok|")) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("rank 2 (process "), HasSubstr("has ended")));
  for (const std::size_t rank : {1, 2}) EXPECT_EQ(ranks[rank].wait().said, "");
}

TEST(SharedRanks, DifferentCallsAreNamed) {
  const auto ends = run_ranks({.size = 2}, [](Communicator& group) {
    float value[2] = {};
    const std::size_t count = group.rank() == 0 ? 1 : 2;
    const Status status = group.all_reduce(value, count, DType::kFp32, "loss");
    // Every later call fails alike.
    return status.message() + (group.barrier("later").ok() ? " and goes on" : "") +
           (group.tells_of_failure() ? " TELLS" : "");
  });
  int tell = 0;
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.said, AllOf(HasSubstr("ranks call different collectives (loss)"),
                                HasSubstr("all-reduce of 4 bytes of fp32"),
                                HasSubstr("all-reduce of 8 bytes of fp32"),
                                testing::Not(HasSubstr("goes on"))));
    tell += end.said.find("TELLS") != std::string::npos;
  }
  EXPECT_EQ(tell, 1);
}

TEST(SharedRanks, ADeadRankIsNamedBeforeItsTimeIsOver) {
  const auto ends =
      run_ranks({.size = 3, .timeout_s = 3600}, [](Communicator& group) -> std::string {
        float value = 1;
        for (int turn = 0;; ++turn) {
          group.begin_step(turn / 2, 3600);
          if (group.rank() == 1 && turn == 5) ::raise(SIGKILL);
          const Status status = group.all_reduce(&value, 1, DType::kFp32, "gradients");
          if (!status.ok()) return status.message();
        }
      });
  EXPECT_TRUE(WIFSIGNALED(ends[1].wait_status));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(
        ends[static_cast<std::size_t>(rank)].said,
        AllOf(HasSubstr("rank 1 (process "), HasSubstr("on testhost) has ended"),
              HasSubstr(
                  "; step 2, all-reduce 6 \"gradients\": ranks 0 and 2 came, rank 1 never did")));
  }
}

// While a rank waits for its GPU's stream, the others are looked at all the same.
TEST(SharedRanks, WhoIsLostWhileAGpuIsWaitedForIsNamedByItsCollective) {
  const auto watched = [](runtime::Communicator& group, std::uint32_t entered, double waited_s) {
    return group.watch(
        {.entered = entered, .kind = Collective::kAllReduce, .name = "d w", .waited_s = waited_s});
  };
  const auto ends = run_ranks({.size = 2}, [&](runtime::Communicator& group) -> std::string {
    group.begin_step(3, 60);
    if (Status s = group.barrier("begin"); !s.ok()) return s.message();
    if (group.rank() == 1) {
      if (Status s = watched(group, 4, 0); !s.ok()) return s.message();
      ::raise(SIGKILL);
    }
    Status seen = watched(group, 6, 0);
    while (seen.ok()) seen = watched(group, 0, 1);
    return seen.message();
  });
  EXPECT_THAT(ends[0].said, AllOf(HasSubstr("rank 1 (process "),
                                  HasSubstr("has ended; step 3, all-reduce 7 \"d w\""),
                                  HasSubstr("rank 0 came, rank 1 never did")));
  for (const bool behind : {true, false}) {
    const auto late = run_ranks({.size = 2}, [&](runtime::Communicator& group) -> std::string {
      group.begin_step(1, 0.2);
      if (group.rank() == 0 || !behind) static_cast<void>(watched(group, 1, 0));
      if (Status s = group.barrier("go"); !s.ok()) return s.message();
      if (group.rank() == 0) return watched(group, behind ? 1 : 0, 0.3).message();
      ::usleep(300'000);
      return "";
    });
    EXPECT_THAT(late[0].said, HasSubstr(behind ? "on testhost) did not come within 0.2 s"
                                               : "waits for its GPU, where nothing went on"));
  }
}

TEST(SharedRanks, AStoppedRankIsNamedWhenItsTimeIsOver) {
  const auto ends = run_ranks(
      {.size = 2, .timeout_s = 2},  // long enough to come to the stop on a busy machine
      [](Communicator& group) -> std::string {
        if (group.rank() == 1) ::raise(SIGSTOP);
        return group.barrier("start of step 3").message();
      },
      [](const std::vector<Forked>& ranks) {
        siginfo_t ended;
        ::waitid(P_PID, static_cast<id_t>(ranks[0].pid), &ended, WEXITED | WNOWAIT);
        ::kill(ranks[1].pid, SIGCONT);
      });
  EXPECT_THAT(ends[0].said, AllOf(HasSubstr("rank 1 (process "), HasSubstr("within 2 s"),
                                  HasSubstr("it is stopped (SIGSTOP)"),
                                  HasSubstr("barrier 1 \"start of step 3\"")));
  EXPECT_EQ(ends[1].said, ends[0].said);
}

TEST(SharedRanks, CallsThatCannotBeRightAreRefused) {
  const auto ends = run_ranks({.size = 2}, [](Communicator& group) {
    float values[8] = {};
    const auto message = [&](CollectiveCall call) { return group.run(call).message() + "\n"; };
    return message({.kind = Collective::kAllReduce,
                    .from = values,
                    .to = values,
                    .bytes = 4,
                    .dtype = DType::kInt32}) +
           message({.kind = Collective::kAllReduce, .from = values, .to = values, .bytes = 6}) +
           message({.kind = Collective::kAllReduce, .from = values, .to = nullptr, .bytes = 4}) +
           message({.kind = Collective::kAllReduce, .from = values, .to = values + 1, .bytes = 8}) +
           message({.kind = Collective::kAllToAll, .from = values, .to = values, .bytes = 4}) +
           message({.kind = Collective::kBroadcast,
                    .from = values,
                    .to = values,
                    .bytes = 4,
                    .root = 2});
  });
  EXPECT_THAT(ends[0].said,
              AllOf(HasSubstr("dtype of all-reduce: got int32"),
                    HasSubstr("bytes of all-reduce: got 6, expected whole elements of fp32"),
                    HasSubstr("to of all-reduce: got a null pointer, expected 4 bytes"),
                    HasSubstr("to of all-reduce: got memory that overlaps from"),
                    HasSubstr("to of all-to-all: got memory that overlaps from"),
                    HasSubstr("root of broadcast: got 2, expected 0 to 1")));
}

// Processes that know nothing but a name.
std::string meet(const std::string& name, int rank, int size, double timeout_s = 20,
                 const std::string& build = "test") {
  auto segment = Segment::meet(name, {.rank = rank,
                                      .size = size,
                                      .chunk_bytes = 4096,
                                      .timeout_s = timeout_s,
                                      .host = "testhost",
                                      .build = build});
  if (!segment.ok()) return segment.status().message();
  auto group = shared_communicator(std::move(segment).value(), rank, size);
  float sum = static_cast<float>(rank);
  const Status status = group->all_reduce(&sum, 1, DType::kFp32, "ranks");
  return status.ok() ? fmt::format("sum {}", sum) : status.message();
}

std::string test_name(const char* what) {
  return fmt::format("test-{}-{}", what, ::getpid());
}

bool is_left(const std::string& name) {
  return ::access(("/dev/shm/flashlab-" + name).c_str(), F_OK) == 0;
}

TEST(Meeting, ByANameOfWhichNothingIsLeft) {
  const std::string name = test_name("name");
  std::vector<Forked> ranks;
  for (const int rank : {2, 1, 0}) {  // rank 0 makes the place, and comes last
    ranks.push_back(fork_one([&, rank] { return meet(name, rank, 3); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  for (Forked& rank : ranks) EXPECT_EQ(rank.wait().said, "sum 3");
  EXPECT_FALSE(is_left(name));
}

TEST(Meeting, WhatADeadRunLeftIsReplaced) {
  const std::string name = test_name("stale");
  Forked killed = fork_one([&] { return meet(name, 0, 2); });  // waits for a rank 1
  while (!is_left(name)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(killed.pid, SIGKILL);
  killed.wait();
  ASSERT_TRUE(is_left(name));
  Forked one = fork_one([&] { return meet(name, 1, 2); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Forked zero = fork_one([&] { return meet(name, 0, 2); });
  EXPECT_EQ(zero.wait().said, "sum 1");
  EXPECT_EQ(one.wait().said, "sum 1");
  EXPECT_FALSE(is_left(name));
}

TEST(Meeting, WhoDoesNotBelongIsRefused) {
  const std::string name = test_name("wrong");
  Forked zero = fork_one([&] { return meet(name, 0, 2, 1.0); });
  EXPECT_THAT(fork_one([&] { return meet(name, 1, 3); }).wait().said,
              HasSubstr("number of ranks that rank 1 knows: got 3, expected 2 as rank 0 has it"));
  EXPECT_THAT(fork_one([&] { return meet(name, 1, 2, 20, "other"); }).wait().said,
              HasSubstr("build of rank 1: got other, expected test as rank 0 has it"));
  EXPECT_THAT(fork_one([&] { return meet(name, 0, 2); }).wait().said,
              HasSubstr("expected one that no other run has"));
  EXPECT_THAT(zero.wait().said, HasSubstr("rank 1 of 2 never started within 1 s"));
  EXPECT_FALSE(is_left(name));
  EXPECT_THAT(meet(name, 1, 2, 0.1), HasSubstr("rank 1 looks for rank 0 on testhost"));
}

TEST(Meeting, OneProcessForEachRank) {
  const std::string name = test_name("twice");
  std::vector<Forked> ranks;
  for (const int rank : {0, 1, 1}) {
    ranks.push_back(fork_one([&, rank] { return meet(name, rank, 3, 1.0); }));
  }
  std::string all;
  for (Forked& rank : ranks) all += rank.wait().said + "\n";
  EXPECT_THAT(all, AllOf(HasSubstr("rank: got 1 twice"), HasSubstr("rank 2 of 3 never started")));
}

}  // namespace
}  // namespace flashlab::dist
