// `info`: what this machine has, what is missing, what would spoil a measurement.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/outputs.h"
#include "cli/terminal.h"
#include "flashlab/version.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

using base::pad_right;

// A library or program that something here can use.
struct Extra {
  const char* name;
  const char* use;
  const char* remedy;
};

constexpr Extra kPrograms[] = {
    {"perf", "counters of the processor", "apt-get install linux-perf"},
    {"nsys", "timelines", "https://developer.nvidia.com/nsight-systems"},
    {"ncu", "GPU kernel metrics", "https://developer.nvidia.com/nsight-compute"},
    {"rsvg-convert", "plots as PNG beside SVG", "apt-get install librsvg2-bin"},
};

// Libraries of NVIDIA's: what the backend itself needs first.
std::vector<lab::VendorLibrary> libraries() {
  std::vector<lab::VendorLibrary> out = lab::vendor_libraries();
  for (lab::VendorLibrary& each : lab::peer_libraries()) out.push_back(std::move(each));
  return out;
}

void print_row(std::string_view name, std::string_view value) {
  const int width = terminal_width() - 20;
  std::string left = pad_right(name, 18);
  for (const std::string& line : base::wrap(value, std::max(width, 40))) {
    print_line(left + line);
    left = std::string(18, ' ');
  }
}

std::string isa_words(const Context& context) {
  std::string out;
  for (CpuIsa isa : {CpuIsa::kAmx, CpuIsa::kAvx512Bf16, CpuIsa::kAvx512, CpuIsa::kAvx2,
                     CpuIsa::kNeon, CpuIsa::kScalar}) {
    if (supported(isa)) out += fmt::format("{}{}", out.empty() ? "" : ", ", to_string(isa));
  }
  return fmt::format("{} (runs: {})", to_string(context.cpu_isa()), out);
}

std::string cache_words(const lab::Environment& environment) {
  std::string out;
  for (const auto& [name, bytes] :
       {std::pair{"L1d", environment.l1d_bytes}, std::pair{"L2", environment.l2_bytes},
        std::pair{"L3", environment.l3_bytes}}) {
    if (bytes <= 0) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : " · ", name, lab::format_bytes(bytes));
  }
  return out.empty() ? "unknown" : out;
}

void print_gpu(const lab::Environment& e) {
  if (e.gpu.empty()) return print_row("gpu", lab::describe_cuda());
  print_row("gpu", lab::describe_gpu(e));
  const auto figure = [](std::optional<double> value, const char* unit) {
    return value ? fmt::format("{:.0f}{}", *value, unit) : std::string("unknown");
  };
  print_row("gpu clocks", fmt::format("{} of {} · memory {}", figure(e.gpu_clock_mhz, " MHz"),
                                      figure(e.gpu_max_clock_mhz, " MHz"),
                                      figure(e.gpu_memory_clock_mhz, " MHz")));
  print_row("gpu power", fmt::format("{} of {} · {} · ECC {}", figure(e.gpu_power_w, " W"),
                                     figure(e.gpu_power_limit_w, " W"),
                                     figure(e.gpu_temperature_c, " degrees C"),
                                     e.gpu_ecc.empty() ? "unknown" : e.gpu_ecc));
  print_row("gpu timing", lab::is_wsl()
                              ? "CUDA events; kernel timelines (CUPTI) do not exist in WSL2"
                              : "CUDA events");
}

// A rate with the unit that keeps it short.
std::string rate(double gflops) {
  return gflops >= 10'000 ? fmt::format("{:.1f} TFLOP/s", gflops * 1e-3)
                          : fmt::format("{:.1f} GFLOP/s", gflops);
}

void print_text(const Context& context, const lab::Environment& environment) {
  print_line(fmt::format("flashlab {} ({})\n", version(), build_commit()));
  print_row("processor", fmt::format("{} · {} threads of {} online", environment.cpu_model,
                                     context.threads(), environment.cpu_threads_online));
  print_row("instructions", isa_words(context));
  print_row("caches", cache_words(environment));
  print_row("memory",
            environment.memory_bytes > 0 ? lab::format_bytes(environment.memory_bytes) : "unknown");
  print_row("system", fmt::format("{} · {} · {} · {}", environment.os, environment.kernel,
                                  environment.libc, environment.compiler));
  print_gpu(environment);
  if (environment.roof_fp32_gflops) {
    print_row("roof fp32", rate(*environment.roof_fp32_gflops));
  }
  if (environment.roof_bf16_gflops) {
    print_row("roof bf16", rate(*environment.roof_bf16_gflops));
  }
  if (environment.loop_fp32_gflops) {
    print_row("loop fp32", rate(*environment.loop_fp32_gflops));
  }
  if (environment.loop_bf16_gflops) {
    print_row("loop bf16", rate(*environment.loop_bf16_gflops));
  }
  if (environment.copy_gb_per_s) {
    print_row("roof copy", fmt::format("{:.1f} GB/s", *environment.copy_gb_per_s));
  }
  if (environment.read_gb_per_s) {
    print_row("roof read", fmt::format("{:.1f} GB/s", *environment.read_gb_per_s));
  }
  if (!environment.roof_source.empty()) print_row("roof of", environment.roof_source);
  if (environment.clock_mhz) print_row("clock", fmt::format("{:.0f} MHz", *environment.clock_mhz));
  print_line("");
  for (const Device device : {Device{}, Device{DeviceKind::kCuda, 0}}) {
    const std::vector<std::string> names = implementations(device);
    if (names.empty()) continue;
    const std::vector<std::string> defaults = lab::default_implementations(device);
    const std::string production =
        defaults.size() == 1 ? "first: production"
                             : fmt::format("where none is named, what serves first of: {}",
                                           fmt::join(defaults, ", "));
    print_row(device.kind == DeviceKind::kCpu ? "implementations" : "",
              fmt::format("{}: {} ({})", device.kind == DeviceKind::kCpu ? "cpu" : "cuda",
                          fmt::join(names, ", "), production));
  }
  for (const lab::VendorLibrary& each : libraries()) {
    const std::string version = each.version.empty() ? "" : ", " + each.version;
    print_row(each.name, each.path.empty()
                             ? fmt::format("not found ({}); {}", each.use, each.remedy)
                             : fmt::format("found ({}{}: {})", each.use, version, each.path));
  }
  for (const Extra& extra : kPrograms) {
    print_row(extra.name, lab::find_program(extra.name).empty()
                              ? fmt::format("not found ({}); {}", extra.use, extra.remedy)
                              : fmt::format("found ({})", extra.use));
  }
  print_line("");
  if (environment.warnings.empty()) print_line("Nothing found that would spoil a measurement.");
  for (const lab::EnvironmentWarning& warning : environment.warnings) {
    print_row("warning", fmt::format("{}; {}", warning.what, warning.remedy));
  }
}

void print_json(const std::string& path, const Context& context,
                const lab::Environment& environment) {
  lab::ResultFile file;
  file.environment = environment;
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.info/1";
  out["environment"] = base::read_json<nlohmann::ordered_json>(lab::to_json(file))["environment"];
  out["device"] = to_string(context.device());
  out["cuda"] = lab::describe_cuda();
  out["implementations"] = implementations(context.device());
  nlohmann::ordered_json isas = nlohmann::ordered_json::array();
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512,
                     CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (supported(isa)) isas.push_back(to_string(isa));
  }
  out["cpu_isas"] = isas;
  out["cuda_implementations"] = implementations({DeviceKind::kCuda, 0});
  for (const lab::VendorLibrary& each : libraries()) {
    out["libraries"][each.name] = !each.path.empty();
    out["library_paths"][each.name] =
        each.path.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(each.path);
  }
  for (const Extra& extra : kPrograms)
    out["programs"][extra.name] = !lab::find_program(extra.name).empty();
  write_json(path, out, 2);
}

}  // namespace

int run_info(const Arguments& arguments) {
  const Context context = make_context(arguments);
  // The first GPU is described even where the question is about the CPU.
  const bool gpu_there = lab::gpu_status({DeviceKind::kCuda, 0}).ok();
  const Device described = context.device().kind == DeviceKind::kCpu && gpu_there
                               ? Device{DeviceKind::kCuda, 0}
                               : context.device();
  lab::Environment environment = lab::collect_environment({.command = typed_command(),
                                                           .protocol = "",
                                                           .threads = context.threads(),
                                                           .cpu_isa = context.cpu_isa(),
                                                           .device = described});
  if (arguments.has("--roof")) {
    ProgressLine progress;
    progress.show(0, 1, "measuring the roofs");
    lab::add_roofs(context, environment, {.window_seconds = 0.1});
  }
  const std::optional<std::string> json = arguments.value("--json");
  if (!json || *json != "-") print_text(context, environment);
  if (json) print_json(*json, context, environment);
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace flashlab::cli
