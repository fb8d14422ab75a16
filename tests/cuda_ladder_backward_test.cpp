// Plans of the ladder's backward rungs and of naive attention on every known GPU: what they choose
// and what they refuse. No GPU is needed. The weighted sum's results on a GPU, skipped without one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "api/context_state.h"
#include "cuda/kernels/ladder/plan.h"
#include "cuda/kernels/ladder/weighted_sum_plan.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_described_plan.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"

namespace flashlab::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Planner = Result<std::shared_ptr<internal::PlanState>> (*)(const internal::ContextState&,
                                                                 const Problem&,
                                                                 const internal::Geometry&);

constexpr Device kGpu{DeviceKind::kCuda, 0};

// A GPU that is only described, and a context on it.
struct Described {
  explicit Described(const char* architecture)
      : gpu(GpuDevice::described(known_gpu(architecture).value())), context(options(), gpu.get()) {}
  static ContextOptions options() {
    ContextOptions out;
    out.device = kGpu;
    out.threads = 1;
    return out;
  }
  std::unique_ptr<GpuDevice> gpu;
  internal::ContextState context;
};

Problem backward_problem(DType dtype, std::int64_t dim, std::int64_t seqlen_k = 96) {
  const TensorSpec q = contiguous_spec(dtype, {2, 65, 4, dim}, kGpu);
  const TensorSpec k = contiguous_spec(dtype, {2, seqlen_k, 2, dim}, kGpu);
  Problem out;
  out.pass = Pass::kBackward;
  out.q = out.o = q;
  out.d_o = out.dq = q;
  out.k = out.v = k;
  out.dk = out.dv = k;
  out.lse = contiguous_spec(DType::kFp32, {2, 4, 65}, kGpu);
  return out;
}

Result<std::shared_ptr<internal::PlanState>> make(Planner planner, const Described& on,
                                                  const Problem& problem) {
  Problem normalised;
  const Result<internal::Geometry> geometry = internal::validate(problem, &normalised);
  if (!geometry.ok()) return geometry.status();
  return planner(on.context, normalised, *geometry);
}

std::vector<std::string> kernels(const internal::PlanState& plan) {
  std::vector<std::string> out;
  for (const runtime::Step& step : plan.program()->steps()) {
    out.push_back(step.name);
  }
  return out;
}

TEST(LadderBackward, DefaultsFitEveryGpu) {
  for (const std::string& architecture : known_architectures()) {
    const Described on(architecture.c_str());
    for (std::int64_t dim : {1, 8, 16, 40, 64, 80, 96, 128}) {
      for (Planner planner :
           {&plan_fa2_backward, &plan_fa2_deterministic_backward, &plan_fa2_mma_backward}) {
        const auto plan = make(planner, on, backward_problem(DType::kBf16, dim));
        if (planner == &plan_fa2_mma_backward && on.gpu->info().major < 8) {
          EXPECT_FALSE(plan.ok());
          continue;
        }
        ASSERT_TRUE(plan.ok()) << architecture << ": " << plan.status().message();
        for (const auto& [step, kernel] : (*plan)->program()->kernels()) {
          EXPECT_LE(kernel->shape.shared_bytes,
                    static_cast<unsigned>(on.gpu->info().shared_bytes_per_block));
          EXPECT_LE(kernel->shape.threads, 1024u);
        }
      }
    }
  }
}

TEST(LadderBackward, StepsAndRegions) {
  const Described on("sm_90a");
  const Problem problem = backward_problem(DType::kFp32, 64);
  const auto atomic = make(&plan_fa2_backward, on, problem);
  ASSERT_TRUE(atomic.ok());
  EXPECT_THAT(kernels(**atomic), ::testing::ElementsAre("flash_bwd_delta", "zero dq in fp32",
                                                        "flash_bwd_fa2", "flash_bwd_round_dq"));
  using Needs = std::vector<std::vector<int>>;
  EXPECT_EQ(testing::needs(**atomic), (Needs{{}, {}, {0, 1}, {2}}));
  ASSERT_EQ((*atomic)->regions.size(), 2u);
  EXPECT_EQ((*atomic)->regions[0].bytes, 2u * 4 * 65 * 4);
  EXPECT_EQ((*atomic)->regions[1].bytes, 2u * 4 * 65 * 64 * 4);
  const auto ordered = make(&plan_fa2_deterministic_backward, on, problem);
  ASSERT_TRUE(ordered.ok());
  EXPECT_THAT(kernels(**ordered), ::testing::ElementsAre("flash_bwd_delta", "flash_bwd_fa2_keys",
                                                         "flash_bwd_fa2_queries"));
  EXPECT_EQ(testing::needs(**ordered), (Needs{{}, {0}, {0}}));
  EXPECT_EQ((*ordered)->regions.size(), 1u);
}

// Without keys there is nothing to walk over; dq must still be written.
TEST(LadderBackward, NoKeys) {
  const Described on("sm_90a");
  const Problem problem = backward_problem(DType::kFp32, 64, 0);
  const auto atomic = make(&plan_fa2_backward, on, problem);
  ASSERT_TRUE(atomic.ok());
  EXPECT_THAT(kernels(**atomic), ::testing::Contains("flash_bwd_round_dq"));
  const auto naive = make(naive_implementation().make_plan, on, problem);
  ASSERT_TRUE(naive.ok());
  EXPECT_THAT(kernels(**naive), ::testing::Contains("flash_bwd_naive_dq"));
}

TEST(LadderBackward, Refusals) {
  const Described on("sm_90a");
  Problem problem = backward_problem(DType::kFp32, 128);
  problem.options.tiles = {128, 128};
  auto refused = make(&plan_fa2_backward, on, problem);
  ASSERT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("128 queries x 128 keys"), HasSubstr("bytes of shared memory"),
                    HasSubstr(std::to_string(on.gpu->info().shared_bytes_per_block))));
  problem.options.tiles = {20, 32};
  refused = make(&plan_fa2_deterministic_backward, on, problem);
  EXPECT_THAT(refused.status().message(), HasSubstr("multiples of 16"));
  problem.options.tiles = {};
  refused = make(&plan_fa2_mma_backward, on, problem);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("fp32"), HasSubstr("use fa2")));
  problem = backward_problem(DType::kBf16, 16);
  problem.options.tiles = {16, 1024};
  refused = make(&plan_fa2_mma_backward, on, problem);
  EXPECT_THAT(refused.status().message(), AllOf(HasSubstr("2048 threads"), HasSubstr("1024")));
  refused = make(&plan_fa2_backward, on, backward_problem(DType::kFp16, 160));
  EXPECT_THAT(refused.status().message(), HasSubstr("at most 128"));
}

TEST(LadderBackward, MoreBlocksThanALaunchTakes) {
  const Described on("sm_90a");
  Problem problem = backward_problem(DType::kBf16, 16);
  const std::int64_t batch = std::int64_t{1} << 22, heads = 1024;
  problem.q = problem.o = contiguous_spec(DType::kBf16, {batch, 65, heads, 16}, kGpu);
  problem.k = problem.v = contiguous_spec(DType::kBf16, {batch, 96, heads, 16}, kGpu);
  problem.d_o = problem.dq = problem.q;
  problem.dk = problem.dv = problem.k;
  problem.lse = contiguous_spec(DType::kFp32, {batch, heads, 65}, kGpu);
  for (Planner planner : {&plan_fa2_backward, naive_implementation().make_plan}) {
    const auto refused = make(planner, on, problem);
    ASSERT_EQ(refused.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(refused.status().message(), HasSubstr("at most 2147483647 in a launch"));
  }
}

TEST(GpuNaive, MatrixBytesAndSteps) {
  const Described on("sm_75");
  Problem problem = backward_problem(DType::kBf16, 200);
  const auto backward = make(naive_implementation().make_plan, on, problem);
  ASSERT_TRUE(backward.ok());
  EXPECT_THAT(kernels(**backward),
              ::testing::ElementsAre("flash_bwd_delta", "flash_bwd_naive_probabilities",
                                     "flash_bwd_naive_dv", "flash_bwd_naive_ds",
                                     "flash_bwd_naive_dq", "flash_bwd_naive_dk"));
  // dS takes the place of P, which dV reads.
  EXPECT_EQ(testing::needs(**backward),
            (std::vector<std::vector<int>>{{}, {}, {1}, {0, 2}, {3}, {3}}));
  EXPECT_EQ((*backward)->regions[1].bytes, 2u * 4 * 65 * 96 * 2);
  problem.pass = Pass::kForward;
  problem.d_o = problem.dq = problem.dk = problem.dv = std::nullopt;
  const auto forward = make(naive_implementation().make_plan, on, problem);
  ASSERT_TRUE(forward.ok()) << forward.status().message();
  EXPECT_THAT(kernels(**forward),
              ::testing::ElementsAre("flash_fwd_naive_scores", "flash_fwd_naive_softmax",
                                     "flash_fwd_naive_values"));
  EXPECT_EQ((*forward)->regions[0].bytes, 2u * 4 * 65 * 96 * 4);
}

// ---- weighted sum ------------------------------------------------------------------------------

std::uint16_t bf16_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
float float_of_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

class GpuWeightedSum : public ::testing::TestWithParam<WeightedSumForm> {
 protected:
  void SetUp() override {
    const auto opened = GpuDevice::open(0);
    if (!opened.ok()) GTEST_SKIP() << "no GPU: " << opened.status().message();
    gpu_ = *opened;
    allocator_ = std::make_unique<GpuAllocator>(*gpu_);
  }
  void TearDown() override {
    for (const auto& [memory, bytes] : owned_) allocator_->deallocate(memory, bytes, Stream{});
  }

  void* allocate(std::size_t bytes) {
    const auto memory = allocator_->allocate(bytes, 256, Stream{}, Tag{"test", "weighted sum"});
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    owned_.emplace_back(*memory, bytes);
    return *memory;
  }
  // Numbers in the GPU's memory, `offset` elements behind a 256-byte boundary.
  void* upload(const std::vector<float>& values, DType dtype, std::size_t offset) {
    const std::size_t size = size_of(dtype);
    std::vector<std::uint16_t> half;
    const void* host = values.data();
    if (dtype == DType::kBf16) {
      for (float value : values) half.push_back(bf16_of(value));
      host = half.data();
    }
    char* memory = static_cast<char*>(allocate((values.size() + offset) * size)) + offset * size;
    const auto current = gpu_->current();
    EXPECT_EQ(gpu_->api().cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(memory), host,
                                            values.size() * size, nullptr),
              kCudaSuccess);
    EXPECT_EQ(gpu_->api().cuStreamSynchronize(nullptr), kCudaSuccess);
    return memory;
  }
  std::vector<float> download(const void* memory, std::size_t count, DType dtype) {
    std::vector<float> out(count);
    std::vector<std::uint16_t> half(count);
    const bool narrow = dtype == DType::kBf16;
    void* host = narrow ? static_cast<void*>(half.data()) : out.data();
    const auto current = gpu_->current();
    EXPECT_EQ(gpu_->api().cuMemcpyDtoHAsync(host, reinterpret_cast<CUdeviceptr>(memory),
                                            count * size_of(dtype), nullptr),
              kCudaSuccess);
    EXPECT_EQ(gpu_->api().cuStreamSynchronize(nullptr), kCudaSuccess);
    for (std::size_t i = 0; narrow && i < count; ++i) out[i] = float_of_bf16(half[i]);
    return out;
  }

  void compare(std::int64_t rows, std::int64_t dim, DType dtype, std::size_t offset);

  GpuDevice* gpu_ = nullptr;
  std::unique_ptr<GpuAllocator> allocator_;
  std::vector<std::pair<void*, std::size_t>> owned_;
};

void GpuWeightedSum::compare(std::int64_t rows, std::int64_t dim, DType dtype, std::size_t offset) {
  SCOPED_TRACE(::testing::Message()
               << rows << " x " << dim << " " << to_string(dtype) << " +" << offset);
  std::mt19937 random(static_cast<std::uint32_t>(rows * 1000 + dim));
  std::normal_distribution<float> normal;
  const auto r_count = static_cast<std::size_t>(rows), d_count = static_cast<std::size_t>(dim);
  std::vector<float> x(r_count * d_count), w(d_count), dy(r_count), nan(x.size(), NAN);
  for (auto* values : {&x, &w, &dy}) {
    for (float& value : *values) {
      value = normal(random);
      if (dtype == DType::kBf16) value = float_of_bf16(bf16_of(value));
    }
  }
  WeightedSumTensors t;
  t.dtype = dtype;
  t.rows = rows;
  t.dim = t.x_stride = t.dx_stride = dim;
  t.x = upload(x, dtype, offset);
  t.w = upload(w, dtype, offset);
  t.dy = upload(dy, dtype, offset);
  t.dx = upload(nan, dtype, offset);
  t.y = upload(std::vector<float>(r_count, NAN), dtype, offset);
  t.dw = upload(std::vector<float>(d_count, NAN), dtype, offset);
  Workspace workspace;
  workspace.bytes = weighted_sum_workspace_bytes(rows, dim);
  workspace.data = allocate(workspace.bytes);
  Status status = weighted_sum_forward(*gpu_, Stream{}, GetParam(), t);
  ASSERT_TRUE(status.ok()) << status.message();
  status = weighted_sum_backward(*gpu_, Stream{}, GetParam(), t, workspace);
  ASSERT_TRUE(status.ok()) << status.message();

  const std::vector<float> y = download(t.y, r_count, dtype), dw = download(t.dw, d_count, dtype);
  const std::vector<float> dx = download(t.dx, x.size(), dtype);
  const double unit = dtype == DType::kBf16 ? 0x1p-8 : 0x1p-23;
  std::vector<double> dw_true(d_count), dw_size(d_count);
  for (std::size_t r = 0; r < r_count; ++r) {
    double sum = 0, size = 0;
    for (std::size_t d = 0; d < d_count; ++d) {
      const double term = double{x[r * d_count + d]} * double{w[d]};
      const double back = double{x[r * d_count + d]} * double{dy[r]};
      sum += term;
      size += std::abs(term);
      dw_true[d] += back;
      dw_size[d] += std::abs(back);
      const double gradient = double{w[d]} * double{dy[r]};
      ASSERT_NEAR(dx[r * d_count + d], gradient, unit * std::abs(gradient) + 1e-30);
    }
    ASSERT_NEAR(y[r], sum, unit * std::abs(sum) + 1e-6 * size + 1e-30) << r;
  }
  for (std::size_t d = 0; d < d_count; ++d) {
    const double allowed = unit * std::abs(dw_true[d]) + 1e-5 * dw_size[d] + 1e-30;
    ASSERT_NEAR(dw[d], dw_true[d], allowed) << d;
  }
  // dw is the same bit for bit in every run.
  ASSERT_TRUE(weighted_sum_backward(*gpu_, Stream{}, GetParam(), t, workspace).ok());
  EXPECT_EQ(download(t.dw, d_count, dtype), dw);
}

TEST_P(GpuWeightedSum, MatchesFp64) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    compare(1, 1, dtype, 0);
    compare(77, 101, dtype, 0);
    compare(513, 64, dtype, 0);
    compare(513, 64, dtype, 1);  // rows that are not aligned
    compare(2000, 130, dtype, 0);
  }
}

TEST_P(GpuWeightedSum, RefusesWhatItCannotDo) {
  WeightedSumTensors t;
  t.rows = 4;
  t.dim = t.x_stride = t.dx_stride = 8;
  EXPECT_THAT(weighted_sum_forward(*gpu_, Stream{}, GetParam(), t).message(),
              HasSubstr("a null pointer"));
  t.dtype = DType::kFp64;
  EXPECT_EQ(weighted_sum_forward(*gpu_, Stream{}, GetParam(), t).code(), StatusCode::kUnsupported);
  t.dtype = DType::kFp32;
  t.x_stride = 7;
  EXPECT_THAT(weighted_sum_forward(*gpu_, Stream{}, GetParam(), t).message(),
              HasSubstr("at least 8"));
  t.rows = 0;
  EXPECT_EQ(weighted_sum_forward(*gpu_, Stream{}, GetParam(), t).code(),
            StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Forms, GpuWeightedSum,
                         ::testing::Values(WeightedSumForm::kNaive, WeightedSumForm::kArranged));

TEST(WeightedSumWorkspace, DependsOnSizesAlone) {
  EXPECT_EQ(weighted_sum_workspace_bytes(1, 10), 40u);
  EXPECT_EQ(weighted_sum_workspace_bytes(64, 10), 80u);
  EXPECT_EQ(weighted_sum_workspace_bytes(std::int64_t{1} << 20, 10), 512u * 40);
  EXPECT_EQ(weighted_sum_workspace_bytes(0, 10), 0u);
}

}  // namespace
}  // namespace flashlab::cuda
