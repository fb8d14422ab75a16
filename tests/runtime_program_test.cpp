// Programs, and how executors run them, on any machine: against the stand-in for libcuda.so.1
// (cuda_fake_driver.cpp), which writes down what is enqueued. On GPUs: runtime_two_gpus_test.cpp.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/kernels/merge/launch_arguments.h"
#include "cuda/kernels/merge/plan.h"
#include "runtime/kernel_store/cache.h"
#include "runtime/program/executor.h"
#include "runtime/program/observer.h"

namespace flashlab::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Streams of the stand-in's two devices.
const Stream kFirst{reinterpret_cast<void*>(0x10000)}, kSecond{reinterpret_cast<void*>(0x20000)};
const cuda::KernelSpec kSpin{"lab/spin.cu", "lab_spin", "struct Config {};", {}};

struct Arguments {
  cuda::CUtensorMap map;
  float* out;
  std::int32_t rows, turn;
};

std::vector<Arguments> launched;       // by value, as the kernel would see them
std::vector<cuda::LaunchShape> grids;  // with their attributes
bool aligned = true;

void note_launch(const void* config, void** parameters) {
  const auto& c = *static_cast<const cuda::CUlaunchConfig*>(config);
  cuda::LaunchShape shape{
      .grid_x = c.gridDimX, .threads = c.blockDimX, .shared_bytes = c.sharedMemBytes};
  for (unsigned i = 0; i < c.numAttrs; ++i) {
    const cuda::CUlaunchAttribute& attribute = c.attrs[i];
    if (attribute.id == cuda::kLaunchClusterDimension) {
      shape.cluster_x = attribute.value.clusterDim.x;
    }
    if (attribute.id == cuda::kLaunchCooperative) shape.cooperative = true;
    if (attribute.id == cuda::kLaunchProgrammaticSerialization) shape.programmatic = true;
  }
  grids.push_back(shape);
  aligned = aligned && reinterpret_cast<std::uintptr_t>(parameters[0]) % 64 == 0;
  Arguments copy;
  std::memcpy(&copy, parameters[0], sizeof copy);
  launched.push_back(copy);
}

class Programs : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("FAKE_CUDA", "two", 1), 0);
    ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", FLASHLAB_FAKE_DRIVER, 1), 0);
    // Loaded first, it is what the name libcuda.so.1 means in this process.
    void* fake = dlopen(FLASHLAB_FAKE_DRIVER, RTLD_NOW);
    ASSERT_NE(fake, nullptr) << dlerror();
    log_ = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_log"));
    on_launch_ = reinterpret_cast<decltype(on_launch_)>(dlsym(fake, "fake_on_launch"));
    on_launch_(note_launch);
    clear_ = reinterpret_cast<void (*)()>(dlsym(fake, "fake_clear"));
    std::string name = (fs::temp_directory_path() / "flashlab-program-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    ASSERT_EQ(setenv("FLASHLAB_CACHE", folder_.c_str(), 1), 0);
    for (int i = 0; i < 2; ++i) {
      auto gpu = cuda::GpuDevice::open(i);
      ASSERT_TRUE(gpu.ok()) << gpu.status().message();
      gpus_.push_back(*gpu);
    }
    // The stand-in does not look into kernels: one is put into the cache by hand.
    const auto key = cuda::key_of(kSpin, gpus_[0]->info().architecture());
    ASSERT_TRUE(key.ok());
    ASSERT_TRUE(cuda::KernelCache(folder_).store(*key, {"a kernel", "", "by hand"}).ok());
    launched.clear();
    grids.clear();
    clear_();
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// What was enqueued, without a profiler's ranges.
  std::vector<std::string> enqueued() const {
    std::vector<std::string> lines;
    std::istringstream text(log_());
    for (std::string line; std::getline(text, line);) {
      if (!line.starts_with("push") && !line.starts_with("pop")) lines.push_back(line);
    }
    return lines;
  }

  const char* (*log_)() = nullptr;
  void (*clear_)() = nullptr;
  void (*on_launch_)(void (*)(const void*, void**)) = nullptr;
  std::string folder_;
  std::vector<const cuda::GpuDevice*> gpus_;
};

Step kernel(std::string name, ParameterBlock block = ParameterBlock(Arguments{})) {
  return {.name = std::move(name), .work = KernelWork{kSpin, {}, std::move(block)}};
}

TEST_F(Programs, EachStepHasItsOwnParameters) {
  Executor executor({gpus_[0]});
  Program& program = executor.program();
  const int q = program.add_tensor("q"), k = program.add_tensor("k");
  program.add_region("first", 100);
  const int out = program.add_region("out", 100);
  const TensorMap map{.rank = 2, .extents = {64, 100}, .strides_bytes = {128}, .box = {64, 64}};
  ParameterBlock first(Arguments{.rows = 7});
  first.tensor_map(offsetof(Arguments, map), {k, 256}, map)
      .pointer(offsetof(Arguments, out), {out, 16})
      .scalar(offsetof(Arguments, turn), 4, 0);
  ParameterBlock second(Arguments{.rows = 8, .turn = 5});
  second.pointer(offsetof(Arguments, out), {q});
  program.add(kernel("first", first));
  program.add(kernel("second", second));

  void* tensors[] = {reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x2000)};
  void* workspace = reinterpret_cast<void*>(0x10000);
  const std::uint64_t turn = 3;
  const Call call{.tensors = tensors,
                  .workspaces = {&workspace, 1},
                  .streams = {&kFirst, 1},
                  .scalars = {&turn, 1}};
  for (int i = 0; i < 3; ++i) {
    const Status status = executor.enqueue(call);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ASSERT_EQ(launched.size(), 6u);
  EXPECT_TRUE(aligned) << "a tensor map must lie at a multiple of 64 bytes";
  for (const std::size_t i : {0u, 4u}) {
    EXPECT_EQ(launched[i].map.opaque[0], 0x2100u);
    EXPECT_EQ(launched[i].out, reinterpret_cast<float*>(0x10000 + 256 + 16));
    EXPECT_EQ(launched[i].rows, 7);
    EXPECT_EQ(launched[i].turn, 3);
    EXPECT_EQ(launched[i + 1].out, reinterpret_cast<float*>(0x1000));
    EXPECT_EQ(launched[i + 1].rows, 8);
    EXPECT_EQ(launched[i + 1].turn, 5) << "the first step's patches are not the second's";
  }
  EXPECT_THAT(enqueued(), ElementsAre("encode 2100", "launch 10000", "launch 10000", "launch 10000",
                                      "launch 10000", "launch 10000", "launch 10000"))
      << "a map is encoded once per address";
  tensors[1] = reinterpret_cast<void*>(0x3000);
  ASSERT_TRUE(executor.enqueue(call).ok());
  EXPECT_EQ(launched[6].map.opaque[0], 0x3100u);
}

TEST_F(Programs, ALaunchHasItsAttributes) {
  Executor executor({gpus_[0]});
  executor.program().add({.name = "cluster",
                          .work = KernelWork{kSpin,
                                             {.grid_x = 4,
                                              .threads = 128,
                                              .shared_bytes = 64,
                                              .cluster_x = 2,
                                              .cooperative = true,
                                              .programmatic = true},
                                             ParameterBlock(Arguments{})}});
  executor.program().add(kernel("plain"));
  ASSERT_TRUE(executor.enqueue({.streams = {&kFirst, 1}}).ok());
  ASSERT_EQ(grids.size(), 2u);
  EXPECT_EQ(grids[0].cluster_x, 2u);
  EXPECT_TRUE(grids[0].cooperative && grids[0].programmatic);
  EXPECT_EQ(grids[0].shared_bytes, 64u);
  EXPECT_EQ(grids[1].cluster_x, 1u);
  EXPECT_FALSE(grids[1].cooperative || grids[1].programmatic);
  EXPECT_THAT(executor.program().to_string(),
              HasSubstr("cluster 2 x 1 x 1 · cooperative · programmatic launch"));
}

// The stand-in has room for three clusters.
TEST_F(Programs, BlocksThatStayAreNoMoreThanRunAtOnce) {
  Executor executor({gpus_[0]});
  for (const unsigned blocks : {16u, 4u}) {
    for (const bool staying : {true, false}) {
      executor.program().add(
          {.name = "cluster",
           .work =
               KernelWork{kSpin,
                          {.grid_x = blocks, .threads = 128, .cluster_x = 2, .staying = staying},
                          ParameterBlock(Arguments{})}});
    }
  }
  ASSERT_TRUE(executor.enqueue({.streams = {&kFirst, 1}}).ok());
  ASSERT_EQ(grids.size(), 4u);
  EXPECT_EQ(grids[0].grid_x, 6u);
  EXPECT_EQ(grids[1].grid_x, 16u);
  EXPECT_EQ(grids[2].grid_x, 4u);
  EXPECT_EQ(grids[3].grid_x, 4u);
}

// Device 0: a, then c, which needs b of device 1. b needs a.
Program& two_devices(Executor& executor) {
  Program& program = executor.program();
  const int side = program.add_stream(1);
  const int here = program.add_region("here", 64), there = program.add_region("there", 64, 1);
  const int a = program.add({.name = "a", .work = MemsetWork{{here}, 64, 1}});
  Step b{.name = "b", .work = CopyWork{{there}, {here}, 64}, .stream = side, .depends_on = {a}};
  const int b_index = program.add(std::move(b));
  Step c = kernel("c");
  c.depends_on = {b_index};
  program.add(std::move(c));
  return program;
}

TEST_F(Programs, StepsOfTwoDevicesWaitForWhatTheyNeed) {
  Executor executor({gpus_[0], gpus_[1]});
  Program& program = two_devices(executor);
  EXPECT_EQ(program.devices(), 2);
  void* workspaces[] = {reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x2000)};
  const Stream streams[] = {kFirst, kSecond};
  const Call call{.workspaces = workspaces, .streams = streams};
  ASSERT_TRUE(executor.enqueue(call).ok());
  const std::vector<std::string> first = enqueued();
  ASSERT_EQ(first.size(), 10u) << log_();
  // The other stream starts after the first one's work, and the first one ends after the other.
  EXPECT_THAT(first[0], HasSubstr("record 10000"));
  EXPECT_EQ(first[1], "wait 20000" + first[0].substr(12));
  EXPECT_EQ(first[2], "memset 10000");
  EXPECT_THAT(first[3], HasSubstr("record 10000"));
  EXPECT_EQ(first[4], "wait 20000" + first[3].substr(12));
  EXPECT_EQ(first[5], "copy 20000");
  EXPECT_THAT(first[6], HasSubstr("record 20000"));
  EXPECT_EQ(first[7], "wait 10000" + first[6].substr(12));
  EXPECT_EQ(first[8], "launch 10000");
  EXPECT_EQ(first[9], first[7]) << "the first stream goes on after all of the program";
  clear_();
  ASSERT_TRUE(executor.enqueue(call).ok());
  EXPECT_EQ(enqueued(), first) << "events are used again";
}

TEST_F(Programs, AGraphReplaysHostFunctions) {
  Executor executor({gpus_[0], gpus_[1]});
  Program& program = two_devices(executor);
  int calls = 0;
  void* seen = nullptr;
  program.add({.name = "host",
               .work = HostWork{[&](std::span<void* const> addresses) {
                                  ++calls;
                                  seen = addresses[0];
                                  return Status();
                                },
                                {{0, 8}}}});
  void* workspaces[] = {reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x2000)};
  const Stream streams[] = {kFirst, kSecond};
  const Call call{.workspaces = workspaces, .streams = streams};
  {
    const auto graph = executor.capture(call);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(enqueued().front(), "begin 10000");
    EXPECT_EQ(enqueued().back(), "end 10000");
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(graph->launch(kFirst).ok());
  }
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(seen, reinterpret_cast<void*>(0x1008));
  ASSERT_TRUE(executor.enqueue(call).ok());
  EXPECT_EQ(calls, 3) << "outside of a graph too";
}

Status refused() {
  return Status::invalid({"batch", "none", "a number", ""});
}

// The driver calls it when its turn comes, and has nobody to tell.
TEST_F(Programs, AHostFunctionsFailureIsToldToTheNextCall) {
  Executor executor({gpus_[0]});
  int left = 1;
  executor.program().add(
      {.name = "host",
       .work = HostWork{[&](auto) { return left-- > 0 ? refused() : Status(); }, {}}});
  const Call call{.streams = {&kFirst, 1}};
  EXPECT_TRUE(executor.enqueue(call).ok());
  EXPECT_THAT(executor.enqueue(call).message(), HasSubstr("a number"));
  EXPECT_TRUE(executor.enqueue(call).ok()) << "told once";
  EXPECT_EQ(left, -1) << "what was told of has enqueued nothing";
}

struct Times : internal::StepObserver {
  void step_finished(std::string_view name, double milliseconds) override {
    names.emplace_back(name);
    total += milliseconds;
  }
  void step_enqueued(double host_milliseconds) override { host.push_back(host_milliseconds); }
  std::vector<std::string> names;
  std::vector<double> host;
  double total = 0;
};

TEST_F(Programs, StepsAreTimedForAnObserverAndNamedForAProfiler) {
  Executor executor({gpus_[0], gpus_[1]});
  two_devices(executor);
  void* workspaces[] = {reinterpret_cast<void*>(0x1000), reinterpret_cast<void*>(0x2000)};
  const Stream streams[] = {kFirst, kSecond};
  const Call call{.workspaces = workspaces, .streams = streams};
  Times times;
  {
    const internal::ObserveSteps observing(times);
    ASSERT_TRUE(executor.enqueue(call).ok());
  }
  EXPECT_THAT(times.names, ElementsAre("a", "b", "c"));
  EXPECT_EQ(times.total, 1.5);
  EXPECT_EQ(times.host.size(), 3u);
  EXPECT_THAT(times.host, ::testing::Each(::testing::Gt(0.0)));
  EXPECT_THAT(log_(), HasSubstr("push a\n"));
  EXPECT_THAT(log_(), HasSubstr("push c\nwait"));
  EXPECT_THAT(log_(), HasSubstr("pop\n"));
  ASSERT_TRUE(executor.enqueue(call).ok());
  EXPECT_EQ(times.names.size(), 3u) << "only while somebody observes";
}

TEST_F(Programs, ScopesBecomeRangesInsideEachOther) {
  Executor executor({gpus_[0]});
  Program& program = executor.program();
  const int region = program.add_region("r", 64);
  const auto add = [&](const char* scope, const char* name) {
    program.set_scope(scope);
    program.add({.name = name, .work = MemsetWork{{region}, 64, 0}});
  };
  add("forward / layer 0 / attention", "attention");
  add("forward / layer 0 / attention", "attention");
  add("forward / layer 0 / mlp", "flash");
  add("backward / layer 0 / mlp", "layer 0 / mlp");
  void* workspace = reinterpret_cast<void*>(0x1000);
  ASSERT_TRUE(executor.enqueue({.workspaces = {&workspace, 1}, .streams = {&kFirst, 1}}).ok());
  std::string ranges;
  std::istringstream lines(log_());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("push ")) ranges += "(" + line.substr(5);
    if (line == "pop") ranges += ")";
  }
  EXPECT_EQ(ranges, "(forward(layer 0(attention)(attention)(mlp(flash))))(backward(layer 0(mlp)))");
}

TEST_F(Programs, WhatFailsIsSaid) {
  Executor late({gpus_[0]});
  late.program().add({.name = "early", .work = MemsetWork{}, .depends_on = {0}});
  EXPECT_THAT(late.prepare().message(), HasSubstr("depends on step 0"));
  Executor nowhere({gpus_[0]});
  nowhere.program().add({.name = "lost", .work = MemsetWork{{3}, 8, 0}});
  EXPECT_THAT(nowhere.prepare().message(), HasSubstr("buffer 3"));
  Executor outside({gpus_[0]});
  const int q = outside.program().add_tensor("q");
  ParameterBlock block(Arguments{});
  block.pointer(sizeof(Arguments), {q});
  outside.program().add(kernel("outside", block));
  EXPECT_THAT(outside.prepare().message(), HasSubstr("a patch outside it"));
  Executor alone({gpus_[0]});
  two_devices(alone);
  EXPECT_THAT(alone.prepare().message(), HasSubstr("2 devices"));
  Executor few({gpus_[0]});
  few.program().add_tensor("q");
  EXPECT_THAT(few.enqueue({.streams = {&kFirst, 1}}).message(), HasSubstr("tensors of the call"));
  Executor failing({gpus_[0]});
  failing.program().add(kernel("failing"));
  ASSERT_EQ(setenv("FAKE_LAUNCH", "719", 1), 0);
  EXPECT_THAT(failing.enqueue({.streams = {&kFirst, 1}}).message(),
              HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
  unsetenv("FAKE_LAUNCH");
}

TEST_F(Programs, AProductOnAGpuWithoutItsLibrarySaysWhatWasLookedFor) {
  ASSERT_EQ(setenv("FLASHLAB_CUBLASLT", "/nowhere/libcublasLt.so", 1), 0);
  Executor executor({gpus_[0]});
  const int a = executor.program().add_tensor("a");
  executor.program().add({.name = "c = a a", .work = ProductWork{Product{}, {a}, {a}, {a}, {a}}});
  const Status status = executor.prepare();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("/nowhere/libcublasLt.so"));
  unsetenv("FLASHLAB_CUBLASLT");
}

// More parts than one launch holds: the first result is the second launch's first part.
std::vector<device::MergeArguments> merges;

TEST_F(Programs, AMergeOfManyPartsGoesInTurns) {
  constexpr int kParts = device::kMaxMergeParts + 3;
  constexpr Device kGpu{DeviceKind::kCuda, 0};
  std::vector<Partial> parts(kParts);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto* memory = reinterpret_cast<float*>(0x100000 + i * 0x1000);
    parts[i].o = tensor(memory, {1, 2, 3, 8}, DType::kFp32, kGpu);
    parts[i].lse = tensor(memory + 48, {1, 3, 2}, DType::kFp32, kGpu);
  }
  const Tensor o = tensor(reinterpret_cast<float*>(0x10000), {1, 2, 3, 8}, DType::kFp32, kGpu);
  const auto key =
      cuda::key_of(cuda::merge_kernel(DType::kFp32, 4), gpus_[0]->info().architecture());
  ASSERT_TRUE(cuda::KernelCache(folder_).store(*key, {"a kernel", "", "by hand"}).ok());
  merges.clear();
  on_launch_([](const void*, void** parameters) {
    merges.emplace_back();
    std::memcpy(&merges.back(), parameters[0], sizeof merges.back());
  });
  cuda::GpuAllocator allocator(*cuda::GpuDevice::open(0).value());
  const Status status = cuda::merge_on_gpu(*gpus_[0], allocator, kFirst, parts, o, std::nullopt);
  on_launch_(note_launch);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(merges.size(), 2u);
  EXPECT_EQ(merges[0].count, device::kMaxMergeParts);
  EXPECT_EQ(merges[0].parts[31].o.data, parts[31].o.data);
  EXPECT_EQ(merges[1].count, 4);
  EXPECT_EQ(merges[1].parts[0].o.data, merges[0].output.o.data);
  EXPECT_EQ(merges[1].parts[0].lse.data, merges[0].output.lse.data);
  EXPECT_EQ(merges[0].output.lse.data, static_cast<float*>(merges[0].output.o.data) + 48);
  EXPECT_EQ(merges[1].parts[1].lse.data, parts[32].lse.data);
  EXPECT_EQ(merges[1].output.o.data, o.data);
  EXPECT_EQ(merges[1].output.lse.data, nullptr);
}

// ---------------------------------------------------------------------------------------------
// On the processor
// ---------------------------------------------------------------------------------------------

// A program of a product, a host function and a kernel runs as far as it can.
TEST(CpuPrograms, AreAppendedFromAStepOn) {
  Program part;
  const int region = part.add_region("counter", 4);
  part.add({.name = "zero", .work = MemsetWork{{region}, 4, 0}});
  part.add({.name = "first", .work = MemsetWork{{region}, 4, 1}, .depends_on = {0}});
  part.add({.name = "second", .work = MemsetWork{{region}, 4, 2}, .depends_on = {0, 1}});
  Program whole;
  const Place place{whole.add_tensor("memory"), 16};
  whole.add({.name = "before", .work = MemsetWork{place, 4, 0}});
  whole.append(part, {&place, 1}, 1);
  ASSERT_EQ(whole.steps().size(), 3u);
  EXPECT_EQ(whole.steps()[1].name, "first");
  EXPECT_THAT(whole.steps()[1].depends_on, ElementsAre());
  EXPECT_THAT(whole.steps()[2].depends_on, ElementsAre(1));
  EXPECT_EQ(std::get<MemsetWork>(whole.steps()[2].work).target, place);
  EXPECT_TRUE(whole.check().ok()) << whole.check().message();
}

TEST(CpuPrograms, RunUntilAStepNeedsAGpu) {
  std::vector<float> a = {1, 2, 3, 4}, b(4);
  Executor here;
  Program& program = here.program();
  const int pa = program.add_tensor("a"), pb = program.add_tensor("b");
  const int beside = program.add_stream(0);  // is this processor, too
  program.add({.name = "zero", .work = MemsetWork{{pa, 12}, 4, 0}});
  program.add(
      {.name = "copy", .work = CopyWork{{pb}, {pa}, 16}, .stream = beside, .depends_on = {0}});
  float sum = 0;
  program.add({.name = "sum",
               .work = HostWork{[&](std::span<void* const> at) {
                                  const auto* values = static_cast<const float*>(at[0]);
                                  sum = std::accumulate(values, values + 4, 0.0f);
                                  return Status();
                                },
                                {{pb}}},
               .depends_on = {1}});
  void* tensors[] = {a.data(), b.data()};
  const Stream streams[2]{};
  const Call call{.tensors = tensors, .streams = streams};
  Times times;
  {
    const internal::ObserveSteps observing(times);
    EXPECT_TRUE(here.enqueue(call).ok());
  }
  EXPECT_EQ(sum, 6);
  EXPECT_THAT(times.names, ElementsAre("zero", "sum", "copy"));  // other threads' at the end
  for (const bool product : {false, true}) {
    Executor short_of_a_gpu;
    short_of_a_gpu.program() = program;
    Step last = kernel("flash_example");
    if (product) last.work = ProductWork{Product{}, {pa}, {pa}, {pb}, {}};
    short_of_a_gpu.program().add(std::move(last));
    const Status status = short_of_a_gpu.enqueue(call);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr("step 3 'flash_example'"));
    EXPECT_THAT(status.message(), HasSubstr(product ? "a GPU's product" : "a GPU's kernel"));
    EXPECT_THAT(status.message(), HasSubstr("3 of 4 steps have run"));
  }
}

TEST(CpuPrograms, AFailedHostFunctionEndsTheCall) {
  Executor here;
  bool went_on = false;
  here.program().add({.name = "fails", .work = HostWork{[](auto) { return refused(); }, {}}});
  here.program().add(
      {.name = "after", .work = HostWork{[&](auto) { return went_on = true, Status(); }, {}}});
  const Stream none{};
  EXPECT_THAT(here.enqueue({.streams = {&none, 1}}).message(), HasSubstr("a number"));
  EXPECT_FALSE(went_on);
}

TEST(CpuPrograms, PrintThemselves) {
  Program program;
  const int q = program.add_tensor("q");
  const int out = program.add_region("out", 300);
  program.add_region("next", 1);
  EXPECT_EQ(program.workspace_bytes(), 512u + 256u);
  const int zero = program.add({.name = "zero", .work = MemsetWork{{out}, 300, 0}});
  Step copy{.name = "copy", .work = CopyWork{{out}, {q}, 300}, .depends_on = {zero}};
  program.add(std::move(copy));
  EXPECT_EQ(program.to_string(),
            "stream 0  device 0\n"
            "tensor 0  q\n"
            "region  out  300 bytes at 0 of device 0\n"
            "region  next  1 bytes at 512 of device 0\n"
            "step 0  zero  stream 0  memset of 300 bytes to 0\n"
            "step 1  copy  stream 0  copy of 300 bytes  after 0\n");
}

}  // namespace
}  // namespace flashlab::runtime
