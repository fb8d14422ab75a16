#include "runtime/cuda/peers.h"

#include "runtime/library/library.h"

namespace flashlab::cuda {

Result<const PeerFunctions*> PeerFunctions::get() {
  static const Result<PeerFunctions> found = []() -> Result<PeerFunctions> {
    auto driver = Driver::get();
    if (!driver.ok()) return driver.status();
    auto library = Library::open("CUDA driver", {(*driver)->path()}, "");
    if (!library.ok()) return library.status();
    PeerFunctions out;
    std::string missing;
#define FLASHLAB_LOAD(name, symbol, ...) load(*library, symbol, out.name, missing);
    FLASHLAB_PEER_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
    if (missing.empty()) return out;
    return Status::unsupported({"CUDA driver", (*driver)->version_text() + " without " + missing,
                                "a driver of CUDA 12.0 or newer", "update the NVIDIA driver"});
  }();
  if (!found.ok()) return found.status();
  return &*found;
}

}  // namespace flashlab::cuda
