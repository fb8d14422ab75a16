#include "contexts.h"

#include <pthread.h>

#include <map>
#include <memory>

#include "api/context_state.h"
#include "errors.h"
#include "runtime/cuda/device.h"

namespace flashlab::python {
namespace {

struct Contexts {
  std::map<int, std::unique_ptr<Context>> by_device;  // -1: the CPU
  bool parent_had_gpu = false;
};

// Never destroyed: threads of the interpreter may outlive static objects. A forked child leaves the
// parent's where it is, because one of its locks may be held by a thread that exists no more.
Contexts* contexts = nullptr;
int forks_seen = 0;

void begin_child() {
  bool had_gpu = contexts->parent_had_gpu;
  for (const auto& [device, context] : contexts->by_device) had_gpu |= device >= 0;
  contexts = new Contexts;
  contexts->parent_had_gpu = had_gpu;
  ++forks_seen;
}

Contexts& all() {
  static const bool once = [] {
    contexts = new Contexts;
    pthread_atfork(nullptr, nullptr, begin_child);
    return true;
  }();
  static_cast<void>(once);
  return *contexts;
}

ContextOptions& cpu_options() {
  static auto& options = *new ContextOptions;
  return options;
}

ContextOptions options_of(Device device) {
  ContextOptions options;
  if (device.kind == DeviceKind::kCpu) options = cpu_options();
  options.device = device;
  return options;
}

}  // namespace

void configure_cpu(int threads, const std::string& isa) {
  if (all().by_device.contains(-1)) {
    raise(PyExc_RuntimeError, "configure_cpu", "a CPU that was used already",
          "a call before the first attention", "");
  }
  ContextOptions options;
  options.threads = threads;
  bool known = false;
  for (CpuIsa candidate : {CpuIsa::kAutomatic, CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2,
                           CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa != to_string(candidate)) continue;
    options.cpu_isa = candidate;
    known = candidate == CpuIsa::kAutomatic || supported(candidate);
  }
  if (!known) {
    raise(PyExc_ValueError, "isa", isa, "an instruction set of this processor",
          "flashlab info lists them");
  }
  if (threads < 0) raise(PyExc_ValueError, "threads", std::to_string(threads), "at least 0", "");
  cpu_options() = options;
}

const Context& context_of(Device device, const char* argument) {
  Contexts& here = all();
  const int key = device.kind == DeviceKind::kCpu ? -1 : device.index;
  // Only threads that hold the GIL look, and only they add (below): reading needs no lock.
  if (auto found = here.by_device.find(key); found != here.by_device.end()) return *found->second;
  if (key >= 0 && here.parent_had_gpu) {
    raise(PyExc_RuntimeError, std::string(argument) + ".device",
          to_string(device) + " in a process forked from one that used it",
          "a process that started CUDA itself",
          "start processes by multiprocessing.get_context(\"spawn\")");
  }
  if (key >= 0) nb::module_::import_("flashlab._nvrtc").attr("load")();
  Result<Context> made = [&] {
    // A driver takes its time to start.
    nb::gil_scoped_release release;
    return Context::create(options_of(device));
  }();
  if (!made.ok()) {
    const ErrorDetail detail = made.status().detail();
    raise(PyExc_RuntimeError, std::string(argument) + ".device",
          to_string(device) + ": " + detail.got, detail.expected, detail.remedy);
  }
  // Another thread may have been first.
  auto& context = here.by_device[key];
  if (context == nullptr) context = std::make_unique<Context>(std::move(*made));
  return *context;
}

int forks() noexcept {
  return forks_seen;
}

Stream stream_of(const Framework& framework, Device device) {
  if (device.kind == DeviceKind::kCpu) return {};
  Stream stream;
  if (framework.exchange != nullptr) {
    if (framework.exchange->current_stream(dlpack::kCuda, device.index, &stream.handle) != 0) {
      throw nb::python_error();
    }
    return stream;
  }
  const auto handle = nb::cast<std::uintptr_t>(framework.adapter.attr("stream")(device.index));
  return {reinterpret_cast<void*>(handle)};
}

Status synchronize(const Context& context, Stream stream) {
  cuda::GpuDevice* gpu = context.state().gpu();
  if (gpu == nullptr) return {};
  const auto current = gpu->current();
  return gpu->driver().check(
      gpu->api().cuStreamSynchronize(static_cast<cuda::CUstream>(stream.handle)),
      "cuStreamSynchronize");
}

}  // namespace flashlab::python
