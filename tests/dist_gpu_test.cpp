// Collectives between GPUs: what copies put where and whose bits, and what NCCL is asked for. Each
// rank is a process; the driver, NVRTC and NCCL are stand-ins (dist_fake_gpu.cpp).

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "dist/copies/copies_communicator.h"
#include "dist/gpus/transports.h"
#include "dist/nccl/nccl_communicator.h"
#include "dist_ranks.h"
#include "runtime/program/executor.h"

namespace flashlab::dist {
namespace {

using cuda::CUdeviceptr;
using cuda::GpuDevice;
using runtime::Collective;
using runtime::CollectiveCall;
using runtime::Communicator;
using testing::HasSubstr;

void use_stand_ins(int gpus) {
  setenv("FAKE_GPUS", std::to_string(gpus).c_str(), 1);
  setenv("FLASHLAB_NVRTC", FLASHLAB_FAKE_GPU, 1);
  setenv("FLASHLAB_NCCL", FLASHLAB_FAKE_GPU, 1);
  setenv("FLASHLAB_CACHE", "/proc/nowhere", 1);
  ASSERT_NE(dlopen(FLASHLAB_FAKE_GPU, RTLD_NOW), nullptr) << dlerror();
}

// Memory of this rank's GPU, which here the processor reads.
struct GpuMemory {
  GpuMemory(const GpuDevice& device, std::size_t bytes) : device_(device), bytes_(bytes) {
    EXPECT_EQ(device.api().cuMemAlloc(&address_, bytes), 0);
  }
  ~GpuMemory() { device_.api().cuMemFree(address_); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  unsigned char* data() const { return reinterpret_cast<unsigned char*>(address_); }
  void set(const Bytes& values, std::size_t at = 0) {
    std::memset(data(), 0x5a, bytes_);
    std::memcpy(data() + at, values.data(), values.size());
  }
  Bytes get(std::size_t begin, std::size_t bytes) const {
    return {data() + begin, data() + begin + bytes};
  }

 private:
  const GpuDevice& device_;
  CUdeviceptr address_ = 0;
  std::size_t bytes_;
};

// Every kind, in place and not, of `count` elements a part.
std::string check_copies(Communicator& group, GpuDevice& device, std::size_t count, DType dtype) {
  const auto ranks = static_cast<std::size_t>(group.size()),
             me = static_cast<std::size_t>(group.rank());
  const std::size_t bytes = count * size_of(dtype);
  GpuMemory in(device, bytes * ranks), out(device, bytes * ranks);
  for (const GpuMemory* each : {&in, &out}) {
    if (Status s = group.share(each->data(), bytes * ranks); !s.ok()) return s.message();
  }
  std::string wrong;
  const auto judge = [&](const char* what, const Status& status, const Bytes& got,
                         const Bytes& expected) {
    if (!status.ok()) wrong += fmt::format("{}: {}; ", what, status.message());
    if (got != expected) {
      wrong += fmt::format("{} of {} {}: other bytes; ", what, count, flashlab::to_string(dtype));
    }
  };
  const auto call = [&](Collective kind, const void* from, void* to, int root = 0) {
    return group.run({.kind = kind,
                      .from = from,
                      .to = to,
                      .bytes = bytes,
                      .dtype = dtype,
                      .root = root,
                      .name = "test"});
  };
  const Bytes mine = values_of(group.rank(), count, dtype);
  const Bytes wide = values_of(group.rank(), count * ranks, dtype);
  const Bytes wide_sum = sum_of(group.size(), count * ranks, dtype);
  const auto part_of = [&](const Bytes& all, std::size_t part) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(part * bytes);
    return Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes));
  };
  Bytes gathered, turned;
  for (int other = 0; other < group.size(); ++other) {
    const Bytes all = values_of(other, count * ranks, dtype);
    const Bytes one = values_of(other, count, dtype), turn = part_of(all, me);
    gathered.insert(gathered.end(), one.begin(), one.end());
    turned.insert(turned.end(), turn.begin(), turn.end());
  }
  const Bytes sum = sum_of(group.size(), count, dtype);

  for (int round = 0; round < 2; ++round) {  // words go back to where they were
    in.set(mine), out.set({});
    Status status = call(Collective::kAllGather, in.data(), out.data());
    judge("all-gather", status, out.get(0, bytes * ranks), gathered);
    out.set(mine, me * bytes);
    status = call(Collective::kAllGather, out.data() + me * bytes, out.data());
    judge("all-gather in place", status, out.get(0, bytes * ranks), gathered);
    in.set(wide), out.set({});
    status = call(Collective::kAllToAll, in.data(), out.data());
    judge("all-to-all", status, out.get(0, bytes * ranks), turned);
    for (int root = 0; root < group.size(); ++root) {
      in.set(mine), out.set({});
      status = call(Collective::kBroadcast, in.data(), out.data(), root);
      judge("broadcast", status, out.get(0, bytes), values_of(root, count, dtype));
    }
    in.set(wide), out.set({});
    status = call(Collective::kReduceScatter, in.data(), out.data());
    judge("reduce-scatter", status, out.get(0, bytes), part_of(wide_sum, me));
    status = call(Collective::kReduceScatter, in.data(), in.data() + me * bytes);
    judge("reduce-scatter in place", status, in.get(me * bytes, bytes), part_of(wide_sum, me));
    in.set(mine), out.set({});
    status = call(Collective::kAllReduce, in.data(), out.data());
    judge("all-reduce", status, out.get(0, bytes), sum);
    status = call(Collective::kAllReduce, in.data(), in.data());
    judge("all-reduce in place", status, in.get(0, bytes), sum);
  }
  for (const GpuMemory* each : {&in, &out}) {
    if (Status s = group.unshare(each->data()); !s.ok()) wrong += s.message();
  }
  return wrong;
}

using GpuBody = std::function<std::string(Communicator& control, GpuDevice& device)>;

std::vector<RankEnd> run_gpu_ranks(int ranks, const GpuBody& body) {
  return run_ranks({.size = ranks}, [&](Communicator& control) -> std::string {
    use_stand_ins(ranks);
    auto device = GpuDevice::open(control.rank());
    if (!device.ok()) return device.status().message();
    return body(control, **device);
  });
}

TEST(Copies, MoveAndAddAsTheDefinitionSays) {
  for (const int ranks : {2, 3}) {
    const auto ends = run_gpu_ranks(ranks, [&](Communicator& control, GpuDevice& device) {
      auto group =
          copies_communicator(device, control, {.slot_bytes = 6144, .least_piece_bytes = 512});
      if (!group.ok()) return group.status().message();
      std::string wrong;
      for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64}) {
        // One element, whole accesses, and more pieces than there are slots.
        for (const std::size_t count : {1, 320, 9001}) {
          wrong += check_copies(**group, device, count, dtype);
        }
      }
      return wrong;
    });
    for (const RankEnd& end : ends) EXPECT_EQ(end.said, "");
  }
}

TEST(Copies, RefuseMemoryThatNobodyShared) {
  const auto ends = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) {
    auto group = copies_communicator(device, control);
    if (!group.ok()) return group.status().message();
    GpuMemory memory(device, 64);
    return (*group)
        ->all_gather(memory.data() + 32 * control.rank(), memory.data(), 32, "w")
        .message();
  });
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.said, HasSubstr("to of all-gather \"w\": got memory that was not shared"));
  }
}

TEST(Copies, SayWhyTheyCannotRun) {
  const auto none = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) {
    setenv("FAKE_NO_PEERS", "1", 1);
    return copies_communicator(device, control).status().message();
  });
  EXPECT_THAT(none[0].said, HasSubstr("no peer access from cuda:0 to cuda:1"));
  EXPECT_THAT(none[1].said, HasSubstr("no peer access from cuda:1 to cuda:0"));
}

TEST(Copies, RefuseTypesThatAGpuDoesNotAdd) {
  setenv("FAKE_MAJOR", "7", 1);
  const auto ends = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) {
    auto group = copies_communicator(device, control);
    if (!group.ok()) return group.status().message();
    GpuMemory memory(device, 64);
    return (*group)->all_reduce(memory.data(), 4, DType::kBf16, "w").message();
  });
  unsetenv("FAKE_MAJOR");
  EXPECT_THAT(ends[0].said, HasSubstr("all-reduce by copies: got bf16 on Fake GPU"));
  EXPECT_THAT(ends[0].said, HasSubstr("from compute capability 8.0 on"));
}

// A program as a training step has it: what a second stream sends waits for the first one's work
// and is waited for, and the host sees how far the collectives are.
TEST(GpuPrograms, ExchangeOnAStreamOfTheirOwn) {
  constexpr std::size_t kCount = 1000;
  const auto ends = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) -> std::string {
    auto between =
        gpu_transports({DeviceKind::kCuda, control.rank()}, control, {.sums_of_nccl = false});
    if (!between.ok()) return between.status().message();
    constexpr std::size_t kBytes = 4 * kCount;
    GpuMemory given(device, kBytes), summed(device, kBytes), kept(device, kBytes);
    given.set(values_of(control.rank(), kCount, DType::kFp32));
    summed.set({}), kept.set({});
    if (Status s = between->chosen->share(summed.data(), kBytes); !s.ok()) return s.message();
    runtime::Executor executor({&device});
    runtime::Program& program = executor.program();
    const runtime::Place from = {program.add_tensor("given")}, to = {program.add_tensor("summed")},
                         end = {program.add_tensor("kept")};
    const int aside = program.add_stream(0);
    const int first = program.add({.name = "copy", .work = runtime::CopyWork{to, from, kBytes}});
    const int sum =
        program.add({.name = "all-reduce d w",
                     .work =
                         runtime::CollectiveWork{
                             .kind = Collective::kAllReduce, .from = to, .to = to, .bytes = kBytes},
                     .stream = aside,
                     .depends_on = {first}});
    program.add({.name = "keep", .work = runtime::CopyWork{end, to, kBytes}, .depends_on = {sum}});
    Communicator* group = between->chosen.get();
    void* tensors[] = {given.data(), summed.data(), kept.data()};
    const Stream streams[] = {{device.context()}, {device.context()}};
    std::uint32_t progress = 0;
    const Status ran = executor.enqueue(
        {.tensors = tensors, .streams = streams, .groups = {&group, 1}, .progress = &progress});
    if (!ran.ok()) return ran.message();
    if (progress != 2) return fmt::format("progress {}", progress);
    if (kept.get(0, kBytes) != sum_of(2, kCount, DType::kFp32)) return "another sum";
    const Status last = between->chosen->unshare(summed.data());
    return last.ok() ? "" : last.message();
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.said, "");
}

TEST(ChosenRanks, LeaveMultiprocessorsToWhatRunsBeside) {
  const auto ends = run_gpu_ranks(2, [](Communicator& control, GpuDevice&) -> std::string {
    const Device gpu = {DeviceKind::kCuda, control.rank()};
    auto between = gpu_transports(gpu, control, {.beside_kernels = true});
    if (!between.ok()) return between.status().message();
    std::string ways;
    for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{2} << 20}) {
      ways += between->chosen->way({.kind = Collective::kAllReduce, .bytes = bytes});
      ways += ' ';
    }
    return ways;
  });
  EXPECT_EQ(ends[0].said, "nccl copies ");
}

TEST(NcclRanks, AskForWhatTheCallSays) {
  const auto ends = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) -> std::string {
    {
      auto group = nccl_communicator(device, control);
      if (!group.ok()) return group.status().message();
      char from[64], to[64];
      CollectiveCall call{.from = from, .to = to, .bytes = 32, .dtype = DType::kBf16};
      for (const Collective kind :
           {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
            Collective::kAllToAll, Collective::kBroadcast}) {
        call.kind = kind;
        call.root = kind == Collective::kBroadcast ? 1 : 0;
        if (Status s = (*group)->run(call); !s.ok()) return s.message();
      }
    }
    void* library = dlopen(FLASHLAB_FAKE_GPU, RTLD_NOW);
    return reinterpret_cast<const char* (*)()>(dlsym(library, "fake_nccl_log"))();
  });
  const std::string calls =
      "all-reduce 16 of 9 by 0\nreduce-scatter 16 of 9 by 0\nall-gather 32 of 1\ngroup\n"
      "send 32 of 1 to 0\nreceive 32 of 1 from 0\nsend 32 of 1 to 1\nreceive 32 of 1 from 1\n"
      "end\nbroadcast 32 of 1 from 1\ndestroy\n";
  EXPECT_EQ(ends[0].said, "id\ninit 0 of 2, of rank 0\n" + calls);
  EXPECT_EQ(ends[1].said, "init 1 of 2, of rank 0\n" + calls);
}

TEST(NcclRanks, NameALibraryThatIsMissingOrOld) {
  const auto old = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) {
    setenv("FAKE_NCCL", "21803", 1);
    return nccl_communicator(device, control).status().message();
  });
  EXPECT_THAT(old[0].said, HasSubstr("libcuda.so.1: version 2.18.3"));
  EXPECT_THAT(old[0].said, HasSubstr("2.19.0 or newer"));
  const auto missing = run_gpu_ranks(2, [](Communicator& control, GpuDevice& device) {
    if (control.rank() == 1) setenv("FLASHLAB_NCCL", "/nowhere/libnccl.so.2", 1);
    return nccl_communicator(device, control).status().message();
  });
  EXPECT_THAT(missing[1].said, HasSubstr("/nowhere/libnccl.so.2"));
  EXPECT_THAT(missing[0].said, HasSubstr("NCCL of rank 1: got none"));
}

}  // namespace
}  // namespace flashlab::dist
