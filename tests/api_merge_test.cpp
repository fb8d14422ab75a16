#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

constexpr std::int64_t kBatch = 2, kQueries = 5, kKeys = 37, kHeads = 3, kDim = 8;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> normal(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(random);
  return values;
}

struct Output {
  std::vector<float> o = std::vector<float>(kBatch * kQueries * kHeads * kDim, -7.0f);
  std::vector<float> lse = std::vector<float>(kBatch * kHeads * kQueries, -7.0f);
  Tensor o_view() { return tensor(o.data(), {kBatch, kQueries, kHeads, kDim}); }
  Tensor lse_view() { return tensor(lse.data(), {kBatch, kHeads, kQueries}); }
  Partial partial() { return {o_view(), lse_view()}; }
};

class Merge : public ::testing::Test {
 protected:
  Merge() : context_(Context::create().value()) {}

  // Attention over keys [first, last).
  Output attend(std::int64_t first, std::int64_t last) {
    Output out;
    auto slice = [&](const std::vector<float>& all) {
      ConstTensor t = tensor(all.data(), {kBatch, kKeys, kHeads, kDim});
      t.data = all.data() + first * kHeads * kDim;
      t.spec.shape[1] = last - first;
      return t;
    };
    const ForwardTensors tensors{.q = tensor(q_.data(), {kBatch, kQueries, kHeads, kDim}),
                                 .k = slice(k_),
                                 .v = slice(v_),
                                 .o = out.o_view(),
                                 .lse = out.lse_view()};
    const Status status = forward(context_, {}, tensors);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  }

  Context context_;
  const std::vector<float> q_ = normal(kBatch * kQueries * kHeads * kDim, 1);
  const std::vector<float> k_ = normal(kBatch * kKeys * kHeads * kDim, 2);
  const std::vector<float> v_ = normal(kBatch * kKeys * kHeads * kDim, 3);
};

TEST_F(Merge, PartsGiveTheWhole) {
  Output whole = attend(0, kKeys);
  Output a = attend(0, 11), b = attend(11, 11), c = attend(11, kKeys), merged;
  const Partial parts[] = {a.partial(), b.partial(), c.partial()};
  const Status status = merge(context_, {}, parts, merged.o_view(), merged.lse_view());
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < whole.o.size(); ++i) EXPECT_NEAR(merged.o[i], whole.o[i], 2e-6);
  for (std::size_t i = 0; i < whole.lse.size(); ++i) EXPECT_NEAR(merged.lse[i], whole.lse[i], 2e-6);
}

TEST_F(Merge, EmptyPartsAreNeverRead) {
  Output part = attend(0, kKeys), empty, merged;
  std::fill(empty.lse.begin(), empty.lse.end(), -kInf);
  std::fill(empty.o.begin(), empty.o.end(), NAN);
  const Partial both[] = {empty.partial(), part.partial()};
  ASSERT_TRUE(merge(context_, {}, both, merged.o_view(), merged.lse_view()).ok());
  EXPECT_EQ(merged.o, part.o);
  const Partial none[] = {empty.partial()};
  ASSERT_TRUE(merge(context_, {}, none, merged.o_view(), merged.lse_view()).ok());
  for (float value : merged.o) EXPECT_EQ(value, 0.0f);
  for (float value : merged.lse) EXPECT_EQ(value, -kInf);
}

TEST_F(Merge, ANanPartMakesItsRowsNan) {
  Output a = attend(0, 11), b = attend(11, kKeys), merged;
  a.lse[0] = NAN;
  const Partial parts[] = {a.partial(), b.partial()};
  ASSERT_TRUE(merge(context_, {}, parts, merged.o_view(), merged.lse_view()).ok());
  EXPECT_TRUE(std::isnan(merged.lse[0]));
  EXPECT_TRUE(std::isnan(merged.o[0]));
  EXPECT_FALSE(std::isnan(merged.lse[1]));
}

TEST_F(Merge, BadCallsSayWhatIsWrong) {
  Output a = attend(0, 11), merged;
  auto message = [&](std::vector<Partial> parts, Tensor o) {
    const Status status = merge(context_, {}, parts, o, std::nullopt);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(message({}, merged.o_view()).find("at least one partial"), std::string::npos);
  Partial wrong = a.partial();
  wrong.o.spec.shape[1] = 4;
  EXPECT_NE(message({wrong}, merged.o_view()).find("parts[0].o"), std::string::npos);
  EXPECT_NE(message({a.partial()}, a.o_view()).find("overlaps"), std::string::npos);
  wrong = a.partial();
  wrong.lse.data = nullptr;
  EXPECT_NE(
      message({a.partial(), wrong}, merged.o_view()).find("parts[1].lse.data: got a null pointer"),
      std::string::npos);
  // The rules of attention's own tensors.
  wrong = a.partial();
  wrong.o.data = static_cast<const char*>(wrong.o.data) + 1;
  EXPECT_NE(message({wrong}, merged.o_view()).find("parts[0].o.data: got address"),
            std::string::npos);
  Tensor misaligned = merged.o_view();
  misaligned.data = static_cast<char*>(misaligned.data) + 2;
  EXPECT_NE(message({a.partial()}, misaligned).find("multiple of 4 bytes"), std::string::npos);
  Tensor negative = merged.o_view();
  wrong = a.partial();
  for (TensorSpec* spec : {&negative.spec, &wrong.o.spec}) spec->shape[2] = -16;
  wrong.lse.spec.shape[1] = -16;
  EXPECT_NE(message({wrong}, negative).find("o.shape[2]: got -16"), std::string::npos);
  Tensor huge = merged.o_view();
  huge.spec.strides[1] = std::int64_t{1} << 61;
  EXPECT_NE(message({a.partial()}, huge).find("63 bits"), std::string::npos);
}

}  // namespace
}  // namespace flashlab
