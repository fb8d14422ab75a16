// The order of work of a ragged call, made by a call of its own: flashlab::schedule on emulated
// blocks, and what it refuses. And decode's kernel in fp32.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "attention_emulated.h"
#include "flashlab/schedule.h"

namespace flashlab::testing {
namespace {

using ::testing::HasSubstr;
constexpr Device kEmulatedGpu{DeviceKind::kCuda, 0};

/// A ragged call in bf16 with its memory.
class RaggedCall {
 public:
  RaggedCall(const Context& context, const std::vector<int>& offsets, std::int64_t dim)
      : context_(context), offsets_(offsets) {
    const std::int64_t rows = offsets.back();
    std::mt19937 random(7);
    for (auto* each : {&q_, &k_, &v_, &o_}) {
      each->resize(static_cast<std::size_t>(rows * kHeads * dim) + 8);
      // Numbers around one in either sign.
      for (auto& bits : *each) bits = static_cast<std::uint16_t>(0x3f80 | (random() & 0x807f));
    }
    const auto tensor = [&](std::vector<std::uint16_t>& memory) {
      return Tensor{aligned(memory.data()),
                    contiguous_spec(DType::kBf16, {rows, kHeads, dim}, kEmulatedGpu)};
    };
    tensors_.q = tensor(q_), tensors_.k = tensor(k_), tensors_.v = tensor(v_);
    tensors_.o = tensor(o_);
    const auto count = static_cast<std::int64_t>(offsets.size());
    tensors_.cu_seqlens_q = tensors_.cu_seqlens_k =
        ConstTensor{offsets_.data(), contiguous_spec(DType::kInt32, {count}, kEmulatedGpu)};
  }

  static void* aligned(void* memory) {
    return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory) + 15) / 16 * 16);
  }
  Plan plan(const char* implementation) const {
    Options options;
    options.causal = Causal::kBottomRight;
    options.implementation = implementation;
    return flashlab::plan(context_, describe(tensors_, options)).value();
  }
  const ForwardTensors& tensors() const { return tensors_; }
  Workspace workspace(const Plan& plan) {
    workspace_.resize(plan.workspace_bytes() + 256);
    return {reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(workspace_.data()) + 255) /
                                    256 * 256),
            plan.workspace_bytes()};
  }
  /// o, which is then overwritten.
  std::vector<std::uint16_t> take() {
    std::vector<std::uint16_t> out = o_;
    std::fill(o_.begin(), o_.end(), std::uint16_t{0x7fff});
    return out;
  }

 private:
  static constexpr std::int64_t kHeads = 2;
  const Context& context_;
  std::vector<int> offsets_;
  std::vector<std::uint16_t> q_, k_, v_, o_;
  std::vector<std::byte> workspace_;
  ForwardTensors tensors_;
};

/// Memory of a schedule.
struct Schedule {
  explicit Schedule(const TensorSpec& spec)
      : memory(static_cast<std::size_t>(spec.elements()) + 4),
        tensor{RaggedCall::aligned(memory.data()), spec} {}
  std::vector<int> memory;
  Tensor tensor;
};

struct Checked {
  const char* name;
  const char* implementation;
  DType dtype;
  bool by_schedule;
  std::vector<const char*> cases;  ///< names behind the type's
  friend void PrintTo(const Checked& each, std::ostream* out) { *out << each.name; }
};
class AttentionEmulatedChecked : public ::testing::TestWithParam<Checked> {};

// Each call twice by one list, or, in fp32, one query of each sequence.
TEST_P(AttentionEmulatedChecked, TheOracleAgrees) {
  const Checked& checked = GetParam();
  std::vector<cases::Case> list;
  for (const cases::Case& each : cases::conformance_cases(checked.dtype)) {
    for (const char* name : checked.cases) {
      if (each.name == std::string(to_string(checked.dtype)) + "-" + name) list.push_back(each);
    }
  }
  ASSERT_EQ(list.size(), checked.cases.size()) << "a case has another name now";
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels, .by_schedule = checked.by_schedule});
  const Context context = emulated_context();
  kernels.build(kernels_of(context, list, checked.implementation, {Pass::kForward}));
  lab::CheckOptions options;
  options.passes = {Pass::kForward};
  options.trap_reads_past_end = true;
  options.repeat = true;
  for (const cases::Case& each : list) {
    options.memory = emulated_memory();
    const auto truth = lab::CaseTruth::create(each, options);
    ASSERT_TRUE(truth.ok()) << each.name << ": " << truth.status().message();
    const auto report = lab::check_case(context, *truth, checked.implementation, options);
    EXPECT_EQ(report.status, lab::RunStatus::kOk) << each.name << ": " << report.failure();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionEmulatedChecked,
    ::testing::Values(
        Checked{"sm80", "sm80", DType::kBf16, true, {"ragged-unused", "ragged-causal"}},
        Checked{"sm90",
                "sm90",
                DType::kBf16,
                true,
                {"ragged-causal-unused", "ragged-causal", "cache-prefill"}},
        Checked{"decode_fp32",
                "decode",
                DType::kFp32,
                false,
                {"cache-indexed", "pages-decode-of-64", "pages-decode-of-3"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(AttentionEmulatedOrder, OneScheduleServesSeveralCalls) {
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  RaggedCall call(context, {0, 70, 70, 333}, 64);
  const Plan plan = call.plan("sm80");
  call.take();
  ASSERT_TRUE(forward(context, {}, plan, call.tensors(), call.workspace(plan)).ok());
  const std::vector<std::uint16_t> expected = call.take();
  const auto spec = schedule_spec(plan);
  ASSERT_TRUE(spec.has_value());
  Schedule order(*spec);
  const Status made = schedule(context, {}, plan, call.tensors(), order.tensor);
  ASSERT_TRUE(made.ok()) << made.message();
  for (int layer = 0; layer < 2; ++layer) {
    const Status status =
        forward(context, {}, plan, call.tensors(), call.workspace(plan), order.tensor);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(call.take(), expected);
  }
}

TEST(AttentionEmulatedOrder, TheScheduleOfAnotherPlanIsRefused) {
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  RaggedCall call(context, {0, 70, 333}, 64), other(context, {0, 9000}, 64);
  const Plan plan = call.plan("sm80");
  Schedule own(*schedule_spec(plan)), foreign(*schedule_spec(other.plan("sm80")));
  const auto said = [&](const Tensor& order) {
    return forward(context, {}, plan, call.tensors(), call.workspace(plan), order).message();
  };
  EXPECT_THAT(said(foreign.tensor), HasSubstr("schedule: got int32"));
  EXPECT_THAT(said(foreign.tensor), HasSubstr("another plan's"));
  EXPECT_THAT(said({nullptr, own.tensor.spec}), HasSubstr("schedule"));
  EXPECT_THAT(said({call.tensors().o.data, own.tensor.spec}), HasSubstr("schedule.data"));
  Tensor wrong = own.tensor;
  wrong.data = static_cast<int*>(wrong.data) + 1;
  EXPECT_THAT(said(wrong), HasSubstr("a multiple of 16 bytes"));
  // Tiles of another size have another first extent.
  EXPECT_NE(schedule_spec(call.plan("sm90"))->shape[0], schedule_spec(plan)->shape[0]);
}

TEST(AttentionEmulatedOrder, DenseCallsTakeNone) {
  emulated::Kernels kernels;
  use_gpu({.kernels = &kernels});
  const Context context = emulated_context();
  Problem dense;
  dense.q = dense.k = dense.v = dense.o =
      contiguous_spec(DType::kBf16, {1, 64, 2, 64}, kEmulatedGpu);
  dense.options.implementation = "sm80";
  EXPECT_FALSE(schedule_spec(plan(context, dense).value()).has_value());
}

}  // namespace
}  // namespace flashlab::testing
