#pragma once

// One Context per device of this process, and what belongs to a device's calls.

#include "arrays.h"
#include "flashlab/flashlab.h"

namespace flashlab::python {

/// The context of a device, made on first use. Safe from any thread, and after fork(): a child gets
/// contexts of its own, because the parent's threads and locks did not come along.
/// Precondition: the GIL is held; it is released while a context is made.
/// Errors: RuntimeError, when the device or its driver is not there or did not survive a fork.
const Context& context_of(Device device, const char* argument);

/// How the CPU is used from now on: 0 threads are all that may run, `isa` is a name as of
/// --cpu-isa.
/// Errors: RuntimeError when the CPU was used already, ValueError for what it cannot do.
void configure_cpu(int threads, const std::string& isa);

/// Counts forks of this process, so that what was cached before one is not used after it.
int forks() noexcept;

/// The framework's current stream of a device; none on a CPU.
Stream stream_of(const Framework& framework, Device device);

/// Waits on the host for a stream of a context's device.
Status synchronize(const Context& context, Stream stream);

}  // namespace flashlab::python
