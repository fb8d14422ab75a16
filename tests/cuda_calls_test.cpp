// Calls on a GPU as programs make them: captured in a graph, from several threads and streams, many
// times over, on tensors of more than 2^31 elements; and what a call costs the host.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "cuda_gpu.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab {
namespace {

using testing::kGpu;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Calls : public testing::GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  struct Sizes {
    std::int64_t batch = 2, heads_q = 4, heads_k = 2, seqlen = 200, head_dim = 64;
  };

  ForwardTensors forward_tensors(const Sizes& s, DType dtype, unsigned seed = 1) {
    return {.q = normal({s.batch, s.seqlen, s.heads_q, s.head_dim}, dtype, seed),
            .k = normal({s.batch, s.seqlen, s.heads_k, s.head_dim}, dtype, seed + 1),
            .v = normal({s.batch, s.seqlen, s.heads_k, s.head_dim}, dtype, seed + 2),
            .o = empty({s.batch, s.seqlen, s.heads_q, s.head_dim}, dtype),
            .lse = empty({s.batch, s.heads_q, s.seqlen}, DType::kFp32)};
  }
  BackwardTensors backward_tensors(const ForwardTensors& f, unsigned seed = 9) {
    const auto like = [&](const ConstTensor& t) {
      const auto& e = t.spec.shape;
      return empty({e[0], e[1], e[2], e[3]}, t.spec.dtype);
    };
    const auto& e = f.o.spec.shape;
    return {.q = f.q,
            .k = f.k,
            .v = f.v,
            .o = f.o,
            .lse = *f.lse,
            .d_o = normal({e[0], e[1], e[2], e[3]}, f.o.spec.dtype, seed),
            .dq = like(f.q),
            .dk = like(f.k),
            .dv = like(f.v)};
  }
  Workspace workspace_of(const Plan& plan) {
    const std::size_t bytes = std::max<std::size_t>(plan.workspace_bytes(), 256);
    return {allocate(bytes), bytes};
  }

  /// Runs `call` between the beginning and the end of a capture; gives the graph, ready to launch.
  template <class Call>
  cuda::CUgraphExec captured(cuda::CUstream stream, const Call& call) {
    const auto current = gpu_->current();
    const auto& api = gpu_->api();
    EXPECT_EQ(api.cuStreamBeginCapture(stream, cuda::kCaptureModeThreadLocal), cuda::kCudaSuccess);
    const Status status = call();
    EXPECT_TRUE(status.ok()) << status.message();
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec ready = nullptr;
    EXPECT_EQ(api.cuStreamEndCapture(stream, &graph), cuda::kCudaSuccess);
    EXPECT_EQ(api.cuGraphInstantiate(&ready, graph, 0), cuda::kCudaSuccess);
    EXPECT_EQ(api.cuGraphDestroy(graph), cuda::kCudaSuccess);
    return ready;
  }

  static bool hopper() { return GetParam() == std::string("sm90"); }
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && hopper() && gpu_->info().architecture() != "sm_90a") {
      GTEST_SKIP() << "sm90 runs on Hopper alone";
    }
  }

  static Options causal(bool deterministic = false) {
    return {
        .causal = Causal::kTopLeft, .deterministic = deterministic, .implementation = GetParam()};
  }
  /// Of sm80 where the implementation has no backward.
  static Options causal_backward() {
    Options options = causal(true);
    if (hopper()) options.implementation = "sm80";
    return options;
  }
  static std::vector<DType> dtypes() {
    return hopper() ? std::vector<DType>{DType::kBf16}
                    : std::vector<DType>{DType::kBf16, DType::kFp32};
  }
};

TEST_P(Calls, AGraphReplaysForwardAndBackward) {
  for (const DType dtype : dtypes()) {
    const ForwardTensors f = forward_tensors({}, dtype);
    const BackwardTensors b = backward_tensors(f);
    const auto forward_plan = plan(*context_, describe(f, causal(true)));
    const auto backward_plan = plan(*context_, describe(b, causal_backward()));
    ASSERT_TRUE(forward_plan.ok()) << forward_plan.status().message();
    ASSERT_TRUE(backward_plan.ok()) << backward_plan.status().message();
    ASSERT_TRUE(prepare(*context_, *forward_plan).ok());
    ASSERT_TRUE(prepare(*context_, *backward_plan).ok());
    const Workspace w = workspace_of(*forward_plan), x = workspace_of(*backward_plan);
    const cuda::CUstream stream = new_stream();
    ASSERT_TRUE(forward(*context_, Stream{stream}, *forward_plan, f, w).ok());
    ASSERT_TRUE(backward(*context_, Stream{stream}, *backward_plan, b, x).ok());
    wait(stream);
    const auto o = bytes_of(f.o), dq = bytes_of(b.dq), dk = bytes_of(b.dk), dv = bytes_of(b.dv);
    const cuda::CUgraphExec graph = captured(stream, [&] {
      Status status = forward(*context_, Stream{stream}, *forward_plan, f, w);
      if (status.ok()) status = backward(*context_, Stream{stream}, *backward_plan, b, x);
      return status;
    });
    for (int replay = 0; replay < 3; ++replay) {
      for (const Tensor& out : {f.o, b.dq, b.dk, b.dv}) fill(out, 0xff);
      ASSERT_EQ(gpu_->api().cuGraphLaunch(graph, stream), cuda::kCudaSuccess);
      wait(stream);
      EXPECT_EQ(bytes_of(f.o), o);
      EXPECT_EQ(bytes_of(b.dq), dq);
      EXPECT_EQ(bytes_of(b.dk), dk);
      EXPECT_EQ(bytes_of(b.dv), dv);
    }
    gpu_->api().cuGraphExecDestroy(graph);
    gpu_->api().cuStreamDestroy(stream);
  }
}

// A call that was never prepared either works while a stream is captured or says what to do.
TEST_P(Calls, AnUnpreparedCallInACaptureHarmsNothing) {
  const ForwardTensors f = forward_tensors({.seqlen = 40, .head_dim = 56}, DType::kFp16);
  const auto made = plan(*context_, describe(f, causal()));
  ASSERT_TRUE(made.ok());
  const Workspace w = workspace_of(*made);
  const cuda::CUstream stream = new_stream();
  const auto& api = gpu_->api();
  Status status;
  {
    const auto current = gpu_->current();
    ASSERT_EQ(api.cuStreamBeginCapture(stream, cuda::kCaptureModeThreadLocal), cuda::kCudaSuccess);
    status = forward(*context_, Stream{stream}, *made, f, w);
    cuda::CUgraph graph = nullptr;
    const cuda::CUresult ended = api.cuStreamEndCapture(stream, &graph);
    if (status.ok()) {
      EXPECT_EQ(ended, cuda::kCudaSuccess);
    } else {
      EXPECT_THAT(status.message(), ::testing::HasSubstr("prepare"));
    }
    if (graph != nullptr) api.cuGraphDestroy(graph);
  }
  ASSERT_TRUE(forward(*context_, Stream{stream}, *made, f, w).ok());
  wait(stream);
  api.cuStreamDestroy(stream);
}

TEST_P(Calls, ThreadsAndStreamsDoNotDisturbEachOther) {
  constexpr int kThreads = 4, kRounds = 25;
  struct Job {
    ForwardTensors tensors;
    Workspace workspace;
    cuda::CUstream stream;
    std::vector<char> expected;
  };
  std::vector<Job> jobs;
  for (unsigned i = 0; i < kThreads; ++i) {
    const Sizes sizes{.seqlen = 100 + 60 * static_cast<std::int64_t>(i)};
    ForwardTensors f = forward_tensors(sizes, i % 2 == 0 ? DType::kBf16 : DType::kFp16, 10 * i);
    const auto made = plan(*context_, describe(f, causal()));
    ASSERT_TRUE(made.ok());
    const Workspace w = workspace_of(*made);
    ASSERT_TRUE(forward(*context_, Stream{}, *made, f, w).ok());
    wait();
    jobs.push_back({f, w, new_stream(), bytes_of(f.o)});
    fill(f.o, 0xff);
  }
  std::vector<std::thread> threads;
  std::vector<std::string> failures(kThreads);
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Job& job = jobs[i];
      for (int round = 0; round < kRounds && failures[i].empty(); ++round) {
        const auto made = plan(*context_, describe(job.tensors, causal()));
        const Status status =
            made.ok() ? forward(*context_, Stream{job.stream}, *made, job.tensors, job.workspace)
                      : made.status();
        if (!status.ok()) failures[i] = status.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kThreads; ++i) {
    EXPECT_EQ(failures[i], "");
    wait(jobs[i].stream);
    EXPECT_EQ(bytes_of(jobs[i].tensors.o), jobs[i].expected) << i;
    gpu_->api().cuStreamDestroy(jobs[i].stream);
  }
}

TEST_P(Calls, AThousandRunsGiveTheSameBits) {
  constexpr int kRuns = 1000;
  for (const DType dtype : dtypes()) {
    const ForwardTensors f = forward_tensors({.seqlen = 150}, dtype);
    const BackwardTensors b = backward_tensors(f);
    const auto forward_plan = plan(*context_, describe(f, causal(true)));
    const auto backward_plan = plan(*context_, describe(b, causal_backward()));
    ASSERT_TRUE(forward_plan.ok() && backward_plan.ok());
    const Workspace w = workspace_of(*forward_plan), x = workspace_of(*backward_plan);
    std::vector<char> o, dq, dk, dv;
    for (int run = 0; run < kRuns; ++run) {
      ASSERT_TRUE(forward(*context_, Stream{}, *forward_plan, f, w).ok());
      ASSERT_TRUE(backward(*context_, Stream{}, *backward_plan, b, x).ok());
      if (run == 0) {
        wait();
        o = bytes_of(f.o), dq = bytes_of(b.dq), dk = bytes_of(b.dk), dv = bytes_of(b.dv);
        continue;
      }
      ASSERT_EQ(bytes_of(f.o), o) << run;
      ASSERT_EQ(bytes_of(b.dq), dq) << run;
      ASSERT_EQ(bytes_of(b.dk), dk) << run;
      ASSERT_EQ(bytes_of(b.dv), dv) << run;
    }
  }
}

TEST_P(Calls, MoreThanTwoToThe31Elements) {
  constexpr Sizes kSizes{
      .batch = 4100, .heads_q = 64, .heads_k = 64, .seqlen = 64, .head_dim = 128};
  constexpr std::int64_t kElements =
      kSizes.batch * kSizes.heads_q * kSizes.seqlen * kSizes.head_dim;
  static_assert(kElements > std::int64_t{1} << 31);
  std::size_t free_bytes = 0, total_bytes = 0;
  {
    const auto current = gpu_->current();
    gpu_->api().cuMemGetInfo(&free_bytes, &total_bytes);
  }
  if (free_bytes < std::size_t{5} * kElements * 2) GTEST_SKIP() << "needs 21 GB of device memory";
  // The last batch element alone, and as the last of the large tensors.
  Sizes one = kSizes;
  one.batch = 1;
  const ForwardTensors small = forward_tensors(one, DType::kBf16);
  ASSERT_TRUE(forward(*context_, Stream{}, small, causal()).ok());
  const auto large = [&](const ConstTensor& last) {
    Tensor out =
        empty({kSizes.batch, kSizes.seqlen, kSizes.heads_q, kSizes.head_dim}, DType::kBf16);
    const std::vector<char> bytes = bytes_of(last);
    copy_in(static_cast<char*>(out.data) + out.spec.bytes() - bytes.size(), bytes.data(),
            bytes.size());
    return out;
  };
  const ForwardTensors f{
      .q = large(small.q),
      .k = large(small.k),
      .v = large(small.v),
      .o = empty({kSizes.batch, kSizes.seqlen, kSizes.heads_q, kSizes.head_dim}, DType::kBf16)};
  const Status status = forward(*context_, Stream{}, f, causal());
  ASSERT_TRUE(status.ok()) << status.message();
  wait();
  const std::vector<char> expected = bytes_of(small.o);
  std::vector<char> last(expected.size());
  download(last.data(), static_cast<const char*>(f.o.data) + f.o.spec.bytes() - last.size(),
           last.size());
  EXPECT_EQ(last, expected);
}

// Host time of calls whose plan is cached, the stream never full. A bound that only a mistake
// breaks (a kernel looked up again, a wait for the GPU): what else the machine does counts here.
// The bars, 5 us for one launch and 3 us beyond several, are judged by `gpu_costs record`
// (bench/gpu.sh costs).
TEST_P(Calls, ACallCostsTheHostLittle) {
  const ForwardTensors f =
      forward_tensors({.batch = 1, .heads_q = 1, .heads_k = 1, .seqlen = 64}, DType::kBf16);
  const auto made = plan(*context_, describe(f, causal()));
  ASSERT_TRUE(made.ok());
  const Workspace w = workspace_of(*made);
  std::vector<double> microseconds;
  for (int round = 0; round < 50; ++round) {
    constexpr int kCalls = 100;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) {
      ASSERT_TRUE(forward(*context_, Stream{}, *made, f, w).ok());
    }
    microseconds.push_back(seconds_since(start) * 1e6 / kCalls);
    wait();
  }
  // The fastest round is one that no other program cut into.
  const double fastest = *std::min_element(microseconds.begin(), microseconds.end());
  RecordProperty("microseconds_per_call", std::to_string(fastest));
  RecordProperty("steps", std::to_string(made->steps().size()));
  EXPECT_LT(fastest, 20.0 * static_cast<double>(made->steps().size()))
      << "about 3 us per launch where nothing else runs";
}

// Kernels from the compiler, and an image from the disk cache. The times are recorded and not
// judged, because other programs compile too: `gpu_costs record` judges the bars, 1.5 s (fp32
// backward 3 s) and 20 ms.
TEST_P(Calls, KernelsCompileAndAreReadFromTheCache) {
  std::string folder = (std::filesystem::temp_directory_path() / "flashlab-load-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(setenv("FLASHLAB_CACHE", folder.c_str(), 1), 0);
  const ForwardTensors f = forward_tensors({.head_dim = 88}, DType::kBf16);
  const auto made = plan(*context_, describe(f, causal()));
  ASSERT_TRUE(made.ok());
  auto start = std::chrono::steady_clock::now();
  const Status status = prepare(*context_, *made);
  const double compiled = seconds_since(start);
  ASSERT_TRUE(status.ok()) << status.message();
  RecordProperty("prepare_seconds", std::to_string(compiled));
  // What this process loaded stays loaded, so the folder is asked for the image itself.
  const cuda::KernelSpec spec{"merge/kernel.cu",
                              "flash_fwd_merge",
                              "struct Config { static constexpr Element kOutput = Element::kFp32; "
                              "static constexpr int kVector = 1; };\n",
                              {}};
  const std::string architecture = gpu_->info().architecture();
  ASSERT_TRUE(cuda::image_of(spec, architecture).ok());
  start = std::chrono::steady_clock::now();
  const auto image = cuda::image_of(spec, architecture);
  const double seconds = seconds_since(start);
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->origin, cuda::ImageOrigin::kCache);
  RecordProperty("read_milliseconds", std::to_string(seconds * 1e3));
  unsetenv("FLASHLAB_CACHE");
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Implementations, Calls, ::testing::Values("sm90", "sm80", "naive"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace flashlab
