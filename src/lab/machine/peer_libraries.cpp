#include "lab/machine/gpu_choice.h"

#include <fmt/format.h>

#include <cstdint>

#include "runtime/library/nvidia_libraries.h"

namespace flashlab::lab {
namespace {

// 130100 and the like: both libraries count so.
std::string version_text(const char* name, std::size_t number) {
  return fmt::format("{} {}.{}.{}", name, number / 10000, number / 100 % 100, number % 100);
}

// `ask` gives the version by a function of type Version.
template <class Version, class Ask>
VendorLibrary look_for(const cuda::NvidiaLibrary& library, const char* name, const char* use,
                       const char* version_symbol, const Ask& ask) {
  VendorLibrary out{library.soname, use, library.remedy, "", ""};
  auto opened = cuda::Library::open(name, library.candidates(), library.remedy);
  if (!opened.ok()) return out;
  Version version = nullptr;
  std::string missing;
  // A file of that name that is something else counts as missing.
  if (!cuda::load(*opened, version_symbol, version, missing)) return out;
  out.path = opened->path();
  out.version = ask(version);
  return out;
}

VendorLibrary look_for(const cuda::NvidiaLibrary& library, const char* name, const char* use,
                       const char* version_symbol) {
  using Version = std::size_t (*)();
  return look_for<Version>(library, name, use, version_symbol,
                           [&](Version version) { return version_text(name, version()); });
}

VendorLibrary look_for_cupti() {
  using Version = int (*)(std::uint32_t*);
  return look_for<Version>(cuda::cupti_library(), "CUPTI", "kernel timelines", "cuptiGetVersion",
                           [](Version version) {
                             std::uint32_t number = 0;
                             const bool known = version(&number) == 0;
                             return known ? fmt::format("CUPTI API {}", number) : std::string();
                           });
}

}  // namespace

std::vector<VendorLibrary> peer_libraries() {
  return {look_for(cuda::cublas_lt_library(), "cuBLASLt", "matrix products of the peer `cublas`",
                   "cublasLtGetVersion"),
          look_for(cuda::cudnn_library(), "cuDNN", "fused attention of the peer `cudnn`",
                   "cudnnGetVersion"),
          look_for_cupti()};
}

}  // namespace flashlab::lab
