#include "flashlab/version.h"

#ifndef FLASHLAB_COMMIT
#define FLASHLAB_COMMIT "unknown"
#endif

namespace flashlab {

const char* version() noexcept {
  return FLASHLAB_VERSION;
}

const char* build_commit() noexcept {
  return FLASHLAB_COMMIT;
}

}  // namespace flashlab
