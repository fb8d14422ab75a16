#pragma once

// What there is of NVIDIA's on this machine, and what of it a command runs on.

#include <memory>
#include <string>
#include <vector>

#include "flashlab/context.h"

namespace flashlab::lab {

/// Whether the first GPU is there and kernels for it can be had: by the compiler, or from a folder
/// that FLASHLAB_PRECOMPILED names.
bool gpu_ready();

/// Ok, or why the device cannot be used, in the words of describe_no_cuda where there is none.
Status gpu_status(Device device);

/// GPUs that this process sees; 0 without a driver.
int visible_gpus();

/// "NVIDIA H200"; empty if there is no such GPU.
std::string gpu_name(Device device);

/// The allocator that a context of that GPU would have by itself. Errors: those of gpu_status.
Result<std::unique_ptr<Allocator>> gpu_allocator(Device device);

/// What runs where a call names no implementation: the first of these that serves its problem. One
/// alone, except on GPUs that are too old for the production kernels.
std::vector<std::string> default_implementations(Device device);

/// A library of NVIDIA's as the backend itself looks for it.
struct VendorLibrary {
  std::string name;
  std::string use;      ///< "compiles GPU kernels"
  std::string remedy;   ///< how to get it
  std::string path;     ///< empty: not found
  std::string version;  ///< as far as it says
};
std::vector<VendorLibrary> vendor_libraries();

/// Those that peers run on or that a timeline needs: cuBLASLt, cuDNN and CUPTI. They are loaded to
/// ask their version (cuBLASLt: 0.1 s, 0.6 s from a cold disk), but get no handle, which would need
/// a GPU.
std::vector<VendorLibrary> peer_libraries();

}  // namespace flashlab::lab
