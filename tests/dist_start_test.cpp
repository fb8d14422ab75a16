// Which rank a process is, by the variables of those that start ranks; and who runs where.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "dist/launch/processors.h"
#include "dist/start/world.h"

namespace flashlab::dist {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Map = std::map<std::string, std::string>;

Result<World> world(const Map& variables) {
  return world_of([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Map torchrun(const char* rank, const char* size) {
  return {{"RANK", rank},
          {"WORLD_SIZE", size},
          {"LOCAL_RANK", rank},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"}};
}

void expect_rank(const Map& variables, int rank, int size, const std::string& starter) {
  const Result<World> got = world(variables);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->rank, rank) << starter;
  EXPECT_EQ(got->size, size) << starter;
  EXPECT_EQ(got->starter, starter);
  EXPECT_FALSE(got->job.empty());
}

TEST(World, EveryStarterIsRecognised) {
  expect_rank({}, 0, 1, "");
  expect_rank(torchrun("1", "2"), 1, 2, "torchrun");
  Map ours = torchrun("1", "2");
  ours["FLASHLAB_JOB"] = "7-abc";
  expect_rank(ours, 1, 2, "flashlab launch");
  expect_rank({{"OMPI_COMM_WORLD_RANK", "2"},
               {"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
               {"PMIX_NAMESPACE", "1234"}},
              2, 4, "mpirun (OpenMPI)");
  expect_rank(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}, 1,
      2, "mpirun (Hydra)");
  const Map slurm = {{"SLURM_PROCID", "3"},   {"SLURM_NTASKS", "4"},
                     {"SLURM_LOCALID", "3"},  {"SLURM_STEP_ID", "0"},
                     {"SLURM_JOB_ID", "991"}, {"SLURM_STEP_TASKS_PER_NODE", "4"}};
  expect_rank(slurm, 3, 4, "srun");
  // The script of a batch job is no rank, whatever its job will start.
  Map batch = slurm;
  batch.erase("SLURM_STEP_ID");
  expect_rank(batch, 0, 1, "");
}

TEST(World, TheInnerStarterCounts) {
  // torchrun on each node, started by srun with one task a node.
  Map both = torchrun("5", "8");
  both["LOCAL_RANK"] = "1";
  both["LOCAL_WORLD_SIZE"] = "4";
  both["TORCHELASTIC_RUN_ID"] = "run";
  both.insert({{"SLURM_PROCID", "1"},
               {"SLURM_NTASKS", "2"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_STEP_ID", "0"},
               {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  expect_rank(both, 5, 8, "torchrun");
  // mpirun inside a job starts its helpers by srun, whose variables its ranks see.
  expect_rank({{"OMPI_COMM_WORLD_RANK", "1"},
               {"OMPI_COMM_WORLD_SIZE", "2"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
               {"SLURM_PROCID", "0"},
               {"SLURM_NTASKS", "1"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_STEP_ID", "3"}},
              1, 2, "mpirun (OpenMPI)");
}

TEST(World, RanksOfOneRunHaveOneName) {
  const auto job = [](const Map& variables) { return world(variables)->job; };
  EXPECT_EQ(job(torchrun("0", "2")), job(torchrun("1", "2")));
  Map other = torchrun("0", "2");
  other["MASTER_PORT"] = "29501";
  EXPECT_NE(job(torchrun("0", "2")), job(other));
  Map hostile = torchrun("0", "2");
  hostile["MASTER_ADDR"] = "../../etc/x";
  EXPECT_EQ(job(hostile).find('/'), std::string::npos);
}

void expect_refused(const Map& variables, const std::vector<std::string>& words) {
  const Result<World> got = world(variables);
  ASSERT_FALSE(got.ok()) << words.front();
  EXPECT_EQ(got.status().code(), StatusCode::kInvalidArgument);
  for (const std::string& word : words) EXPECT_THAT(got.status().message(), HasSubstr(word));
  EXPECT_FALSE(got.status().detail().remedy.empty());
}

TEST(World, HalfOfTheVariablesIsRefused) {
  for (const char* missing :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"}) {
    Map half = torchrun("1", "2");
    half.erase(missing);
    expect_refused(half, {std::string(missing) + ": got nothing, where other variables of a run"});
  }
  expect_refused({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, {"MPI_LOCALNRANKS", "unset PMI_RANK"});
}

TEST(World, VariablesThatCannotBeAreRefused) {
  expect_refused(torchrun("2", "2"), {"RANK: got \"2\"", "from 0 to 1"});
  expect_refused(torchrun("-1", "2"), {"RANK: got \"-1\""});
  expect_refused(torchrun("one", "2"), {"RANK: got \"one\""});
  expect_refused(torchrun("0", "0"), {"WORLD_SIZE: got \"0\""});
  Map port = torchrun("0", "2");
  port["MASTER_PORT"] = "70000";
  expect_refused(port, {"MASTER_PORT: got \"70000\""});
  Map local = torchrun("0", "2");
  local["LOCAL_WORLD_SIZE"] = "3";
  expect_refused(local, {"LOCAL_WORLD_SIZE: got \"3\""});
}

TEST(World, ContradictionsAreRefused) {
  // Left in the shell from an earlier run: both ranks would think that they are rank 0.
  Map stale = torchrun("0", "2");
  stale.insert({{"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  expect_refused(stale, {"RANK and OMPI_COMM_WORLD_RANK", "rank 0 of 2 by torchrun",
                         "rank 1 of 2 by mpirun (OpenMPI)", "unset RANK, WORLD_SIZE"});
  stale["RANK"] = stale["LOCAL_RANK"] = "1";
  expect_rank(stale, 1, 2, "torchrun");  // they say the same
}

TEST(World, MulticastIsOffWhateverItWas) {
  for (const Setting& setting : kMulticastOff) ::setenv(setting.name, "2", 1);
  turn_multicast_off();
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
  EXPECT_STREQ(std::getenv("TORCH_SYMM_MEM_DISABLE_MULTICAST"), "1");
  EXPECT_STREQ(std::getenv("NVSHMEM_DISABLE_NVLS"), "1");
}

TEST(Processors, CoresAreNotShared) {
  // As Linux numbers two packages of two cores of two threads.
  const std::vector<Processor> machine = {{0, 0, 0}, {1, 0, 1}, {2, 1, 0}, {3, 1, 1},
                                          {4, 0, 0}, {5, 0, 1}, {6, 1, 0}, {7, 1, 1}};
  const std::vector<Share> two = deal(machine, std::nullopt, 2);
  EXPECT_THAT(two[0].processors, ElementsAre(0, 4, 1, 5));
  EXPECT_THAT(two[1].processors, ElementsAre(2, 6, 3, 7));
  EXPECT_EQ(two[0].threads, 4);
  const std::vector<Share> three = deal(machine, std::nullopt, 3);
  std::multiset<int> all;
  for (const Share& share : three) all.insert(share.processors.begin(), share.processors.end());
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Processors, NobodyIsBoundWhereThereIsNoShareForAll) {
  const std::vector<Processor> machine = {{0, 0, 0}, {1, 0, 1}, {2, 0, 2}, {3, 0, 3}};
  for (const Share& share : deal(machine, std::nullopt, 5)) {
    EXPECT_TRUE(share.processors.empty());
    EXPECT_EQ(share.threads, 1);
  }
  for (const Share& share : deal(machine, 2.5, 2)) {
    EXPECT_TRUE(share.processors.empty());
    EXPECT_EQ(share.threads, 1);
  }
  for (const Share& share : deal(machine, 8.0, 2)) EXPECT_EQ(share.processors.size(), 2U);
}

}  // namespace
}  // namespace flashlab::dist
