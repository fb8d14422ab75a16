#include "lab/machine/gpu_environment.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <string_view>

#include "lab/machine/memory.h"
#include "runtime/kernel_store/cache.h"
#include "runtime/kernel_store/nvrtc.h"

namespace flashlab::lab {
namespace {

std::optional<double> number(std::optional<int> value) {
  return value ? std::optional<double>(*value) : std::nullopt;
}

std::string list_of(const std::vector<unsigned>& pids) {
  std::string out;
  constexpr std::size_t kShown = 4;
  for (std::size_t n = 0; n < pids.size() && n < kShown; ++n) {
    out += fmt::format("{}{}", n == 0 ? "pid " : ", ", pids[n]);
  }
  if (pids.size() > kShown) out += fmt::format(" and {} more", pids.size() - kShown);
  return out;
}

void diagnose_others(const GpuFacts& facts, std::vector<EnvironmentWarning>& out) {
  const cuda::GpuState& state = facts.state;
  constexpr int kBusyPercent = 10;
  constexpr double kFree = 0.9;
  const char* remedy = "wait for them, stop them, or choose another GPU by --device cuda:N";
  if (!state.processes.empty()) {
    out.push_back({fmt::format("{} other program{} on the GPU ({})", state.processes.size(),
                               state.processes.size() == 1 ? " computes" : "s compute",
                               list_of(state.processes)),
                   remedy});
  } else if (state.utilization_percent.value_or(0) > kBusyPercent) {
    out.push_back({fmt::format("the GPU was busy {}% of the time before this run: other programs "
                               "use it, perhaps outside this container",
                               *state.utilization_percent),
                   remedy});
  } else if (facts.memory_bytes > 0 && static_cast<double>(facts.free_bytes) <
                                           kFree * static_cast<double>(facts.memory_bytes)) {
    out.push_back(
        {fmt::format("{} of {} of the GPU's memory are free: other programs hold the rest",
                     format_bytes(facts.free_bytes), format_bytes(facts.memory_bytes)),
         "stop them where they compute: memory alone costs nothing but large cases"});
  }
}

void diagnose_clock(const cuda::GpuState& state, std::vector<EnvironmentWarning>& out) {
  const auto reason = [&](unsigned long long bits) { return (state.throttle_reasons & bits) != 0; };
  if (reason(cuda::kThrottleThermalSoftware | cuda::kThrottleThermalHardware)) {
    out.push_back(
        {fmt::format(
             "the GPU lowers its clock because it is hot{}",
             state.temperature_c ? fmt::format(" ({} degrees C)", *state.temperature_c) : ""),
         "improve its cooling, or compare shares of the roof and ratios of one run"});
  }
  if (reason(cuda::kThrottleHardware | cuda::kThrottlePowerBrake)) {
    out.push_back({"the board or its power supply slows the GPU down",
                   "look at the power supply and the slot; ratios of one run remain comparable"});
  }
  if (reason(cuda::kThrottlePowerCap)) {
    out.push_back(
        {"the GPU runs at its power limit already before this run", "stop what else runs on it"});
  }
  // Half a percent of slack: boards round.
  if (state.power_limit_w && state.default_power_limit_w &&
      *state.power_limit_w < 0.995 * *state.default_power_limit_w) {
    out.push_back({fmt::format("the power limit is {:.0f} W, the board's own {:.0f} W",
                               *state.power_limit_w, *state.default_power_limit_w),
                   "nvidia-smi --power-limit raises it; or compare shares of the roof"});
  }
  if (reason(cuda::kThrottleApplicationClocks)) {
    out.push_back({"somebody has set lower clocks than the GPU can run at",
                   "nvidia-smi --reset-applications-clocks"});
  }
}

// The folders that kernels come from: one that is refused costs compiling, or, without a compiler,
// the kernel.
void diagnose_kernel_folders(std::vector<EnvironmentWarning>& out) {
  using cuda::KernelCache;
  const auto check = [&](const KernelCache& folder, const std::string& consequence) {
    const Status status = folder.check();
    if (status.ok()) return;
    const ErrorDetail& why = status.detail();
    out.push_back({consequence + ": " + why.argument + ": " + why.got, why.remedy});
  };
  const char* named = std::getenv("FLASHLAB_PRECOMPILED");
  if (named != nullptr && *named != '\0') {
    check(KernelCache(named, KernelCache::Access::kReadOnly), "FLASHLAB_PRECOMPILED is not used");
  }
  check(KernelCache(KernelCache::default_folder()), "every process compiles its kernels anew");
}

}  // namespace

std::vector<EnvironmentWarning> diagnose_gpu(const GpuFacts& facts) {
  std::vector<EnvironmentWarning> out;
  diagnose_others(facts, out);
  diagnose_clock(facts.state, out);
  if (facts.state.ecc && !*facts.state.ecc) {
    out.push_back(
        {"the memory's error correction (ECC) is off: bandwidth differs from boards that "
         "have it on",
         "say so beside the figures, or nvidia-smi --ecc-config=1"});
  }
  if (facts.wsl) {
    out.push_back(
        {"WSL2: Windows shares the GPU, and there is no kernel timeline (CUPTI): times "
         "come from CUDA events",
         "close programs that draw; publish figures from Linux itself"});
  }
  return out;
}

void add_gpu_environment(cuda::GpuDevice& gpu, Environment& environment) {
  const cuda::DeviceInfo& info = gpu.info();
  environment.gpu = info.name;
  environment.gpu_architecture = info.architecture();
  environment.gpu_memory_bytes = info.memory_bytes;
  environment.gpu_l2_bytes = info.l2_bytes;
  environment.gpu_multiprocessors = info.multiprocessors;
  environment.cuda_version = gpu.driver().version_text();
  if (auto nvrtc = cuda::Nvrtc::get(); nvrtc.ok()) environment.nvrtc = (*nvrtc)->version();

  GpuFacts facts;
  facts.memory_bytes = info.memory_bytes;
  facts.wsl = is_wsl();
  {
    const auto current = gpu.current();
    std::size_t free_bytes = 0, total_bytes = 0;
    gpu.api().cuMemGetInfo(&free_bytes, &total_bytes);
    facts.free_bytes = static_cast<std::int64_t>(free_bytes);
  }
  if (auto nvml = cuda::Nvml::get(); nvml.ok()) {
    if (auto state = (*nvml)->state(cuda::pci_address(gpu.driver(), info.ordinal)); state.ok()) {
      facts.state = std::move(*state);
    }
  }
  const cuda::GpuState& state = facts.state;
  environment.driver = state.driver;
  environment.gpu_clock_mhz = number(state.sm_clock_mhz);
  environment.gpu_max_clock_mhz = number(state.max_sm_clock_mhz);
  environment.gpu_memory_clock_mhz = number(state.memory_clock_mhz);
  environment.gpu_power_w = state.power_w;
  environment.gpu_power_limit_w = state.power_limit_w;
  environment.gpu_temperature_c = number(state.temperature_c);
  if (state.ecc) environment.gpu_ecc = *state.ecc ? "on" : "off";
  for (EnvironmentWarning& warning : diagnose_gpu(facts)) {
    environment.warnings.push_back(std::move(warning));
  }
  diagnose_kernel_folders(environment.warnings);
}

std::string describe_gpu(const Environment& environment) {
  std::string out = fmt::format("{} · {}", environment.gpu, environment.gpu_architecture);
  if (environment.gpu_multiprocessors > 0) {
    out += fmt::format(" · {} multiprocessors", environment.gpu_multiprocessors);
  }
  if (environment.gpu_memory_bytes > 0) {
    out += " · " + format_bytes(environment.gpu_memory_bytes);
  }
  if (!environment.driver.empty()) out += " · driver " + environment.driver;
  if (!environment.cuda_version.empty()) out += " · CUDA " + environment.cuda_version;
  return out;
}

std::optional<double> gpu_clock_mhz(const cuda::GpuDevice& gpu) {
  auto nvml = cuda::Nvml::get();
  if (!nvml.ok()) return std::nullopt;
  auto state = (*nvml)->state(cuda::pci_address(gpu.driver(), gpu.info().ordinal));
  return state.ok() ? number(state->sm_clock_mhz) : std::nullopt;
}

bool is_wsl() {
  utsname names{};
  // "5.15.90.1-microsoft-standard-WSL2"
  return uname(&names) == 0 &&
         std::string_view(names.release).find("icrosoft") != std::string::npos;
}

}  // namespace flashlab::lab
