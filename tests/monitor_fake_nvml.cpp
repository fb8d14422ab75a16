// Stands in for libnvidia-ml.so.1 beside the stand-in for the driver: one GPU at the address that
// one gives, at 1410 of 1980 MHz because of its power limit. FAKE_NVML=broken: it does not start.

#include <cstdlib>
#include <cstring>

namespace {
int handle;
}

extern "C" {

int nvmlInit_v2() {
  const char* mode = std::getenv("FAKE_NVML");
  return mode != nullptr && std::strcmp(mode, "broken") == 0 ? 18 : 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  *device = &handle;
  return std::strcmp(address, "00000001:01:01.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1410;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 700500;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int, unsigned* degrees) {
  *degrees = 61;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* gpu_and_memory) {
  gpu_and_memory[0] = 87;
  gpu_and_memory[1] = 12;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[2] = 3ull << 30;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x4;
  return 0;
}

}  // extern "C"
