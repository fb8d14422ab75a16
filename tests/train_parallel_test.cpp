// The formulas of parallel training, against the answers of the course's problems.

#include <gtest/gtest.h>

#include <cmath>

#include "train/parallel/costs.h"

namespace flashlab::train {
namespace {

constexpr ParallelMachine kMachine{
    .name = "test", .flops = 790e12, .link_bytes_per_s = 450e9, .memory_bytes = 80e9};
constexpr FeedForward kBlock{.width = 4096, .hidden = 11008, .tokens = 65536};

// Where the communication takes exactly as long as what it runs beside.
template <class F>
void expect_border(const F& cost, double most_ranks) {
  const Beside at_two = cost(2);
  EXPECT_NEAR(at_two.most_ranks, most_ranks, 1e-9 * most_ranks);
  const int below = static_cast<int>(std::floor(most_ranks));
  EXPECT_TRUE(cost(below).hides()) << below;
  EXPECT_FALSE(cost(below + 1).hides()) << below + 1;
}

TEST(ParallelCosts, AlternateRingAllReduce) {
  EXPECT_DOUBLE_EQ(alternate_ring_seconds(1e9, 8, 100e9), 0.07);      // (N-1) S / W
  EXPECT_DOUBLE_EQ(ring_seconds(1e9, 8, 100e9), 2 * 7.0 / 8 * 0.01);  // the usual one
}

TEST(ParallelCosts, DataParallel) {
  const Beside two = data_parallel_backward(kBlock, 2, kMachine);
  EXPECT_DOUBLE_EQ(two.compute_s, 12 * 65536.0 * 4096 * 11008 / (2 * 790e12));
  EXPECT_DOUBLE_EQ(two.communication_s, 12 * 4096.0 * 11008 / (2 * 450e9));
  // N - 1 <= B W / C
  expect_border([](int n) { return data_parallel_backward(kBlock, n, kMachine); },
                1 + 65536 * 450e9 / 790e12);
}

TEST(ParallelCosts, FullySharded) {
  const Beside two = fsdp_forward(kBlock, 2, kMachine);
  EXPECT_DOUBLE_EQ(two.compute_s, 6 * 65536.0 * 4096 * 11008 / (2 * 790e12));
  EXPECT_DOUBLE_EQ(two.communication_s, 6 * 4096.0 * 11008 / (2 * 450e9));
  const double most = 1 + 65536 * 450e9 / 790e12;
  expect_border([](int n) { return fsdp_forward(kBlock, n, kMachine); }, most);
  expect_border([](int n) { return fsdp_backward(kBlock, n, kMachine); }, most);
  EXPECT_DOUBLE_EQ(fsdp_backward(kBlock, 2, kMachine).communication_s, 2 * two.communication_s);
}

TEST(ParallelCosts, TensorParallel) {
  const Beside two = tensor_forward(kBlock, 2, kMachine);
  EXPECT_DOUBLE_EQ(two.communication_s, 4 * 65536.0 * 4096 / (2 * 450e9));
  // N - 1 <= 1.5 F W / C, which is 9.4 here; backward 3 F W / C.
  expect_border([](int n) { return tensor_forward(kBlock, n, kMachine); },
                1 + 1.5 * 11008 * 450e9 / 790e12);
  EXPECT_NEAR(two.most_ranks - 1, 9.4, 0.05);
  expect_border([](int n) { return tensor_backward(kBlock, n, kMachine); },
                1 + 3 * 11008 * 450e9 / 790e12);
}

TEST(ParallelCosts, FullyShardedAndTensorParallel) {
  const MeshCost cost = fsdp_tensor_forward(kBlock, 16, 4, kMachine);
  EXPECT_DOUBLE_EQ(cost.compute_s, 6 * 65536.0 * 4096 * 11008 / (64 * 790e12));
  EXPECT_DOUBLE_EQ(cost.fsdp_s, 6 * 4096.0 * 11008 / (4 * 450e9));
  EXPECT_DOUBLE_EQ(cost.tensor_s, 4 * 65536.0 * 4096 / (16 * 450e9));
  const double ratio = 450e9 / 790e12;
  EXPECT_DOUBLE_EQ(cost.most_ranks, 1.5 * 65536 * 11008 * ratio * ratio);
  EXPECT_DOUBLE_EQ(cost.most_ranks_in_turn, 0.375 * 65536 * 11008 * ratio * ratio);
  // At the border, cut as is best, both take as long as the products; in turn at a quarter of it.
  for (const double quarter : {1.0, 4.0}) {
    const double n = cost.most_ranks / quarter;
    const double fsdp = std::sqrt(4 * kBlock.tokens * n / (6 * kBlock.hidden)), tensor = n / fsdp;
    const double compute = 6 * kBlock.tokens * kBlock.width * kBlock.hidden / (n * 790e12);
    const double gather = 6 * kBlock.width * kBlock.hidden / (tensor * 450e9);
    const double reduce = 4 * kBlock.tokens * kBlock.width / (fsdp * 450e9);
    EXPECT_NEAR(gather, reduce, 1e-9 * gather);
    EXPECT_NEAR(quarter == 1 ? gather : gather + reduce, compute, 1e-9 * compute);
  }
  EXPECT_NEAR(cost.best_fsdp, std::sqrt(4 * 65536.0 * 64 / (6 * 11008)), 1e-9);
}

TEST(ParallelCosts, CommunicationAccounting) {
  // XXL: d 16384, d_ff 53248, 126 blocks; W = 2 * 9e10, C = 4.6e14, X = 16, Y = 4, M_X 2, M_Y 1.
  const StackAccount stack = stack_account(16384, 53248, 126);
  EXPECT_DOUBLE_EQ(stack.parameters, 219848638464.0);
  EXPECT_DOUBLE_EQ(stack.state_bytes, 16 * 219848638464.0);  // 3.52 TB: 44 GPUs of 80 GB
  EXPECT_EQ(std::ceil(stack.state_bytes / 80e9), 44);
  EXPECT_DOUBLE_EQ(stack.activation_bytes_per_token, 126 * 2 * (16384 + 53248));
  EXPECT_EQ(stack.ranks_to_fit(0, 95e9), 38);
  for (const double tokens : {1.0, 1000.0, 4096.0}) {
    const int ranks = stack.ranks_to_fit(tokens, 95e9);
    EXPECT_LE(stack.device_bytes(tokens, ranks), 95e9);
    EXPECT_GT(stack.device_bytes(tokens, ranks - 1), 95e9);
  }
  EXPECT_EQ(stack.ranks_to_fit(1e6, 95e9), 0);  // half of the activations alone are more
  constexpr ParallelMachine kTpu{
      .name = "v5p", .flops = 4.6e14, .link_bytes_per_s = 2 * 9e10, .memory_bytes = 95e9};
  EXPECT_NEAR(tokens_per_device_to_hide(4, 2, kTpu), 319.4, 0.05);
  EXPECT_NEAR(tokens_per_device_to_hide(4, 2, kTpu) * 16 * 4, 20444, 1);
  EXPECT_TRUE(tensor_hides(53248, 4, 1, kTpu));
  EXPECT_FALSE(tensor_hides(53248, 32, 1, kTpu));
}

TEST(ParallelCosts, BestBucket) {
  const double bytes = 13.6e9;
  const double best = best_bucket_bytes(bytes, kMachine);
  EXPECT_DOUBLE_EQ(best, std::sqrt(13.6e9 * 450e9 * kMachine.call_s));
  const auto overhead = [&](double bucket) {
    const double buckets = bytes / bucket;
    return bytes / (kMachine.link_bytes_per_s * buckets) + buckets * kMachine.call_s;
  };
  EXPECT_LT(overhead(best), overhead(best * 1.1));
  EXPECT_LT(overhead(best), overhead(best / 1.1));
}

TEST(ParallelCosts, Modes) {
  constexpr ModelSizes kModel{
      .parameters = 1e9, .largest_unit = 5e7, .tensors = 300, .tokens = 16384, .units = 26};
  constexpr StateBytes kBf16{.value = 2, .master = 4, .gradient = 4, .moments = 8};
  const auto modes = mode_costs(kModel, kBf16, 4, 25e6, kMachine);
  const auto find = [&](std::string_view name) {
    for (const ModeCost& mode : modes) {
      if (mode.mode == name) return mode;
    }
    ADD_FAILURE() << name;
    return modes[0];
  };
  // An all-reduce of fp32 gradients, 2 (N-1)/N of them; ZeRO sends no more.
  EXPECT_DOUBLE_EQ(find("flat").sent_bytes, 1.5 * 4e9);
  EXPECT_DOUBLE_EQ(find("bucket").sent_bytes, find("naive").sent_bytes);
  EXPECT_EQ(find("naive").calls, 300);
  EXPECT_EQ(find("bucket").calls, 160);
  EXPECT_DOUBLE_EQ(find("sharded").sent_bytes, 1.5 * 4e9 + 0.75 * 2e9);
  EXPECT_DOUBLE_EQ(find("zero1").sent_bytes, 0.75 * (4e9 + 2e9));
  EXPECT_DOUBLE_EQ(find("fsdp").sent_bytes, 0.75 * (4e9 + 2 * 2e9));
  // 18 bytes a parameter, of which each mode keeps more to one rank.
  EXPECT_DOUBLE_EQ(find("naive").state_bytes, 18e9);
  EXPECT_DOUBLE_EQ(find("zero1").state_bytes, 6e9 + 12e9 / 4);
  EXPECT_DOUBLE_EQ(find("zero2").state_bytes, 2e9 + 16e9 / 4 + 2 * 4 * 5e7);
  EXPECT_DOUBLE_EQ(find("fsdp").state_bytes, 18e9 / 4 + 2 * 6 * 5e7);
  // What runs beside nothing is seen whole; what hides is seen but for its end.
  EXPECT_DOUBLE_EQ(find("flat").exposed_s, find("flat").communication_s);
  EXPECT_LT(find("bucket").exposed_s, 0.1 * find("flat").exposed_s);
  for (const char* name : {"bucket", "fsdp"}) {
    const int border = static_cast<int>(find(name).most_ranks);
    ASSERT_GT(border, 4);
    const auto more = mode_costs(kModel, kBf16, 100 * border, 25e6, kMachine);
    for (const ModeCost& mode : more) {
      if (mode.mode != name) continue;
      EXPECT_GT(mode.exposed_s, 0.5 * mode.communication_s) << name;
    }
  }
}

}  // namespace
}  // namespace flashlab::train
