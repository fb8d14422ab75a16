#pragma once

// The few declarations of CUPTI's activity API (cupti_activity.h) that are needed. Records grow at
// their end from version to version; what is read here lies at the same place since CUDA 12.0.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace flashlab::cuda {

/// API versions whose records begin as declared here: 18 is CUDA 12.0, 130000 is 13.0.
inline constexpr std::uint32_t kOldestCupti = 18, kNewestCupti = 139999;

enum CuptiResult : int {
  kCuptiSuccess = 0,
  kCuptiMaxLimitReached = 12,  ///< of cuptiActivityGetNextRecord: no further record
  kCuptiInsufficientPrivileges = 35,
  kCuptiMultipleSubscribers = 39,  ///< another profiler listens
};

enum CuptiActivityKind : int {
  kCuptiMemcpy = 1,
  kCuptiMemset = 2,
  kCuptiConcurrentKernel = 10,
};

enum CuptiCopyKind : std::uint8_t { kCuptiHostToDevice = 1, kCuptiDeviceToHost = 2 };

struct CuptiActivity {
  int kind;
};
struct CuptiKernel {
  int kind;
  std::uint8_t cache_config, shared_memory_config;
  std::uint16_t registers_per_thread;
  std::uint32_t partitioned_requested, partitioned_executed;
  std::uint64_t start, end, completed;  ///< nanoseconds
  std::uint32_t device, context, stream;
  std::int32_t grid_x, grid_y, grid_z, block_x, block_y, block_z;
  std::int32_t static_shared_bytes, dynamic_shared_bytes;
  std::uint32_t local_bytes_per_thread, local_bytes_total, correlation;
  std::int64_t grid;
  const char* name;
};
struct CuptiMemset {
  int kind;
  std::uint32_t value;
  std::uint64_t bytes, start, end;
};
struct CuptiMemcpy {
  int kind;
  std::uint8_t copy_kind, source_kind, target_kind, flags;
  std::uint64_t bytes, start, end;
};

using CuptiBufferRequested = void (*)(std::uint8_t** buffer, std::size_t* bytes,
                                      std::size_t* most_records);
using CuptiBufferCompleted = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer,
                                      std::size_t bytes, std::size_t valid_bytes);

// clang-format off
#define FLASHLAB_CUPTI_FUNCTIONS(X)                                                               \
  X(cuptiGetVersion, int(std::uint32_t*))                                                         \
  X(cuptiGetResultString, int(int, const char**))                                                 \
  X(cuptiActivityRegisterCallbacks, int(CuptiBufferRequested, CuptiBufferCompleted))              \
  X(cuptiActivityEnable, int(int))                                                                \
  X(cuptiActivityDisable, int(int))                                                               \
  X(cuptiActivityFlushAll, int(std::uint32_t))                                                    \
  X(cuptiActivityGetNextRecord, int(std::uint8_t*, std::size_t, CuptiActivity**))                 \
  X(cuptiActivityGetNumDroppedRecords, int(void*, std::uint32_t, std::size_t*))
// clang-format on

struct CuptiFunctions {
#define FLASHLAB_DECLARE(name, ...) std::type_identity_t<__VA_ARGS__>* name = nullptr;
  FLASHLAB_CUPTI_FUNCTIONS(FLASHLAB_DECLARE)
#undef FLASHLAB_DECLARE
};

}  // namespace flashlab::cuda
