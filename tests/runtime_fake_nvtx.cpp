// A tool of NVTX that sets its functions when the test says so, as CUPTI does when somebody
// subscribes to ranges.

#include <cstdint>
#include <mutex>
#include <string>

#include "nvtx_tool.h"

namespace {

nvtx_tool::Slots core = nullptr;
std::string written;
std::mutex mutex;
thread_local std::string open_ranges;

int push(const char* name) {
  open_ranges += std::string("/") + name;
  const std::lock_guard lock(mutex);
  written += open_ranges + "\n";
  return 0;
}
int pop() {
  open_ranges.erase(open_ranges.find_last_of('/'));
  return 0;
}

}  // namespace

extern "C" {

int InitializeInjectionNvtx2(nvtx_tool::Tables tables) {
  core = nvtx_tool::core_of(tables);
  return core != nullptr;
}

int fake_nvtx_is_attached() {
  return core != nullptr;
}
/// Begins or ends to listen: this thread has no open range then.
void fake_nvtx_listen(int listens) {
  open_ranges.clear();
  *core[nvtx_tool::kPush] = listens != 0 ? reinterpret_cast<void*>(push) : nullptr;
  *core[nvtx_tool::kPop] = listens != 0 ? reinterpret_cast<void*>(pop) : nullptr;
}
/// Every range, with those around it, since the last call.
const char* fake_nvtx_ranges() {
  static std::string out;
  const std::lock_guard lock(mutex);
  out.swap(written);
  written.clear();
  return out.c_str();
}

}  // extern "C"
