#include "dist/nccl/nccl.h"

#include <fmt/format.h>

#include "dist/start/world.h"
#include "runtime/library/library.h"
#include "runtime/library/nvidia_libraries.h"

namespace flashlab::dist {
namespace {

constexpr int kOldest = 21900;

std::string text_of(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

Result<Nccl> Nccl::open() {
  turn_multicast_off();
  const cuda::NvidiaLibrary wanted = cuda::nccl_library();
  auto library = cuda::Library::open("NCCL", wanted.candidates(), wanted.remedy);
  if (!library.ok()) return library.status();
  Nccl out;
  out.path_ = library->path();
  std::string missing;
#define FLASHLAB_LOAD(name, ...) cuda::load(*library, #name, out.name, missing);
  FLASHLAB_NCCL_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
  if (out.ncclGetVersion != nullptr) out.ncclGetVersion(&out.version_);
  if (!missing.empty() || out.version_ < kOldest) {
    return Status::unsupported({"NCCL",
                                fmt::format("{}: version {}{}{}", out.path_, out.version_text(),
                                            missing.empty() ? "" : " without ", missing),
                                text_of(kOldest) + " or newer", wanted.remedy});
  }
  return out;
}

Result<const Nccl*> Nccl::get() {
  static const Result<Nccl> opened = open();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

std::string Nccl::version_text() const {
  return text_of(version_);
}

Status Nccl::check(NcclResult result, const char* call) const {
  if (result == 0) return {};
  const char* more = ncclGetLastError(nullptr);
  std::string words = ncclGetErrorString(result);
  if (more != nullptr && *more != '\0') words += fmt::format(" ({})", more);
  return {StatusCode::kDeviceError, {call, std::move(words), "ncclSuccess", ""}};
}

}  // namespace flashlab::dist
