#include "cli/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "api/implementation.h"
#include "cli/failure.h"
#include "cli/values.h"
#include "cuda/driver/device.h"
#include "cuda/jit/nvrtc.h"
#include "lab/environment.h"

namespace flashlab::cli {
namespace {

constexpr std::int64_t kMaxThreads = 4096;
constexpr std::int64_t kMaxTile = 65536;

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Whether the first GPU can run what the flags name, without being asked for by name.
bool gpu_fits(const Arguments& arguments) {
  if (arguments.has("--threads") || arguments.has("--cpu-isa")) return false;
  const std::vector<std::string> here = implementations({DeviceKind::kCuda, 0});
  if (here.empty() || !cuda::GpuDevice::open(0).ok()) return false;
  for (const std::string& name : arguments.list("--implementation")) {
    if (!contains(here, name)) return false;
  }
  const std::vector<std::string> dtypes = arguments.list("--dtype");
  if (!dtypes.empty() && std::all_of(dtypes.begin(), dtypes.end(),
                                     [](const std::string& name) { return name == "fp64"; })) {
    return false;
  }
  // Without the compiler only what was precompiled runs: then somebody who set that up knows to
  // ask for the GPU.
  return cuda::Nvrtc::get().ok() || std::getenv("FLASHLAB_PRECOMPILED") != nullptr;
}

[[noreturn]] void fail_no_cuda(const Status& status) {
  const auto driver = cuda::Driver::get();
  const std::string text = driver.ok() ? status.message() : lab::describe_no_cuda(driver.status());
  // Whatever the reason: the command asks for a device that cannot be had.
  fail_usage(text + "\n          The CPU backend works: --device cpu");
}

}  // namespace

Device device_of(const Arguments& arguments, DefaultDevice fallback) {
  const std::optional<std::string> device = arguments.value("--device");
  if (!device) {
    const bool gpu = fallback == DefaultDevice::kGpuIfThere && gpu_fits(arguments);
    return gpu ? Device{DeviceKind::kCuda, 0} : Device{};
  }
  if (*device == "cpu") return {};
  if (*device == "cuda") return {DeviceKind::kCuda, 0};
  if (!device->starts_with("cuda:")) {
    fail_usage(fmt::format("--device \"{}\" is unknown; use cpu, cuda or cuda:N", *device));
  }
  const auto index = parse_whole("--device cuda:", device->substr(5), 0, 1023);
  return {DeviceKind::kCuda, static_cast<int>(index)};
}

std::unique_ptr<Allocator> device_allocator(Device device) {
  if (device.kind == DeviceKind::kCpu) return nullptr;
  auto gpu = cuda::GpuDevice::open(device.index);
  if (!gpu.ok()) fail_no_cuda(gpu.status());
  return std::make_unique<cuda::GpuAllocator>(**gpu);
}

std::string device_words(const Context& context) {
  if (context.device().kind == DeviceKind::kCpu) {
    return fmt::format("{} · {} threads", to_string(context.cpu_isa()), context.threads());
  }
  const auto gpu = cuda::GpuDevice::open(context.device().index);
  return fmt::format("{} ({})", gpu.ok() ? (*gpu)->info().name : std::string("GPU"),
                     to_string(context.device()));
}

Context make_context(const Arguments& arguments, DefaultDevice fallback, Allocator* allocator) {
  ContextOptions options;
  options.device = device_of(arguments, fallback);
  options.allocator = allocator;
  options.threads = static_cast<int>(whole(arguments, "--threads", 0, 1, kMaxThreads));
  const std::string isa = arguments.value("--cpu-isa").value_or("automatic");
  std::vector<std::string> here;
  for (CpuIsa candidate : {CpuIsa::kAutomatic, CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2,
                           CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa == to_string(candidate)) options.cpu_isa = candidate;
    if (candidate == CpuIsa::kAutomatic || supported(candidate)) {
      here.emplace_back(to_string(candidate));
    }
  }
  if (std::find(here.begin(), here.end(), isa) == here.end()) {
    fail_usage(
        fmt::format("--cpu-isa {} does not run on this processor; use {}", isa, join_or(here)));
  }
  Result<Context> context = Context::create(options);
  if (!context.ok()) {
    if (options.device.kind == DeviceKind::kCuda) fail_no_cuda(context.status());
    fail(context.status());
  }
  return std::move(context).value();
}

TileOptions tile_options(const Arguments& arguments) {
  TileOptions out;
  out.tile_q = static_cast<int>(whole(arguments, "--tile-q", 0, 1, kMaxTile));
  out.tile_k = static_cast<int>(whole(arguments, "--tile-k", 0, 1, kMaxTile));
  return out;
}

std::vector<std::string> implementation_names(const Arguments& arguments,
                                              std::vector<std::string> fallback) {
  std::vector<std::string> out = arguments.list("--implementation");
  if (out.empty()) return fallback;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::find(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(i), out[i]) !=
        out.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail_usage(fmt::format("--implementation names {} twice; name it once", out[i]));
    }
  }
  return out;
}

std::vector<std::string> production(const Context& context) {
  std::vector<std::string> names = implementations(context.device());
  if (names.empty()) fail("this build has no implementation for " + to_string(context.device()));
  const DeviceKind kind = context.device().kind;
  if (kind == DeviceKind::kCuda) {
    const auto gpu = cuda::GpuDevice::open(context.device().index);
    const int architecture =
        gpu.ok() ? (*gpu)->info().major * 10 + (*gpu)->info().minor : 0;
    // The first one is for newer GPUs than this may be.
    for (const internal::Implementation* each : internal::registry(kind)) {
      if (architecture >= each->oldest_architecture) return {std::string(each->name)};
    }
  }
  names.resize(1);
  return names;
}

std::vector<std::string> all_but_reference(const Context& context) {
  std::vector<std::string> names = implementations(context.device());
  std::erase(names, "reference");
  return names;
}

}  // namespace flashlab::cli
