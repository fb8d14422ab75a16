// What the lab does on a GPU, as far as a machine without one can show it: tensors on a device, the
// protocol on a device's clock, warnings, roofs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "lab/check/check.h"
#include "lab/data/case_data.h"
#include "lab/machine/gpu_environment.h"
#include "lab/measure/gpu_clock.h"
#include "lab/measure/gpu_roof.h"
#include "lab/subjects/attention/problem_run.h"
#include "lab_device_fake.h"
#include "runtime/cuda/device.h"

namespace flashlab::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

cases::Case padded_case() {
  cases::Case c;
  c.name = "padded";
  c.batch = 2;
  c.heads_q = c.heads_k = 3;
  c.seqlen_q = c.seqlen_k = 7;
  c.head_dim = c.head_dim_v = 5;
  c.layout = cases::Layout::kPaddedRows;
  return c;
}

CaseDataOptions on(std::shared_ptr<DeviceMemory> memory) {
  CaseDataOptions options;
  options.memory = std::move(memory);
  return options;
}

TEST(CaseDataOnDevice, HoldsTheSameBytesAtOtherAddresses) {
  const auto memory = std::make_shared<FakeDeviceMemory>();
  const CaseData data = CaseData::create(padded_case(), on(memory)).value();
  EXPECT_EQ(&data.memory(), memory.get());
  const BackwardTensors there = data.backward_tensors(), here = data.host_backward_tensors();
  EXPECT_EQ(there.q.spec.device, memory->device());
  EXPECT_EQ(there.dk.spec.device, memory->device());
  EXPECT_EQ(here.q.spec.device, Device{});
  EXPECT_EQ(there.q.spec.strides, here.q.spec.strides);
  for (const auto& [a, b] : {std::pair<ConstTensor, ConstTensor>{there.q, here.q},
                             {there.v, here.v},
                             {there.d_o, here.d_o},
                             {there.dq, here.dq},
                             {there.lse, here.lse}}) {
    EXPECT_NE(a.data, b.data);
    // Elements, padding between them and some of the guard behind.
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(2 * 3 * 7 * 4)), 0);
  }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(there.k.data) % 4, 0u);
}

TEST(CaseDataOnDevice, ResultsAndStrayWritesArriveWhenFetched) {
  const auto memory = std::make_shared<FakeDeviceMemory>();
  CaseData data = CaseData::create(padded_case(), on(memory)).value();
  auto* o = static_cast<float*>(data.forward_tensors().o.data);
  const auto* seen = static_cast<const float*>(data.host_forward_tensors().o.data);
  o[1] = 42;
  EXPECT_TRUE(std::isnan(seen[1]));
  ASSERT_TRUE(data.fetch_outputs(Pass::kForward).ok());
  EXPECT_EQ(seen[1], 42);
  EXPECT_FALSE(data.find_violation().has_value());
  o[6] = 1;  // padding
  ASSERT_TRUE(data.fetch_outputs(Pass::kForward).ok());
  ASSERT_TRUE(data.find_violation().has_value());
  EXPECT_EQ(data.find_violation()->tensor, "o");
  ASSERT_TRUE(data.reset_outputs(Pass::kForward).ok());
  EXPECT_TRUE(std::isnan(o[1]));
  ASSERT_TRUE(data.fetch_outputs(Pass::kForward).ok());
  EXPECT_FALSE(data.find_violation().has_value());
}

TEST(CaseDataOnDevice, WhatTheDeviceCannotHoldIsRefusedWithItsAccounts) {
  const auto memory = std::make_shared<FakeDeviceMemory>();
  memory->available = 1000;
  auto refused = CaseData::create(padded_case(), on(memory));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(refused.status().message(), HasSubstr("q fp32 [2, 7, 3, 5]"));
  EXPECT_THAT(refused.status().message(), HasSubstr("at most 1000 B on cuda:3"));
  // Enough for the elements, not for the guards: what was taken is given back.
  memory->available = 60'000;
  refused = CaseData::create(padded_case(), on(memory));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(memory->held, 0);
}

TEST(CaseDataOnDevice, AFailureOfTheDeviceComesOutOfTheFetch) {
  const auto memory = std::make_shared<FakeDeviceMemory>();
  CaseData data = CaseData::create(padded_case(), on(memory)).value();
  memory->state = Status(StatusCode::kDeviceError, {"a kernel", "an illegal address", "", ""});
  EXPECT_EQ(data.fetch_outputs(Pass::kForward).code(), StatusCode::kDeviceError);
  EXPECT_EQ(data.reset_outputs(Pass::kForward).code(), StatusCode::kDeviceError);
}

TEST(CaseDataOnDevice, ProblemsNameTheDevice) {
  const Device device{DeviceKind::kCuda, 1};
  const Problem problem = problem_of(padded_case(), Pass::kBackward, "fa2", device);
  EXPECT_EQ(problem.q.device, device);
  EXPECT_EQ(problem.dv->device, device);
  EXPECT_EQ(problem_of(padded_case(), Pass::kForward).q.device, Device{});
}

// A clock whose samples last what they are told to; it can fail for good.
class FakeClock final : public SampleClock {
 public:
  Status flush() override {
    ++flushes;
    return {};
  }
  Status start() override { return {}; }
  Result<double> stop() override {
    if (failed) return Status(StatusCode::kDeviceError, {"a kernel", "failed", "", ""});
    return next_ms;
  }
  double resolution_ms() const override { return 0.0005; }
  bool lost() override { return failed; }
  std::string describe(bool) const override { return "fake"; }

  double next_ms = 1;
  int flushes = 0;
  bool failed = false;
};

TEST(MeasureOnDevice, ReadsItsClockAndFlushesItsCaches) {
  FakeClock clock;
  MeasureOptions options;
  options.repeats = 5;
  options.clock = &clock;
  options.cold_cache = true;
  int calls = 0;
  const Samples samples = measure(options, [&] {
                            clock.next_ms = ++calls <= 3 ? 100 : calls;
                            return Status();
                          }).value();
  EXPECT_THAT(samples.ms, ElementsAre(4, 5, 6, 7, 8));  // three warm-ups before
  EXPECT_EQ(clock.flushes, 5);
  EXPECT_EQ(samples.calls_per_sample, 1);
  EXPECT_EQ(samples.resolution_ms, 0.0005);
}

TEST(MeasureOnDevice, ALostDeviceKeepsTheOthersSamples) {
  FakeClock clock;
  MeasureOptions options;
  options.repeats = 10;
  options.warmup = 1;
  options.clock = &clock;
  options.cold_cache = true;
  int bad_calls = 0;
  const auto good = [] { return Status(); };
  const auto bad = [&] {
    clock.failed = ++bad_calls == 4;
    return Status();
  };
  const auto results = measure_interleaved(options, {good, bad, good});
  ASSERT_TRUE(results[0].ok());
  EXPECT_GE(results[0].value().ms.size(), 2u);
  EXPECT_EQ(results[1].status().code(), StatusCode::kDeviceError);
  ASSERT_TRUE(results[2].ok());
  EXPECT_GE(results[2].value().ms.size(), 2u);
}

TEST(GpuClock, EvictsAtLeastTwiceTheCache) {
  EXPECT_EQ(flush_bytes(6 << 20), std::int64_t{256} << 20);
  EXPECT_EQ(flush_bytes(std::int64_t{200} << 20), std::int64_t{400} << 20);
}

TEST(GpuRoof, NamesItsInstructions) {
  cuda::DeviceInfo gpu;
  gpu.major = 9;
  const GpuRoof bf16 = gpu_roof(gpu, DType::kBf16, Precision::kIeee);
  EXPECT_EQ(bf16.name, "mma.sync bf16");
  EXPECT_EQ(bf16.flops_per_thread, 16 * 2.0 * 16 * 8 * 16 / 32);
  EXPECT_THAT(bf16.config, HasSubstr("Element kElement = Element::kBf16"));
  EXPECT_EQ(gpu_roof(gpu, DType::kFp32, Precision::kIeee).name, "fp32 FMA");
  EXPECT_EQ(gpu_roof(gpu, DType::kFp32, Precision::kIeee).flops_per_thread, 32);
  EXPECT_EQ(gpu_roof(gpu, DType::kFp32, Precision::kTf32).name, "mma.sync tf32");
  EXPECT_TRUE(gpu_roof(gpu, DType::kFp64, Precision::kIeee).name.empty());
  gpu.major = 7;
  gpu.minor = 5;
  EXPECT_TRUE(gpu_roof(gpu, DType::kBf16, Precision::kIeee).name.empty());
  EXPECT_THAT(gpu_roof(gpu, DType::kFp16, Precision::kIeee).config, HasSubstr("kTuring = true"));
}

TEST(GpuUnits, MultiplyAsTheVendorSays) {
  cuda::DeviceInfo gpu;
  const auto rate = [&gpu](int major, int minor, int multiprocessors, DType dtype,
                           Precision precision, double mhz) {
    gpu.major = major, gpu.minor = minor, gpu.multiprocessors = multiprocessors;
    return units_flops(gpu, gpu_units(gpu, dtype, precision), mhz * 1e6).value_or(0) * 1e-12;
  };
  const Precision ieee = Precision::kIeee, tf32 = Precision::kTf32;
  EXPECT_NEAR(rate(9, 0, 132, DType::kBf16, ieee, 1830), 989.4, 0.5);  // H100 SXM
  EXPECT_NEAR(rate(9, 0, 132, DType::kFp32, tf32, 1830), 494.7, 0.5);
  EXPECT_NEAR(rate(9, 0, 132, DType::kFp32, ieee, 1830), 989.4 / 3, 0.5);
  EXPECT_NEAR(rate(8, 0, 108, DType::kFp16, ieee, 1410), 312, 1);   // A100
  EXPECT_NEAR(rate(8, 6, 72, DType::kBf16, ieee, 1695), 125, 1);    // A10
  EXPECT_NEAR(rate(8, 9, 142, DType::kBf16, ieee, 2520), 362, 5);   // L40S
  EXPECT_NEAR(rate(7, 5, 40, DType::kFp16, ieee, 1590), 65, 0.5);   // T4
  EXPECT_NEAR(rate(7, 5, 40, DType::kFp32, ieee, 1590), 8.1, 0.1);  // its FMA
  gpu.name = "NVIDIA GeForce RTX 3090";
  EXPECT_NEAR(rate(8, 6, 82, DType::kFp16, ieee, 1695), 71, 0.5);
  EXPECT_EQ(gpu_units(gpu, DType::kFp32, ieee).name, "fp32 FMA units");
}

TEST(GpuUnits, UnknownOnesHaveNoRate) {
  cuda::DeviceInfo gpu;
  gpu.major = 12, gpu.multiprocessors = 100;
  const GpuUnits unknown = gpu_units(gpu, DType::kBf16, Precision::kIeee);
  EXPECT_EQ(unknown.flops_per_clock, 0);
  EXPECT_FALSE(units_flops(gpu, unknown, 1e9));
  gpu.major = 9;
  EXPECT_EQ(gpu_units(gpu, DType::kFp64, Precision::kIeee).flops_per_clock, 0);
  const GpuUnits known = gpu_units(gpu, DType::kBf16, Precision::kIeee);
  EXPECT_FALSE(units_flops(gpu, known, 0)) << "a clock that could not be read";
}

TEST(GpuClock, IsWaitedForUntilItIsBackOrTheTimeIsOver) {
  using namespace std::chrono_literals;
  int reads = 0;
  const auto seconds_of = [&](const std::function<double()>& hz, std::chrono::milliseconds most) {
    reads = 0;
    const auto start = std::chrono::steady_clock::now();
    await_clock(hz, 1.95e9, most);
    return std::chrono::steady_clock::now() - start;
  };
  EXPECT_LT(seconds_of([&] { return ++reads, 1.98e9; }, 10s), 5s);
  EXPECT_EQ(reads, 1);
  EXPECT_LT(seconds_of([&] { return ++reads < 4 ? 1.4e9 : 1.96e9; }, 10s), 5s);
  EXPECT_EQ(reads, 4);
  EXPECT_GE(seconds_of([&] { return ++reads, 0.0; }, 30ms), 30ms);
  EXPECT_GT(reads, 1);
}

// The roof is not passed: by a call of this library, and by the loop of multiply-adds.
TEST(GpuUnits, NoTimedProductPassesThem) {
  auto gpu = cuda::GpuDevice::open(0);
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  cuda::GpuAllocator device_allocator(**gpu);
  TrackingAllocator allocator(device_allocator);
  const auto context = Context::create({.device = {DeviceKind::kCuda, 0}, .allocator = &allocator});
  if (!context.ok()) GTEST_SKIP() << context.status().message();
  auto memory = device_memory(*context);
  ASSERT_TRUE(memory.ok());
  Environment environment;
  if (Status s = add_gpu_roofs(*memory, environment, 0.02); !s.ok()) GTEST_SKIP() << s.message();
  if (!environment.loop_bf16_gflops) GTEST_SKIP() << "units not known: " << environment.roof_source;
  EXPECT_LT(*environment.loop_bf16_gflops, 1.02 * *environment.roof_bf16_gflops);
  EXPECT_LT(*environment.loop_fp32_gflops, 1.02 * *environment.roof_fp32_gflops);

  const std::vector<std::string> names = implementations(context->device());
  for (const DType dtype : {DType::kFp16, DType::kFp32}) {
    cases::Case problem;
    problem.dtype = dtype;
    problem.batch = 4, problem.heads_q = problem.heads_k = 16;
    problem.seqlen_q = problem.seqlen_k = 2048;
    problem.head_dim = problem.head_dim_v = 128;
    ProblemRunOptions options;
    options.measure.repeats = 5;
    options.first_that_serves = true;
    const Pass passes[] = {Pass::kForward};
    for (const Measurement& each :
         run_problem(*context, allocator, problem, passes, names, options)) {
      ASSERT_EQ(each.status, RunStatus::kOk) << each.message;
      EXPECT_TRUE(each.against_units()) << each.roof_name;
      EXPECT_GT(each[kRoofShare].value_or(0), 0.05);
      EXPECT_LT(each[kRoofShare].value_or(2), 1.02);
    }
  }
}

std::string warnings_of(const GpuFacts& facts) {
  std::string out;
  for (const EnvironmentWarning& warning : diagnose_gpu(facts)) {
    EXPECT_FALSE(warning.remedy.empty()) << warning.what;
    out += warning.what + "\n";
  }
  return out;
}

TEST(GpuDoctor, AQuietGpuHasNoWarning) {
  GpuFacts facts;
  facts.memory_bytes = 100;
  facts.free_bytes = 99;
  facts.state.ecc = true;
  facts.state.power_limit_w = facts.state.default_power_limit_w = 700;
  facts.state.utilization_percent = 0;
  EXPECT_EQ(warnings_of(facts), "");
  EXPECT_EQ(warnings_of({}), "");
}

TEST(GpuDoctor, WarnsOfWhatSpoilsAMeasurement) {
  GpuFacts facts;
  facts.state.processes = {17, 23};
  EXPECT_THAT(warnings_of(facts), HasSubstr("2 other programs compute on the GPU (pid 17, 23)"));
  facts = {};
  facts.state.utilization_percent = 87;
  EXPECT_THAT(warnings_of(facts), HasSubstr("busy 87% of the time"));
  facts = {};
  facts.memory_bytes = std::int64_t{10} << 30;
  facts.free_bytes = std::int64_t{4} << 30;
  EXPECT_THAT(warnings_of(facts), HasSubstr("4 GiB of 10 GiB"));
  facts = {};
  facts.state.throttle_reasons = cuda::kThrottleThermalHardware;
  facts.state.temperature_c = 91;
  EXPECT_THAT(warnings_of(facts), HasSubstr("it is hot (91 degrees C)"));
  facts.state.throttle_reasons = cuda::kThrottlePowerBrake | cuda::kThrottleApplicationClocks;
  EXPECT_THAT(warnings_of(facts), HasSubstr("power supply"));
  EXPECT_THAT(warnings_of(facts), HasSubstr("lower clocks"));
  facts.state.throttle_reasons = cuda::kThrottlePowerCap;
  EXPECT_THAT(warnings_of(facts), HasSubstr("at its power limit"));
  facts = {};
  facts.state.power_limit_w = 350;
  facts.state.default_power_limit_w = 700;
  EXPECT_THAT(warnings_of(facts), HasSubstr("the power limit is 350 W, the board's own 700 W"));
  facts = {};
  facts.state.ecc = false;
  EXPECT_THAT(warnings_of(facts), HasSubstr("ECC"));
  facts = {};
  facts.wsl = true;
  EXPECT_THAT(warnings_of(facts), HasSubstr("WSL2"));
}

float rounded_to_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u);
}

// An implementation that rounds its operands to tf32 is right where tf32 was asked for, and only
// there.
TEST(ErrorVsFp64, Tf32MayRoundItsOperands) {
  cases::Case c = padded_case();
  c.layout = cases::Layout::kContiguous;
  c.seqlen_q = c.seqlen_k = 64;
  c.head_dim = c.head_dim_v = 32;
  const CaseData original = CaseData::create(c).value();
  const BackwardTensors t = original.backward_tensors();
  std::vector<std::vector<float>> copies;
  const auto rounded = [&](const ConstTensor& from) {
    std::vector<float>& copy = copies.emplace_back(static_cast<std::size_t>(from.spec.elements()));
    const auto* values = static_cast<const float*>(from.data);
    for (std::size_t n = 0; n < copy.size(); ++n) {
      copy[n] = rounded_to_tf32(static_cast<double>(values[n]));
    }
    return ConstTensor{copy.data(), from.spec};
  };
  ForwardTensors call = original.forward_tensors();
  copies.reserve(8);
  call.q = rounded(t.q);
  call.k = rounded(t.k);
  call.v = rounded(t.v);
  const Context context = Context::create({.threads = 1}).value();
  Options options = c.options();
  options.implementation = "reference";
  ASSERT_TRUE(forward(context, {}, call, options).ok());
  EXPECT_FALSE(error_vs_fp64(original, Pass::kForward).value().accepted);

  c.precision = Precision::kTf32;
  CaseDataOptions same;
  same.values = CaseValues{t.q, t.k, t.v, t.d_o};
  const CaseData tf32 = CaseData::create(c, same).value();
  const ForwardTensors to = tf32.forward_tensors();
  std::memcpy(to.o.data, call.o.data, static_cast<std::size_t>(call.o.spec.bytes()));
  std::memcpy(to.lse->data, call.lse->data, static_cast<std::size_t>(call.lse->spec.bytes()));
  const ErrorVsFp64 error = error_vs_fp64(tf32, Pass::kForward).value();
  EXPECT_TRUE(error.accepted) << error.worst;
  EXPECT_GT(error.naive_error, 1e-5);
}

}  // namespace
}  // namespace flashlab::lab
