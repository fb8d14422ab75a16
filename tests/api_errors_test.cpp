// Every refusal of the API edge: the code, and a message that names argument, got, expected,
// remedy.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "api/implementation.h"
#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

constexpr std::int64_t kB = 2, kSq = 6, kSk = 10, kH = 4, kHk = 2, kD = 8;

// A valid call; each test breaks one thing.
struct Call {
  std::vector<float> memory = std::vector<float>(20000, 0.25f);
  ForwardTensors forward;
  BackwardTensors backward;
  Options options;

  Call() {
    float* next = memory.data();
    auto take = [&](std::initializer_list<std::int64_t> shape) {
      Tensor t = tensor(next, shape);
      next += t.spec.elements() + 16;
      return t;
    };
    forward.q = take({kB, kSq, kH, kD});
    forward.k = take({kB, kSk, kHk, kD});
    forward.v = take({kB, kSk, kHk, kD});
    forward.o = take({kB, kSq, kH, kD});
    forward.lse = take({kB, kH, kSq});
    forward.mask = take({kB, 1, kSq, kSk});
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.o = forward.o;
    backward.lse = *forward.lse;
    backward.d_o = take({kB, kSq, kH, kD});
    backward.d_lse = take({kB, kH, kSq});
    backward.dq = take({kB, kSq, kH, kD});
    backward.dk = take({kB, kSk, kHk, kD});
    backward.dv = take({kB, kSk, kHk, kD});
    rest = next;
  }

  // One of the tensors that no kernel reads yet.
  ConstTensor small(std::initializer_list<std::int64_t> shape, DType dtype) const {
    return tensor(static_cast<const void*>(rest), shape, dtype);
  }

  // The same tokens as one row of them, cut by cumulative lengths.
  void make_ragged() {
    forward.mask.reset();
    forward.cu_seqlens_q = small({kB + 1}, DType::kInt32);
    forward.cu_seqlens_k = small({kB + 1}, DType::kInt32);
    options.max_seqlen_q = kSq;
    options.max_seqlen_k = kSk;
    const auto flat = [](TensorSpec& spec) {
      spec = contiguous_spec(spec.dtype,
                             {spec.shape[0] * spec.shape[1], spec.shape[2], spec.shape[3]});
    };
    for (TensorSpec* spec : {&forward.q.spec, &forward.k.spec, &forward.v.spec, &forward.o.spec}) {
      flat(*spec);
    }
    forward.lse->spec = contiguous_spec(DType::kFp32, {kH, kB * kSq});
  }

  void* rest = nullptr;  ///< memory that no other tensor uses
};

struct Bad {
  const char* name;
  std::function<void(Call&)> break_it;
  std::vector<std::string> said;  ///< parts of the message
  bool backward = false;
  StatusCode code = StatusCode::kInvalidArgument;
};

void PrintTo(const Bad& bad, std::ostream* out) {
  *out << bad.name;
}

class Refusal : public ::testing::TestWithParam<Bad> {};

TEST_P(Refusal, NamesWhatIsWrong) {
  const Bad& bad = GetParam();
  auto context = Context::create({.threads = 1});
  ASSERT_TRUE(context.ok());
  Call good;
  ASSERT_TRUE(forward(*context, {}, good.forward, good.options).ok());
  ASSERT_TRUE(backward(*context, {}, good.backward, good.options).ok());
  Call call;
  bad.break_it(call);
  const std::vector<float> before = call.memory;
  const Status status = bad.backward ? backward(*context, {}, call.backward, call.options)
                                     : forward(*context, {}, call.forward, call.options);
  EXPECT_EQ(status.code(), bad.code) << status.message();
  for (const std::string& part : bad.said) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_EQ(call.memory, before) << "nothing is written on an error";
}

const float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Forward, Refusal,
    ::testing::Values(
        Bad{"rank", [](Call& c) { c.forward.q.spec.rank = 3; }, {"q.rank: got 3", "batch"}},
        Bad{"rank_too_large", [](Call& c) { c.forward.q.spec.rank = 9; }, {"q.rank: got 9"}},
        Bad{"rank_negative", [](Call& c) { c.forward.q.spec.rank = -2; }, {"q.rank: got -2"}},
        Bad{"negative_extent",
            [](Call& c) { c.forward.k.spec.shape[1] = -1; },
            {"k.shape[1]: got -1"}},
        Bad{"overflowing_size",
            [](Call& c) {
              c.forward.q.spec.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40, kH, kD};
            },
            {"q.shape[1]", "63 bits"}},
        Bad{"overflowing_stride",
            [](Call& c) { c.forward.v.spec.strides[0] = std::numeric_limits<std::int64_t>::max(); },
            {"v.strides[0]", "63 bits"}},
        Bad{"negative_stride",
            [](Call& c) { c.forward.q.spec.strides[1] = -32; },
            {"q.strides[1]: got -32"}},
        Bad{"inner_stride",
            [](Call& c) { c.forward.k.spec.strides[3] = 2; },
            {"k.strides[3]: got 2", "innermost"}},
        Bad{"broadcast_innermost",
            [](Call& c) { c.forward.k.spec.strides[3] = 0; },
            {"k.strides[3]: got 0"}},
        Bad{"head_dim_zero",
            [](Call& c) { c.forward.q.spec.shape[3] = c.forward.k.spec.shape[3] = 0; },
            {"q.shape[3]: got 0", "head dimension >= 1"}},
        Bad{"heads",
            [](Call& c) { c.forward.k.spec.shape[2] = c.forward.v.spec.shape[2] = 3; },
            {"k.shape[2]: got 3 key heads", "divisor of the 4 query heads", "use 1, 2, 4"}},
        Bad{"no_key_heads",
            [](Call& c) { c.forward.k.spec.shape[2] = c.forward.v.spec.shape[2] = 0; },
            {"k.shape[2]: got 0 key heads"}},
        Bad{"head_dims",
            [](Call& c) { c.forward.k.spec.shape[3] = 4; },
            {"k.shape[3]: got 4", "expected 8"}},
        Bad{"batch",
            [](Call& c) { c.forward.v.spec.shape[0] = 1; },
            {"v.shape[0]: got 1", "expected 2"}},
        Bad{"key_lengths",
            [](Call& c) { c.forward.v.spec.shape[1] = 9; },
            {"v.shape[1]: got 9", "expected 10"}},
        Bad{"output_shape",
            [](Call& c) { c.forward.o.spec.shape[1] = 5; },
            {"o.shape[1]: got 5", "expected 6"}},
        Bad{"lse_shape",
            [](Call& c) {
              c.forward.lse->spec.shape = {kB, kSq, kH, 0};
            },
            {"lse.shape[1]: got 6", "expected 4"}},
        Bad{"dtypes",
            [](Call& c) { c.forward.k.spec.dtype = DType::kFp16; },
            {"k.dtype: got fp16", "expected fp32"}},
        Bad{"bool_input",
            [](Call& c) { c.forward.q.spec.dtype = DType::kBool; },
            {"q.dtype: got bool"}},
        Bad{"output_dtype",
            [](Call& c) { c.forward.o.spec.dtype = DType::kBf16; },
            {"o.dtype: got bf16"}},
        Bad{"lse_dtype",
            [](Call& c) { c.forward.lse->spec.dtype = DType::kFp64; },
            {"lse.dtype: got fp64"}},
        Bad{"mask_shape",
            [](Call& c) { c.forward.mask->spec.shape[3] = 7; },
            {"mask.shape[3]: got 7", "1 or 10"}},
        Bad{"mask_dtype",
            [](Call& c) { c.forward.mask->spec.dtype = DType::kFp16; },
            {"mask.dtype: got fp16", "bool"}},
        Bad{"device",
            [](Call& c) {
              c.forward.v.spec.device = {DeviceKind::kCuda, 1};
            },
            {"v.device: got cuda:1", "expected cpu"}},
        Bad{"all_on_another_device",
            [](Call& c) {
              for (ConstTensor* t : {&c.forward.q, &c.forward.k, &c.forward.v})
                t->spec.device = {DeviceKind::kCuda, 0};
              for (Tensor* t : {&c.forward.o, &*c.forward.lse})
                t->spec.device = {DeviceKind::kCuda, 0};
              c.forward.mask->spec.device = {DeviceKind::kCuda, 0};
            },
            {"q.device: got cuda:0", "context"}},
        Bad{"null_q", [](Call& c) { c.forward.q.data = nullptr; }, {"q.data: got a null pointer"}},
        Bad{"null_o", [](Call& c) { c.forward.o.data = nullptr; }, {"o.data: got a null pointer"}},
        Bad{"misaligned",
            [](Call& c) { c.forward.k.data = static_cast<const char*>(c.forward.k.data) + 2; },
            {"k.data", "multiple of 4 bytes"}},
        Bad{"output_over_input",
            [](Call& c) { c.forward.o.data = const_cast<void*>(c.forward.q.data); },
            {"o.data", "overlaps q"}},
        Bad{"output_over_output",
            [](Call& c) { c.forward.lse->data = c.forward.o.data; },
            {"overlaps"}},
        Bad{"broadcast_output",
            [](Call& c) { c.forward.o.spec.strides[2] = 0; },
            {"o.strides", "all distinct"}},
        Bad{"scale_nan",
            [](Call& c) { c.options.scale = kNan; },
            {"options.scale: got nan", "finite"}},
        Bad{"scale_inf",
            [](Call& c) { c.options.scale = std::numeric_limits<float>::infinity(); },
            {"options.scale: got inf"}},
        Bad{"bare_causal",
            [](Call& c) { c.options.causal = Causal::kCausal; },
            {"seqlen_q 6", "seqlen_k 10", "kTopLeft", "kBottomRight"}},
        Bad{"scale_beyond_fp32",
            [](Call& c) { c.options.scale = 1e300; },
            {"options.scale: got 1e+300", "finite in fp32"}},
        Bad{"chunk", [](Call& c) { c.options.attention_chunk = 0; }, {"attention_chunk", "0"}},
        Bad{"softcap", [](Call& c) { c.options.softcap = 0.0f; }, {"options.softcap: got 0"}},
        Bad{"dropout",
            [](Call& c) {
              c.options.dropout = 1.0f;
            },
            {"options.dropout: got 1", "< 1"}},
        Bad{"slopes_shape",
            [](Call& c) { c.forward.alibi_slopes = c.small({1, kHk}, DType::kFp32); },
            {"alibi_slopes.shape[1]: got 2", "heads_q"}},
        Bad{"lengths_type",
            [](Call& c) {
              c.make_ragged();
              c.forward.cu_seqlens_q->spec.dtype = DType::kFp32;
            },
            {"cu_seqlens_q.dtype: got fp32, expected int32 or int64"}},
        Bad{"lengths_shape",
            [](Call& c) {
              c.make_ragged();
              c.forward.cu_seqlens_k->spec.shape[0] = kB;
            },
            {"cu_seqlens_k.shape[0]: got 2, expected 3", "[batch + 1]"}},
        Bad{"no_lengths",
            [](Call& c) {
              c.make_ragged();
              c.forward.cu_seqlens_q->spec.shape[0] = 0;
            },
            {"cu_seqlens_q.shape[0]: got 0"}},
        Bad{"lengths_of_dense_tensors",
            [](Call& c) { c.forward.cu_seqlens_q = c.small({kB + 1}, DType::kInt32); },
            {"q.rank: got 4, expected 3: [total_q, heads_q, head_dim]"}},
        Bad{"negative_longest",
            [](Call& c) {
              c.make_ragged();
              c.options.max_seqlen_q = -1;
            },
            {"options.max_seqlen_q: got -1", "hint"}},
        Bad{"used_shape",
            [](Call& c) { c.forward.seqused_k = c.small({kB + 1}, DType::kInt64); },
            {"seqused_k.shape[0]: got 3, expected 2", "[batch]"}},
        Bad{"ragged_causal",
            [](Call& c) {
              c.make_ragged();
              c.options.causal = Causal::kCausal;
            },
            {"options.causal", "sequences of any lengths", "kBottomRight"}},
        Bad{"ragged_window",
            [](Call& c) {
              c.make_ragged();
              c.options.window = Window{2, 1};
            },
            {"options.window.alignment", "sequences of any lengths", "kTopLeft"}},
        Bad{"ragged_chunk",
            [](Call& c) {
              c.make_ragged();
              c.options.attention_chunk = 4;
            },
            {"options.window.alignment", "sequences of any lengths", "kTopLeft"}},
        Bad{"ragged_key_heads",
            [](Call& c) {
              c.make_ragged();
              c.forward.k.spec.shape[1] = c.forward.v.spec.shape[1] = 8;
            },
            {"k.shape[1]", "a divisor of the 4 query heads"}},
        Bad{"longest_of_dense_tensors",
            [](Call& c) { c.options.max_seqlen_k = kSk; },
            {"options.max_seqlen_k: got 10", "cu_seqlens_k"}},
        Bad{"sinks_shape",
            [](Call& c) { c.forward.sinks = c.small({kHk}, DType::kFp32); },
            {"sinks.shape[0]: got 2, expected 4"}},
        Bad{"window_without_alignment",
            [](Call& c) {
              c.options.window = Window{2, 1};
            },
            {"options.window.alignment", "seqlen_q 6", "seqlen_k 10", "kTopLeft", "kBottomRight"}},
        Bad{"window_of_two_alignments",
            [](Call& c) {
              c.options.causal = Causal::kTopLeft;
              c.options.window = Window{2, 0, Alignment::kBottomRight};
            },
            {"options.window.alignment", "options.causal", "kOfCausal"}},
        Bad{"tile", [](Call& c) { c.options.tiles.tile_q = -1; }, {"tile_q: got -1"}},
        Bad{"implementation",
            [](Call& c) { c.options.implementation = "warp-drive"; },
            {"'warp-drive'", "cpu", "naive"}}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Backward, Refusal,
    ::testing::Values(Bad{"gradient_shape",
                          [](Call& c) { c.backward.dk.spec.shape[1] = 9; },
                          {"dk.shape[1]: got 9", "expected 10"},
                          true},
                      Bad{"gradient_dtype",
                          [](Call& c) { c.backward.dv.spec.dtype = DType::kFp16; },
                          {"dv.dtype: got fp16"},
                          true},
                      Bad{"d_o_shape",
                          [](Call& c) { c.backward.d_o.spec.shape[2] = 2; },
                          {"d_o.shape[2]: got 2"},
                          true},
                      Bad{"d_lse_shape",
                          [](Call& c) { c.backward.d_lse->spec.shape[2] = 5; },
                          {"d_lse.shape[2]: got 5"},
                          true},
                      Bad{"expanded_gradient",
                          [](Call& c) { c.backward.d_o.spec.strides[3] = 0; },
                          {"d_o.strides[3]: got 0"},
                          true},
                      Bad{"gradients_overlap",
                          [](Call& c) { c.backward.dv.data = c.backward.dk.data; },
                          {"overlaps"},
                          true},
                      Bad{"gradient_over_input",
                          [](Call& c) {
                            c.backward.dq.data = const_cast<void*>(c.backward.q.data);
                          },
                          {"overlaps q"},
                          true},
                      Bad{"null_gradient",
                          [](Call& c) { c.backward.dk.data = nullptr; },
                          {"dk.data: got a null pointer"},
                          true},
                      Bad{"null_lse",
                          [](Call& c) { c.backward.lse.data = nullptr; },
                          {"lse.data: got a null pointer"},
                          true}),
    [](const auto& info) { return std::string(info.param.name); });

const StatusCode kUnsupported = StatusCode::kUnsupported;

INSTANTIATE_TEST_SUITE_P(
    ToCome, Refusal,
    ::testing::Values(Bad{"row_statistics",
                          [](Call& c) {
                            c.backward.row_statistics = c.small({kB, kH, kSq, 2}, DType::kFp32);
                          },
                          {"lacks row statistics"},
                          true,
                          kUnsupported},
                      Bad{"dropout_state",
                          [](Call& c) { c.forward.dropout_state = c.small({2}, DType::kInt64); },
                          {"dropout_state", "without options.dropout"},
                          false},
                      Bad{"tf32",
                          [](Call& c) { c.options.precision = Precision::kTf32; },
                          {"lacks tf32"},
                          false,
                          kUnsupported},
                      Bad{"tf32_of_bf16",
                          [](Call& c) {
                            c.options.precision = Precision::kTf32;
                            for (ConstTensor* t : {&c.forward.q, &c.forward.k, &c.forward.v})
                              t->spec.dtype = DType::kBf16;
                          },
                          {"options.precision", "tf32 with bf16 tensors", "ieee"},
                          false},
                      Bad{"fp8",
                          [](Call& c) {
                            for (ConstTensor* t : {&c.forward.q, &c.forward.k, &c.forward.v})
                              t->spec.dtype = DType::kE4m3;
                          },
                          {"lacks fp8"},
                          false,
                          kUnsupported},
                      Bad{"tiles_of_production",
                          [](Call& c) { c.options.tiles.tile_q = 64; },
                          {"lacks tile sizes", "use fa2-plain"},
                          false,
                          kUnsupported}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PlannedCall, TensorsMustBeThosePlannedFor) {
  auto context = Context::create({.threads = 1});
  Call call;
  auto made = plan(*context, describe(call.forward, {}));
  ASSERT_TRUE(made.ok()) << made.status().message();
  std::vector<char> memory(made->workspace_bytes() + 256);
  void* aligned = memory.data();
  std::size_t space = memory.size();
  std::align(256, made->workspace_bytes(), aligned, space);
  const Workspace workspace{aligned, made->workspace_bytes()};
  EXPECT_TRUE(forward(*context, {}, *made, call.forward, workspace).ok());

  auto said = [&](const ForwardTensors& t, Workspace w, Stream stream = {}) {
    const Status status = forward(*context, stream, *made, t, w);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  ForwardTensors other = call.forward;
  other.q.spec.shape[1] = 5;
  EXPECT_NE(said(other, workspace).find("as planned"), std::string::npos);
  other = call.forward;
  other.lse.reset();
  EXPECT_NE(said(other, workspace).find("lse: got nothing"), std::string::npos);
  EXPECT_NE(said(call.forward, {}).find("workspace: got a null pointer"), std::string::npos);
  EXPECT_NE(said(call.forward, {aligned, made->workspace_bytes() - 1}).find("workspace_bytes()"),
            std::string::npos);
  EXPECT_NE(
      said(call.forward, {static_cast<char*>(aligned) + 16, made->workspace_bytes()}).find("256"),
      std::string::npos);
  EXPECT_NE(said(call.forward, workspace, Stream{aligned}).find("stream"), std::string::npos);
  EXPECT_NE(
      backward(*context, {}, *made, call.backward, workspace).message().find("a backward plan"),
      std::string::npos);

  // Nothing of a call may lie in its scratch memory.
  other = call.forward;
  other.o.data = aligned;
  EXPECT_NE(said(other, workspace).find("workspace.data: got memory that overlaps o"),
            std::string::npos);
  other = call.forward;
  other.k.data = static_cast<char*>(aligned) + made->workspace_bytes() - 4;
  EXPECT_NE(said(other, workspace).find("overlaps k"), std::string::npos);
}

// Every tensor that a plan was made without is refused, those that no kernel reads yet included.
template <class Tensors>
void refuses_what_was_not_planned(const Tensors& minimal, const Call& call) {
  auto context = Context::create({.threads = 1});
  auto made = plan(*context, describe(minimal, {}));
  ASSERT_TRUE(made.ok()) << made.status().message();
  int tried = 0;
  for (const TensorRow& row : kTensors) {
    const TensorMember<Tensors>& member = row.template member<Tensors>();
    if (member.access() == Access::kNone || member.required()) continue;
    Tensors given = minimal;
    member.set(given, Tensor{call.rest, contiguous_spec(DType::kFp32, {kH})});
    Status status;
    if constexpr (std::is_same_v<Tensors, ForwardTensors>) {
      status = forward(*context, {}, *made, given, {});
    } else {
      status = backward(*context, {}, *made, given, {});
    }
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << row.name;
    EXPECT_NE(status.message().find(std::string(row.name) + ": got a tensor, expected nothing"),
              std::string::npos)
        << row.name << ": " << status.message();
    ++tried;
  }
  EXPECT_GE(tried, 9);
}

TEST(PlannedCall, ATensorThatWasNotPlannedIsRefused) {
  Call call;
  call.forward.lse.reset();
  call.forward.mask.reset();
  refuses_what_was_not_planned(call.forward, call);
  call.backward.d_lse.reset();
  refuses_what_was_not_planned(call.backward, call);
}

// What a problem describes, a plan's key holds: none of these may get another's plan.
TEST(PlannedCall, EveryTensorIsDescribed) {
  Call call;
  for (const TensorRow& row : kTensors) {
    ForwardTensors t = call.forward;
    if (row.forward.access() == Access::kNone) continue;
    TensorSpec spec = contiguous_spec(DType::kFp32, {kH, 3, 2, 1});
    row.forward.set(t, Tensor{nullptr, spec});
    const Problem p = describe(t, {});
    ASSERT_NE(row.problem.get(p), nullptr) << row.name;
    EXPECT_EQ(*row.problem.get(p), spec) << row.name;
  }
}

TEST(TensorTable, ARuleTurnsWithTheSourceOfSequences) {
  const auto rule = [](TensorRole role, SequenceSource source) {
    return to_string(rule_for(row_of(role).shape, source));
  };
  EXPECT_EQ(rule(TensorRole::kQ, {}), "[batch, seqlen_q, heads_q, head_dim]");
  EXPECT_EQ(rule(TensorRole::kQ, {.ragged_q = true}), "[total_q, heads_q, head_dim]");
  EXPECT_EQ(rule(TensorRole::kLse, {.ragged_q = true}), "[heads_q, total_q]");
  EXPECT_EQ(rule(TensorRole::kK, {.ragged_q = true}), "[batch, seqlen_k, heads_k, head_dim]");
  EXPECT_EQ(rule(TensorRole::kDV, {.ragged_k = true}), "[total_k, heads_k, head_dim_v]");
  EXPECT_EQ(rule(TensorRole::kV, {.ragged_k = true, .paged_k = true}),
            "[pages, page_size, heads_k, head_dim_v]");
  EXPECT_EQ(rule(TensorRole::kK, {.indexed_k = true}),
            "[cache_entries, seqlen_k, heads_k, head_dim]");
  EXPECT_EQ(rule(TensorRole::kO, {.indexed_k = true}), "[batch, seqlen_q, heads_q, head_dim_v]");
  EXPECT_EQ(rule(TensorRole::kMask, {.ragged_q = true}),
            "[batch or 1, heads_q or 1, seqlen_q or 1, seqlen_k or 1]");
  EXPECT_EQ(rule(TensorRole::kCuSeqlensK, {.ragged_k = true}), "[batch + 1]");
}

TEST(Sizes, EmptyProblemsSucceedAndWriteNothing) {
  auto context = Context::create({.threads = 1});
  for (int dim : {0, 1, 2}) {
    Call call;
    ForwardTensors& t = call.forward;
    t.mask.reset();
    if (dim == 2) t.k.spec.shape[2] = t.v.spec.shape[2] = 0;
    t.q.spec.shape[dim] = t.o.spec.shape[dim] = 0;
    t.lse->spec.shape[dim == 0 ? 0 : 3 - dim] = 0;
    if (dim == 0) t.k.spec.shape[0] = t.v.spec.shape[0] = 0;
    const auto before = call.memory;
    const Status status = forward(*context, {}, t, {});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(call.memory, before);
  }
}

TEST(Sizes, NoKeysGiveEmptyRows) {
  auto context = Context::create({.threads = 1});
  Call call;
  ForwardTensors& t = call.forward;
  t.mask.reset();
  t.k.spec.shape[1] = t.v.spec.shape[1] = 0;
  t.k.data = t.v.data = nullptr;
  ASSERT_TRUE(forward(*context, {}, t, {}).ok());
  const float* o = static_cast<const float*>(t.o.data);
  for (std::int64_t i = 0; i < t.o.spec.elements(); ++i) EXPECT_EQ(o[i], 0.0f);
  const float* lse = static_cast<const float*>(t.lse->data);
  for (std::int64_t i = 0; i < t.lse->spec.elements(); ++i) EXPECT_EQ(lse[i], -INFINITY);
}

// Equal computations have equal plans: what hides nothing is none, what is only causal is causal.
TEST(Normalisation, AWindowIsAsNarrowAsItHides) {
  const auto normalised = [](Causal causal, Window window) {
    Call call;
    call.options.causal = causal;
    call.options.window = window;
    auto context = Context::create({.threads = 1});
    auto made = plan(*context, describe(call.forward, call.options));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made->problem().options;
  };
  const auto bottom = Alignment::kBottomRight;
  EXPECT_FALSE(normalised(Causal::kNone, {9, 5, bottom}).window.has_value());  // 6 x 10
  EXPECT_TRUE(normalised(Causal::kNone, {8, 5, bottom}).window.has_value());
  EXPECT_TRUE(normalised(Causal::kNone, {9, 4, bottom}).window.has_value());
  const Options causal = normalised(Causal::kNone, {{}, 0, bottom});
  EXPECT_FALSE(causal.window.has_value());
  EXPECT_EQ(causal.causal, Causal::kBottomRight);
  const Options both = normalised(Causal::kBottomRight, {3, 7});
  ASSERT_TRUE(both.window.has_value());
  EXPECT_EQ(both.window->left, std::optional<std::int64_t>(3));
  EXPECT_EQ(both.window->right, std::optional<std::int64_t>(0));
  EXPECT_EQ(both.window->alignment, bottom);
  // Beside the diagonal: what hides nothing there, and what causal cannot widen.
  EXPECT_EQ(normalised(Causal::kBottomRight, {{}, -2}).window->right,
            std::optional<std::int64_t>(-2));
}

TEST(Features, OfCallsOnSequencesAreNotThoseOfDenseKernels) {
  internal::Geometry geometry;
  geometry.bounds.left = -1;
  Problem problem;
  problem.options.attention_chunk = 5;
  const internal::FeatureSet missing =
      internal::required_features(problem, geometry).minus(internal::dense_features());
  EXPECT_TRUE(missing.has(internal::Feature::kBesideDiagonal));
  EXPECT_TRUE(missing.has(internal::Feature::kChunk));
  EXPECT_TRUE(
      missing.minus(internal::sequence_features()).minus({internal::Feature::kFp32}).empty());
  EXPECT_EQ(to_string(missing.minus({internal::Feature::kFp32})),
            "window beside the diagonal, attention chunks");
}

}  // namespace
}  // namespace flashlab
