#include "lab/machine/environment.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "flashlab/version.h"
#include "lab/machine/gpu_environment.h"
#include "lab/machine/gpu_memory.h"
#include "lab/machine/memory.h"

namespace flashlab::lab {
namespace {

/// The value behind "key<spaces>:" in a file like /proc/cpuinfo, or behind "key=" with quotes
/// removed in one like os-release.
std::string value_in(const char* path, std::string_view key, char separator) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    const auto at = line.find(separator, key.size());
    if (at == std::string::npos) continue;
    const std::string between = line.substr(key.size(), at - key.size());
    if (between.find_first_not_of(" \t") != std::string::npos) continue;
    std::string value = line.substr(at + 1);
    const auto first = value.find_first_not_of(" \t\"");
    const auto last = value.find_last_not_of(" \t\"\r");
    if (first == std::string::npos) return {};
    return value.substr(first, last - first + 1);
  }
  return {};
}

/// The flags that decide which kernels can run, in the kernel's spelling.
std::string relevant_flags() {
  static constexpr std::array kRelevant = {
      "sse4_2",   "avx",      "avx2",     "fma",         "f16c",        "avx512f",
      "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
      "amx_tile", "amx_bf16", "amx_int8", "amx_fp16",    "asimd",       "asimdhp",
      "bf16",     "sve",      "sve2",     "hypervisor"};
  std::string all = value_in("/proc/cpuinfo", "flags", ':');
  if (all.empty()) all = value_in("/proc/cpuinfo", "Features", ':');
  all = ' ' + all + ' ';
  std::string out;
  for (const char* flag : kRelevant) {
    if (all.find(fmt::format(" {} ", flag)) == std::string::npos) continue;
    if (!out.empty()) out += ' ';
    out += flag;
  }
  return out;
}

std::int64_t parse_cache_size(const std::string& text) {
  char* end = nullptr;
  const long long number = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || number < 0) return 0;
  if (*end == 'K') return number * 1024;
  if (*end == 'M') return number * 1024 * 1024;
  return number;
}

/// Caches of the first processor. sysfs first; sysconf, which asks cpuid, where that is hidden.
void read_caches(Environment& out) {
  for (int index = 0; index < 8; ++index) {
    const std::string base = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    int level = 0;
    std::string type, size;
    std::ifstream(base + "level") >> level;
    std::ifstream(base + "type") >> type;
    std::ifstream(base + "size") >> size;
    if (type == "Instruction") continue;
    const std::int64_t bytes = parse_cache_size(size);
    if (level == 1) out.l1d_bytes = bytes;
    if (level == 2) out.l2_bytes = bytes;
    if (level == 3) out.l3_bytes = bytes;
  }
  const auto fallback = [](std::int64_t& bytes, int name) {
    if (bytes == 0) bytes = std::max(0L, sysconf(name));
  };
  fallback(out.l1d_bytes, _SC_LEVEL1_DCACHE_SIZE);
  fallback(out.l2_bytes, _SC_LEVEL2_CACHE_SIZE);
  fallback(out.l3_bytes, _SC_LEVEL3_CACHE_SIZE);
}

std::string cpu_model() {
  std::string model = value_in("/proc/cpuinfo", "model name", ':');
  // Virtual machines shorten names ("AMD EPYC"); family and model tell generations apart.
  const std::string family = value_in("/proc/cpuinfo", "cpu family", ':');
  const std::string number = value_in("/proc/cpuinfo", "model", ':');
  if (!family.empty() && !number.empty()) {
    model += fmt::format(" (family {} model {})", family, number);
  }
  return model;
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}", __clang_version__);
#else
  return fmt::format("gcc {}", __VERSION__);
#endif
}

}  // namespace

std::string short_hash(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return fmt::format("{:08x}", hash);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string command_line(int argc, const char* const* argv) {
  std::string out;
  for (int i = 0; i < argc; ++i) {
    if (i > 0) out += ' ';
    const std::string_view argument = argv[i];
    const bool plain = !argument.empty() && std::ranges::all_of(argument, [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("-_./:,=+@%").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (plain) {
      out += argument;
      continue;
    }
    out += '\'';
    for (const char c : argument) {
      if (c == '\'') {
        out += "'\\''";
      } else {
        out += c;
      }
    }
    out += '\'';
  }
  return out;
}

std::string describe_no_cuda(const Status& status) {
  const ErrorDetail& detail = status.detail();
  // The loader's words for every place it looked in say less than where they begin.
  const std::string got = detail.got.substr(0, detail.got.find(" ("));
  if (got.ends_with("was not found")) {
    return fmt::format(
        "no CUDA device: {}. The driver is not installed or not visible in this container.", got);
  }
  return fmt::format("no CUDA device: {}: {}; {}", detail.argument, detail.got, detail.remedy);
}

std::string describe_cuda() {
  const auto driver = cuda::Driver::get();
  if (!driver.ok()) return describe_no_cuda(driver.status());
  std::string out;
  for (const cuda::DeviceInfo& gpu : (*driver)->devices()) {
    out += fmt::format("{}{} (cuda:{}, {})", out.empty() ? "" : ", ", gpu.name, gpu.ordinal,
                       gpu.architecture());
  }
  return fmt::format("{}; driver for CUDA {}", out, (*driver)->version_text());
}

Environment collect_environment(const EnvironmentRequest& request) {
  Environment out;
  out.flashlab_version = version();
  out.commit = build_commit();
  out.command = request.command;
  out.protocol = request.protocol;
  out.date_utc = utc_now();

  utsname names{};
  if (uname(&names) == 0) {
    out.kernel = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
    out.hostname_hash = short_hash(names.nodename);
    if (is_wsl()) out.kernel += " (WSL)";
  }
  out.os = value_in("/etc/os-release", "PRETTY_NAME", '=');
  out.compiler = compiler();
  out.libc = fmt::format("glibc {}", gnu_get_libc_version());

  out.cpu_model = cpu_model();
  out.cpu_isa = to_string(request.cpu_isa == CpuIsa::kAutomatic ? best_cpu_isa() : request.cpu_isa);
  out.cpu_flags = relevant_flags();
  out.cpu_threads_online = static_cast<int>(std::max(0L, sysconf(_SC_NPROCESSORS_ONLN)));
  out.threads_used = request.threads;
  out.memory_bytes = total_memory_bytes().value_or(0);
  read_caches(out);

  if (request.observe_ms > 0) {
    MachineState state = observe_machine(request.observe_ms);
    state.threads_used = request.threads;
    out.warnings = diagnose(state);
  }
  if (request.device.kind == DeviceKind::kCuda) {
    if (auto gpu = gpu_of(request.device); gpu.ok()) add_gpu_environment(**gpu, out);
  }
  return out;
}

}  // namespace flashlab::lab
