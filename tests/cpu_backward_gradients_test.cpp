// Gradients of implementation "cpu" against the fp64 oracle: shapes around every tile edge, masks,
// grouped heads, layouts, types and modes, on every instruction set of this machine.

#include <gtest/gtest.h>

#include "cpu_backward_trial.h"

namespace flashlab::testing {
namespace {

class CpuBackward : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void expect_right(const Ask& ask, int threads = 1) {
    Context context = make_context(GetParam(), threads);
    Trial trial(ask);
    const Status status = trial.run(context);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(trial.judge(), "");
  }

  /// fp32 and bf16 exercise the two kinds of products; fp16 only differs in how it is loaded.
  void expect_right_in_both(Ask ask) {
    for (DType dtype : {DType::kFp32, DType::kBf16}) {
      ask.dtype = dtype;
      SCOPED_TRACE(to_string(dtype));
      expect_right(ask);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Isa, CpuBackward, ::testing::ValuesIn(testable_isas()),
                         [](const auto& info) {
                           std::string name = to_string(info.param);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(CpuBackward, LengthsAroundTileEdges) {
  for (std::int64_t seqlen_q : {1, 2, 5, 6, 7, 95, 96, 97}) {
    for (std::int64_t seqlen_k : {1, 15, 16, 17, 63, 65, 191, 193}) {
      SCOPED_TRACE(std::to_string(seqlen_q) + " x " + std::to_string(seqlen_k));
      Ask ask;
      ask.seqlen_q = seqlen_q;
      ask.seqlen_k = seqlen_k;
      expect_right_in_both(ask);
    }
  }
}

TEST_P(CpuBackward, CausalBothAlignments) {
  for (Causal causal : {Causal::kTopLeft, Causal::kBottomRight}) {
    for (auto [seqlen_q, seqlen_k] : {std::pair{1, 1},
                                      {97, 97},
                                      {211, 211},
                                      {37, 401},
                                      {401, 37},
                                      {100, 101},
                                      {101, 100},
                                      {200, 193}}) {
      SCOPED_TRACE(std::to_string(seqlen_q) + " x " + std::to_string(seqlen_k));
      Ask ask;
      ask.causal = causal;
      ask.seqlen_q = seqlen_q;
      ask.seqlen_k = seqlen_k;
      ask.lse_gradient = true;
      expect_right_in_both(ask);
    }
  }
}

TEST_P(CpuBackward, HeadDims) {
  for (auto [dim, dim_v] : {std::pair{1, 1},
                            {3, 5},
                            {8, 64},
                            {64, 8},
                            {33, 17},
                            {80, 96},
                            {128, 64},
                            {127, 129},
                            {256, 256},
                            {520, 24}}) {
    SCOPED_TRACE(std::to_string(dim) + ", " + std::to_string(dim_v));
    Ask ask;
    ask.seqlen_q = 53;
    ask.seqlen_k = 71;
    ask.head_dim = dim;
    ask.head_dim_v = dim_v;
    ask.causal = Causal::kBottomRight;
    expect_right_in_both(ask);
  }
}

TEST_P(CpuBackward, GroupedHeadsAndBatches) {
  for (auto [heads_q, heads_k] : {std::pair{3, 3}, {6, 2}, {4, 1}}) {
    SCOPED_TRACE(std::to_string(heads_q) + " / " + std::to_string(heads_k));
    Ask ask;
    ask.batch = 2;
    ask.heads_q = heads_q;
    ask.heads_k = heads_k;
    ask.seqlen_q = 67;
    ask.seqlen_k = 203;
    ask.causal = Causal::kBottomRight;
    ask.lse_gradient = true;
    expect_right_in_both(ask);
  }
}

TEST_P(CpuBackward, MaskTensors) {
  for (MaskKind kind : {MaskKind::kBool, MaskKind::kAdditive}) {
    for (int broadcast : {0, 3, 4, 7, 8, 11, 15}) {  // bits: batch, heads, queries, keys
      SCOPED_TRACE(broadcast);
      Ask ask;
      ask.batch = 2;
      ask.heads_q = 2;
      ask.heads_k = 1;
      ask.seqlen_q = 50;
      ask.seqlen_k = 101;
      ask.mask = kind;
      for (int i = 0; i < 4; ++i)
        ask.mask_broadcast[static_cast<std::size_t>(i)] = broadcast >> i & 1;
      ask.causal = broadcast == 4 ? Causal::kBottomRight : Causal::kNone;
      expect_right_in_both(ask);
    }
  }
}

TEST_P(CpuBackward, AdditiveMaskInTheInputsType) {
  for (DType dtype : {DType::kFp16, DType::kBf16}) {
    Ask ask;
    ask.dtype = ask.mask_dtype = dtype;
    ask.mask = MaskKind::kAdditive;
    ask.seqlen_q = 31;
    ask.seqlen_k = 77;
    expect_right(ask);
  }
}

TEST_P(CpuBackward, Layouts) {
  for (Layout layout : {Layout::kHeadsFirst, Layout::kPaddedRows, Layout::kSharedHeads}) {
    SCOPED_TRACE(static_cast<int>(layout));
    Ask ask;
    ask.batch = 2;
    ask.heads_q = 4;
    ask.heads_k = 2;
    ask.seqlen_q = 41;
    ask.seqlen_k = 77;
    ask.head_dim = 19;
    ask.head_dim_v = 24;
    ask.layout = layout;
    expect_right_in_both(ask);
  }
}

TEST_P(CpuBackward, TypesAndModes) {
  for (DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (int bits = 0; bits < 8; ++bits) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(bits));
      Ask ask;
      ask.dtype = dtype;
      ask.seqlen_q = 43;
      ask.seqlen_k = 90;
      ask.head_dim = 21;
      ask.fp32_gradients = bits & 1;
      ask.fp32_outputs = bits & 2;
      ask.mode = bits & 4 ? GradientMode::kAccumulate : GradientMode::kOverwrite;
      ask.layout = Layout::kPaddedRows;
      expect_right(ask);
    }
  }
}

TEST_P(CpuBackward, Scales) {
  for (float scale : {0.0f, -0.3f, 1.0f, 1e-30f, 7.0f}) {
    SCOPED_TRACE(scale);
    Ask ask;
    ask.scale = scale;
    ask.seqlen_q = 33;
    ask.seqlen_k = 65;
    ask.causal = Causal::kBottomRight;
    expect_right_in_both(ask);
  }
}

TEST_P(CpuBackward, LargeScores) {
  Ask ask;
  ask.input_scale = 12;  // scores in the hundreds: P is nearly one-hot
  ask.seqlen_q = 70;
  ask.seqlen_k = 130;
  expect_right_in_both(ask);
}

TEST_P(CpuBackward, SeveralBlocksTilesAndSplits) {
  Ask ask;
  ask.heads_q = 2;
  ask.heads_k = 1;
  ask.seqlen_q = 331;
  ask.seqlen_k = 617;
  ask.head_dim = 24;
  ask.causal = Causal::kBottomRight;
  for (int threads : {1, 3}) {
    for (DType dtype : {DType::kFp32, DType::kBf16}) {
      ask.dtype = dtype;
      expect_right(ask, threads);
    }
  }
}

TEST_P(CpuBackward, NoKeys) {
  Ask ask;
  ask.seqlen_k = 0;
  ask.lse_gradient = true;
  expect_right_in_both(ask);
  ask.mode = GradientMode::kAccumulate;
  expect_right_in_both(ask);
}

}  // namespace
}  // namespace flashlab::testing
