#pragma once

// Runs a program on this machine's processor, step after step.

#include "runtime/cpu/thread_pool.h"
#include "runtime/program/program.h"

namespace flashlab::runtime {

/// C = alpha op(A) op(B) + beta C in plain loops, rows of C in parallel, summed in fp32 (fp64 for
/// fp64 operands) in an order that depends on the shape alone. For programs where a product is
/// not what takes the time.
Status multiply_plainly(internal::ThreadPool& pool, const Product& product, const void* a,
                        const void* b, void* c);

/// A library of products for CPUs; multiply_plainly where none is given.
using CpuMultiply = Status (*)(internal::ThreadPool& pool, const Product& product, const void* a,
                               const void* b, void* c);

/// All devices and streams of the program are this processor. Memsets, copies, products and host
/// functions run; a kernel cannot.
class CpuExecutor {
 public:
  CpuExecutor(const Program& program, internal::ThreadPool& pool,
              CpuMultiply multiply = multiply_plainly)
      : program_(program), pool_(pool), multiply_(multiply) {}

  /// Runs the steps and returns when the last has ended. Reports their times to who observes this
  /// thread. Errors: kUnsupported at the first step that needs a GPU, which says how many have run;
  /// kInternal (a broken program or call).
  Status run(const Call& call) const;

 private:
  const Program& program_;
  internal::ThreadPool& pool_;
  CpuMultiply multiply_;
};

}  // namespace flashlab::runtime
