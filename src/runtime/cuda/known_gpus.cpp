#include "runtime/cuda/known_gpus.h"

#include <array>

namespace flashlab::cuda {
namespace {

struct Known {
  const char* name;
  int major, minor;
  int multiprocessors, clock_mhz;
  std::int64_t memory_gib, l2_mib;
  int shared_kib;  ///< opt-in maximum of a block
};

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and data sheets.
constexpr std::array<Known, 10> kKnown = {{
    {"Tesla T4", 7, 5, 40, 1590, 16, 4, 64},
    {"A100", 8, 0, 108, 1410, 80, 40, 163},
    {"RTX 3090", 8, 6, 82, 1695, 24, 6, 99},
    {"Jetson Orin", 8, 7, 16, 1300, 32, 4, 163},
    {"L40S", 8, 9, 142, 2520, 48, 96, 99},
    {"H200", 9, 0, 132, 1980, 141, 60, 227},
    {"B200", 10, 0, 148, 1965, 180, 126, 227},
    {"B300", 10, 3, 148, 1965, 268, 126, 227},
    {"RTX 5090", 12, 0, 170, 2407, 32, 96, 99},
    {"GB10", 12, 1, 48, 2400, 119, 24, 99},
}};

DeviceInfo describe(const Known& known) {
  DeviceInfo info;
  info.name = known.name;
  info.major = known.major;
  info.minor = known.minor;
  info.multiprocessors = known.multiprocessors;
  info.clock_mhz = known.clock_mhz;
  info.memory_bytes = known.memory_gib << 30;
  info.l2_bytes = known.l2_mib << 20;
  info.shared_bytes_per_block = known.shared_kib * 1024;
  info.registers_per_multiprocessor = 65536;
  info.ecc = true;
  return info;
}

}  // namespace

std::optional<DeviceInfo> known_gpu(std::string_view architecture) {
  for (const Known& known : kKnown) {
    DeviceInfo info = describe(known);
    const std::string exact = info.architecture();
    const bool without_suffix =
        exact.ends_with('a') && exact.substr(0, exact.size() - 1) == architecture;
    if (architecture == exact || without_suffix) return info;
  }
  return std::nullopt;
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.push_back(describe(known).architecture());
  return names;
}

}  // namespace flashlab::cuda
