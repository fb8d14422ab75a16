#pragma once

// GPU kernels compiled for the CPU, and steps of programs that run them.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "launch.h"
#include "runtime/program/program.h"

namespace emulated {

/// A change of a source, for faults that a test plants and for patches that it tries.
struct Edit {
  std::string file;  ///< below src/cuda/kernels/
  std::string from, to;
};

/// A folder with the kernels' sources, changed where a CPU's compiler needs it, and what was built
/// from them. FLASHLAB_KERNEL_SOURCES names other sources than the tree's.
class Kernels {
 public:
  explicit Kernels(const std::vector<Edit>& edits = {});
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  struct Built {
    void (*run)(const void* arguments) = nullptr;
    char* shared = nullptr;
    std::string error;  ///< what the compiler said, where it does not compile
  };
  /// Compiles those that are not built yet, several at a time.
  void build(std::span<const flashlab::cuda::KernelSpec> specs);
  const Built& find(const flashlab::cuda::KernelSpec& spec);
  /// Edits whose text was not found.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  Built compiled(const flashlab::cuda::KernelSpec& spec, const std::string& stem) const;

  std::filesystem::path folder_;
  std::vector<std::string> problems_;
  std::map<std::string, Built> built_;
};

/// Runs a step whose kernels and memsets are all there is: what went wrong, empty if nothing did.
std::string run_step(Kernels& kernels, const flashlab::runtime::Program& program,
                     const flashlab::runtime::Step& step, const flashlab::runtime::Call& call);

}  // namespace emulated
