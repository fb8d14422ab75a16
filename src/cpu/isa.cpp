// Which instruction sets this processor and operating system can run.

#include <initializer_list>

#include "flashlab/context.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flashlab {
namespace {

#if defined(__x86_64__)

// What __builtin_cpu_supports cannot be asked in every compiler.
bool has_haswell_extras() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kMovbe = 1u << 22, kF16c = 1u << 29;
  if ((ecx & kMovbe) == 0 || (ecx & kF16c) == 0) return false;
  constexpr unsigned kLzcnt = 1u << 5;
  return __get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kLzcnt) != 0;
}

// The AVX2 translation unit is compiled for Haswell, so every extension of it is asked for.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") && has_haswell_extras();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

// AMX state is large, so Linux (5.16) hands it out on request, once for the process.
bool request_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

bool has_amx() {
  static const bool granted = has_avx512_bf16() && request_amx();
  return granted;
}

#endif

}  // namespace

const char* to_string(CpuIsa isa) noexcept {
  switch (isa) {
    case CpuIsa::kAutomatic:
      return "automatic";
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kNeon:
      return "neon";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512-bf16";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "unknown";
}

bool supported(CpuIsa isa) noexcept {
  switch (isa) {
    case CpuIsa::kAutomatic:
    case CpuIsa::kScalar:
      return true;
#if defined(__x86_64__)
    case CpuIsa::kNeon:
      return false;
    case CpuIsa::kAvx2:
      return has_avx2();
    case CpuIsa::kAvx512:
      return has_avx512();
    case CpuIsa::kAvx512Bf16:
      return has_avx512_bf16();
    case CpuIsa::kAmx:
      return has_amx();
#elif defined(__aarch64__)
    case CpuIsa::kNeon:
      return true;
#endif
    default:
      return false;
  }
}

CpuIsa best_cpu_isa() noexcept {
  static const CpuIsa best = [] {
    for (CpuIsa isa :
         {CpuIsa::kAmx, CpuIsa::kAvx512Bf16, CpuIsa::kAvx512, CpuIsa::kAvx2, CpuIsa::kNeon}) {
      if (supported(isa)) return isa;
    }
    return CpuIsa::kScalar;
  }();
  return best;
}

}  // namespace flashlab
