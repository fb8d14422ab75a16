// What forward's plan promises: memory linear in the lengths, splits where tiles are few, equal
// bits from run to run and, for deterministic plans, from any number of threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Shape {
  std::int64_t batch = 1, seqlen_q = 64, seqlen_k = 64, heads_q = 2, heads_k = 2, dim = 32;
};

struct Call {
  explicit Call(Shape s, DType type = DType::kFp32) : shape(s), dtype(type) {
    fill(q, s.seqlen_q * s.heads_q, 1);
    fill(k, s.seqlen_k * s.heads_k, 2);
    fill(v, s.seqlen_k * s.heads_k, 3);
    o.assign(q.size(), 0);
    lse.assign(static_cast<std::size_t>(s.batch * s.heads_q * s.seqlen_q), 0.0f);
  }

  void fill(std::vector<std::uint32_t>& memory, std::int64_t rows, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto count = static_cast<std::size_t>(shape.batch * rows * shape.dim);
    memory.assign(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      if (dtype == DType::kFp32) {
        reinterpret_cast<float*>(memory.data())[i] = normal(random);
      } else {
        reinterpret_cast<std::uint16_t*>(memory.data())[i] = bf16_from_float(normal(random));
      }
    }
  }

  ForwardTensors tensors() {
    const auto view = [&](std::vector<std::uint32_t>& memory, std::int64_t rows,
                          std::int64_t heads) {
      return tensor(static_cast<void*>(memory.data()), {shape.batch, rows, heads, shape.dim},
                    dtype);
    };
    return {.q = view(q, shape.seqlen_q, shape.heads_q),
            .k = view(k, shape.seqlen_k, shape.heads_k),
            .v = view(v, shape.seqlen_k, shape.heads_k),
            .o = view(o, shape.seqlen_q, shape.heads_q),
            .lse = tensor(lse.data(), {shape.batch, shape.heads_q, shape.seqlen_q})};
  }

  Shape shape;
  DType dtype;
  std::vector<std::uint32_t> q, k, v, o;
  std::vector<float> lse;
};

Plan plan_of(const Context& context, Call& call, const Options& options = {}) {
  auto made = plan(context, describe(call.tensors(), options));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

std::size_t region_bytes(const Plan& plan, const std::string& name) {
  for (const WorkspaceRegion& region : plan.regions()) {
    if (region.name == name) return region.bytes;
  }
  return 0;
}

TEST(CpuForwardPlan, WorkspaceIsLinearInTheLengths) {
  auto context = Context::create({.threads = 2});
  std::size_t last = 0;
  for (std::int64_t s : {8192, 16384, 32768}) {
    Problem problem;
    problem.q = problem.k = problem.v = problem.o = contiguous_spec(DType::kFp32, {1, s, 8, 64});
    auto made = plan(*context, problem);
    ASSERT_TRUE(made.ok());
    // Packed K and V are exactly as large as K and V where the panels divide the length.
    EXPECT_EQ(region_bytes(*made, "packed_keys"), static_cast<std::size_t>(s) * 8 * 64 * 4);
    EXPECT_EQ(region_bytes(*made, "packed_values"), static_cast<std::size_t>(s) * 8 * 64 * 4);
    const std::size_t packed = static_cast<std::size_t>(s) * 8 * 64 * 4 * 2;
    const std::size_t rest = made->workspace_bytes() - packed;
    if (last != 0) {
      EXPECT_EQ(rest, last) << "everything else is independent of the length";
    }
    last = rest;
  }
  EXPECT_LT(last, 2u << 20);
}

// Heads that a thread's cache holds: memory for as many as there are threads, and whoever takes a
// tile, of its own head or of another thread's last one, the bits are those of one thread.
TEST(CpuForwardPlan, ThreadsPackTheirOwnHeads) {
  const Shape shape{.batch = 2, .seqlen_q = 500, .seqlen_k = 300, .heads_q = 10, .heads_k = 5};
  auto one = Context::create({.threads = 1});
  auto three = Context::create({.threads = 3});
  for (Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    const Options options{.causal = causal};
    Call first(shape);
    ASSERT_TRUE(forward(*one, {}, first.tensors(), options).ok());
    const Plan plan = plan_of(*three, first, options);
    EXPECT_THAT(plan.to_string(), HasSubstr("by the thread that takes its tiles"));
    EXPECT_EQ(region_bytes(plan, "packed_keys"),
              3 * region_bytes(plan_of(*one, first, options), "packed_keys"));
    for (int round = 0; round < 50; ++round) {
      Call again(shape);
      ASSERT_TRUE(forward(*three, {}, again.tensors(), options).ok());
      ASSERT_EQ(again.o, first.o);
      ASSERT_EQ(again.lse, first.lse);
    }
  }
}

// K and V of three heads are more than caches are taken to hold, those of one are not: the rows
// that are fetched ahead and packed in short loops give the bits of the others.
TEST(CpuForwardPlan, FarRowsArePackedAsNearOnes) {
  const Shape shape{.seqlen_q = 100, .seqlen_k = 4001, .heads_q = 3, .heads_k = 3, .dim = 64};
  auto context = Context::create({.threads = 1});
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    Call far(shape, dtype), near(shape, dtype);
    ASSERT_TRUE(forward(*context, {}, far.tensors()).ok());
    for (std::int64_t head = 0; head < shape.heads_q; ++head) {
      ForwardTensors one = near.tensors();
      const std::int64_t bytes = head * shape.dim * static_cast<std::int64_t>(size_of(dtype));
      for (ConstTensor* t : {&one.q, &one.k, &one.v}) {
        t->spec.shape[2] = 1;
        t->data = static_cast<const char*>(t->data) + bytes;
      }
      one.o.spec.shape[2] = one.lse->spec.shape[1] = 1;
      one.o.data = static_cast<char*>(one.o.data) + bytes;
      one.lse->data = static_cast<float*>(one.lse->data) + head * shape.seqlen_q;
      ASSERT_TRUE(forward(*context, {}, one).ok());
    }
    EXPECT_EQ(far.o, near.o);
    EXPECT_EQ(far.lse, near.lse);
  }
}

TEST(CpuForwardPlan, FewQueriesSplitTheKeysAndPackNothingAhead) {
  auto context = Context::create({.threads = 4});
  Call decode({.seqlen_q = 1, .seqlen_k = 5000, .heads_q = 8, .heads_k = 1});
  const Plan split = plan_of(*context, decode);
  EXPECT_EQ(region_bytes(split, "packed_keys"), 0u);
  EXPECT_GT(region_bytes(split, "partial_o"), 0u);
  EXPECT_THAT(split.to_string(), HasSubstr("merge_"));
  Call prefill({.seqlen_q = 1024, .seqlen_k = 1024, .heads_q = 8, .heads_k = 8});
  const Plan whole = plan_of(*context, prefill);
  EXPECT_GT(region_bytes(whole, "packed_keys"), 0u);
  EXPECT_EQ(region_bytes(whole, "partial_o"), 0u);
  EXPECT_THAT(whole.to_string(), Not(HasSubstr("merge_")));
}

TEST(CpuForwardPlan, SplitsGiveTheSameAnswerAsOneThread) {
  auto one = Context::create({.threads = 1});
  auto four = Context::create({.threads = 4});
  for (Causal causal : {Causal::kNone, Causal::kBottomRight}) {
    Call a({.batch = 2, .seqlen_q = 3, .seqlen_k = 2777, .heads_q = 4, .heads_k = 1});
    Call b = a;
    ASSERT_TRUE(forward(*one, {}, a.tensors(), {.causal = causal}).ok());
    ASSERT_TRUE(forward(*four, {}, b.tensors(), {.causal = causal}).ok());
    EXPECT_THAT(plan_of(*four, b, {.causal = causal}).to_string(), HasSubstr("merge_"));
    for (std::size_t i = 0; i < a.o.size(); ++i) {
      EXPECT_NEAR(reinterpret_cast<float*>(a.o.data())[i], reinterpret_cast<float*>(b.o.data())[i],
                  1e-6);
    }
    for (std::size_t i = 0; i < a.lse.size(); ++i) EXPECT_NEAR(a.lse[i], b.lse[i], 2e-6);
  }
}

TEST(CpuForwardPlan, RunsRepeatBitForBit) {
  auto context = Context::create({.threads = 4});
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    for (Shape shape :
         {Shape{.seqlen_q = 300, .seqlen_k = 500}, Shape{.seqlen_q = 2, .seqlen_k = 4000}}) {
      Call first(shape, dtype);
      ASSERT_TRUE(forward(*context, {}, first.tensors()).ok());
      for (int round = 0; round < 20; ++round) {
        Call again(shape, dtype);
        ASSERT_TRUE(forward(*context, {}, again.tensors()).ok());
        ASSERT_EQ(again.o, first.o);
        ASSERT_EQ(again.lse, first.lse);
      }
    }
  }
}

// A row's powers are taken beside the products of other rows where a tile has some: 5 rows have
// none beside them, 48 are whole strips, 53 whole strips and a rest. 582 keys are no whole pairs of
// vectors.
TEST(CpuForwardPlan, ARowsBitsDependOnNoOtherRow) {
  struct Rows {
    std::int64_t all, first;  // of the five
    Causal causal = Causal::kNone;
  };
  const Rows kRows[] = {{53, 0}, {48, 43}, {48, 43, Causal::kBottomRight}};
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512,
                           CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (!supported(isa)) continue;
    auto context = Context::create({.threads = 1, .cpu_isa = isa});
    ASSERT_TRUE(context.ok());
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      for (const std::int64_t dim : {32, 64, 72, 80, 128}) {
        for (const Rows& rows : kRows) {
          Call few({1, 5, 582, 1, 1, dim}, dtype), many({1, rows.all, 582, 1, 1, dim}, dtype);
          const std::size_t size = static_cast<std::size_t>(dim) * size_of(dtype);
          const auto row = [&](std::vector<std::uint32_t>& of, std::int64_t index) {
            return reinterpret_cast<std::byte*>(of.data()) + static_cast<std::size_t>(index) * size;
          };
          std::memcpy(few.q.data(), row(many.q, rows.first), 5 * size);
          const Options options{.causal = rows.causal};
          ASSERT_TRUE(forward(*context, {}, few.tensors(), options).ok());
          ASSERT_TRUE(forward(*context, {}, many.tensors(), options).ok());
          const std::string what = std::string(to_string(isa)) + " " + to_string(dtype) + " d " +
                                   std::to_string(dim) + " of " + std::to_string(rows.all);
          EXPECT_EQ(std::memcmp(few.o.data(), row(many.o, rows.first), 5 * size), 0) << what;
          EXPECT_EQ(std::memcmp(few.lse.data(), many.lse.data() + rows.first, 5 * sizeof(float)), 0)
              << what;
        }
      }
    }
  }
}

TEST(CpuForwardPlan, DeterministicPlansIgnoreTheThreads) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    for (Shape shape :
         {Shape{.seqlen_q = 300, .seqlen_k = 500}, Shape{.seqlen_q = 1, .seqlen_k = 4000}}) {
      std::vector<std::uint32_t> o;
      std::vector<float> lse;
      for (int threads : {1, 2, 3, 5, 16}) {
        auto context = Context::create({.threads = threads});
        Call call(shape, dtype);
        ASSERT_TRUE(forward(*context, {}, call.tensors(), {.deterministic = true}).ok());
        if (o.empty()) {
          o = call.o;
          lse = call.lse;
        }
        EXPECT_EQ(call.o, o) << threads;
        EXPECT_EQ(call.lse, lse) << threads;
      }
    }
  }
}

TEST(CpuForwardPlan, KernelsFollowTheInstructionSet) {
  Call call({}, DType::kBf16);
  auto scalar = Context::create({.threads = 1, .cpu_isa = CpuIsa::kScalar});
  EXPECT_THAT(plan_of(*scalar, call).to_string(), HasSubstr("flash_fwd_scalar_fp32"));
  EXPECT_THAT(plan_of(*scalar, call).to_string(), HasSubstr("widened to fp32"));
  if (supported(CpuIsa::kAvx512Bf16)) {
    auto pairs = Context::create({.threads = 1, .cpu_isa = CpuIsa::kAvx512Bf16});
    EXPECT_THAT(plan_of(*pairs, call).to_string(), HasSubstr("flash_fwd_avx512_bf16"));
    Call fp32({});
    EXPECT_THAT(plan_of(*pairs, fp32).to_string(), HasSubstr("flash_fwd_avx512_fp32"));
  }
}

// K and V stream from L3 once for every tile of queries: where 48 rows of short vectors are not
// enough to hide that, 96 are.
TEST(CpuForwardPlan, ShortVectorsTakeLargerTilesOfQueries) {
  Call call({.seqlen_q = 1536, .seqlen_k = 1536});
  for (const auto& [isa, words] :
       {std::pair(CpuIsa::kAvx2, "query tile 96"), std::pair(CpuIsa::kAvx512, "query tile 48")}) {
    if (!supported(isa)) continue;
    const auto context = Context::create({.threads = 1, .cpu_isa = isa});
    EXPECT_THAT(plan_of(*context, call).to_string(), HasSubstr(words));
  }
}

TEST(CpuForwardPlan, AbsurdProblemsAreRefusedNotWrapped) {
  auto context = Context::create({.threads = 1});
  const std::int64_t huge = std::int64_t{1} << 40;
  Problem problem;
  problem.q = problem.o = contiguous_spec(DType::kFp32, {1, 4, 1, 64});
  problem.k = problem.v = contiguous_spec(DType::kFp32, {huge, huge / 256, 1, 64});
  problem.q.shape[0] = problem.o.shape[0] = huge;
  EXPECT_EQ(plan(*context, problem).status().code(), StatusCode::kInvalidArgument);
  // Representable, but more than any machine has: the plan says how much, the allocator refuses.
  problem.q = problem.o = contiguous_spec(DType::kFp32, {1, 4096, 1, 64});
  problem.k = problem.v = contiguous_spec(DType::kFp32, {1, huge, 1, 64});
  auto made = plan(*context, problem);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_GT(made->workspace_bytes(), static_cast<std::size_t>(huge) * 64 * 8);
}

// One key and products of one sign: LSE is the score, and its rounding grows with the terms of the
// longest sum.
TEST(ForwardScores, AWideHeadIsNotOneLongSum) {
  constexpr std::int64_t kRows = 4096, kDim = 256;
  std::mt19937 random(11);
  std::uniform_real_distribution<float> positive(0.5f, 1.5f);
  std::vector<float> q(kRows * kDim), k(kDim), o(q.size()), lse(kRows);
  for (float& x : q) x = positive(random);
  for (float& x : k) x = positive(random);
  auto context = Context::create({.threads = 1});
  ASSERT_TRUE(context.ok());
  const ForwardTensors tensors = {.q = tensor(q.data(), {1, kRows, 1, kDim}),
                                  .k = tensor(k.data(), {1, 1, 1, kDim}),
                                  .v = tensor(k.data(), {1, 1, 1, kDim}),
                                  .o = tensor(o.data(), {1, kRows, 1, kDim}),
                                  .lse = tensor(lse.data(), {1, 1, kRows})};
  ASSERT_TRUE(forward(*context, {}, tensors, {.scale = 1.0}).ok());
  double ours = 0, one_sum = 0;
  for (std::int64_t i = 0; i < kRows; ++i) {
    double exact = 0;
    float sum = 0;
    for (std::int64_t d = 0; d < kDim; ++d) {
      const float x = q[static_cast<std::size_t>(i * kDim + d)], y = k[static_cast<std::size_t>(d)];
      exact += static_cast<double>(x) * y;
      sum = std::fma(x, y, sum);
    }
    ours += std::abs(lse[static_cast<std::size_t>(i)] - exact);
    one_sum += std::abs(sum - exact);
  }
  EXPECT_LT(ours, 0.7 * one_sum);
}

}  // namespace
}  // namespace flashlab
