#include "lab/machine/peer_libraries.h"

#include <fmt/format.h>

#include "runtime/library/nvidia_libraries.h"

namespace flashlab::lab {
namespace {

// 130100 and the like: both libraries count so.
std::string version_text(const char* name, std::size_t number) {
  return fmt::format("{} {}.{}.{}", name, number / 10000, number / 100 % 100, number % 100);
}

VendorLibrary look_for(const cuda::NvidiaLibrary& library, const char* name, const char* use,
                       const char* version_symbol) {
  VendorLibrary out{library.soname, use, library.remedy, "", ""};
  auto opened = cuda::Library::open(name, library.candidates(), library.remedy);
  if (!opened.ok()) return out;
  std::size_t (*version)() = nullptr;
  std::string missing;
  // A file of that name that is something else counts as missing.
  if (!cuda::load(*opened, version_symbol, version, missing)) return out;
  out.path = opened->path();
  out.version = version_text(name, version());
  return out;
}

}  // namespace

std::vector<VendorLibrary> peer_libraries() {
  return {look_for(cuda::cublas_lt_library(), "cuBLASLt", "matrix products of the peer `cublas`",
                   "cublasLtGetVersion"),
          look_for(cuda::cudnn_library(), "cuDNN", "fused attention of the peer `cudnn`",
                   "cudnnGetVersion")};
}

}  // namespace flashlab::lab
