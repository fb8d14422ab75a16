// Backward of implementation "cpu" where numbers are not ordinary: empty rows, NaN and infinities,
// scales at the edge of fp32, addresses beyond 2^32.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <limits>

#include "cpu_backward_trial.h"

namespace flashlab::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class CpuBackwardSpecial : public ::testing::TestWithParam<CpuIsa> {
 protected:
  std::string verdict(Trial& trial) {
    Context context = make_context(GetParam());
    const Status status = trial.run(context);
    return status.ok() ? trial.judge() : status.message();
  }
};

INSTANTIATE_TEST_SUITE_P(Isa, CpuBackwardSpecial, ::testing::ValuesIn(testable_isas()),
                         [](const auto& info) {
                           std::string name = to_string(info.param);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

Ask small(DType dtype) {
  Ask ask;
  ask.dtype = dtype;
  ask.seqlen_q = 45;
  ask.seqlen_k = 83;
  ask.lse_gradient = true;
  return ask;
}

void set_row(Buffer& buffer, std::int64_t row, std::int64_t head, double value) {
  for (std::int64_t d = 0; d < buffer.spec.shape[3]; ++d) {
    buffer.set(buffer.index(0, row, head, d), value);
  }
}

double largest_in_row(Buffer& buffer, std::int64_t row, std::int64_t head) {
  double largest = 0;
  for (std::int64_t d = 0; d < buffer.spec.shape[3]; ++d) {
    const double x = std::abs(buffer.get(buffer.index(0, row, head, d)));
    largest = x > largest || std::isnan(x) ? x : largest;
  }
  return largest;
}

TEST_P(CpuBackwardSpecial, EmptyRowsContributeNothingWhateverTheyHold) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    Ask ask = small(dtype);
    ask.mask = MaskKind::kBool;
    // Rows 0, 7 and 44 see nothing, and hold NaN everywhere it may be.
    const auto hide = [](Trial& t) {
      for (std::int64_t i : {0, 7, 44}) {
        for (std::int64_t j = 0; j < 83; ++j) {
          static_cast<std::uint8_t*>(t.mask.data())[t.mask.index(0, 0, i, j)] = 0;
        }
      }
    };
    const auto spoil = [](Trial& t) {
      for (std::int64_t i : {0, 7, 44}) {
        ASSERT_EQ(t.lse.get(t.lse.index(0, 0, i)), -HUGE_VAL);
        t.d_lse.set(t.d_lse.index(0, 0, i), kNaN);
      }
    };
    Trial clean(ask, hide, spoil);
    EXPECT_EQ(verdict(clean), "") << to_string(dtype);
    for (std::int64_t i : {0, 7, 44}) EXPECT_EQ(largest_in_row(clean.dq, i, 0), 0);

    Trial spoiled(ask, hide, [&](Trial& t) {
      spoil(t);
      for (std::int64_t i : {0, 7, 44}) {
        set_row(t.q, i, 0, kNaN);
        set_row(t.d_o, i, 0, HUGE_VAL);
      }
    });
    Context context = make_context(GetParam());
    ASSERT_TRUE(spoiled.run(context).ok());
    EXPECT_EQ(spoiled.dq.bytes, clean.dq.bytes);
    EXPECT_EQ(spoiled.dk.bytes, clean.dk.bytes);
    EXPECT_EQ(spoiled.dv.bytes, clean.dv.bytes);
  }
}

TEST_P(CpuBackwardSpecial, CausalRowsWithoutKeys) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    Ask ask = small(dtype);
    ask.seqlen_q = 140;
    ask.seqlen_k = 33;
    ask.causal = Causal::kBottomRight;
    Trial trial(ask, {}, [](Trial& t) {
      for (std::int64_t i = 0; i < 107; ++i) t.d_lse.set(t.d_lse.index(0, 0, i), kNaN);
    });
    EXPECT_EQ(verdict(trial), "");
    for (std::int64_t i = 0; i < 107; ++i) EXPECT_EQ(largest_in_row(trial.dq, i, 0), 0);
  }
}

TEST_P(CpuBackwardSpecial, RowsWhoseVisibleScoresAreAllMinusInfinity) {
  Ask ask = small(DType::kFp32);
  ask.mask = MaskKind::kAdditive;
  Trial trial(ask, [](Trial& t) {
    for (std::int64_t j = 0; j < 83; ++j) t.mask.set(t.mask.index(0, 0, 3, j), -HUGE_VAL);
    set_row(t.v, 5, 0, 1e30);
  });
  EXPECT_EQ(verdict(trial), "");
}

TEST_P(CpuBackwardSpecial, NonFiniteOperandsReachVisiblePairsOnly) {
  enum Where { kQ, kK, kV, kGradient };
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    for (Where where : {kQ, kK, kV, kGradient}) {
      for (double value : {kNaN, HUGE_VAL, -HUGE_VAL}) {
        for (MaskKind mask : {MaskKind::kNone, MaskKind::kBool, MaskKind::kAdditive}) {
          SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(where) + " " +
                       std::to_string(value) + " " + std::to_string(static_cast<int>(mask)));
          Ask ask = small(dtype);
          ask.seqlen_q = ask.seqlen_k = 60;
          ask.causal = Causal::kTopLeft;
          ask.mask = mask;
          Trial trial(ask, [&](Trial& t) {
            Buffer& buffer = where == kQ ? t.q : where == kK ? t.k : where == kV ? t.v : t.d_o;
            buffer.set(buffer.index(0, 31, 0, 5), value);
          });
          EXPECT_EQ(verdict(trial), "");
          // Query 30 comes before key 31: nothing may have reached it.
          EXPECT_TRUE(std::isfinite(largest_in_row(trial.dq, 30, 0)));
          if (where == kQ || where == kGradient) {
            EXPECT_TRUE(std::isfinite(largest_in_row(trial.dk, 32, 0)));
            EXPECT_TRUE(std::isfinite(largest_in_row(trial.dv, 32, 0)));
          }
        }
      }
    }
  }
}

TEST_P(CpuBackwardSpecial, RowsWithNaNLseGiveNaN) {
  for (DType dtype : {DType::kFp32, DType::kBf16}) {
    Ask ask = small(dtype);
    ask.causal = Causal::kTopLeft;
    Trial trial(ask, {}, [](Trial& t) { t.lse.set(t.lse.index(0, 0, 20), kNaN); });
    Context context = make_context(GetParam());
    ASSERT_TRUE(trial.run(context).ok());
    EXPECT_TRUE(std::isnan(largest_in_row(trial.dq, 20, 0)));
    EXPECT_TRUE(std::isfinite(largest_in_row(trial.dq, 19, 0)));
    EXPECT_TRUE(std::isnan(largest_in_row(trial.dk, 20, 0)));
    EXPECT_TRUE(std::isnan(largest_in_row(trial.dv, 20, 0)));
    EXPECT_TRUE(std::isfinite(largest_in_row(trial.dk, 21, 0)));
    EXPECT_TRUE(std::isfinite(largest_in_row(trial.dv, 21, 0)));
  }
}

TEST_P(CpuBackwardSpecial, ScaleNearTheLargestFloat) {
  Ask ask = small(DType::kFp32);
  ask.scale = 3e38f;
  ask.input_scale = 1e-19f;
  Trial trial(ask);
  EXPECT_EQ(verdict(trial), "");
}

TEST_P(CpuBackwardSpecial, SingleVisibleKeyHasExactlyZeroGradientOfScores) {
  // P = 1 and O = V: dP - delta must cancel exactly, not to rounding.
  Ask ask;
  ask.seqlen_q = 40;
  ask.seqlen_k = 1;
  ask.head_dim_v = 67;
  Trial trial(ask);
  EXPECT_EQ(verdict(trial), "");
  for (std::int64_t i = 0; i < 40; ++i) EXPECT_EQ(largest_in_row(trial.dq, i, 0), 0);
}

// Reserved addresses without memory behind them until they are touched.
class Reservation {
 public:
  explicit Reservation(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reservation() {
    if (ok()) munmap(data_, bytes_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

TEST_P(CpuBackwardSpecial, StridesBeyond32Bits) {
  constexpr std::int64_t kRow = (std::int64_t{1} << 31) + 16;  // elements: 8 GiB apart
  Ask ask;
  ask.seqlen_q = ask.seqlen_k = 3;
  ask.causal = Causal::kTopLeft;
  Trial near(ask);
  Trial far(ask);
  std::vector<std::unique_ptr<Reservation>> memory;
  BackwardTensors t = far.tensors();
  const auto move_away = [&](const void*& data, TensorSpec& spec) {
    const std::size_t bytes = static_cast<std::size_t>(2 * kRow + spec.shape[3]) * sizeof(float);
    memory.push_back(std::make_unique<Reservation>(bytes));
    if (!memory.back()->ok()) return false;
    auto* target = static_cast<float*>(memory.back()->data());
    for (std::int64_t i = 0; i < 3; ++i) {
      std::memcpy(target + i * kRow, static_cast<const float*>(data) + i * spec.strides[1],
                  static_cast<std::size_t>(spec.shape[3]) * sizeof(float));
    }
    data = target;
    spec.strides[1] = kRow;
    return true;
  };
  bool ok = true;
  for (ConstTensor* tensor : {&t.q, &t.k, &t.v, &t.o, &t.d_o}) {
    ok = ok && move_away(tensor->data, tensor->spec);
  }
  for (Tensor* tensor : {&t.dq, &t.dk, &t.dv}) {
    const void* data = tensor->data;
    ok = ok && move_away(data, tensor->spec);
    tensor->data = const_cast<void*>(data);
  }
  if (!ok) GTEST_SKIP() << "this machine does not reserve 16 GiB of addresses";

  Context context = make_context(GetParam());
  ASSERT_TRUE(near.run(context).ok());
  const Status status = backward(context, Stream{}, t, far.options());
  ASSERT_TRUE(status.ok()) << status.message();
  const std::pair<Buffer*, const Tensor*> pairs[] = {
      {&near.dq, &t.dq}, {&near.dk, &t.dk}, {&near.dv, &t.dv}};
  for (const auto& [expected, got] : pairs) {
    for (std::int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(static_cast<const float*>(expected->data()) + expected->index(0, i, 0),
                            static_cast<const float*>(got->data) + i * kRow, 16 * sizeof(float)),
                0);
    }
  }
}

}  // namespace
}  // namespace flashlab::testing
