// Each primitive of src/cuda/kernels/ptx, run on a GPU against what the host computes from the PTX
// ISA. Bit for bit where the instruction defines the bits. Without a GPU the kernels still compile.

#include <gmock/gmock.h>

#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

#include "cuda_ptx_kernels.h"

namespace flashlab::testing {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::uint32_t>;
using Bytes = std::vector<std::uint8_t>;

Words random_words(std::size_t count) {
  std::mt19937 random(7);
  Words words(count);
  for (auto& word : words) word = random();
  return words;
}

class Ptx : public PrimitiveTest {
 protected:
  Ptx() : PrimitiveTest(ptx_primitives()) {}
};

TEST(PtxKernels, CompileForSm80) {
  expect_all_compile(ptx_primitives(), "sm_80", 80);
}
TEST(PtxKernels, CompileForSm90) {
  expect_all_compile(ptx_primitives(), "sm_90a", 90);
}
TEST(PtxKernels, CallEveryPrimitive) {
  expect_all_called(ptx_primitives(), "ptx/", {});
}

TEST(Comparisons, RejectAndName) {
  EXPECT_TRUE(same<std::uint32_t>("x", {1, 2}, {1, 2}));
  const auto bits = same<std::uint32_t>("shuffle", {1, 2, 3}, {1, 0x20, 3});
  EXPECT_FALSE(bits);
  EXPECT_THAT(bits.message(), HasSubstr("shuffle[1]: got 0x2, expected 0x20"));
  EXPECT_FALSE(same<std::uint32_t>("x", {}, {1}));
  EXPECT_TRUE(close("x", {1, kNan, -kInfinity}, {{1.1, 0.2}, {kNan, 0}, {-kInfinity, 0}}));
  const auto values = close("exp2_fast", {1, 2}, {{1, 0}, {2.5, 0.25}});
  EXPECT_FALSE(values);
  EXPECT_THAT(values.message(), HasSubstr("exp2_fast[1]: got 2, expected 2.5 +- 0.25"));
  for (const float wrong : {kNan, kInfinity, 0.0f}) {
    EXPECT_FALSE(close("x", {wrong}, {{1, 0.5}}));
    EXPECT_FALSE(close("x", {1}, {{wrong, 0.5}}));
  }
  EXPECT_FALSE(close("x", {kInfinity}, {{-kInfinity, 0}}));
  EXPECT_FALSE(close("x", {1}, {{kInfinity, kInfinity}}));
}

TEST(HalfFormats, RoundToNearestEven) {
  EXPECT_EQ(rounded(kFp16Format, 1), 0x3c00);
  EXPECT_EQ(rounded(kFp16Format, -65519.99), 0xfbff);
  EXPECT_EQ(rounded(kFp16Format, 65520), 0x7c00);
  EXPECT_EQ(rounded(kFp16Format, std::ldexp(1, -25)), 0);
  EXPECT_EQ(rounded(kFp16Format, std::ldexp(3, -25)), 2);
  EXPECT_EQ(rounded(kBf16Format, 1), 0x3f80);
  EXPECT_EQ(rounded(kBf16Format, 1 + std::ldexp(1, -8)), 0x3f80);
  EXPECT_EQ(rounded(kBf16Format, 1 + std::ldexp(3, -8)), 0x3f82);
  EXPECT_EQ(rounded(kBf16Format, std::numeric_limits<float>::max()), 0x7f80);
  for (const HalfFormat& format : {kFp16Format, kBf16Format}) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const double value = number(format, half);
      ASSERT_EQ(rounded(format, value), std::isnan(value) ? 0x7fff : bits);
    }
  }
}

// Registers move whole, NaNs with their payload.
TEST_F(Ptx, ShuffleXor) {
  const Words in = random_words(32);
  Words expected;
  for (unsigned lanes = 0; lanes < 32; ++lanes) {
    for (unsigned lane = 0; lane < 32; ++lane) expected.push_back(in[lane ^ lanes]);
  }
  EXPECT_TRUE(same("shuffle_xor", run("shuffle_xor", in, Words(32 * 32, kPoison)), expected));
}

TEST_F(Ptx, Shuffle) {
  const Words in = random_words(32);
  Words expected;
  for (unsigned lane = 0; lane < 32; ++lane) expected.insert(expected.end(), 32, in[lane]);
  for (unsigned t = 0; t < 32; ++t) expected.push_back(in[(7 * t + 3) % 32]);
  EXPECT_TRUE(same("shuffle", run("shuffle", in, Words(33 * 32, kPoison)), expected));
}

TEST_F(Ptx, ThreadIndex) {
  Words expected(3 * 96);
  for (unsigned i = 0; i < expected.size(); ++i) expected[i] = i % 96;
  EXPECT_TRUE(same("thread_index",
                   run("thread_index", Words{0}, Words(expected.size(), kPoison), 96, 3),
                   expected));
}

TEST_F(Ptx, PermuteBytes) {
  Words in, expected;
  for (unsigned i = 0; i < 64; ++i) {
    const unsigned low = i * 0x9e3779b9u, high = i * 0x85ebca6bu;
    const auto half = [](unsigned bit) { return bit != 0 ? 0xffffu : 0u; };
    in.insert(in.end(), {low, high});
    expected.insert(expected.end(), {(high & 0xffff0000u) | (low & 0xffffu),
                                     half(high >> 15 & 1) << 16 | half(low >> 15 & 1),
                                     half(high >> 31) << 16 | half(low >> 31)});
  }
  EXPECT_TRUE(
      same("permute_bytes", run("permute_bytes", in, Words(3 * 64, kPoison), 64, 1), expected));
}

TEST_F(Ptx, SpecialRegisters) {
  const Words got = run("special_registers", Words{0}, Words(12, kPoison), 64, 6);
  ASSERT_EQ(got.size(), 12u);
  const auto count = static_cast<unsigned>(gpu_->info().multiprocessors);
  EXPECT_GE(got[1], count) << "multiprocessors";
  EXPECT_LT(got[1], 2 * count) << "multiprocessors";
  Words expected;
  for (unsigned block = 0; block < 6; ++block) {
    expected.insert(expected.end(), {block, got[1]});
  }
  EXPECT_TRUE(same("block_index_again, multiprocessors", got, expected));
}

TEST_F(Ptx, ClocksGoOn) {
  const auto times = run("clock", Words{0}, std::vector<std::uint64_t>(64, 0), 1);
  ASSERT_EQ(times.size(), 64u);
  for (std::size_t i = 1; i < times.size(); ++i) EXPECT_GT(times[i], times[i - 1]);
}

// Later and later, and in nanoseconds by the host's clock.
TEST_F(Ptx, GlobalTimer) {
  using Times = std::vector<std::uint64_t>;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto read = [&] { return run("global_timer_ns", Words{0}, Times(64, 0), 1); };
  read();  // compiles
  const auto start = now();
  const Times first = read();
  const auto first_end = now();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto second_start = now();
  const Times second = read();
  const auto end = now();
  ASSERT_TRUE(first.size() == 64 && second.size() == 64);
  for (std::size_t i = 1; i < 64; ++i) ASSERT_GT(first[i], first[i - 1]) << "reading " << i;
  ASSERT_GT(second[0], first[63]);
  const auto ns = [](auto duration) {
    return static_cast<double>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
  };
  const auto device_ns = static_cast<double>(second[0] - first[63]);
  EXPECT_GT(device_ns, 0.99 * ns(second_start - first_end));
  EXPECT_LT(device_ns, 1.01 * ns(end - start));
}

// Every number of the format, the middles between neighbours, and the floats beside those.
std::vector<float> around(const HalfFormat& format) {
  std::vector<float> values;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const double here = number(format, static_cast<std::uint16_t>(bits));
    const double next = number(format, static_cast<std::uint16_t>(bits + 1));
    const bool last = !std::isfinite(here) || !std::isfinite(next) || (bits & 0x7fff) == 0x7fff;
    const double step = last && std::isfinite(here) && bits > 0
                            ? here - number(format, static_cast<std::uint16_t>(bits - 1))
                            : next - here;
    const auto middle = static_cast<float>(std::isfinite(here) ? here + step / 2 : here);
    values.push_back(static_cast<float>(here));
    values.push_back(middle);
    values.push_back(std::nextafterf(middle, kInfinity));
    values.push_back(std::nextafterf(middle, -kInfinity));
  }
  return values;
}

// Which NaN comes out is not checked: any will do.
std::uint16_t with_one_nan(const HalfFormat& format, std::uint16_t bits) {
  return (bits & 0x7fff) > format.infinity ? std::uint16_t{0x7fff} : bits;
}

class PtxPack : public Ptx, public ::testing::WithParamInterface<const char*> {};

TEST_P(PtxPack, EveryNumberAndTheMiddles) {
  const HalfFormat& format = GetParam() == std::string("pack_fp16") ? kFp16Format : kBf16Format;
  const std::vector<float> in = around(format);
  ASSERT_EQ(in.size(), 512u * 256 * 2);
  Words got = run(GetParam(), in, Words(in.size() / 2, kPoison), 256, 512);
  Words expected;
  for (std::size_t i = 0; i < in.size(); i += 2) {
    expected.push_back(static_cast<std::uint32_t>(rounded(format, in[i])) |
                       static_cast<std::uint32_t>(rounded(format, in[i + 1])) << 16);
  }
  for (auto& both : got) {
    both = static_cast<std::uint32_t>(with_one_nan(format, both & 0xffff)) |
           static_cast<std::uint32_t>(with_one_nan(format, both >> 16)) << 16;
  }
  EXPECT_TRUE(same(GetParam(), got, expected));
}
INSTANTIATE_TEST_SUITE_P(Formats, PtxPack, ::testing::Values("pack_bf16", "pack_fp16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Ptx, HalfBits) {
  using Halves = std::vector<std::uint16_t>;
  for (const auto& [name, format] :
       {std::pair{"fp16_bits", kFp16Format}, std::pair{"bf16_bits", kBf16Format}}) {
    const std::vector<float> in = around(format);
    Halves got = run(name, in, Halves(in.size(), 0xdead), 256, 1024), expected;
    for (const float value : in) expected.push_back(rounded(format, value));
    for (auto& bits : got) bits = with_one_nan(format, bits);
    EXPECT_TRUE(same(name, got, expected));
  }
}

TEST_F(Ptx, FloatOfFp16) {
  std::vector<std::uint16_t> in(0x10000);
  std::iota(in.begin(), in.end(), std::uint16_t{0});
  std::vector<float> expected;
  for (const auto bits : in) expected.push_back(static_cast<float>(number(kFp16Format, bits)));
  auto got = run("float_of_fp16", in, std::vector<float>(in.size(), -7), 256, 256);
  for (auto* values : {&got, &expected}) {
    for (float& value : *values) value = std::isnan(value) ? kNan : value;
  }
  EXPECT_TRUE(same("float_of_fp16", bits_of(got), bits_of(expected)));
}

// As ptx/math.h says: relative error at most 2^-22.5. PTX ISA, .ftz: subnormal arguments count as
// 0, subnormal results are 0.
TEST_F(Ptx, Exp2) {
  std::vector<float> in{0,    -0.0f, 1e-40f, -1e-40f, kInfinity, -kInfinity,
                        kNan, 128,   1e30f,  -1e30f,  -126.5f};
  while (in.size() < 4096) {
    in.push_back(-125.9f + 253.8f * static_cast<float>(in.size()) / 4096);
  }
  std::vector<Expected> expected;
  for (const float x : in) {
    double value = std::exp2(static_cast<double>(x));
    if (value < std::numeric_limits<float>::min()) value = 0;
    if (value > std::numeric_limits<float>::max()) value = kInfinity;
    expected.push_back({value, value * std::exp2(-22.5)});
  }
  EXPECT_TRUE(
      close("exp2_fast", run("exp2_fast", in, std::vector<float>(4096, -7), 256, 16), expected));
}

TEST_F(Ptx, Reciprocal) {
  std::vector<float> in{1, -1, 2, -0.5f, 3, kInfinity, -kInfinity, kNan};
  while (in.size() < 4096) {
    const float sign = in.size() % 2 == 0 ? 1.0f : -1.0f;
    in.push_back(sign * std::exp2(-120 + 240 * static_cast<float>(in.size()) / 4096));
  }
  std::vector<Expected> expected;
  for (const float x : in) {
    const double value = 1 / static_cast<double>(x);
    expected.push_back({value, std::abs(value) * std::exp2(-23)});
  }
  EXPECT_TRUE(close("reciprocal_fast",
                    run("reciprocal_fast", in, std::vector<float>(4096, -7), 256, 16), expected));
}

TEST_F(Ptx, DependencyOfKernelsWithoutTheAttributeIsNone) {
  if (!has("dependency")) GTEST_SKIP() << "no dependent launches";
  std::vector<float> in, expected;
  for (int i = 0; i < 128; ++i) {
    in.push_back(static_cast<float>(i));
    expected.push_back(static_cast<float>(i + 1));
  }
  const std::vector<float> got = run("dependency", in, std::vector<float>(128, -7), 32, 4);
  EXPECT_TRUE(same("dependency", bits_of(got), bits_of(expected)));
}

// PTX ISA: absolute error at most 2^-22 between 0.5 and 2, relative error elsewhere.
TEST_F(Ptx, Log2) {
  std::vector<float> in{0, -0.0f, 1e-40f, -1e-40f, kInfinity, -kInfinity, kNan, -1, 1, 2, 0.5f};
  while (in.size() < 2048) in.push_back(0.4f + static_cast<float>(in.size()) / 1024);
  while (in.size() < 4096) {
    in.push_back(std::exp2(-125 + 250 * static_cast<float>(in.size() - 2048) / 2048));
  }
  std::vector<Expected> expected;
  for (const float x : in) {
    const double normal = std::abs(x) < std::numeric_limits<float>::min() ? 0 : x;
    const double value = normal == 0 ? -kInfinity : std::log2(normal);
    expected.push_back({value, std::exp2(-22) * std::max(1.0, std::abs(value))});
  }
  EXPECT_TRUE(
      close("log2_fast", run("log2_fast", in, std::vector<float>(4096, -7), 256, 16), expected));
}

TEST_F(Ptx, MaxNan) {
  const std::vector<float> some{0,         -0.0f,      1,    -1,    1e-40f, -1e-40f,
                                kInfinity, -kInfinity, kNan, -kNan, 3.5f};
  std::vector<float> in, expected;
  for (const float a : some) {
    for (const float b : some) {
      in.insert(in.end(), {a, b});
      expected.push_back(std::isnan(a) || std::isnan(b) ? kNan
                         : a == b                       ? (std::signbit(a) ? b : a)
                                                        : std::max(a, b));
    }
  }
  auto got = run("max_nan", in, std::vector<float>(expected.size(), -7), 11, 11);
  for (float& value : got) value = std::isnan(value) ? kNan : value;
  EXPECT_TRUE(same("max_nan", bits_of(got), bits_of(expected)));
}

// Halves are compared for themselves, and a NaN loses.
TEST_F(Ptx, MaximaOfPackedHalves) {
  for (const bool bf16 : {true, false}) {
    const HalfFormat& format = bf16 ? kBf16Format : kFp16Format;
    std::vector<std::uint32_t> halves, in, expected;
    for (const double value : {0.0, 1.0, -1.0, 2.5, -3.25, 1e-3, HUGE_VAL, -HUGE_VAL}) {
      halves.push_back(rounded(format, value));
    }
    halves.push_back(0x7fff);  // NaN
    const auto larger = [&](std::uint32_t a, std::uint32_t b) {
      const double x = number(format, static_cast<std::uint16_t>(a));
      const double y = number(format, static_cast<std::uint16_t>(b));
      return std::isnan(x) || y > x ? b : a;
    };
    for (const std::uint32_t a : halves) {
      for (const std::uint32_t b : halves) {
        const std::uint32_t low = halves[3], high = halves[4];
        in.insert(in.end(), {a | low << 16, b | high << 16});
        expected.push_back(larger(a, b) | larger(low, high) << 16);
      }
    }
    const std::string name = bf16 ? "max_bf16_2" : "max_fp16_2";
    EXPECT_TRUE(
        same(name, run(name, in, std::vector<std::uint32_t>(expected.size(), 7), 9, 9), expected));
  }
}

// Numbers of seven bits before and behind a limit, and values up to the largest finite ones.
TEST_F(Ptx, ClearIfNegative) {
  Words in, expected;
  for (const unsigned value : {0u, 1u, 0x3f803c00u, 0x7f7f7bffu, 0x0001ffffu & 0x7fff7f7fu}) {
    for (unsigned i = 0; i < 128; ++i) {
      const unsigned low = i, high = i * 37 % 128, limit = i * 5 % 129;
      in.insert(in.end(), {value, high << 16 | low, 0x80008000u - limit * 0x10001u});
      expected.push_back((low < limit ? value & 0xffffu : 0) |
                         (high < limit ? value & 0xffff0000u : 0));
      expected.push_back(high < limit ? value : 0);
    }
  }
  EXPECT_TRUE(same("clear_if_negative",
                   run("clear_if_negative", in, Words(expected.size(), kPoison), 128, 5),
                   expected));
}

TEST_F(Ptx, DotBytes) {
  Words in, expected;
  for (unsigned i = 0; i < 64; ++i) {
    const unsigned a = i * 0x9e3779b9u + 0xffu, b = i * 0x85ebca6bu, sum = i * 0xc2b2ae35u;
    in.insert(in.end(), {a, b, sum});
    unsigned out = sum;
    for (int byte = 0; byte < 4; ++byte) out += (a >> 8 * byte & 255) * (b >> 8 * byte & 255);
    expected.push_back(out);
  }
  EXPECT_TRUE(same("dot_bytes", run("dot_bytes", in, Words(64, kPoison), 64, 1), expected));
}

// Piece t of `bytes` has t valid bytes, and zeros after them.
Bytes filled_pieces(const Bytes& in, std::size_t pieces, std::size_t bytes) {
  Bytes expected(pieces * bytes);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = i % bytes < i / bytes ? in[i] : std::uint8_t{0};
  }
  return expected;
}

TEST_F(Ptx, CopyAsync) {
  Bytes in(18 * 16);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint8_t>(1 + i % 251);
  const auto check = [&](const std::string& name, std::size_t pieces, std::size_t bytes) {
    const Bytes got = run(name, in, Bytes(pieces * bytes, 0xdd));
    EXPECT_TRUE(same(name, got, filled_pieces(in, pieces, bytes)));
  };
  check("copy_async_16", 18, 16);
  check("copy_async_4", 5, 4);
  check("copy_async_8", 9, 8);
}

TEST_F(Ptx, CopyAsyncGroups) {
  const Words in = random_words(3 * 32 * 4);
  EXPECT_TRUE(
      same("copy_async_groups", run("copy_async_groups", in, Words(in.size(), kPoison)), in));
}

TEST_F(Ptx, LoadHalfIf) {
  std::vector<std::uint16_t> in;
  for (const auto word : random_words(32)) in.push_back(static_cast<std::uint16_t>(word >> 16));
  Words expected;
  for (std::size_t t = 0; t < 32; ++t) expected.push_back(t % 3 != 0 ? in[t] : 0u);
  EXPECT_TRUE(same("load_half_if", run("load_half_if", in, Words(32, kPoison)), expected));
}

// Lane 8 m + r names row r of matrix m; here lane t names stored row (5 t + 3) % 32. PTX ISA,
// "ldmatrix": lane t gets row t / 4, elements 2 (t % 4) and the next; transposed, the column's.
struct MatrixLoad {
  const char* name;
  unsigned matrices;
  bool transposed;
};
void PrintTo(const MatrixLoad& load, std::ostream* out) {
  *out << load.name;
}
class PtxMatrix : public Ptx, public ::testing::WithParamInterface<MatrixLoad> {};

Words matrix_registers(const MatrixLoad& load, const Words& in) {
  const auto element = [&](unsigned matrix, unsigned row, unsigned column) {
    const unsigned stored = (5 * (8 * matrix + row) + 3) % 32;
    return in[4 * stored + column / 2] >> (16 * (column % 2)) & 0xffffu;
  };
  Words expected;
  for (unsigned t = 0; t < 32; ++t) {
    for (unsigned m = 0; m < load.matrices; ++m) {
      const unsigned line = t / 4, first = t % 4 * 2;
      expected.push_back(load.transposed
                             ? element(m, first, line) | element(m, first + 1, line) << 16
                             : element(m, line, first) | element(m, line, first + 1) << 16);
    }
  }
  return expected;
}

TEST_P(PtxMatrix, Registers) {
  const MatrixLoad load = GetParam();
  Words in(32 * 4);
  for (unsigned i = 0; i < in.size(); ++i) in[i] = (2 * i + 1) << 16 | (2 * i);
  const Words got = run(load.name, in, Words(32 * load.matrices, kPoison));
  EXPECT_TRUE(same(load.name, got, matrix_registers(load, in)));
  EXPECT_FALSE(same(load.name, got, matrix_registers({"", load.matrices, !load.transposed}, in)));
}
INSTANTIATE_TEST_SUITE_P(Loads, PtxMatrix,
                         ::testing::Values(MatrixLoad{"load_matrix_4", 4, false},
                                           MatrixLoad{"load_matrix_4_transposed", 4, true},
                                           MatrixLoad{"load_matrix_2", 2, false},
                                           MatrixLoad{"load_matrix_2_transposed", 2, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// The other way round: lane t's word m is row t / 4 of matrix m, at stored row (5 (8 m + t / 4) +
// 3) % 32, elements 2 (t % 4) and the next. PTX ISA, "stmatrix".
TEST_F(Ptx, StoresMatrices) {
  Words in(32 * 4), expected(32 * 4);
  for (unsigned i = 0; i < in.size(); ++i) in[i] = (2 * i + 1) << 16 | (2 * i);
  for (unsigned t = 0; t < 32; ++t) {
    for (unsigned m = 0; m < 4; ++m) {
      expected[4 * ((5 * (8 * m + t / 4) + 3) % 32) + t % 4] = in[4 * t + m];
    }
  }
  EXPECT_TRUE(same("store_matrix_4", run("store_matrix_4", in, Words(32 * 4, kPoison)), expected));
}

// Numbers whose sums are exact in fp32, in any order.
class PtxAdd : public Ptx, public ::testing::WithParamInterface<const char*> {};

TEST_P(PtxAdd, SumsAreExact) {
  const std::string name = GetParam();
  if (!has(name)) GTEST_SKIP() << name << " needs sm_90";
  const std::size_t width = name == "add_global" ? 1 : name == "add_global_2" ? 2 : 4;
  std::vector<float> in(width * 512), out(7 * width), expected(7 * width);
  std::iota(out.begin(), out.end(), 1000.0f);
  expected = out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<float>(static_cast<int>(i * 37 % 1001) - 300);
    expected[i / width % 7 * width + i % width] += in[i];
  }
  EXPECT_TRUE(same(name, bits_of(run(name, in, out, 128, 4)), bits_of(expected)));
}
INSTANTIATE_TEST_SUITE_P(Widths, PtxAdd,
                         ::testing::Values("add_global", "add_global_2", "add_global_4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Ptx, ReleaseAcquire) {
  const Words in = random_words(16 * 32);
  Words got = run("release_acquire", in, Words(64 + 16 * 32, 0), 32, 2);
  ASSERT_EQ(got.size(), 64u + 16 * 32);
  got.erase(got.begin(), got.begin() + 64);
  EXPECT_TRUE(same("release_acquire", got, in));
}

TEST_F(Ptx, WhoCountsLastTakesWhatTheFirstWrote) {
  const Words in = random_words(64);
  Words got = run("add_acquire_release", in, Words(160, 0), 32, 2);
  ASSERT_EQ(got.size(), 160u);
  EXPECT_EQ(got[0], 2u);
  got.erase(got.begin(), got.begin() + 96);
  EXPECT_TRUE(same("add_acquire_release", got, in));
}

TEST_F(Ptx, ALineThatIsGivenUpIsWrittenAgain) {
  const Words in = random_words(32);
  EXPECT_TRUE(same("discard_line", run("discard_line", in, Words(32, kPoison)), in));
}

TEST_F(Ptx, BarrierPhases) {
  Words expected;
  for (unsigned arrivals = 0; arrivals < 7; ++arrivals) {
    const unsigned phase = arrivals / 2;
    expected.insert(expected.end(), {phase % 2, 1 - phase % 2});
  }
  EXPECT_TRUE(
      same("barrier_phases", run("barrier_phases", Words{0}, Words(14, kPoison)), expected));
}

// The second warp reads what the opposite lane of the first wrote.
TEST_F(Ptx, BarrierHandsOver) {
  const Words in = random_words(16 * 32);
  Words expected;
  for (std::size_t i = 0; i < in.size(); ++i) expected.push_back(in[i ^ 31]);
  EXPECT_TRUE(same("barrier_hand_over", run("barrier_hand_over", in, Words(in.size(), kPoison), 64),
                   expected));
}

TEST_F(Ptx, BarrierWaitsForCopies) {
  const std::string name = "barrier_arrive_after_copies";
  const Words in = random_words(4 * 32 * 4);
  Words expected;
  for (std::size_t i = 0; i < in.size(); ++i) expected.push_back(in[i ^ (31 << 2)]);
  EXPECT_TRUE(same(name, run(name, in, Words(in.size(), kPoison), 64), expected));
}

}  // namespace
}  // namespace flashlab::testing
