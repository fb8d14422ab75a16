// Keys and values in caches at the API's edge: shapes, what cannot be meant together, and messages
// that name argument, got, expected, remedy.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"

namespace flashlab {
namespace {

constexpr std::int64_t kSequences = 2, kQueriesEach = 3, kQueryHeads = 4, kKeyHeads = 2, kWidth = 8;
constexpr std::int64_t kCapacity = 12, kEntries = 5, kPages = 7, kPageSize = 4, kTable = 3;

TensorSpec spec(std::initializer_list<std::int64_t> shape, DType dtype = DType::kFp32) {
  return contiguous_spec(dtype, shape);
}

// A call with a contiguous cache; each test changes it.
Problem contiguous() {
  Problem p;
  p.q = p.o = spec({kSequences, kQueriesEach, kQueryHeads, kWidth});
  p.k = p.v = spec({kSequences, kCapacity, kKeyHeads, kWidth});
  p.lse = spec({kSequences, kQueryHeads, kQueriesEach});
  p.seqused_k = spec({kSequences}, DType::kInt32);
  return p;
}

Problem indexed() {
  Problem p = contiguous();
  p.k = p.v = spec({kEntries, kCapacity, kKeyHeads, kWidth});
  p.cache_batch_idx = spec({kSequences}, DType::kInt32);
  return p;
}

Problem paged() {
  Problem p = contiguous();
  p.k = p.v = spec({kPages, kPageSize, kKeyHeads, kWidth});
  p.block_table = spec({kSequences, kTable}, DType::kInt32);
  return p;
}

std::string refusal(const Problem& problem) {
  auto context = Context::create({.threads = 1});
  const auto made = plan(*context, problem);
  return made.ok() ? std::string() : made.status().message();
}

struct BadCache {
  const char* name;
  Problem (*good)();
  std::function<void(Problem&)> break_it;
  std::vector<std::string> said;
};

void PrintTo(const BadCache& bad, std::ostream* out) {
  *out << bad.name;
}

class CacheRefusal : public ::testing::TestWithParam<BadCache> {};

TEST_P(CacheRefusal, NamesWhatIsWrong) {
  Problem p = GetParam().good();
  EXPECT_EQ(refusal(p).find("kInvalidArgument"), std::string::npos) << refusal(p);
  GetParam().break_it(p);
  const std::string message = refusal(p);
  ASSERT_FALSE(message.empty());
  for (const std::string& part : GetParam().said) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Caches, CacheRefusal,
    ::testing::Values(
        BadCache{"table_without_lengths",
                 paged,
                 [](Problem& p) { p.seqused_k.reset(); },
                 {"seqused_k: got nothing", "does not say where a sequence ends"}},
        BadCache{"table_of_int64",
                 paged,
                 [](Problem& p) { p.block_table->dtype = DType::kInt64; },
                 {"block_table.dtype: got int64", "int32"}},
        BadCache{"table_of_another_batch",
                 paged,
                 [](Problem& p) { p.block_table->shape[0] = 3; },
                 {"block_table.shape[0]: got 3", "[batch, pages_per_sequence]"}},
        BadCache{"table_and_index",
                 paged,
                 [](Problem& p) { p.cache_batch_idx = spec({kSequences}, DType::kInt32); },
                 {"cache_batch_idx: got given beside block_table", "rows of block_table"}},
        BadCache{"more_key_heads_than_query_heads",
                 paged,
                 [](Problem& p) {
                   p.k = p.v = spec({kPages, kPageSize, kQueryHeads + 1, kWidth});
                 },
                 {"k.shape[2]: got 5 key heads", "a divisor of the 4 query heads"}},
        BadCache{"table_and_offsets",
                 paged,
                 [](Problem& p) { p.cu_seqlens_k = spec({kSequences + 1}, DType::kInt32); },
                 {"block_table: got given beside cu_seqlens_k", "as seqused_k"}},
        BadCache{"pages_of_nothing",
                 paged,
                 [](Problem& p) {
                   p.k = p.v = spec({kPages, 0, kKeyHeads, kWidth});
                 },
                 {"k.shape[1]: got 0", "a page size >= 1"}},
        BadCache{"values_in_other_pages",
                 paged,
                 [](Problem& p) {
                   p.v = spec({kPages, 2, kKeyHeads, kWidth});
                 },
                 {"v.shape[1]: got 2", "[pages, page_size, heads_k, head_dim_v]"}},
        BadCache{"huge_table",
                 paged,
                 [](Problem& p) {
                   p.block_table->shape[1] = std::int64_t{1} << 62;
                   p.block_table->strides = {0, 1};
                   p.block_table->shape[0] = 1;
                 },
                 {"block_table"}},
        BadCache{"index_of_another_batch",
                 indexed,
                 [](Problem& p) { p.cache_batch_idx->shape[0] = 3; },
                 {"cache_batch_idx.shape[0]: got 3"}},
        BadCache{"floating_index",
                 indexed,
                 [](Problem& p) { p.cache_batch_idx->dtype = DType::kFp32; },
                 {"cache_batch_idx.dtype: got fp32", "int32 or int64"}},
        BadCache{"other_entries_without_index",
                 indexed,
                 [](Problem& p) { p.cache_batch_idx.reset(); },
                 {"k.shape[0]: got 5", "2"}},
        BadCache{"padding_of_another_batch",
                 contiguous,
                 [](Problem& p) { p.leftpad_k = spec({3}, DType::kInt32); },
                 {"leftpad_k.shape[0]: got 3"}},
        BadCache{"padding_beside_offsets",
                 contiguous,
                 [](Problem& p) {
                   p.leftpad_k = spec({kSequences}, DType::kInt32);
                   p.cu_seqlens_k = spec({kSequences + 1}, DType::kInt32);
                   p.k = p.v = spec({kCapacity, kKeyHeads, kWidth});
                 },
                 {"leftpad_k: got given beside cu_seqlens_k"}},
        BadCache{"causal_without_alignment",
                 paged,
                 [](Problem& p) { p.options.causal = Causal::kCausal; },
                 {"options.causal: got causal with sequences of any lengths", "kBottomRight"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Caches, BackwardHasNone) {
  Problem p = contiguous();
  p.pass = Pass::kBackward;
  p.d_o = p.dq = p.q;
  p.dk = p.dv = p.k;
  EXPECT_EQ(refusal(p), "");
  for (auto member : {&Problem::cache_batch_idx, &Problem::leftpad_k, &Problem::block_table}) {
    Problem with = p;
    with.*member = spec({kSequences}, DType::kInt32);
    EXPECT_NE(refusal(with).find("caches have no gradients"), std::string::npos) << refusal(with);
  }
}

}  // namespace
}  // namespace flashlab
