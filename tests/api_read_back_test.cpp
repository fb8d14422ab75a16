// What FLASHLAB_CHECK_SEQUENCES judges before a call on a GPU, on memory of a CPU: lengths,
// offsets, tables and entries of the call itself, not of the largest call of its plan.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "api/context_state.h"
#include "api/implementation.h"
#include "api/read_back.h"
#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

constexpr std::int64_t kPages = 11, kPageSize = 4, kTable = 3, kTableStride = 5, kDim = 8;
constexpr std::int64_t kBeyondInt32 = std::int64_t{1} << 40;

// Nothing but lists is read.
template <class View>
View tensor(std::initializer_list<std::int64_t> shape, std::int64_t* lists = nullptr) {
  static float rows = 0;
  const DType dtype = lists != nullptr ? DType::kInt64 : DType::kFp32;
  return {lists != nullptr ? static_cast<void*>(lists) : &rows, contiguous_spec(dtype, shape)};
}

struct Lists {
  std::vector<std::int64_t> offsets, lengths, padding, positions, entries;
  std::vector<std::int32_t> table;  // rows of kTableStride, of which kTable count
};

Lists good_lists() {
  Lists l{{0, 4, 9}, {9, 12}, {2, 0}, {0, 3}, {1, 0}, {}};
  l.table = {0, 10, 2, -1, 99, 3, 4, 5};  // ends with the last row's last page
  return l;
}

ConstTensor table_of(Lists& l) {
  ConstTensor table{l.table.data(), contiguous_spec(DType::kInt32, {2, kTable})};
  table.spec.strides[0] = kTableStride;
  return table;
}

ForwardTensors forward_tensors(Lists& l) {
  ForwardTensors t;
  t.q = tensor<ConstTensor>({9, 2, kDim});
  t.o = tensor<Tensor>({9, 2, kDim});
  t.k = t.v = tensor<ConstTensor>({kPages, kPageSize, 2, kDim});
  t.cu_seqlens_q = tensor<ConstTensor>({3}, l.offsets.data());
  t.seqused_k = tensor<ConstTensor>({2}, l.lengths.data());
  t.leftpad_k = tensor<ConstTensor>({2}, l.padding.data());
  t.block_table = table_of(l);
  return t;
}

// The plan serves more: 10 rows, 16 pages.
std::string said_of_forward(Lists& l) {
  auto context = Context::create({.threads = 1});
  const ForwardTensors t = forward_tensors(l);
  const auto made = plan(*context, describe(t, {}));
  if (!made.ok()) return made.status().message();
  EXPECT_EQ(made->problem().q.shape[0], 10);
  EXPECT_EQ(made->problem().k.shape[0], 16);
  return internal::check_lengths(context->state(), {}, made->state(), t).message();
}

// Pages, or an entry of each sequence.
std::string said_of_append(Lists& l, bool paged = true) {
  auto context = Context::create({.threads = 1});
  AppendTensors t;
  t.k = t.v = paged ? tensor<Tensor>({kPages, kPageSize, 2, kDim})
                    : tensor<Tensor>({2, kTable * kPageSize, 2, kDim});
  t.k_new = t.v_new = tensor<ConstTensor>({9, 2, kDim});
  t.cu_seqlens_new = tensor<ConstTensor>({3}, l.offsets.data());
  t.seqused_k = tensor<ConstTensor>({2}, l.lengths.data());
  if (paged) t.block_table = table_of(l);
  if (!paged) t.cache_batch_idx = tensor<ConstTensor>({2}, l.entries.data());
  t.rotary_cos = t.rotary_sin = tensor<ConstTensor>({kTable * kPageSize, kDim / 2});
  t.rotary_positions = tensor<ConstTensor>({2}, l.positions.data());
  return internal::check_lengths(context->state(), {}, t, {}, paged ? kPageSize : 0).message();
}

struct Bad {
  std::function<void(Lists&)> break_it;
  const char* said;
};

TEST(ReadBack, JudgesAForwardCall) {
  Lists good = good_lists();
  EXPECT_EQ(said_of_forward(good), Status().message());
  for (const Bad& bad : std::vector<Bad>{
           {[](Lists& l) { l.offsets[0] = -1; }, "cu_seqlens_q[0]: got -1"},
           {[](Lists& l) { l.offsets[1] = 10; }, "cu_seqlens_q[1]: got 10"},
           {[](Lists& l) { l.offsets[2] = 3; }, "cu_seqlens_q[2]: got 3"},
           {[](Lists& l) { l.offsets[2] = 10; }, "from 4 to 9, the number of rows"},
           {[](Lists& l) { l.offsets[2] = kBeyondInt32; }, "cu_seqlens_q[2]: got 1099511627776"},
           {[](Lists& l) { l.lengths[1] = -4; }, "seqused_k[1]: got -4"},
           {[](Lists& l) { l.lengths[1] = 13; }, "seqused_k[1]: got 13"},
           {[](Lists& l) { l.lengths[0] = kBeyondInt32 + 1; }, "seqused_k[0]: got 1099511627777"},
           {[](Lists& l) { l.padding[0] = 10; }, "leftpad_k[0]: got 10"},
           {[](Lists& l) { l.padding[1] = -1; }, "leftpad_k[1]: got -1"},
           {[](Lists& l) { l.table[1] = 11; }, "block_table[0, 1]: got 11"},
           {[](Lists& l) { l.table[7] = -1; }, "block_table[1, 2]: got -1"}}) {
    Lists l = good_lists();
    bad.break_it(l);
    const std::string said = said_of_forward(l);
    EXPECT_NE(said.find(bad.said), std::string::npos) << bad.said << ", but: " << said;
  }
}

TEST(ReadBack, JudgesAnAppend) {
  const auto append_lists = [] {
    Lists l = good_lists();
    l.lengths = {8, 3};
    return l;
  };
  for (const bool paged : {true, false}) {
    Lists good = append_lists();
    EXPECT_EQ(said_of_append(good, paged), Status().message());
  }
  for (const Bad& bad :
       std::vector<Bad>{{[](Lists& l) { l.offsets[2] = 10; }, "cu_seqlens_new[2]: got 10"},
                        {[](Lists& l) { l.lengths[0] = 9; }, "seqused_k[0]: got 9"},
                        {[](Lists& l) { l.lengths[1] = -1; }, "seqused_k[1]: got -1"},
                        {[](Lists& l) { l.lengths[1] = std::numeric_limits<std::int64_t>::max(); },
                         "seqused_k[1]: got 9223372036854775807"},
                        {[](Lists& l) { l.positions[1] = 8; }, "rotary_positions[1]: got 8"},
                        {[](Lists& l) { l.positions[0] = -1; }, "rotary_positions[0]: got -1"},
                        {[](Lists& l) { l.table[2] = 11; }, "block_table[0, 2]: got 11"}}) {
    Lists l = append_lists();
    bad.break_it(l);
    const std::string said = said_of_append(l);
    EXPECT_NE(said.find(bad.said), std::string::npos) << bad.said << ", but: " << said;
  }
  Lists l = append_lists();
  l.entries[1] = 2;
  EXPECT_NE(said_of_append(l, false).find("cache_batch_idx[1]: got 2"), std::string::npos);
}

}  // namespace
}  // namespace flashlab
