#include "runtime/kernel_store/nvrtc.h"

#include <chrono>
#include <cstdlib>

#include "runtime/kernel_store/nvrtc_api.h"
#include "runtime/library/library.h"

namespace flashlab::cuda {

struct Nvrtc::Functions : NvrtcFunctions {};

namespace {

constexpr const char* kRemedy =
    "install it with the CUDA toolkit or by `pip install nvidia-cuda-nvrtc`, or name the file in "
    "FLASHLAB_NVRTC; kernels in the cache or in a precompiled folder need no compiler";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

std::vector<std::string> Nvrtc::search_paths() {
  return toolkit_paths("libnvrtc.so.1[2-9]");
}

Result<Nvrtc> open_nvrtc() {
  std::vector<std::string> candidates;
  if (const std::string named = environment("FLASHLAB_NVRTC"); !named.empty()) {
    candidates = {named};
  } else {
    candidates = {"libnvrtc.so.13", "libnvrtc.so.12"};
    for (std::string& path : Nvrtc::search_paths()) candidates.push_back(std::move(path));
  }
  auto library = Library::open("NVRTC", candidates, kRemedy);
  if (!library.ok()) return library.status();
  static Nvrtc::Functions functions;
  std::string missing;
#define FLASHLAB_LOAD(name) load(*library, #name, functions.name, missing);
  FLASHLAB_NVRTC_FUNCTIONS(FLASHLAB_LOAD)
#undef FLASHLAB_LOAD
  if (!missing.empty()) {
    return Status::unsupported(
        {"NVRTC", library->path() + " without " + missing, "NVRTC 12.2 or newer", kRemedy});
  }
  Nvrtc nvrtc;
  nvrtc.functions_ = &functions;
  nvrtc.path_ = library->path();
  functions.nvrtcVersion(&nvrtc.major_, &nvrtc.minor_);
  if (nvrtc.major_ * 100 + nvrtc.minor_ < 1202) {
    return Status::unsupported(
        {"NVRTC", nvrtc.version() + " at " + nvrtc.path_, "NVRTC 12.2 or newer", kRemedy});
  }
  return nvrtc;
}

Result<const Nvrtc*> Nvrtc::get() {
  static const Result<Nvrtc> opened = open_nvrtc();
  if (!opened.ok()) return opened.status();
  return &*opened;
}

std::string Nvrtc::version() const {
  return "NVRTC " + std::to_string(major_) + "." + std::to_string(minor_);
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  if (functions_->nvrtcGetNumSupportedArchs(&count) != 0 || count <= 0) return {};
  std::vector<int> list(static_cast<std::size_t>(count));
  if (functions_->nvrtcGetSupportedArchs(list.data()) != 0) return {};
  return list;
}

namespace {

// Owns a program for the length of a compilation.
class Program {
 public:
  explicit Program(const NvrtcFunctions& api) : api_(api) {}
  ~Program() {
    if (handle != nullptr) api_.nvrtcDestroyProgram(&handle);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::string log() const {
    std::size_t size = 0;
    if (api_.nvrtcGetProgramLogSize(handle, &size) != 0 || size <= 1) return "";
    std::string text(size, '\0');
    api_.nvrtcGetProgramLog(handle, text.data());
    text.resize(size - 1);
    return text;
  }

  nvrtcProgram handle = nullptr;

 private:
  const NvrtcFunctions& api_;
};

using GetSize = decltype(NvrtcFunctions::nvrtcGetCUBINSize);
using GetImage = decltype(NvrtcFunctions::nvrtcGetCUBIN);

bool fetch(nvrtcProgram program, GetSize get_size, GetImage get_image, std::string& image) {
  std::size_t size = 0;
  if (get_size(program, &size) != 0 || size == 0) return false;
  image.resize(size);
  return get_image(program, image.data()) == 0;
}

}  // namespace

Result<Compiled> Nvrtc::compile(const CompileRequest& request) const {
  const auto start = std::chrono::steady_clock::now();
  const NvrtcFunctions& api = *functions_;
  std::vector<const char*> names, texts;
  for (const SourceFile& header : request.headers) {
    names.push_back(header.name.c_str());
    texts.push_back(header.text.c_str());
  }
  Program program(api);
  auto failed = [&](const char* step, int code, const std::string& log) {
    return Status(
        StatusCode::kDeviceError,
        {request.main.name + " for " + request.architecture,
         std::string(step) + ": " + api.nvrtcGetErrorString(code) + (log.empty() ? "" : "\n" + log),
         "a kernel that compiles", "report it with this text and " + version()});
  };
  int code =
      api.nvrtcCreateProgram(&program.handle, request.main.text.c_str(), request.main.name.c_str(),
                             static_cast<int>(names.size()), texts.data(), names.data());
  if (code != 0) return failed("nvrtcCreateProgram", code, "");
  std::vector<std::string> options{"--gpu-architecture=" + request.architecture, "--std=c++20",
                                   "--ptxas-options=-v", "--device-as-default-execution-space"};
  // From 12.9 on, on a machine with a driver, NVRTC answers a program that it knows from a cache of
  // its own, with an empty log: no report of registers and spills (H200, 2026-11-22). Images are
  // kept by KernelCache, with their logs.
  if (major_ * 100 + minor_ >= 1209) options.push_back("--no-cache");
  options.insert(options.end(), request.options.begin(), request.options.end());
  std::vector<const char*> flags;
  for (const std::string& option : options) flags.push_back(option.c_str());
  code = api.nvrtcCompileProgram(program.handle, static_cast<int>(flags.size()), flags.data());
  Compiled compiled;
  compiled.log = program.log();
  if (code != 0) return failed("nvrtcCompileProgram", code, compiled.log);
  const bool binary = request.architecture.rfind("sm_", 0) == 0;
  const bool fetched =
      binary ? fetch(program.handle, api.nvrtcGetCUBINSize, api.nvrtcGetCUBIN, compiled.image)
             : fetch(program.handle, api.nvrtcGetPTXSize, api.nvrtcGetPTX, compiled.image);
  if (!fetched) return failed(binary ? "nvrtcGetCUBIN" : "nvrtcGetPTX", 0, compiled.log);
  compiled.compiler = version();
  compiled.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return compiled;
}

}  // namespace flashlab::cuda
