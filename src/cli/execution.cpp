#include "cli/execution.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/failure.h"
#include "cli/peers.h"
#include "cli/values.h"
#include "dist/start/join_gpu.h"

namespace flashlab::cli {
namespace {

constexpr std::int64_t kMaxThreads = 4096;
constexpr std::int64_t kMaxTile = 65536;

bool contains(const std::vector<std::string>& list, const std::string& word) {
  return std::ranges::find(list, word) != list.end();
}

// Whether the first GPU can run what the flags name, without being asked for by name.
bool gpu_fits(const Arguments& arguments) {
  if (arguments.has("--threads") || arguments.has("--cpu-isa")) return false;
  const std::vector<std::string> here = implementations({DeviceKind::kCuda, 0});
  if (here.empty()) return false;
  for (const std::string& name : arguments.list("--implementation")) {
    if (!contains(here, name) && !runs_in_python(name)) return false;
  }
  const std::vector<std::string> dtypes = arguments.list("--dtype");
  if (!dtypes.empty() &&
      std::ranges::all_of(dtypes, [](const std::string& name) { return name == "fp64"; })) {
    return false;
  }
  return lab::gpu_ready();
}

// Whether --implementation names one that a CPU does not have.
bool names_only_a_gpu_has(const Arguments& arguments) {
  const std::vector<std::string> on_cpu = implementations(Device{});
  const std::vector<std::string> names = arguments.list("--implementation");
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return !contains(on_cpu, name); });
}

// Whatever the reason: the command asks for a device that cannot be had.
[[noreturn]] void fail_no_gpu(const Status& status) {
  fail_usage(status.message() + "\n          The CPU backend works: --device cpu");
}

// Of several ranks each has the GPU of its number.
int gpu_of_this_rank() {
  const Result<dist::World> world = dist::world_of();
  if (!world.ok()) fail(world.status());
  const int visible = lab::visible_gpus();
  if (world->alone() || visible == 0) return 0;
  const Result<int> gpu = dist::gpu_of_rank(*world, visible);
  if (!gpu.ok()) fail(gpu.status());
  return *gpu;
}

}  // namespace

Device device_of(const Arguments& arguments, DefaultDevice fallback) {
  const std::optional<std::string> device = arguments.value("--device");
  if (!device) {
    const bool asked = fallback == DefaultDevice::kGpuIfThere || names_only_a_gpu_has(arguments);
    const bool gpu = asked && gpu_fits(arguments);
    return gpu ? Device{DeviceKind::kCuda, 0} : Device{};
  }
  if (*device == "cpu") return {};
  if (*device == "cuda") return {DeviceKind::kCuda, gpu_of_this_rank()};
  if (!device->starts_with("cuda:")) {
    fail_usage(fmt::format("--device \"{}\" is unknown; use cpu, cuda or cuda:N", *device));
  }
  const auto index = parse_whole("--device cuda:", device->substr(5), 0, 1023);
  return {DeviceKind::kCuda, static_cast<int>(index)};
}

std::unique_ptr<Allocator> device_allocator(Device device) {
  if (device.kind == DeviceKind::kCpu) return nullptr;
  auto allocator = lab::gpu_allocator(device);
  if (!allocator.ok()) fail_no_gpu(allocator.status());
  return std::move(*allocator);
}

std::string device_words(const Context& context) {
  if (context.device().kind == DeviceKind::kCpu) {
    return fmt::format("{} · {} threads", to_string(context.cpu_isa()), context.threads());
  }
  return fmt::format("{} ({})", lab::gpu_name(context.device()), to_string(context.device()));
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
  if (std::ranges::find(here, isa) == here.end()) {
    fail_usage(
        fmt::format("--cpu-isa {} does not run on this processor; use {}", isa, join_or(here)));
  }
  Result<Context> context = Context::create(options);
  if (!context.ok()) {
    if (options.device.kind == DeviceKind::kCuda) {
      const Status gpu = lab::gpu_status(options.device);
      fail_no_gpu(gpu.ok() ? context.status() : gpu);
    }
    fail(context.status());
  }
  return std::move(context).value();
}

lab::Environment environment_of(const Context& context, std::string protocol, double observe_ms) {
  return lab::collect_environment({.command = typed_command(),
                                   .protocol = std::move(protocol),
                                   .threads = context.threads(),
                                   .cpu_isa = context.cpu_isa(),
                                   .device = context.device(),
                                   .observe_ms = observe_ms});
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

void require_implementations(const Context& context, const std::vector<std::string>& names) {
  const std::vector<std::string> here = implementations(context.device());
  for (const std::string& name : names) {
    if (contains(here, name)) continue;
    fail_usage(fmt::format("--implementation {} does not run on {}; use {}, or another --device",
                           name, to_string(context.device()), join_or(here)));
  }
}

std::vector<std::string> production(const Context& context) {
  return lab::default_implementations(context.device());
}

std::vector<std::string> all_but_reference(const Context& context) {
  std::vector<std::string> names = implementations(context.device());
  std::erase(names, "reference");
  // A library that is not there would only give rows without figures.
  if (context.device().kind == DeviceKind::kCpu) return names;
  const auto found = lab::peer_libraries();
  const auto is_there = [&](std::string_view part) {
    return std::ranges::any_of(found, [&](const lab::VendorLibrary& library) {
      return !library.path.empty() && library.name.find(part) != std::string::npos;
    });
  };
  if (!is_there("cublasLt")) std::erase(names, "cublas");
  if (!is_there("cudnn")) std::erase(names, "cudnn");
  return names;
}

}  // namespace flashlab::cli
