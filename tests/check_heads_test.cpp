// The oracle's answer worked out head by head is the one worked out in one piece, bit for bit.

#include <gtest/gtest.h>

#include "lab/check/check_heads.h"

namespace flashlab::lab {
namespace {

cases::Case grouped_case() {
  cases::Case c;
  c.batch = 2;
  c.heads_q = 4;
  c.heads_k = 2;
  c.seqlen_q = 400;  // heads beyond reference::kSmallProblem are tasks of their own
  c.seqlen_k = 460;
  c.head_dim = 64;
  c.head_dim_v = 40;
  c.causal = Causal::kBottomRight;
  c.mask = cases::MaskKind::kAdditive;
  c.lse_gradient = true;
  c.dtype = DType::kBf16;
  return c;
}

// Outputs of a forward call, so that a sample of keys finds statistics.
CaseData with_outputs(const cases::Case& c) {
  CaseData data = CaseData::create(c).value();
  const Context context = Context::create({.threads = 1}).value();
  Options options = c.options();
  options.implementation = "naive";
  EXPECT_TRUE(forward(context, {}, data.forward_tensors(), options).ok());
  return data;
}

class ByHeads : public testing::TestWithParam<bool> {};

TEST_P(ByHeads, GivesTheSameAnswer) {
  const cases::Case c = grouped_case();
  const CaseData data = with_outputs(c);
  const ForwardTensors f = data.host_forward_tensors();
  const BackwardTensors b = data.host_backward_tensors();
  const auto sizes = reference::sizes_of(f.q, f.k, f.v);
  const auto sample = GetParam() ? reference::Sample::everything(sizes)
                                 : reference::Sample::seeded(sizes, 24, 5, 3);
  const ForwardTruth whole = forward_truth(f, c.options(), sample).value();
  const ForwardTruth parts = forward_truth_by_heads(f, c.options(), sample).value();
  EXPECT_EQ(whole.exact.rows.size(), parts.exact.rows.size());
  EXPECT_EQ(whole.exact.o, parts.exact.o);
  EXPECT_EQ(whole.exact.lse, parts.exact.lse);
  EXPECT_EQ(whole.exact.magnitude, parts.exact.magnitude);
  EXPECT_EQ(whole.exact.dont_care, parts.exact.dont_care);
  EXPECT_EQ(whole.naive.o, parts.naive.o);

  const BackwardTruth all = backward_truth(b, c.options(), sample).value();
  const BackwardTruth heads = backward_truth_by_heads(b, c.options(), sample).value();
  EXPECT_EQ(all.exact.dq, heads.exact.dq);
  EXPECT_EQ(all.exact.dk, heads.exact.dk);
  EXPECT_EQ(all.exact.dv, heads.exact.dv);
  EXPECT_EQ(all.exact.dk_dont_care, heads.exact.dk_dont_care);
  EXPECT_EQ(all.naive.dq, heads.naive.dq);
  EXPECT_EQ(all.naive.dk, heads.naive.dk);
  EXPECT_EQ(all.naive.dv, heads.naive.dv);
}

INSTANTIATE_TEST_SUITE_P(Samples, ByHeads, testing::Bool(),
                         [](const auto& info) { return info.param ? "everything" : "sampled"; });

}  // namespace
}  // namespace flashlab::lab
