// Stands in for libcupti.so, with records as long as those of CUDA 13.0.
// FAKE_CUPTI: old (API 10), new (of CUDA 14), refused (no permission), busy (another profiler),
// lost (records were dropped); else each flush brings one copy from the host, a kernel, a memset
// and a second kernel that began before them. It is a tool of NVTX, too, and writes ranges to the
// file FAKE_NVTX_LOG.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nvtx_tool.h"

namespace {

constexpr int kMemcpy = 1, kMemset = 2, kKernel = 10;

using Requested = void (*)(std::uint8_t**, std::size_t*, std::size_t*);
using Completed = void (*)(void*, std::uint32_t, std::uint8_t*, std::size_t, std::size_t);
Requested requested = nullptr;
Completed completed = nullptr;
int enabled = 0;  // kinds

bool is(const char* what) {
  const char* mode = std::getenv("FAKE_CUPTI");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

std::size_t size_of(int kind) {
  return kind == kKernel ? 216 : kind == kMemset ? 88 : 96;
}

// Offsets are those of cupti_activity.h.
template <class T>
void put(std::uint8_t* record, std::size_t offset, T value) {
  std::memcpy(record + offset, &value, sizeof value);
}

std::uint8_t* add(std::uint8_t* at, int kind, std::uint64_t start, std::uint64_t end) {
  std::memset(at, 0x5a, size_of(kind));
  put(at, 0, kind);
  put(at, 16, start);
  put(at, 24, end);
  return at + size_of(kind);
}

std::uint8_t* add_kernel(std::uint8_t* at, const char* name, std::uint64_t start,
                         std::uint64_t end) {
  std::uint8_t* next = add(at, kKernel, start, end);
  put(at, 6, std::uint16_t{168});
  const std::int32_t shape[] = {4, 5, 6, 128, 3, 1, 1000, 24};  // grid, block, shared memory
  std::memcpy(at + 52, shape, sizeof shape);
  put(at, 104, name);
  return next;
}

}  // namespace

extern "C" {

int cuptiGetVersion(std::uint32_t* version) {
  *version = is("old") ? 10 : is("new") ? 140000 : 130001;
  return 0;
}
int cuptiGetResultString(int result, const char** text) {
  *text = result == 35 ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : "CUPTI_ERROR_OF_A_TEST";
  return 0;
}
int cuptiActivityRegisterCallbacks(Requested first, Completed second) {
  requested = first;
  completed = second;
  return 0;
}
int cuptiActivityEnable(int) {
  if (is("refused")) return 35;
  if (is("busy")) return 39;
  ++enabled;
  return 0;
}
int cuptiActivityDisable(int) {
  enabled = 0;
  return 0;
}
int cuptiActivityFlushAll(std::uint32_t) {
  if (enabled != 3) return 0;
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0, most = 7;
  requested(&buffer, &bytes, &most);
  if (buffer == nullptr || most != 0) return 1;
  std::uint8_t* at = buffer;
  std::uint8_t* next = add(at, kMemcpy, 100, 150);
  put(at, 4, std::uint8_t{1});  // from host to device
  at = add_kernel(next, "flash_fwd_test", 400, 900);
  at = add(at, kMemset, 300, 350);
  at = add_kernel(at, "_ZN8cublasLt19splitKreduce_kernelILi32EEEvPf", 200, 290);
  completed(nullptr, 0, buffer, bytes, static_cast<std::size_t>(at - buffer));
  return 0;
}
int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, std::uint8_t** record) {
  std::uint8_t* next = buffer;
  if (*record != nullptr) {
    int kind = 0;
    std::memcpy(&kind, *record, sizeof kind);
    next = *record + size_of(kind);
  }
  if (next >= buffer + valid) return 12;
  *record = next;
  return 0;
}
int cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* dropped) {
  *dropped = is("lost") ? 3 : 0;
  return 0;
}

int InitializeInjectionNvtx2(const void* (*tables)(std::uint32_t)) {
  static std::FILE* log = nullptr;
  const char* path = std::getenv("FAKE_NVTX_LOG");
  if (path != nullptr) log = std::fopen(path, "w");
  // A test that waits for a range reads the file meanwhile.
  if (log != nullptr) std::setvbuf(log, nullptr, _IOLBF, 0);
  const nvtx_tool::Slots core = nvtx_tool::core_of(tables);
  if (log == nullptr || core == nullptr) return 0;
  int (*push)(const char*) = [](const char* name) { return std::fprintf(log, "(%s\n", name); };
  int (*pop)() = [] { return std::fprintf(log, ")\n"); };
  *core[nvtx_tool::kPush] = reinterpret_cast<void*>(push);
  *core[nvtx_tool::kPop] = reinterpret_cast<void*>(pop);
  return 1;
}

}  // extern "C"
