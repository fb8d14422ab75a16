#pragma once

// Programs of a GPU on the CPU: kernels on an emulated block (tests/emulated/block.h), products by
// plain loops. Only what needs no tensor cores runs here.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/program/program.h"
#include "train_kernels.h"

namespace flashlab::train::testing {

namespace fs = std::filesystem;
using Launch = bool (*)(const void*, unsigned, unsigned, unsigned);

/// A folder with the kernels' sources, changed where a CPU's compiler needs it, and what was built.
class EmulatedKernels {
 public:
  EmulatedKernels() {
    std::string name = (fs::temp_directory_path() / "flashlab-emulated-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    fs::create_directories(folder_ / "train");
    const char* sources = std::getenv("FLASHLAB_KERNEL_SOURCES");
    if (sources != nullptr) kernels_ = sources;
    for (const auto& each : fs::directory_iterator(fs::path(kernels_) / "train")) {
      if (each.path().extension() == ".md") continue;
      std::ifstream from(each.path());
      std::ofstream to(folder_ / "train" / each.path().filename());
      for (std::string line; std::getline(from, line);) {
        if (line.find("extern __shared__") == std::string::npos) to << line;
        to << "\n";
      }
    }
  }
  ~EmulatedKernels() { fs::remove_all(folder_); }
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;

  /// The function that launches a kernel; null where it does not compile.
  Launch find(const cuda::KernelSpec& spec) {
    Launch& found = built_[spec.entry + spec.config];
    if (found != nullptr) return found;
    const std::string stem = (folder_ / std::to_string(built_.size())).string();
    std::ofstream(stem + ".cpp")
        << "#include <type_traits>\n#include \"block.h\"\n#include \"config_types.h\"\n"
        << spec.config << "\n#include \"" << spec.source << "\"\n"
        << "template <class A> void call(void (*kernel)(A), const void* arguments) {\n"
        << "  kernel(*static_cast<const std::remove_cv_t<A>*>(arguments));\n}\n"
        << "extern \"C\" __attribute__((visibility(\"default\"))) bool launch(\n"
        << "    const void* arguments, unsigned x, unsigned y, unsigned n) {\n"
        << "  return emulated::launch([](const void* a) { call(&" << spec.entry
        << ", a); }, arguments, x, y, n);\n}\n";
    // Each library has its own shared memory: no symbol is another one's, too.
    std::string command = FLASHLAB_CXX " -std=c++20 -O0 -w -fvisibility=hidden -shared -fPIC";
    command += FLASHLAB_CXX_FLAGS;
    for (const std::string& folder :
         {std::string(FLASHLAB_EMULATED), folder_.string(), kernels_,
          std::string(FLASHLAB_SOURCES "/src"), std::string(FLASHLAB_SOURCES "/include")}) {
      command += " -I " + folder;
    }
    command += " " + stem + ".cpp -o " + stem + ".so";
    if (std::system(command.c_str()) != 0) return nullptr;
    void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    return found = reinterpret_cast<Launch>(dlsym(library, "launch"));
  }

 private:
  fs::path folder_;
  std::string kernels_ = FLASHLAB_KERNELS;
  std::map<std::string, Launch> built_;
};

inline EmulatedKernels& emulated_kernels() {
  static EmulatedKernels kernels;
  return kernels;
}

inline Element element_of(DType dtype) {
  if (dtype == DType::kFp16) return Element::kFp16;
  return dtype == DType::kBf16 ? Element::kBf16 : Element::kFp32;
}

/// A matrix of a product in memory.
struct HostMatrix {
  Element element;
  const runtime::Matrix& matrix;
  std::byte* data;

  std::byte* at(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    if (matrix.transposed) std::swap(row, column);
    return data +
           (batch * matrix.batch_stride + row * matrix.row_stride + column) * size_of(element);
  }
  double get(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    return from_bytes(element, at(batch, row, column), 1).front();
  }
  void put(std::int64_t batch, std::int64_t row, std::int64_t column, double value) const {
    to_bytes(element, {value}, at(batch, row, column));
  }
};

inline void run_product(const runtime::Program& program, const runtime::Call& call,
                        const runtime::ProductWork& work) {
  const auto host = [&](const runtime::Matrix& matrix, runtime::Place place) {
    const runtime::Place there = place.buffer < 0 ? work.c : place;
    return HostMatrix{element_of(matrix.dtype), matrix,
                      static_cast<std::byte*>(program.address(call, there))};
  };
  const runtime::Product& p = work.product;
  const HostMatrix a = host(p.a, work.a), b = host(p.b, work.b), c = host(p.c, work.c);
  const HostMatrix addend = host(p.c, work.addend), aux = host(p.c, work.aux);
  const HostMatrix bias = host(p.c, work.bias);
  using runtime::Epilogue;
  const bool biased = p.epilogue == Epilogue::kBias || p.epilogue == Epilogue::kBiasGelu;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      const std::int64_t row = i / p.n, column = i % p.n;
      double sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k) sum += a.get(batch, row, k) * b.get(batch, k, column);
      sum *= static_cast<double>(p.alpha);
      if (p.beta != 0) sum += static_cast<double>(p.beta) * addend.get(batch, row, column);
      if (biased) sum += bias.get(0, 0, column);
      if (p.epilogue == Epilogue::kBiasGelu) {
        aux.put(batch, row, column, sum);
        sum = gelu(sum);
      }
      if (p.epilogue == Epilogue::kGeluBackward) sum *= slope(gelu, aux.get(batch, row, column));
      c.put(batch, row, column, sum);
    }
  }
}

/// Runs a step whose kernels, products and memsets are all there is.
inline void run_emulated(const runtime::Program& program, const runtime::Step& step,
                         const runtime::Call& call) {
  if (const auto* memset = std::get_if<runtime::MemsetWork>(&step.work)) {
    std::memset(program.address(call, memset->target), memset->value, memset->bytes);
    return;
  }
  if (const auto* product = std::get_if<runtime::ProductWork>(&step.work)) {
    run_product(program, call, *product);
    return;
  }
  const auto& kernel = std::get<runtime::KernelWork>(step.work);
  std::vector<std::byte> arguments = kernel.parameters.bytes();
  for (const auto& pointer : kernel.parameters.pointers()) {
    void* address = program.address(call, pointer.place);
    std::memcpy(arguments.data() + pointer.offset, &address, sizeof address);
  }
  const Launch launch = emulated_kernels().find(kernel.spec);
  ASSERT_NE(launch, nullptr) << kernel.spec.entry << "\n" << kernel.spec.config;
  EXPECT_TRUE(
      launch(arguments.data(), kernel.shape.grid_x, kernel.shape.grid_y, kernel.shape.threads))
      << "threads of " << kernel.spec.entry << " wait for ever";
}

}  // namespace flashlab::train::testing
