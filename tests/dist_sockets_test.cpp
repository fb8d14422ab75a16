// Ranks of several hosts, as processes of this one: what goes wrong is said on every rank.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dist/sockets/socket_communicator.h"
#include "dist_ranks.h"

namespace flashlab::dist {
namespace {

using runtime::Collective;
using runtime::Communicator;

// What every rank says, in order.
std::vector<std::string> on_hosts(int ranks, double timeout_s,
                                  const std::function<std::string(Communicator&)>& body,
                                  const std::string& last_build = "one") {
  static int port = 20000 + ::getpid() % 20000;
  port += 16;
  std::vector<Forked> started;
  for (int rank = 0; rank < ranks; ++rank) {
    started.push_back(fork_one([&, rank]() -> std::string {
      auto made = socket_communicator({.rank = rank,
                                       .size = ranks,
                                       .address = "127.0.0.1",
                                       .port = port,
                                       .timeout_s = timeout_s,
                                       .group = "a test's",
                                       .host = fmt::format("host{}", rank),
                                       .build = rank == ranks - 1 ? last_build : "one"});
      return made.ok() ? body(**made) : made.status().message();
    }));
  }
  std::vector<std::string> out;
  for (Forked& rank : started) out.push_back(rank.wait().said);
  return out;
}

TEST(SocketRanks, AddAsTheDefinitionSays) {
  constexpr std::size_t kCount = 300'001;
  for (const DType dtype : {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16}) {
    const auto said = on_hosts(3, 60, [&](Communicator& ranks) -> std::string {
      Bytes data = values_of(ranks.rank(), kCount, dtype);
      const Status status = ranks.all_reduce(data.data(), kCount, dtype, "values");
      if (!status.ok()) return status.message();
      return data == sum_of(3, kCount, dtype) ? "" : "another sum";
    });
    EXPECT_EQ(said, std::vector<std::string>(3));
  }
}

TEST(SocketRanks, DifferentCallsAreNamedEverywhere) {
  const auto said = on_hosts(3, 60, [](Communicator& ranks) {
    std::vector<float> data(8);
    return ranks.all_reduce(data.data(), ranks.rank() == 2 ? 5 : 8, DType::kFp32, "gradients")
        .message();
  });
  for (const std::string& each : said) {
    EXPECT_NE(each.find("ranks call different collectives (gradients)"), std::string::npos) << each;
    EXPECT_NE(each.find("rank 2 (process "), std::string::npos) << each;
    EXPECT_NE(each.find("on host2) with all-reduce of 20 bytes"), std::string::npos) << each;
  }
}

TEST(SocketRanks, WhoIsLateOrGoneIsNamedEverywhere) {
  for (const bool gone : {false, true}) {
    const auto said = on_hosts(3, 60, [gone](Communicator& ranks) -> std::string {
      ranks.begin_step(0, gone ? 60 : 1);
      if (ranks.rank() == 1) {
        if (gone) return "left";
        std::this_thread::sleep_for(std::chrono::seconds(5));
      }
      return ranks.barrier("the end").message();
    });
    for (const int rank : {0, 2}) {
      const std::string& each = said[static_cast<std::size_t>(rank)];
      EXPECT_NE(each.find("rank 1 (process "), std::string::npos) << each;
      EXPECT_NE(each.find(gone ? "has ended" : "did not come within 1 s"), std::string::npos)
          << each;
      EXPECT_NE(each.find("barrier 1 \"the end\""), std::string::npos) << each;
    }
  }
}

TEST(SocketRanks, WhoWaitsForItsGpuMindsNeitherWhoIsAheadNorWhoLeaves) {
  for (const int leaves : {0, 2}) {
    const auto said = on_hosts(3, 20, [leaves](Communicator& ranks) -> std::string {
      const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(500)); };
      if (ranks.rank() == 0) {  // the others have sent what they bring
        wait();
        if (Status status = ranks.watch({}); !status.ok()) return status.message();
      }
      if (Status status = ranks.barrier("all"); !status.ok()) return status.message();
      if (ranks.rank() == leaves) return "left";
      wait();
      if (ranks.rank() == 1 && leaves == 2) {
        wait();  // while rank 0 looks
        return "left";
      }
      if (Status status = ranks.watch({}); !status.ok()) return "watch: " + status.message();
      return ranks.barrier("one left").message();
    });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& each = said[static_cast<std::size_t>(rank)];
      const bool waits = rank != leaves && (leaves == 0 || rank == 0);
      if (!waits) {
        EXPECT_EQ(each, "left");
        continue;
      }
      EXPECT_EQ(each.find(fmt::format("rank {} (process ", leaves)), 0U) << each;
      EXPECT_NE(each.find("has ended"), std::string::npos) << each;
    }
  }
}

TEST(SocketRanks, AnotherBuildIsRefused) {
  const auto said = on_hosts(
      2, 20, [](Communicator& ranks) { return ranks.barrier("").message(); }, "another");
  for (const std::string& each : said) {
    EXPECT_NE(each.find("FlashLab another"), std::string::npos) << each;
    EXPECT_NE(each.find("run one build everywhere"), std::string::npos) << each;
  }
}

}  // namespace
}  // namespace flashlab::dist
