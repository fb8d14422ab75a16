#include "cuda/launch/pointers.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "flashlab/tensor_table.h"

namespace flashlab::cuda {
namespace {

// cudaStreamLegacy and cudaStreamPerThread are 1 and 2, not addresses.
constexpr std::uintptr_t kLastSpecialStream = 2;
constexpr std::uintptr_t kFirstAddress = 4096;

constexpr const char* kCopyIt = "copy it to the device, or use a context of the memory's device";

struct Found {
  unsigned memory_type = 0;  ///< 0: nothing the driver knows
  int ordinal = -1;
};

// Unlike its singular form this call takes addresses that the driver does not know, too.
// Written in place: a copy of what the driver has just stored in two halves waits for both.
void look_up(const GpuDevice& device, const void* data, Found& found) {
  int attributes[] = {kPointerMemoryType, kPointerDeviceOrdinal};
  void* values[] = {&found.memory_type, &found.ordinal};
  const CUresult result =
      device.api().cuPointerGetAttributes(2, attributes, values, pointer_of(data));
  if (result != kCudaSuccess) found = {};
}

// Managed memory is every device's. Asked for apart: nearly no call has such.
bool is_managed(const GpuDevice& device, const void* data) {
  unsigned managed = 0;
  int attributes[] = {kPointerIsManaged};
  void* values[] = {&managed};
  const CUresult result =
      device.api().cuPointerGetAttributes(1, attributes, values, pointer_of(data));
  return result == kCudaSuccess && managed != 0;
}

Status refuse(const GpuDevice& device, std::string name, const void* data, const Found& found) {
  std::string got = fmt::format("{}: ", data);
  if (found.memory_type == kMemoryDevice) {
    got += fmt::format("memory of cuda:{}", found.ordinal);
  } else if (found.memory_type == kMemoryHost) {
    got += "page-locked host memory";
  } else {
    got += "host memory, or memory that was freed";
  }
  return Status::invalid({std::move(name), std::move(got),
                          fmt::format("memory of cuda:{}", device.info().ordinal), kCopyIt});
}

bool is_here(const GpuDevice& device, const void* data, Found& found) {
  if (data == nullptr) return true;
  look_up(device, data, found);
  return (found.memory_type == kMemoryDevice && found.ordinal == device.info().ordinal) ||
         is_managed(device, data);
}

template <class Tensors>
Status check_all(const GpuDevice& device, const Tensors& tensors, Workspace workspace) {
  Status status;
  const void* last = nullptr;  // lengths of queries and of keys are often one tensor
  for_each_tensor(tensors, [&](const TensorRow& row, const GivenTensor& given) {
    Found found;
    if (!status.ok() || given.data == nullptr || given.data == last) return;
    last = given.data;
    if (is_here(device, given.data, found)) return;
    status = refuse(device, fmt::format("{}.data", row.name), given.data, found);
  });
  return status.ok() ? check_pointers(device, "workspace", workspace.data) : status;
}

}  // namespace

Status check_pointers(const GpuDevice& device, const char* name, const void* data) {
  Found found;
  return is_here(device, data, found) ? Status() : refuse(device, name, data, found);
}

Status check_pointers(const GpuDevice& device, const ForwardTensors& t, Workspace workspace) {
  return check_all(device, t, workspace);
}

Status check_pointers(const GpuDevice& device, const BackwardTensors& t, Workspace workspace) {
  return check_all(device, t, workspace);
}

Status check_stream(const GpuDevice& device, Stream stream) {
  const auto value = reinterpret_cast<std::uintptr_t>(stream.handle);
  if (value <= kLastSpecialStream) return {};
  const auto wrong = [&](std::string got) {
    return Status::invalid(
        {"stream", std::move(got), fmt::format("a stream of cuda:{}", device.info().ordinal),
         "create it while that device is current; Stream{} is the default stream"});
  };
  // The driver follows the handle before it looks whether it is one.
  if (value < kFirstAddress || value % alignof(void*) != 0) {
    return wrong(fmt::format("{:#x}, which is no stream", value));
  }
  CUcontext context = nullptr;
  const CUresult result =
      device.api().cuStreamGetCtx(static_cast<CUstream>(stream.handle), &context);
  if (result != kCudaSuccess) {
    return wrong(device.driver().check(result, "cuStreamGetCtx").message());
  }
  if (context != device.context()) return wrong("a stream of another device or context");
  return {};
}

}  // namespace flashlab::cuda
