// The control group's quota, read from folders like those of the kernel.

#include "runtime/cpu/processors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace flashlab::internal {
namespace {

namespace fs = std::filesystem;

class Quota : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "flashlab-cgroup-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::optional<double> read(const std::string& groups) {
    write("/groups", groups);
    return cpu_quota(root_, root_ + "/groups");
  }

  std::string root_;
};

TEST_F(Quota, OfVersion2) {
  EXPECT_EQ(read("0::/\n"), std::nullopt);
  write("/cpu.max", "max 100000\n");
  EXPECT_EQ(read("0::/\n"), std::nullopt);
  write("/cpu.max", "250000 100000\n");
  EXPECT_EQ(read("0::/\n"), 2.5);
}

TEST_F(Quota, TheLeastOnTheWayToTheRootBinds) {
  write("/service/cpu.max", "150000 100000\n");
  write("/service/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(read("0::/service/job\n"), 1.5);
  EXPECT_EQ(read("0::/service/job/deeper\n"), 1.5);
  EXPECT_EQ(read("0::/elsewhere\n"), std::nullopt);
}

TEST_F(Quota, OfVersion1) {
  write("/cpu/docker/cpu.cfs_quota_us", "-1\n");
  write("/cpu/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read("4:memory:/docker\n3:cpu,cpuacct:/docker\n"), std::nullopt);
  write("/cpu/docker/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(read("4:memory:/docker\n3:cpu,cpuacct:/docker\n"), 2.0);
  EXPECT_EQ(read("4:memory:/docker\n3:cpuset:/docker\n"), std::nullopt);
}

TEST_F(Quota, WhatIsNoQuotaIsNone) {
  for (const char* text : {"", "0 100000", "-5 100000", "100000 0", "words"}) {
    write("/cpu.max", text);
    EXPECT_EQ(read("0::/\n"), std::nullopt) << text;
  }
  EXPECT_EQ(read("no colon\n"), std::nullopt);
  EXPECT_EQ(cpu_quota(root_, root_ + "/absent"), std::nullopt);
}

TEST(Threads, AreAtMostTheProcessors) {
  EXPECT_GE(available_threads(), 1);
  EXPECT_LE(available_threads(), allowed_processors());
}

}  // namespace
}  // namespace flashlab::internal
