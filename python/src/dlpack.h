#pragma once

// DLPack's binary interface (version 1), declared here so that nothing has to be installed: the
// layout of a tensor in memory and the table of C functions that a framework may offer.
// Source: https://dmlc.github.io/dlpack/latest/c_api.html

#include <cstdint>

namespace flashlab::python::dlpack {

struct Version {
  std::uint32_t major = 0, minor = 0;
};

enum DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaPinned = 3,    ///< page-locked host memory: a CPU's
  kCudaManaged = 13,  ///< memory that the driver moves
};

struct DeviceId {
  DeviceType type = kCpu;
  std::int32_t index = 0;
};

enum TypeCode : std::uint8_t { kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6 };

struct ElementType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
};

/// A tensor that somebody else owns.
struct View {
  void* data = nullptr;
  DeviceId device;
  std::int32_t rank = 0;
  ElementType type;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  ///< elements; null before version 1.2: row-major
  std::uint64_t byte_offset = 0;
};

/// What a capsule named "dltensor" holds.
struct Managed {
  View view;
  void* context = nullptr;
  void (*release)(Managed*) = nullptr;
};

constexpr std::uint64_t kReadOnly = 1, kCopied = 2;

/// What a capsule named "dltensor_versioned" holds.
struct ManagedVersioned {
  Version version;
  void* context = nullptr;
  void (*release)(ManagedVersioned*) = nullptr;
  std::uint64_t flags = 0;
  View view;
};

/// The capsule "dlpack_exchange_api" of a type's `__dlpack_c_exchange_api__`.
struct ExchangeApi {
  Version version;
  ExchangeApi* older = nullptr;
  int (*allocate)(View* model, ManagedVersioned** out, void* error_context,
                  void (*set_error)(void* error_context, const char* kind, const char* message));
  int (*export_managed)(void* array, ManagedVersioned** out);
  int (*to_array)(ManagedVersioned* tensor, void** out_array);
  int (*export_view)(void* array, View* out);  ///< may be null
  int (*current_stream)(DeviceType type, std::int32_t index, void** out);
};

}  // namespace flashlab::python::dlpack
