// The kernel of an append on emulated blocks, against the append of a CPU; and what only the device
// knows: it writes nothing where it must not.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "append_cases.h"
#include "cuda/kernels/append/plan.h"
#include "emulated/kernels.h"

namespace flashlab {
namespace {

using append_cases::AppendCase;
using append_cases::Arena;

// The memory after the kernel has run over it.
std::vector<char> after_kernel(emulated::Kernels& kernels, const Arena& arena) {
  std::vector<char> memory = arena.memory();
  const AppendTensors t = arena.tensors_at(memory.data());
  const runtime::Step step = cuda::append_step(t, arena.options(), arena.problem().page);
  const runtime::Program program;
  const std::string error = emulated::run_step(kernels, program, step, {});
  EXPECT_EQ(error, "") << arena.problem().name();
  return memory;
}

// Of a cache in fp32.
std::int64_t rows_changed(const Tensor& before, const Tensor& after) {
  const auto& shape = before.spec.shape;
  const std::int64_t width = shape[2] * shape[3];
  const auto* a = static_cast<const float*>(before.data);
  const auto* b = static_cast<const float*>(after.data);
  std::int64_t changed = 0;
  for (std::int64_t row = 0; row < shape[0] * shape[1]; ++row) {
    const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
    changed += std::memcmp(a + row * width, b + row * width, bytes) != 0 ? 1 : 0;
  }
  return changed;
}

TEST(AppendEmulated, IsTheAppendOfACpu) {
  const Context context = Context::create({.threads = 1}).value();
  emulated::Kernels kernels;
  std::vector<cuda::KernelSpec> specs;
  for (const DType type : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (const DType table : {type, DType::kFp32})
      specs.push_back(cuda::append_kernel(type, table));
  }
  kernels.build(specs);
  for (const AppendCase& c : append_cases::append_cases()) {
    const Arena arena(c);
    std::vector<char> expected = arena.memory();
    const Status status = append(context, {}, arena.tensors_at(expected.data()), arena.options());
    ASSERT_TRUE(status.ok()) << c.name() << ": " << status.message();
    arena.expect_same(after_kernel(kernels, arena), expected);
  }
}

// A program says nothing of addresses: those of its call are the tensors'.
TEST(AppendEmulated, AProgramWritesWhatTheCallDoes) {
  emulated::Kernels kernels;
  const Arena arena(AppendCase{.rotary = false});
  const auto plain = [&](std::vector<char>& memory) {
    AppendTensors t = arena.tensors_at(memory.data());
    t.seqused_after.reset();
    return t;
  };
  std::vector<char> expected = arena.memory(), got = arena.memory();
  const Context context = Context::create({.threads = 1}).value();
  ASSERT_TRUE(append(context, {}, plain(expected), {}).ok());
  AppendTensors t = plain(got);
  void* const addresses[] = {t.k.data, t.v.data, const_cast<void*>(t.k_new.data),
                             const_cast<void*>(t.v_new.data), const_cast<void*>(t.seqused_k.data)};
  t.k.data = t.v.data = nullptr;
  t.k_new.data = t.v_new.data = t.seqused_k.data = nullptr;
  const auto program = cuda::append_program(t, {});
  ASSERT_TRUE(program.ok()) << program.status().message();
  ASSERT_EQ(program->steps().size(), 1u);
  const std::string error =
      emulated::run_step(kernels, *program, program->steps()[0], {.tensors = addresses});
  EXPECT_EQ(error, "");
  EXPECT_NE(got, arena.memory());
  EXPECT_EQ(got, expected);
}

// Lengths without room, below zero, entries and pages that there are none of, positions that leave
// the tables, offsets that decrease: the other sequences are written, and nothing else.
TEST(AppendEmulated, HostileSequencesAreWrittenNothingOf) {
  emulated::Kernels kernels;
  for (const bool ragged : {false, true}) {
    for (const std::int64_t page : {0, 1, 16}) {
      AppendCase c{.page = page, .ragged = ragged, .by_index = page == 0, .positions = page == 16};
      c.hostile = true;
      const Arena arena(c);
      const std::vector<char> before = arena.memory(), after = after_kernel(kernels, arena);
      const AppendTensors was = arena.tensors_at(const_cast<char*>(before.data()));
      const AppendTensors is = arena.tensors_at(const_cast<char*>(after.data()));
      const auto* lengths = static_cast<const std::int32_t*>(is.seqused_after->data);
      const std::int64_t capacity =
          page == 0 ? Arena::kCapacity : is.block_table->spec.shape[1] * page;
      const std::int64_t rows_of_first = 3, rows_of_second = ragged ? 2 : 3;
      EXPECT_EQ(lengths[0], 38 + rows_of_first <= capacity ? 38 + rows_of_first : capacity + 1);
      EXPECT_EQ(lengths[1], c.positions ? capacity + 1 : 17 + rows_of_second);
      EXPECT_EQ(lengths[2], capacity + 1);
      arena.expect_inputs_as_they_were(after);
      const std::int64_t of_first = lengths[0] <= capacity ? rows_of_first : 0;
      // Rows 17 and 18 have a page, row 19 has none; an entry beyond the cache has no row at all.
      const std::int64_t of_second = page == 0 || c.positions ? 0 : 2;
      EXPECT_EQ(rows_changed(was.k, is.k), of_first + of_second) << page << " " << ragged;
      EXPECT_EQ(rows_changed(was.v, is.v), of_first + of_second) << page << " " << ragged;
    }
  }
}

}  // namespace
}  // namespace flashlab
