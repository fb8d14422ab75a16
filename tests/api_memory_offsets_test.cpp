// Offsets are 64-bit: tensors whose strides exceed 2^31 elements, laid over reserved address space
// of which only the touched pages exist. A 32-bit product anywhere ends in a page without access.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "flashlab/flashlab.h"
#include "reference/comparator.h"
#include "reference/naive_rounded.h"
#include "reference/oracle.h"

namespace flashlab {
namespace {

// Address space without memory; pages come into being by `touch`.
class Reservation {
 public:
  explicit Reservation(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* map =
        mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = map == MAP_FAILED ? nullptr : static_cast<char*>(map);
  }
  ~Reservation() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  char* base() const { return base_; }

  bool touch(std::int64_t offset, std::int64_t bytes) {
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    const std::int64_t first = offset / page * page;
    const std::int64_t end = (offset + bytes + page - 1) / page * page;
    return mprotect(base_ + first, static_cast<std::size_t>(end - first), PROT_READ | PROT_WRITE) ==
           0;
  }

 private:
  char* base_ = nullptr;
  std::size_t bytes_ = 0;
};

enum class Wide { kSequence, kHead, kBatch };

// A tensor of `rank` 3 or 4 with one dimension's stride beyond 2^31 elements.
class WideTensor {
 public:
  WideTensor(DType dtype, std::vector<std::int64_t> shape, int wide_dimension) {
    spec_.dtype = dtype;
    spec_.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (int d = spec_.rank - 1; d >= 0; --d) {
      const auto n = static_cast<std::size_t>(d);
      spec_.shape[n] = shape[n];
      if (d == wide_dimension) continue;
      spec_.strides[n] = stride;
      stride *= shape[n];
    }
    const auto wide = static_cast<std::size_t>(wide_dimension);
    // Odd, so that rows are aligned to their elements only.
    spec_.strides[wide] = (std::int64_t{1} << 31) + 17;
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t span = spec_.strides[wide] * (shape[wide] - 1) + stride;
    memory_ = std::make_unique<Reservation>((span + 4096) * size);
    if (memory_->base() == nullptr) return;
    ok_ = true;
    for (std::int64_t n = 0; n < shape[wide]; ++n) {
      ok_ = ok_ && memory_->touch(n * spec_.strides[wide] * size, stride * size);
    }
  }

  bool ok() const { return ok_; }
  Tensor view() const { return {memory_->base(), spec_}; }

  // Element n in row-major order of the shape.
  void fill(std::uint64_t seed) {
    std::array<std::int64_t, 4> shape{1, 1, 1, 1};
    for (int d = 0; d < spec_.rank; ++d)
      shape[static_cast<std::size_t>(d)] = spec_.shape[static_cast<std::size_t>(d)];
    std::uint64_t state = seed;
    for (std::int64_t a = 0; a < shape[0]; ++a) {
      for (std::int64_t b = 0; b < shape[1]; ++b) {
        for (std::int64_t c = 0; c < shape[2]; ++c) {
          for (std::int64_t d = 0; d < shape[3]; ++d) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const double value = static_cast<double>(state >> 40) / (1 << 23) - 1;
            const std::int64_t offset = a * spec_.strides[0] + b * spec_.strides[1] +
                                        c * spec_.strides[2] + d * spec_.strides[3];
            reference::store(memory_->base(), spec_.dtype, offset,
                             spec_.dtype == DType::kBool ? value > -0.5 : value);
          }
        }
      }
    }
  }

 private:
  TensorSpec spec_;
  std::unique_ptr<Reservation> memory_;
  bool ok_ = false;
};

struct OffsetCase {
  Wide wide;
  DType dtype;
};

class Offsets : public testing::TestWithParam<OffsetCase> {};

TEST_P(Offsets, StridesBeyondThirtyTwoBits) {
  constexpr std::int64_t kB = 2, kSq = 3, kSk = 4, kH = 2, kHk = 2, kD = 20, kDv = 12;
  const DType t = GetParam().dtype;
  const Wide wide = GetParam().wide;
  const int dim4 = wide == Wide::kSequence ? 1 : wide == Wide::kHead ? 2 : 0;
  // Statistics [B, H, S] and masks [B, H, Sq, Sk] order their dimensions otherwise, and their last
  // dimension is dense.
  const int dim3 = wide == Wide::kBatch ? 0 : 1;
  const int mask_dim = wide == Wide::kSequence ? 2 : wide == Wide::kHead ? 1 : 0;
  WideTensor q(t, {kB, kSq, kH, kD}, dim4), k(t, {kB, kSk, kHk, kD}, dim4),
      v(t, {kB, kSk, kHk, kDv}, dim4), o(t, {kB, kSq, kH, kDv}, dim4),
      d_o(t, {kB, kSq, kH, kDv}, dim4), dq(t, {kB, kSq, kH, kD}, dim4),
      dk(t, {kB, kSk, kHk, kD}, dim4), dv(t, {kB, kSk, kHk, kDv}, dim4),
      lse(DType::kFp32, {kB, kH, kSq}, dim3), d_lse(DType::kFp32, {kB, kH, kSq}, dim3),
      mask(DType::kBool, {kB, kH, kSq, kSk}, mask_dim);
  std::uint64_t seed = 1;
  for (WideTensor* tensor : {&q, &k, &v, &d_o, &d_lse, &mask}) {
    if (!tensor->ok()) GTEST_SKIP() << "address space for strides beyond 2^31 was refused";
    tensor->fill(seed++);
  }
  for (WideTensor* tensor : {&o, &dq, &dk, &dv, &lse}) {
    if (!tensor->ok()) GTEST_SKIP() << "address space for strides beyond 2^31 was refused";
  }

  ForwardTensors f;
  f.q = q.view();
  f.k = k.view();
  f.v = v.view();
  f.o = o.view();
  f.lse = lse.view();
  f.mask = mask.view();
  BackwardTensors b;
  b.q = f.q;
  b.k = f.k;
  b.v = f.v;
  b.o = f.o;
  b.lse = *f.lse;
  b.mask = f.mask;
  b.d_o = d_o.view();
  b.d_lse = d_lse.view();
  b.dq = dq.view();
  b.dk = dk.view();
  b.dv = dv.view();

  const auto all = reference::Sample::everything(reference::sizes_of(f.q, f.k, f.v));
  const auto exact = reference::forward(f, {}, all).value();
  const auto naive = reference::naive_yardstick(f, {}, all, exact).value();
  auto context = Context::create({.threads = 2});
  ASSERT_TRUE(context.ok());
  for (const std::string& name : implementations({})) {
    SCOPED_TRACE(name);
    Options options;
    options.implementation = name;
    for (WideTensor* output : {&o, &dq, &dk, &dv, &lse}) output->fill(99);
    Status status = forward(*context, {}, f, options);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto judged = reference::compare({"o", f.o, exact.rows, exact.o, naive.o, nullptr, t});
    EXPECT_TRUE(judged.passed) << judged.message();
    const auto judged_lse = reference::compare_lse(*f.lse, exact.rows, exact.lse, exact.magnitude);
    EXPECT_TRUE(judged_lse.passed) << judged_lse.message();

    status = backward(*context, {}, b, options);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto exact_b =
        reference::backward(b, {}, all, reference::Statistics::kRecomputed).value();
    const auto naive_b = reference::naive_yardstick(b, {}, all, exact_b, false).value();
    for (const auto& verdict :
         {reference::compare({"dq", b.dq, exact_b.queries, exact_b.dq, naive_b.dq, nullptr, t}),
          reference::compare({"dk", b.dk, exact_b.keys, exact_b.dk, naive_b.dk, nullptr, t}),
          reference::compare({"dv", b.dv, exact_b.keys, exact_b.dv, naive_b.dv, nullptr, t})}) {
      EXPECT_TRUE(verdict.passed) << verdict.message();
    }
  }
}

std::string offset_case_name(const testing::TestParamInfo<OffsetCase>& test) {
  const char* names[] = {"sequence", "head", "batch"};
  return std::string(names[static_cast<int>(test.param.wide)]) + "_" + to_string(test.param.dtype);
}

INSTANTIATE_TEST_SUITE_P(ApiMemory, Offsets,
                         testing::Values(OffsetCase{Wide::kSequence, DType::kFp32},
                                         OffsetCase{Wide::kHead, DType::kFp32},
                                         OffsetCase{Wide::kBatch, DType::kFp32},
                                         OffsetCase{Wide::kSequence, DType::kBf16},
                                         OffsetCase{Wide::kHead, DType::kBf16},
                                         OffsetCase{Wide::kBatch, DType::kFp16}),
                         offset_case_name);

}  // namespace
}  // namespace flashlab
