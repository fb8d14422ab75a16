// Stands in for NVRTC beside the stand-in for the driver, in the same library: FLASHLAB_NVRTC names
// it. Each compilation adds a line to the file FAKE_NVRTC_LOG and takes FAKE_NVRTC_MS milliseconds.

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

namespace {

constexpr char kImage[] =
    "\x7f"
    "ELF";

}  // namespace

extern "C" {

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
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                       const char* const*) {
  static int one = 0;
  *program = &one;
  return 0;
}
int nvrtcDestroyProgram(void**) {
  return 0;
}
int nvrtcCompileProgram(void*, int, const char* const*) {
  if (const char* log = std::getenv("FAKE_NVRTC_LOG")) {
    std::ofstream(log, std::ios::app) << "compiled\n";
  }
  const char* wait = std::getenv("FAKE_NVRTC_MS");
  std::this_thread::sleep_for(std::chrono::milliseconds(wait != nullptr ? std::atoi(wait) : 0));
  return 0;
}
int nvrtcGetPTXSize(void*, std::size_t*) {
  return 1;
}
int nvrtcGetPTX(void*, char*) {
  return 1;
}
int nvrtcGetCUBINSize(void*, std::size_t* bytes) {
  *bytes = sizeof kImage;
  return 0;
}
int nvrtcGetCUBIN(void*, char* image) {
  std::memcpy(image, kImage, sizeof kImage);
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

}  // extern "C"
