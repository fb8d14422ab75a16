// Stands in for libcuda.so.1, so that what is said about drivers can be tested on any machine.
// FAKE_CUDA: old (a driver of CUDA 11.4), none (no device), sm70 (one Volta), broken (cuInit
// fails). The other functions that are called are generated beside it: each returns an error.

#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kUnknownError = 999;
constexpr int kMajor = 75, kMinor = 76;  // attributes of a device

bool is(const char* what) {
  const char* mode = std::getenv("FAKE_CUDA");
  return mode != nullptr && std::strcmp(mode, what) == 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return is("broken") ? kUnknownError : kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = is("old") ? 11040 : 13000;
  return kSuccess;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kUnknownError ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
  return kSuccess;
}

int cuGetErrorString(int result, const char** text) {
  *text = result == kUnknownError ? "unknown error" : "no error";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = is("none") ? 0 : 1;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake V100", static_cast<std::size_t>(length) - 1);
  return kSuccess;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{16} << 30;
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kMajor ? 7 : attribute == kMinor ? 0 : 1;
  return kSuccess;
}

}  // extern "C"
