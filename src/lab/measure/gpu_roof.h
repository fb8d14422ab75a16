#pragma once

// What a GPU can do at most: its units' products at the clock of the moment, multiply-adds in
// registers on every multiprocessor, copying, reading.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "flashlab/attention.h"
#include "lab/machine/device_memory.h"
#include "lab/machine/machine.h"
#include "lab/measure/measure.h"
#include "runtime/cuda/device.h"
#include "runtime/kernel_store/compile.h"
#include "runtime/program/executor.h"

namespace flashlab::lab {

/// The units that multiply for a type: their rate is the roof of every kernel, whichever
/// instructions it has.
struct GpuUnits {
  std::string name;            ///< "bf16 tensor cores", "fp16 tensor cores / 3", "fp32 FMA units"
  double flops_per_clock = 0;  ///< of a multiprocessor; 0: this architecture's are not known
};
/// By the vendor's data. fp32 in `ieee` multiplies operands in parts: three fp16 products stand for
/// one, where that is more than the FMA units do.
GpuUnits gpu_units(const cuda::DeviceInfo& gpu, DType dtype, Precision precision);

/// FLOP/s of the units on all multiprocessors; empty where they are not known.
std::optional<double> units_flops(const cuda::DeviceInfo& gpu, const GpuUnits& units,
                                  double clock_hz);

/// Waits until `hz` reads `full_hz` or more, at most so long. A reading of 0 says that there is
/// none.
void await_clock(const std::function<double()>& hz, double full_hz,
                 std::chrono::milliseconds longest);

/// The clock of a multiprocessor in Hz, by a kernel of one block between whatever is enqueued on
/// the memory's stream.
class GpuClockProbe {
 public:
  /// Errors: kUnsupported (no compiler), kDeviceError, kOutOfMemory.
  static Result<std::unique_ptr<GpuClockProbe>> create(std::shared_ptr<DeviceMemory> memory);
  GpuClockProbe(const GpuClockProbe&) = delete;
  GpuClockProbe& operator=(const GpuClockProbe&) = delete;
  ~GpuClockProbe();
  /// Empty after a failure.
  std::optional<double> hz();
  /// Waits until the clock is as high as the device's can be, at most so long: behind a load the
  /// power limit holds it down for a while.
  void await_full_clock(std::chrono::milliseconds longest);

 private:
  GpuClockProbe(cuda::GpuDevice& gpu, std::shared_ptr<DeviceMemory> memory);
  cuda::GpuDevice& gpu_;
  std::shared_ptr<DeviceMemory> memory_;
  runtime::Executor executor_;
  void* out_ = nullptr;
};
cuda::KernelSpec clock_kernel();

/// The instructions of a loop: the fastest that the portable kernels have for this type.
struct GpuRoof {
  std::string name;    ///< "mma.sync bf16", "fp32 FMA"; empty: this GPU has none for the type
  std::string config;  ///< of src/cuda/kernels/lab/roof.cu
  /// Multiply-adds times two of one turn of the loop, per thread.
  double flops_per_thread = 0;
};
GpuRoof gpu_roof(const cuda::DeviceInfo& gpu, DType dtype, Precision precision);

/// Its loop, launched with kRoofThreads. Precondition: the roof has a name.
cuda::KernelSpec roof_kernel(const GpuRoof& roof);
inline constexpr unsigned kRoofThreads = 256;

/// A window of the roof's loop on the whole GPU, on the memory's stream. Errors: kUnsupported
/// (fp64, no compiler, a type this GPU has no instruction for), kDeviceError.
Result<RoofWindow> gpu_roof_window(std::shared_ptr<DeviceMemory> memory, DType dtype,
                                   Precision precision = Precision::kIeee);

/// Bytes read and written per second by a copy larger than every cache; empty when there was no
/// memory for it.
std::optional<double> gpu_copy_gb_per_s(std::shared_ptr<DeviceMemory> memory);

/// Bytes read per second by a kernel that does nothing else, of memory larger than every cache;
/// empty when there was no memory for it, or no compiler.
std::optional<double> gpu_read_gb_per_s(std::shared_ptr<DeviceMemory> memory);
cuda::KernelSpec read_kernel();

/// Fills the environment's roofs: the units' rates at the larger clock of those before and behind
/// the loops, the loops' rates beside them (the median of several windows each, and the roof itself
/// where the units are not known), and the clock under that load. Errors: those of
/// gpu_roof_window; what was measured before stays.
Status add_gpu_roofs(std::shared_ptr<DeviceMemory> memory, Environment& environment,
                     double window_seconds);

}  // namespace flashlab::lab
