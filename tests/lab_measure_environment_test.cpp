#include "lab/machine/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "lab/machine/doctor.h"

namespace flashlab::lab {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

MachineState quiet_machine() {
  MachineState state;
  state.cpus = 2;
  state.threads_used = 2;
  state.load_average = 0.1;
  state.stolen_cores = 0;
  state.governor = "performance";
  state.available_memory_share = 0.9;
  return state;
}

TEST(Doctor, QuietMachineHasNoWarnings) {
  EXPECT_THAT(diagnose(quiet_machine()), IsEmpty());
}

TEST(Doctor, OtherProgramsAreNamed) {
  MachineState state = quiet_machine();
  state.load_average = 3.1;
  state.busy = {{123, "cc1plus", 0.98}, {7, "python3", 0.5}};
  const auto warnings = diagnose(state);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0].what, HasSubstr("load average 3.1 on 2 cores: other programs run"));
  EXPECT_THAT(warnings[0].what, HasSubstr("cc1plus (pid 123, 98% of a core)"));
  EXPECT_THAT(warnings[0].remedy, HasSubstr("wait"));
}

TEST(Doctor, NoProgramUsesMoreThanThereIs) {
  MachineState state = quiet_machine();
  state.busy = {{123, "cc1plus", 1e6}};
  const auto warnings = diagnose(state);
  ASSERT_EQ(warnings.size(), 1u);
  const std::string all = std::to_string(100 * sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_THAT(warnings[0].what, HasSubstr("cc1plus (pid 123, " + all + "% of a core)"));
}

TEST(Doctor, LoadWithoutAVisibleProgram) {
  MachineState state = quiet_machine();
  state.load_average = 1.9;
  const auto warnings = diagnose(state);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0].what, HasSubstr("load average 1.9"));
}

TEST(Doctor, EveryFindingHasARemedy) {
  MachineState state = quiet_machine();
  state.threads_used = 4;
  state.cpu_quota = 1.5;
  state.governor = "powersave";
  state.stolen_cores = 0.5;
  state.available_memory_share = 0.02;
  state.sanitized = true;
  state.unoptimized = true;
  const auto warnings = diagnose(state);
  EXPECT_EQ(warnings.size(), 7u);
  for (const auto& warning : warnings) {
    EXPECT_THAT(warning.what, Not(IsEmpty()));
    EXPECT_THAT(warning.remedy, Not(IsEmpty()));
  }
  EXPECT_THAT(warnings[0].what, HasSubstr("optimisation"));
  EXPECT_THAT(warnings[3].what, HasSubstr("grants 1.5 cores, 4 threads"));
  EXPECT_EQ(warnings[4].remedy, "use --threads 2");
}

TEST(Doctor, QuotaThatSufficesIsNoWarning) {
  MachineState state = quiet_machine();
  state.cpu_quota = 2.0;
  EXPECT_THAT(diagnose(state), IsEmpty());
}

TEST(Doctor, SeesAnotherBusyProcess) {
  const std::filesystem::path proc = std::filesystem::path(::testing::TempDir()) / "doctor_proc";
  const auto ticks = [&](int pid, const char* name, long user, long system) {
    const auto folder = proc / std::to_string(pid);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "stat") << pid << " (" << name << ") R 1 2 3 4 5 6 7 8 9 10 " << user
                                   << ' ' << system << " 0 0 20 0\n";
  };
  const long second = sysconf(_SC_CLK_TCK);
  ticks(41, "a (busy) one", 5 * second, 0);
  ticks(42, "idle", 9 * second, second);
  ticks(getpid(), "this one", 0, 0);
  std::filesystem::create_directories(proc / "self");
  const auto before = process_times(proc);
  ticks(41, "a (busy) one", 6 * second, second);
  ticks(43, "new", second / 2, 0);
  ticks(getpid(), "this one", 2 * second, 0);
  const std::vector<BusyProcess> busy = busy_between(before, process_times(proc), 2);
  std::filesystem::remove_all(proc);
  ASSERT_EQ(busy.size(), 2u);
  EXPECT_EQ(busy[0].pid, 41);
  EXPECT_EQ(busy[0].name, "a (busy) one");
  EXPECT_DOUBLE_EQ(busy[0].cores, 1);
  EXPECT_EQ(busy[1].pid, 43);
  EXPECT_DOUBLE_EQ(busy[1].cores, 0.25);
}

TEST(Doctor, LooksAtTheMachineItRunsOn) {
  EXPECT_GE(observe_machine(0).cpus, 1);
}

TEST(Environment, SaysWhereAndHow) {
  EnvironmentRequest request;
  request.command = "flashlab bench --seqlen 1k";
  request.protocol = "3 warm-ups";
  request.threads = 2;
  request.observe_ms = 0;
  const Environment e = collect_environment(request);
  EXPECT_EQ(e.command, request.command);
  EXPECT_EQ(e.protocol, request.protocol);
  EXPECT_EQ(e.threads_used, 2);
  EXPECT_THAT(e.flashlab_version, Not(IsEmpty()));
  EXPECT_THAT(e.commit, Not(IsEmpty()));
  EXPECT_THAT(e.kernel, HasSubstr("Linux"));
  EXPECT_THAT(e.os, Not(IsEmpty()));
  EXPECT_THAT(e.libc, HasSubstr("glibc 2."));
  EXPECT_THAT(e.compiler, Not(IsEmpty()));
  EXPECT_THAT(e.cpu_isa, Not(IsEmpty()));
  EXPECT_GE(e.cpu_threads_online, 1);
  EXPECT_GT(e.memory_bytes, 0);
  EXPECT_TRUE(std::regex_match(e.date_utc, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")));
  EXPECT_TRUE(std::regex_match(e.hostname_hash, std::regex("[0-9a-f]{8}")));
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
  EXPECT_NE(e.hostname_hash, host);
  EXPECT_EQ(e.hostname_hash, short_hash(host));
  EXPECT_FALSE(e.roof_fp32_gflops.has_value());
}

TEST(Environment, CommandLineReadsBack) {
  const char* argv[] = {"flashlab", "bench", "--seqlen", "1k,2k", "--json", "my file's.json", ""};
  EXPECT_EQ(command_line(7, argv), "flashlab bench --seqlen 1k,2k --json 'my file'\\''s.json' ''");
}

TEST(Environment, ShortHashIsFnv) {
  EXPECT_EQ(short_hash(""), "811c9dc5");
  EXPECT_EQ(short_hash("a"), "e40c292c");
}

TEST(Environment, MissingDriverIsExplained) {
  EXPECT_EQ(describe_no_cuda(Status::unsupported(
                {"CUDA driver", "libcuda.so.1 was not found (libcuda.so.1: cannot open)",
                 "a loadable library", "the CPU backend works"})),
            "no CUDA device: libcuda.so.1 was not found. The driver is not installed or not "
            "visible in this container.");
  EXPECT_EQ(describe_no_cuda(Status::unsupported(
                {"CUDA driver", "version 11.4", "12.2 or newer", "update the NVIDIA driver"})),
            "no CUDA device: CUDA driver: version 11.4; update the NVIDIA driver");
  EXPECT_FALSE(describe_cuda().empty());
}

}  // namespace
}  // namespace flashlab::lab
