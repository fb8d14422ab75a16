// Stands in for libcuda.so.1, so that what is said about drivers can be tested on any machine.
// FAKE_CUDA: old (a driver of CUDA 11.4), none (no device), sm70 (one Volta), broken (cuInit
// fails), gpu (one H200 with 1 GiB free, whose memory nobody may look into), two (two of them).
// With these FAKE_LOAD and FAKE_LAUNCH are what loading and launching a kernel return, and what is
// enqueued stands in fake_log(). With FAKE_MEMORY copies and allocations outside a stream succeed,
// too, each allocation at an address of its own: calls run from end to end and compute nothing.
// FAKE_WORK_US: how long the work of a stream takes. It is an NVTX tool, too. The other functions
// that are called are generated beside it: each returns an error.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "nvtx_tool.h"

namespace {

constexpr int kSuccess = 0, kOutOfMemory = 2, kInvalidHandle = 400, kUnknownError = 999;
// Attributes of a device.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kSharedBytes = 97;
constexpr int kMemoryType = 2, kOrdinal = 9;  // of a pointer

// Addresses of this GPU's memory and of another one's; streams of its context and of another one.
constexpr unsigned long long kMemory = 0x100000000000, kMemoryOfOther = 0x200000000000;
constexpr unsigned long long kMemoryBytes = 1ull << 30;
constexpr unsigned long long kStream = 0x10000, kStreamOfOther = 0x20000;
int contexts[2];  // their addresses are the handles

bool is(const char* what) {
  const char* mode = std::getenv("FAKE_CUDA");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

bool has_gpu() {
  return is("gpu") || is("two");
}

// What was enqueued, a line each: "launch 10000", "wait 20000 1".
std::string& log() {
  static std::string& text = *new std::string();
  return text;
}

int note(const char* what, const void* first, const void* second = nullptr) {
  char line[128];
  const auto number = [](const void* p) { return reinterpret_cast<unsigned long long>(p); };
  if (second == nullptr) {
    std::snprintf(line, sizeof line, "%s %llx\n", what, number(first));
  } else {
    std::snprintf(line, sizeof line, "%s %llx %llx\n", what, number(first), number(second));
  }
  log() += line;
  return kSuccess;
}

// The clock's time by event.
std::map<void*, float>& recorded() {
  static auto& times = *new std::map<void*, float>();
  return times;
}

// The launch hook of a test: the launch's configuration and the kernel's parameters.
void (*on_launch)(const void*, void**) = nullptr;
struct HostFunction {
  void (*function)(void*);
  void* data;
} captured_host{};

int asked(const char* variable) {
  const char* code = std::getenv(variable);
  return code == nullptr ? kSuccess : std::atoi(code);
}

struct Error {
  int code;
  const char* name;
  const char* text;
};
constexpr Error kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for the device"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kUnknownError, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Error& error_of(int code) {
  for (const Error& error : kErrors) {
    if (error.code == code) return error;
  }
  return kErrors[sizeof kErrors / sizeof kErrors[0] - 1];
}

}  // namespace

extern "C" {

unsigned long long fake_freed = 0;  // the address that was given back last
float fake_clock_ms = 0;            // what runs lets it go on
float fake_captured_ms = 0;         // of the last graph
float fake_event_ms = 0.5f;         // between two events beside what runs
bool fake_capturing = false;

int cuInit(unsigned) {
  return is("broken") ? kUnknownError : kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = is("old") ? 11040 : 13000;
  return kSuccess;
}

int cuGetErrorName(int result, const char** name) {
  *name = error_of(result).name;
  return kSuccess;
}

int cuGetErrorString(int result, const char** text) {
  *text = error_of(result).text;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = is("none") ? 0 : is("two") ? 2 : 1;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, has_gpu() ? "Fake H200" : "Fake V100", static_cast<std::size_t>(length) - 1);
  return kSuccess;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{16} << 30;
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  const bool new_gpu = has_gpu();
  *value = attribute == kMajor                        ? (new_gpu ? 9 : 7)
           : attribute == kMinor                      ? 0
           : new_gpu && attribute == kMultiprocessors ? 132
           : new_gpu && attribute == kSharedBytes     ? 232448
                                                      : 1;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device];
  return has_gpu() ? kSuccess : kUnknownError;
}

int cuCtxPushCurrent_v2(void*) {
  return kSuccess;
}

int cuCtxPopCurrent_v2(void**) {
  return kSuccess;
}

int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total) {
  *free_bytes = kMemoryBytes;
  *total = std::size_t{16} << 30;
  return kSuccess;
}

int cuMemAllocAsync(unsigned long long* address, std::size_t bytes, void*) {
  // Apart from what tests call their tensors, and aligned as little as the driver promises.
  *address = kMemory + kMemoryBytes / 2 + 256;
  return bytes <= kMemoryBytes ? kSuccess : kOutOfMemory;
}

// In the other half, and from its start again when nothing is left.
std::size_t next_byte = 512;
int allocations = 0;
int cuMemAlloc_v2(unsigned long long* address, std::size_t bytes) {
  if (std::getenv("FAKE_MEMORY") == nullptr) return kUnknownError;
  if (next_byte + bytes > kMemoryBytes / 2) return kOutOfMemory;
  *address = kMemory + next_byte;
  next_byte += (bytes + 511) / 256 * 256;
  ++allocations;
  return kSuccess;
}
int cuMemFree_v2(unsigned long long) {
  if (--allocations == 0) next_byte = 512;
  return kSuccess;
}
int cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  if (std::getenv("FAKE_MEMORY") == nullptr) return kUnknownError;
  *address = std::calloc(1, bytes);
  return *address == nullptr ? kOutOfMemory : kSuccess;
}
int cuMemFreeHost(void* address) {
  std::free(address);
  return kSuccess;
}
int cuMemcpyDtoHAsync_v2(void*, unsigned long long, std::size_t, void*) {
  return std::getenv("FAKE_MEMORY") ? kSuccess : kUnknownError;
}
int cuMemcpyHtoDAsync_v2(unsigned long long, const void*, std::size_t, void*) {
  return std::getenv("FAKE_MEMORY") ? kSuccess : kUnknownError;
}

int cuMemFreeAsync(unsigned long long address, void*) {
  fake_freed = address;
  return kSuccess;
}

int cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                           unsigned long long address) {
  const bool own = address >= kMemory && address < kMemory + kMemoryBytes;
  const bool other = address >= kMemoryOfOther && address < kMemoryOfOther + kMemoryBytes;
  for (unsigned i = 0; i < count; ++i) {
    int value = 0;
    if (attributes[i] == kMemoryType) value = own || other ? 2 : 0;
    if (attributes[i] == kOrdinal) value = own ? 0 : other ? 1 : -2;
    std::memcpy(values[i], &value, sizeof value);
  }
  return kSuccess;
}

int cuStreamGetCtx(void* stream, void** context) {
  const auto handle = reinterpret_cast<unsigned long long>(stream);
  *context = &contexts[handle == kStream ? 0 : 1];
  return handle == kStream || handle == kStreamOfOther ? kSuccess : kInvalidHandle;
}

int cuMemsetD8Async(unsigned long long, unsigned char, std::size_t, void* stream) {
  return note("memset", stream);
}

int cuMemcpyAsync(unsigned long long, unsigned long long, std::size_t, void* stream) {
  return note("copy", stream);
}

// A captured one runs at each launch of the graph.
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  note("host", stream);
  if (fake_capturing) {
    captured_host = {function, data};
  } else {
    function(data);
  }
  return kSuccess;
}

// Events are numbered from 1.
int cuEventCreate(void** event, unsigned) {
  static std::uintptr_t count = 0;
  *event = reinterpret_cast<void*>(++count);
  return kSuccess;
}
int cuEventDestroy_v2(void*) {
  return kSuccess;
}
int cuEventRecord(void* event, void* stream) {
  recorded()[event] = fake_clock_ms;
  return note("record", stream, event);
}
int cuEventSynchronize(void*) {
  return kSuccess;
}
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  *milliseconds = fake_event_ms + recorded()[end] - recorded()[start];
  return kSuccess;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  return note("wait", stream, event);
}

int cuStreamCreate(void** stream, unsigned) {
  *stream = reinterpret_cast<void*>(kStream);
  return kSuccess;
}
int cuStreamSynchronize(void*) {
  usleep(static_cast<unsigned>(asked("FAKE_WORK_US")));
  return kSuccess;
}
int cuStreamDestroy_v2(void*) {
  return kSuccess;
}

int cuStreamIsCapturing(void*, int* status) {
  *status = fake_capturing ? 1 : 0;
  return kSuccess;
}
int cuStreamBeginCapture_v2(void* stream, int) {
  fake_capturing = true;
  fake_captured_ms = 0;
  return note("begin", stream);
}
int cuStreamEndCapture(void* stream, void** graph) {
  fake_capturing = false;
  *graph = contexts;
  return note("end", stream);
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return kSuccess;
}
int cuGraphLaunch(void*, void* stream) {
  note("graph", stream);
  fake_clock_ms += fake_captured_ms;
  if (captured_host.function != nullptr) captured_host.function(captured_host.data);
  return kSuccess;
}
int cuGraphDestroy(void*) {
  return kSuccess;
}
int cuGraphExecDestroy(void*) {
  return kSuccess;
}

int cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const void*, const void*,
                           const void*, const void*, int, int, int, int) {
  std::memset(map, 0x5a, 128);
  std::memcpy(map, &address, sizeof address);
  return note("encode", address);
}

int cuLibraryLoadData(void** library, const void*, int*, void**, unsigned, int*, void**, unsigned) {
  *library = contexts;
  return asked("FAKE_LOAD");
}

int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = contexts;
  return kSuccess;
}

int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return kSuccess;
}

int cuKernelSetAttribute(int, int, void*, int) {
  return kSuccess;
}

int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
  *clusters = 3;
  return kSuccess;
}

int cuLaunchKernelEx(const void* config, void*, void** parameters, void**) {
  void* stream = nullptr;  // after six sizes and the shared memory, 8-byte aligned
  std::memcpy(&stream, static_cast<const char*>(config) + 32, sizeof stream);
  note("launch", stream);
  if (on_launch != nullptr) on_launch(config, parameters);
  return asked("FAKE_LAUNCH");
}

const char* fake_log() {
  return log().c_str();
}
void fake_clear() {
  log().clear();
}
void fake_on_launch(void (*hook)(const void*, void**)) {
  on_launch = hook;
}

// A tool of NVTX asks for the table of functions and sets those it cares for.
int InitializeInjectionNvtx2(const void* (*tables)(std::uint32_t)) {
  const nvtx_tool::Slots core = nvtx_tool::core_of(tables);
  if (core == nullptr) return 0;
  int (*push)(const char*) = [](const char* name) {
    log() += std::string("push ") + name + "\n";
    return 0;
  };
  int (*pop)() = [] {
    log() += "pop\n";
    return 0;
  };
  *core[nvtx_tool::kPush] = reinterpret_cast<void*>(push);
  *core[nvtx_tool::kPop] = reinterpret_cast<void*>(pop);
  return 1;
}

}  // extern "C"
