// What a call may take: forward no more than packed K and V, backward O(S), neither Sq x Sk; and
// nothing from the allocator beyond what the plan says.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "flashlab/flashlab.h"
#include "lab/data/case_data.h"
#include "lab/machine/memory.h"

namespace flashlab::lab {
namespace {

using cases::Case;

Case long_case(DType dtype, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  Case c;
  c.name = "long";
  c.batch = 1;
  c.heads_q = 8;
  c.heads_k = 2;
  c.seqlen_q = seqlen_q;
  c.seqlen_k = seqlen_k;
  c.head_dim = 64;
  c.head_dim_v = 128;
  c.dtype = dtype;
  return c;
}

double workspace(const Context& context, const Case& c, Pass pass, const char* implementation) {
  auto made = plan(context, problem_of(c, pass, implementation));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? static_cast<double>(made->workspace_bytes()) : 0;
}

constexpr std::int64_t kLong = 65536;
constexpr double kMiB = 1024 * 1024;

class Workspace : public testing::TestWithParam<DType> {
 protected:
  Context context = std::move(Context::create({.threads = 4}).value());
};

TEST_P(Workspace, ForwardNeedsNoMoreThanPackedKeysAndValues) {
  const Case c = long_case(GetParam(), kLong, kLong);
  // fp32 panels at most, whatever the inputs' type; scratch per thread beside them.
  const double packed = 2.0 * kLong * (64 + 128) * 4;
  EXPECT_LT(workspace(context, c, Pass::kForward, "cpu"), 1.1 * packed + 64 * kMiB);
  EXPECT_LT(workspace(context, c, Pass::kForward, "fa2-plain"), 1.1 * packed + 64 * kMiB);
}

TEST_P(Workspace, BackwardIsLinearInTheLengths) {
  const Case c = long_case(GetParam(), kLong, kLong);
  const double rows_q = 8.0 * kLong, rows_k = 2.0 * kLong;
  // Packed operands and fp32 gradients: a few arrays of the size of q, k, v each.
  const double linear = (rows_q * (64 + 128 + 4) + rows_k * (64 + 128)) * 4;
  for (const char* implementation : {"cpu", "fa2-plain"}) {
    EXPECT_LT(workspace(context, c, Pass::kBackward, implementation), 4 * linear + 64 * kMiB)
        << implementation;
  }
}

TEST_P(Workspace, TwiceTheLengthTakesTwiceTheWorkspace) {
  for (const char* implementation : {"cpu", "fa2-plain"}) {
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      const double once =
          workspace(context, long_case(GetParam(), kLong, kLong), pass, implementation);
      const double twice =
          workspace(context, long_case(GetParam(), 2 * kLong, 2 * kLong), pass, implementation);
      EXPECT_LE(twice, 2.2 * once + kMiB) << implementation;
    }
  }
}

TEST_P(Workspace, TheNaiveFormulaIsTheOneThatTakesTheScoreMatrix) {
  const double naive =
      workspace(context, long_case(GetParam(), 4096, 4096), Pass::kForward, "naive");
  EXPECT_GE(naive, 4096.0 * 4096 * static_cast<double>(size_of(GetParam())));
  EXPECT_GT(naive,
            4 * workspace(context, long_case(GetParam(), 4096, 4096), Pass::kForward, "cpu"));
}

INSTANTIATE_TEST_SUITE_P(ApiMemory, Workspace,
                         testing::Values(DType::kFp32, DType::kBf16, DType::kFp16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

// Runs 16 queries against 65536 keys: every structure of that length, little arithmetic.
TEST(ApiMemory, ACallTakesFromTheAllocatorWhatItsPlanSays) {
  TrackingAllocator allocator;
  auto context = Context::create({.threads = 2, .allocator = &allocator});
  ASSERT_TRUE(context.ok());
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    const Case c = long_case(dtype, 16, kLong);
    const CaseData data = CaseData::create(c).value();
    for (const char* implementation : {"cpu", "fa2-plain"}) {
      Options options = c.options();
      options.implementation = implementation;
      for (Pass pass : {Pass::kForward, Pass::kBackward}) {
        auto made = pass == Pass::kForward
                        ? plan(*context, describe(data.forward_tensors(), options))
                        : plan(*context, describe(data.backward_tensors(), options));
        ASSERT_TRUE(made.ok()) << made.status().message();
        const std::int64_t before = allocator.current_bytes();
        allocator.reset_peak();
        const Status status = pass == Pass::kForward
                                  ? forward(*context, {}, data.forward_tensors(), options)
                                  : backward(*context, {}, data.backward_tensors(), options);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(allocator.current_bytes(), before) << "a call keeps nothing";
        const auto planned = static_cast<std::int64_t>(made->workspace_bytes());
        EXPECT_LE(allocator.peak_bytes() - before, planned + 4096) << implementation;
        EXPECT_LT(planned, 16 * 65536 * 8 * 4 + 4 * 65536 * 2 * 192 * 4 + 64 * 1024 * 1024);
      }
    }
  }
}

TEST(ApiMemory, AnAllocatorThatRefusesIsOutOfMemoryAndNothingIsWritten) {
  TrackingAllocator allocator;
  auto context = Context::create({.threads = 2, .allocator = &allocator});
  ASSERT_TRUE(context.ok());
  const Case c = long_case(DType::kFp32, 64, 1024);
  const CaseData data = CaseData::create(c).value();
  allocator.set_limit(1000);
  const Status status = forward(*context, {}, data.forward_tensors(), c.options());
  ASSERT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
  const auto* o = static_cast<const float*>(data.forward_tensors().o.data);
  for (std::int64_t n = 0; n < data.forward_tensors().o.spec.elements(); ++n) {
    ASSERT_TRUE(std::isnan(o[n])) << "element " << n << " was written";
  }
  allocator.set_limit(0);
  EXPECT_TRUE(forward(*context, {}, data.forward_tensors(), c.options()).ok());
}

}  // namespace
}  // namespace flashlab::lab
