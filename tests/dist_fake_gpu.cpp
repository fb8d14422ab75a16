// Stands in for libcuda.so.1, NVRTC and NCCL where several processes have a GPU each. Memory is a
// file that other processes map by its handle, streams do at once what is enqueued on them, words
// are waited for as a GPU does, and the one kernel that is launched adds as flash_rank_sum says. So
// what is enqueued in a wrong order waits for ever or computes something else. NCCL only notes what
// it is asked for, in fake_nccl_log().
//
// FAKE_GPUS: how many there are (2). FAKE_MAJOR: their compute capability (9). FAKE_NO_PEERS: they
// do not reach each other. FAKE_SAME: all have one name. FAKE_FIRST: the first
// one's, for other hosts. FAKE_NCCL: NCCL's version (22809).

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "base/narrow.h"
#include "cuda/kernels/dist/arguments.h"
#include "cuda/kernels/lab/collective_arguments.h"
#include "dist/sums/tree_sum.h"
#include "runtime/cuda/peers.h"

namespace {

namespace device = flashlab::device;
using flashlab::DType;
using flashlab::cuda::CUipcMemHandle;
using Pointer = unsigned long long;

constexpr int kSuccess = 0, kFailure = 999;

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

struct Allocation {
  std::size_t bytes;
  int file;  // below 0: another process's
};
std::map<Pointer, Allocation>& allocations() {
  static auto& all = *new std::map<Pointer, Allocation>();
  return all;
}

int map_file(int file, std::size_t bytes, Pointer* address) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return kFailure;
  *address = reinterpret_cast<Pointer>(at);
  return kSuccess;
}

// What a handle says.
struct Named {
  int process, file;
  std::size_t bytes;
};

std::atomic_ref<std::uint32_t> word_at(Pointer address) {
  return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(address));
}

struct Kernel {
  std::string name;
  int parts = 0;
  DType dtype = DType::kFp32;
};

template <class T>
T stored(int value, DType dtype) {
  if constexpr (sizeof(T) == 2) {
    const auto wide = static_cast<float>(value);
    std::uint16_t narrow = 0;
    dtype == DType::kBf16 ? flashlab::base::round_to_bf16(&wide, &narrow, 1)
                          : flashlab::base::round_to_fp16(&wide, &narrow, 1);
    return narrow;
  } else {
    return static_cast<T>(value);
  }
}

// lab_exchange_fill and lab_exchange_check.
template <class T>
void exchange(const device::ExchangeArguments& given, bool fills, DType dtype) {
  auto* data = static_cast<T*>(given.data);
  for (unsigned long long i = 0; i < given.count; ++i) {
    if (fills) {
      data[i] = stored<T>(device::exchanged_value(given.rank, i), dtype);
      continue;
    }
    const int value = device::expected_value(static_cast<device::Exchange>(given.kind), given.ranks,
                                             given.rank, given.part, i);
    if (data[i] != stored<T>(value, dtype)) *given.wrong = std::min(*given.wrong, i + 1);
  }
}

// The source that was compiled last is the image.
std::string& source() {
  static auto& text = *new std::string();
  return text;
}

std::string& nccl_log() {
  static auto& text = *new std::string();
  return text;
}

template <class... T>
int note(const char* format, T... values) {
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  nccl_log() += line;
  nccl_log() += '\n';
  return kSuccess;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return kSuccess;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
int cuGetErrorString(int, const char** text) {
  *text = "unknown error";
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_GPUS", 2);
  return kSuccess;
}
int cuDeviceGet(int* ordinal, int asked) {
  *ordinal = asked;
  return kSuccess;
}
int cuDeviceGetName(char* name, int length, int) {
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU");
  return kSuccess;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{1} << 30;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int major = number("FAKE_MAJOR", 9);
  *value = attribute == 75 ? major : attribute == 76 ? (major == 7 ? 5 : 0) : 1;
  return kSuccess;
}
int cuDeviceGetUuid_v2(flashlab::cuda::CUuuid* uuid, int ordinal) {
  std::memset(uuid, 0, sizeof *uuid);
  const int first = number("FAKE_FIRST", 0);
  uuid->bytes[0] = static_cast<char>(number("FAKE_SAME", 0) != 0 ? 0 : first + ordinal);
  return kSuccess;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = number("FAKE_NO_PEERS", 0) == 0;
  return kSuccess;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  static int one;
  *context = &one;
  return kSuccess;
}
int cuCtxPushCurrent_v2(void*) {
  return kSuccess;
}
int cuCtxPopCurrent_v2(void**) {
  return kSuccess;
}

int cuMemAlloc_v2(Pointer* address, std::size_t bytes) {
  const int file = memfd_create("gpu", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kFailure;
  if (map_file(file, bytes, address) != kSuccess) return kFailure;
  allocations()[*address] = {bytes, file};
  return kSuccess;
}
int cuMemFree_v2(Pointer address) {
  const Allocation found = allocations()[address];
  allocations().erase(address);
  close(found.file);
  return munmap(reinterpret_cast<void*>(address), found.bytes) == 0 ? kSuccess : kFailure;
}
int cuMemGetAddressRange_v2(Pointer* base, std::size_t* bytes, Pointer address) {
  auto found = allocations().upper_bound(address);
  if (found == allocations().begin()) return kFailure;
  --found;
  if (address >= found->first + found->second.bytes) return kFailure;
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second.bytes;
  return kSuccess;
}
// As the driver's: it names the whole allocation.
int cuIpcGetMemHandle(CUipcMemHandle* handle, Pointer address) {
  Pointer base = 0;
  if (cuMemGetAddressRange_v2(&base, nullptr, address) != kSuccess) return kFailure;
  const Allocation& of = allocations()[base];
  const Named named{getpid(), of.file, of.bytes};
  std::memcpy(handle, &named, sizeof named);
  return kSuccess;
}
int cuIpcOpenMemHandle_v2(Pointer* address, CUipcMemHandle handle, unsigned) {
  Named named;
  std::memcpy(&named, &handle, sizeof named);
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", named.process, named.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return kFailure;
  const int result = map_file(file, named.bytes, address);
  close(file);
  if (result == kSuccess) allocations()[*address] = {named.bytes, -1};
  return result;
}
int cuIpcCloseMemHandle(Pointer address) {
  const Allocation found = allocations()[address];
  allocations().erase(address);
  return munmap(reinterpret_cast<void*>(address), found.bytes) == 0 ? kSuccess : kFailure;
}

int cuMemcpyAsync(Pointer to, Pointer from, std::size_t bytes, void*) {
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kSuccess;
}
int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, std::size_t bytes, void* stream) {
  return cuMemcpyAsync(to, reinterpret_cast<Pointer>(from), bytes, stream);
}
int cuStreamWriteValue32_v2(void*, Pointer address, std::uint32_t value, unsigned) {
  word_at(address).store(value, std::memory_order_release);
  return kSuccess;
}
int cuStreamWaitValue32_v2(void*, Pointer address, std::uint32_t value, unsigned) {
  while (word_at(address).load(std::memory_order_acquire) != value) sched_yield();
  return kSuccess;
}
int cuStreamCreate(void** stream, unsigned) {
  static int one;
  *stream = &one;
  return kSuccess;
}
int cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
int cuStreamDestroy_v2(void*) {
  return kSuccess;
}
int cuStreamSynchronize(void*) {
  return kSuccess;
}
int cuStreamQuery(void*) {
  return kSuccess;
}
int cuStreamWaitEvent(void*, void*, unsigned) {
  return kSuccess;
}
int cuEventCreate(void** event, unsigned) {
  static int one;
  *event = &one;
  return kSuccess;
}
int cuEventRecord(void*, void*) {
  return kSuccess;
}
int cuEventDestroy_v2(void*) {
  return kSuccess;
}

int cuLibraryLoadData(void** library, const void* image, int*, void**, unsigned, int*, void**,
                      unsigned) {
  const std::string text(static_cast<const char*>(image));
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  auto* kernel = new Kernel;  // as long as the process
  const std::size_t at = text.find("kParts = ");
  if (at != std::string::npos) kernel->parts = std::atoi(text.c_str() + at + 9);
  if (says("Element::kBf16") || says("kBytes = 2")) kernel->dtype = DType::kBf16;
  if (says("Element::kFp16") || says("kFp16 = true")) kernel->dtype = DType::kFp16;
  if (says("kBytes = 8")) kernel->dtype = DType::kFp64;
  *library = kernel;
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  *kernel = new Kernel(*static_cast<const Kernel*>(library));
  static_cast<Kernel*>(*kernel)->name = name;
  return kSuccess;
}
int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return kSuccess;
}
int cuLaunchKernelEx(const void*, void* function, void** parameters, void**) {
  const auto& kernel = *static_cast<const Kernel*>(function);
  if (kernel.name.starts_with("flash_rank_sum")) {
    const auto& given = *static_cast<const device::RankSumArguments*>(parameters[0]);
    const DType dtype = kernel.name.ends_with("_fp64") ? DType::kFp64 : kernel.dtype;
    flashlab::dist::tree_sum({given.parts, static_cast<std::size_t>(kernel.parts)}, given.to,
                             static_cast<std::size_t>(given.count), dtype);
    return kSuccess;
  }
  const auto& given = *static_cast<const device::ExchangeArguments*>(parameters[0]);
  const bool fills = kernel.name == "lab_exchange_fill";
  if (!fills && kernel.name != "lab_exchange_check") return kFailure;
  if (kernel.dtype == DType::kFp64) exchange<double>(given, fills, kernel.dtype);
  if (kernel.dtype == DType::kFp32) exchange<float>(given, fills, kernel.dtype);
  if (flashlab::size_of(kernel.dtype) == 2) exchange<std::uint16_t>(given, fills, kernel.dtype);
  return kSuccess;
}
int cuMemsetD8Async(Pointer to, unsigned char value, std::size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return kSuccess;
}
int cuMemcpyDtoHAsync_v2(void* to, Pointer from, std::size_t bytes, void* stream) {
  return cuMemcpyAsync(reinterpret_cast<Pointer>(to), from, bytes, stream);
}
int cuEventElapsedTime(float* ms, void*, void*) {
  *ms = 1;
  return kSuccess;
}

const char* nvrtcGetErrorString(int) {
  return "NVRTC_ERROR_INTERNAL_ERROR";
}
int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* list) {
  *list = 90;
  return 0;
}
int nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*,
                       const char* const*) {
  source() = std::string(
                 "\x7f"
                 "ELF ") +
             text;
  *program = &source();
  return 0;
}
int nvrtcDestroyProgram(void**) {
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  return 0;
}
int nvrtcGetPTXSize(void*, std::size_t*) {
  return 1;
}
int nvrtcGetPTX(void*, char*) {
  return 1;
}
int nvrtcGetCUBINSize(void*, std::size_t* bytes) {
  *bytes = source().size() + 1;
  return 0;
}
int nvrtcGetCUBIN(void*, char* image) {
  std::memcpy(image, source().c_str(), source().size() + 1);
  return 0;
}
int nvrtcGetProgramLogSize(void*, std::size_t* bytes) {
  *bytes = 1;
  return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  *log = '\0';
  return 0;
}

const char* fake_nccl_log() {
  return nccl_log().c_str();
}
int ncclGetVersion(int* version) {
  *version = number("FAKE_NCCL", 22809);
  return kSuccess;
}
const char* ncclGetErrorString(int) {
  return "an error";
}
const char* ncclGetLastError(void*) {
  return "";
}
int ncclGetUniqueId(char* id) {
  std::strcpy(id, "of rank 0");
  return note("id");
}
struct Identifier {
  char text[128];
};
int ncclCommInitRank(void** comm, int ranks, Identifier id, int rank) {
  static int one;
  *comm = &one;
  return note("init %d of %d, %s", rank, ranks, id.text);
}
int ncclCommDestroy(void*) {
  return note("destroy");
}
int ncclGroupStart() {
  return note("group");
}
int ncclGroupEnd() {
  return note("end");
}
int ncclAllReduce(const void*, void*, std::size_t count, int type, int operation, void*, void*) {
  return note("all-reduce %zu of %d by %d", count, type, operation);
}
int ncclReduceScatter(const void*, void*, std::size_t count, int type, int operation, void*,
                      void*) {
  return note("reduce-scatter %zu of %d by %d", count, type, operation);
}
int ncclAllGather(const void*, void*, std::size_t count, int type, void*, void*) {
  return note("all-gather %zu of %d", count, type);
}
int ncclBroadcast(const void*, void*, std::size_t count, int type, int root, void*, void*) {
  return note("broadcast %zu of %d from %d", count, type, root);
}
int ncclSend(const void*, std::size_t count, int type, int peer, void*, void*) {
  return note("send %zu of %d to %d", count, type, peer);
}
int ncclRecv(void*, std::size_t count, int type, int peer, void*, void*) {
  return note("receive %zu of %d from %d", count, type, peer);
}

}  // extern "C"
