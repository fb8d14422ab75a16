#pragma once

// What tests of device primitives share: small kernels of the test's own, compiled by the library's
// compiler and launched by its driver layer, and comparisons with what the host computes.
//
// Every kernel takes two pointers, `in` and `out`; sizes are constants of its text.

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <regex>
#include <set>
#include <string>

#include "cuda_compiler.h"
#include "cuda_gpu.h"
#include "runtime/kernel_store/compile.h"
#include "runtime/kernel_store/kernel.h"
#include "runtime/kernel_store/sources.h"

namespace flashlab::testing {

/// A kernel that runs one primitive.
struct Primitive {
  std::string name;  ///< the entry point; failures name it
  std::string text;  ///< headers, what the kernel needs, the kernel
  int minimum = 80;  ///< the lowest architecture that has the instruction

  cuda::KernelSpec spec() const { return {"config_types.h", name, text, {}}; }
};

/// `before` stands before the headers (a Config). In `body`, t is the thread's index.
inline Primitive primitive(const std::string& name, const std::string& before,
                           const std::vector<std::string>& headers, const std::string& parameters,
                           const std::string& body, int minimum = 80) {
  std::string text = before + "\n";
  for (const std::string& header : headers) text += "#include \"" + header + "\"\n";
  text +=
      "using namespace flashlab;\nusing namespace flashlab::device;\n"
      "extern \"C\" __global__ void " +
      name + "(" + parameters +
      ") {\n"
      "  [[maybe_unused]] const int t = threadIdx.x;\n" +
      body + "}\n";
  return {name, text, minimum};
}

using Primitives = std::vector<Primitive>;

/// What a number should be, and how far it may be off. A NaN asks for a NaN, an infinity for
/// itself.
struct Expected {
  double value = 0, error = 0;
};

namespace internal {

inline std::string shown(double value) {
  return fmt::format("{:.9g}", value);
}
inline std::string shown(std::uint64_t value) {
  return fmt::format("{:#x}", value);
}

/// `bad(i)`: what was got and expected, or nothing where they agree.
template <class Bad>
::testing::AssertionResult compared(const std::string& name, std::size_t got, std::size_t expected,
                                    const Bad& bad) {
  if (got != expected) {
    return ::testing::AssertionFailure()
           << name << ": got " << got << " values, expected " << expected;
  }
  constexpr int kShown = 4;
  int wrong = 0;
  std::string text;
  for (std::size_t i = 0; i < expected; ++i) {
    const std::string difference = bad(i);
    if (!difference.empty() && ++wrong <= kShown) {
      text += fmt::format("\n  {}[{}]: {}", name, i, difference);
    }
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " of " << expected << " values differ" << text;
}

}  // namespace internal

/// Equal bit for bit.
template <class T>
::testing::AssertionResult same(const std::string& name, const std::vector<T>& got,
                                const std::vector<T>& expected) {
  static_assert(std::is_unsigned_v<T>, "bits, not numbers: std::bit_cast a float");
  return internal::compared(name, got.size(), expected.size(), [&](std::size_t i) {
    if (got[i] == expected[i]) return std::string();
    return fmt::format("got {}, expected {}", internal::shown(std::uint64_t{got[i]}),
                       internal::shown(std::uint64_t{expected[i]}));
  });
}

/// Within each one's error.
inline ::testing::AssertionResult close(const std::string& name, const std::vector<float>& got,
                                        const std::vector<Expected>& expected) {
  return internal::compared(name, got.size(), expected.size(), [&](std::size_t i) {
    const double value = got[i], wanted = expected[i].value;
    const bool finite = std::isfinite(wanted) && std::isfinite(value);
    const bool good = value == wanted || (std::isnan(wanted) && std::isnan(value)) ||
                      (finite && std::abs(value - wanted) <= expected[i].error);
    if (good) return std::string();
    return fmt::format("got {}, expected {} +- {}", internal::shown(value), internal::shown(wanted),
                       internal::shown(expected[i].error));
  });
}

inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}
inline std::vector<float> floats_of(const std::vector<std::uint32_t>& bits) {
  std::vector<float> values;
  for (const std::uint32_t word : bits) values.push_back(std::bit_cast<float>(word));
  return values;
}

/// A 16-bit format of floating point.
struct HalfFormat {
  int fraction_bits, lowest_exponent;
  std::uint16_t infinity;
};
inline constexpr HalfFormat kFp16Format{10, -14, 0x7c00}, kBf16Format{7, -126, 0x7f80};

/// Bits of the nearest number of the format, ties to even; NaN gives the positive quiet NaN 0x7fff.
/// By scaling to an integer: subnormal numbers and overflow need no case of their own.
inline std::uint16_t rounded(const HalfFormat& format, double value) {
  if (std::isnan(value)) return 0x7fff;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isinf(value)) return sign | format.infinity;
  const double size = std::abs(value);
  const int exponent =
      size == 0 ? format.lowest_exponent : std::max(std::ilogb(size), format.lowest_exponent);
  const double steps = std::nearbyint(std::ldexp(size, format.fraction_bits - exponent));
  const std::int64_t bits =
      (std::int64_t{exponent - format.lowest_exponent} << format.fraction_bits) +
      static_cast<std::int64_t>(steps);
  return static_cast<std::uint16_t>(sign | std::min<std::int64_t>(bits, format.infinity));
}

/// The number of a format's bits.
inline double number(const HalfFormat& format, std::uint16_t bits) {
  const int size = bits & 0x7fff, field = size >> format.fraction_bits;
  const int fraction = size & ((1 << format.fraction_bits) - 1);
  double value = std::ldexp(field == 0 ? fraction : fraction + (1 << format.fraction_bits),
                            std::max(field, 1) - 1 + format.lowest_exponent - format.fraction_bits);
  if (size == format.infinity) value = HUGE_VAL;
  if (size > format.infinity) value = std::nan("");
  return (bits & 0x8000) != 0 ? -value : value;
}

/// Runs primitives of a list on the GPU.
class PrimitiveTest : public GpuTest {
 protected:
  explicit PrimitiveTest(const Primitives& list) : list_(list) {}

  const Primitive* found(const std::string& name) const {
    for (const Primitive& one : list_) {
      if (one.name == name) return &one;
    }
    return nullptr;
  }
  /// Whether the GPU has the primitive's instructions.
  bool has(const std::string& name) const {
    const Primitive* one = found(name);
    return one == nullptr || gpu_->info().major * 10 + gpu_->info().minor >= one->minimum;
  }

  /// Launches the primitive over `in`. `out` is what its output holds before; it comes back with
  /// what it holds afterwards, or empty if something failed.
  template <class Out, class In>
  std::vector<Out> run(const std::string& name, const std::vector<In>& in, std::vector<Out> out,
                       unsigned threads = 32, unsigned blocks = 1, unsigned cluster = 1) {
    const Primitive* one = found(name);
    if (one == nullptr) {
      ADD_FAILURE() << name << ": no such kernel in this test's list";
      return {};
    }
    const auto kernel = cuda::load_kernel(*gpu_, one->spec());
    if (!kernel.ok()) {
      ADD_FAILURE() << name << ": " << kernel.status().message();
      return {};
    }
    const bool failed_before = HasFailure();
    void* from = upload(in.data(), in.size() * sizeof(In));
    void* to = upload(out.data(), out.size() * sizeof(Out));
    void* arguments[] = {&from, &to};
    const auto current = gpu_->current();
    const Status status =
        cuda::launch(*gpu_, **kernel, {.grid_x = blocks, .threads = threads, .cluster_x = cluster},
                     nullptr, arguments);
    if (!status.ok()) {
      ADD_FAILURE() << name << ": " << status.message();
      return {};
    }
    download(out.data(), to, out.size() * sizeof(Out));
    if (!failed_before && HasFailure()) ADD_FAILURE() << name << ": its copies or launch failed";
    return out;
  }

 private:
  const Primitives& list_;
};

/// Compiles every kernel of the list that an architecture has; `sm` is its number.
inline void expect_all_compile(const Primitives& list, const std::string& architecture, int sm) {
  NEED_COMPILER();
  std::set<std::string> names;
  for (const Primitive& one : list) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name << " is listed twice";
    if (sm < one.minimum) continue;
    const auto image = cuda::compile_image(quick(one.spec()), architecture);
    EXPECT_TRUE(image.ok()) << one.name << " for " << architecture << ": "
                            << image.status().message() << "\n"
                            << one.text;
  }
}

/// Every device function of the headers in `folder` is called by a kernel of the list, or named in
/// `reached`: functions that others call on the kernels' behalf.
inline void expect_all_called(const Primitives& list, const std::string& folder,
                              const std::set<std::string>& reached) {
  const auto sources = cuda::DeviceSources::get();
  ASSERT_TRUE(sources.ok()) << sources.status().message();
  const std::regex declared(R"(__device__ [\w:&*<> ]*?(\w+)\()");
  std::set<std::string> names;
  for (const cuda::SourceFile& file : (*sources)->files()) {
    if (file.name.rfind(folder, 0) != 0) continue;
    for (std::sregex_iterator at(file.text.begin(), file.text.end(), declared), end; at != end;
         ++at) {
      names.insert((*at)[1]);
    }
  }
  EXPECT_GT(names.size(), 10u) << folder;
  for (const std::string& name : names) {
    const std::regex call("\\b" + name + R"((<[^;]*>)?[({])");
    bool called = reached.count(name) != 0;
    for (const Primitive& one : list) called = called || std::regex_search(one.text, call);
    EXPECT_TRUE(called) << "no kernel of this test calls " << folder << "'s " << name
                        << ": add one, with what the host expects of it";
  }
}

}  // namespace flashlab::testing
