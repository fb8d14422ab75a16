#include "kernels.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "tensor_map.h"

namespace emulated {
namespace {

namespace fs = std::filesystem;
using flashlab::cuda::KernelSpec;
namespace runtime = flashlab::runtime;

std::string text_of(const fs::path& file) {
  std::ostringstream out;
  out << std::ifstream(file).rdbuf();
  return out.str();
}

// A launch's shared memory has its size from the launch.
std::string for_a_cpu(const std::string& text) {
  static const std::regex declaration(
      R"(extern __shared__ (?:__align__\(\d+\) )?([\w ]+) (\w+)\[\];)");
  return std::regex_replace(
      text, declaration, "$1* const $2 = reinterpret_cast<$1*>(::emulated::own_shared_memory());");
}

std::string key_of(const KernelSpec& spec) {
  return spec.source + "\n" + spec.entry + "\n" + spec.config;
}

// Whatever places the call and the planner name are replaced in a copy of the parameters.
std::vector<std::byte> parameters_of(const runtime::Program& program,
                                     const runtime::ParameterBlock& block,
                                     const runtime::Call& call, std::string& error) {
  std::vector<std::byte> out = block.bytes();
  for (const auto& pointer : block.pointers()) {
    void* address = program.address(call, pointer.place);
    std::memcpy(out.data() + pointer.offset, &address, sizeof address);
  }
  for (const auto& scalar : block.scalars()) {
    if (static_cast<std::size_t>(scalar.scalar) >= call.scalars.size()) continue;
    std::memcpy(out.data() + scalar.offset, &call.scalars[static_cast<std::size_t>(scalar.scalar)],
                scalar.bytes);
  }
  for (const auto& map : block.tensor_maps()) {
    const TensorMap encoded = encode(map.map, program.address(call, map.place), error);
    std::memcpy(out.data() + map.offset, &encoded, sizeof encoded);
  }
  return out;
}

}  // namespace

Kernels::Kernels(const std::vector<Edit>& edits) {
  begin_draws();
  std::string name = (fs::temp_directory_path() / "flashlab-emulated-XXXXXX").string();
  folder_ = mkdtemp(name.data());
  const char* elsewhere = std::getenv("FLASHLAB_KERNEL_SOURCES");
  const fs::path sources = elsewhere != nullptr ? elsewhere : FLASHLAB_KERNELS;
  std::vector<bool> found(edits.size());
  for (const auto& each : fs::recursive_directory_iterator(sources)) {
    const fs::path file = fs::relative(each.path(), sources);
    if (!each.is_regular_file() || *file.begin() == "ptx" || file.extension() == ".md") continue;
    std::string text = text_of(each.path());
    for (std::size_t i = 0; i < edits.size(); ++i) {
      const std::size_t at = edits[i].file == file ? text.find(edits[i].from) : std::string::npos;
      if (at == std::string::npos) continue;
      text.replace(at, edits[i].from.size(), edits[i].to);
      found[i] = true;
    }
    fs::create_directories(folder_ / file.parent_path());
    std::ofstream(folder_ / file) << for_a_cpu(text);
  }
  for (std::size_t i = 0; i < edits.size(); ++i) {
    if (!found[i]) problems_.push_back(edits[i].file + " has no \"" + edits[i].from + "\"");
  }
}

Kernels::~Kernels() {
  fs::remove_all(folder_);
}

Kernels::Built Kernels::compiled(const KernelSpec& spec, const std::string& stem) const {
  std::ofstream(stem + ".cpp")
      << "#include \"block.h\"\n#include <type_traits>\n#include \"config_types.h\"\n"
      << spec.config << "\n#include \"" << spec.source << "\"\n"
      << "template <class A> void call(void (*kernel)(A), const void* arguments) {\n"
      << "  kernel(*static_cast<const std::remove_cv_t<A>*>(arguments));\n}\n"
      << "#pragma GCC visibility push(default)\n"
      << "extern \"C\" void run(const void* arguments) { call(&" << spec.entry
      << ", arguments); }\n"
      << "extern \"C\" char* shared() { return emulated::shared_memory[0]; }\n";
  // Each library has its own shared memory: no symbol is another one's, too.
  std::string command = FLASHLAB_CXX " " FLASHLAB_CXX_FLAGS " -shared";
  // Where block.h is precompiled comes first.
  for (const std::string& folder :
       {std::string(FLASHLAB_EMULATED_HEADERS), std::string(FLASHLAB_EMULATED), folder_.string()}) {
    command += " -I " + folder;
  }
  command += " " + stem + ".cpp -o " + stem + ".so 2> " + stem + ".log";
  Built out;
  if (std::system(command.c_str()) != 0) {
    out.error = spec.entry + " does not compile: " + text_of(stem + ".log").substr(0, 2000);
    return out;
  }
  void* library = dlopen((stem + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    out.error = dlerror();
    return out;
  }
  out.run = reinterpret_cast<void (*)(const void*)>(dlsym(library, "run"));
  out.shared = reinterpret_cast<char* (*)()>(dlsym(library, "shared"))();
  return out;
}

void Kernels::build(std::span<const KernelSpec> specs) {
  std::vector<std::pair<const KernelSpec*, Built*>> missing;
  for (const KernelSpec& spec : specs) {
    const auto [place, fresh] = built_.try_emplace(key_of(spec));
    if (fresh) missing.emplace_back(&spec, &place->second);
  }
  const std::size_t before = built_.size() - missing.size();
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  const std::size_t processors = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t n = 0; n < std::min(processors, missing.size()); ++n) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < missing.size(); i = next++) {
        const std::string stem = (folder_ / std::to_string(before + i)).string();
        *missing[i].second = compiled(*missing[i].first, stem);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const Kernels::Built& Kernels::find(const KernelSpec& spec) {
  build({&spec, 1});
  return built_.at(key_of(spec));
}

std::string run_step(Kernels& kernels, const runtime::Program& program, const runtime::Step& step,
                     const runtime::Call& call) {
  if (const auto* memset = std::get_if<runtime::MemsetWork>(&step.work)) {
    std::memset(program.address(call, memset->target), memset->value, memset->bytes);
    return "";
  }
  if (const auto* copy = std::get_if<runtime::CopyWork>(&step.work)) {
    std::memmove(program.address(call, copy->to), program.address(call, copy->from), copy->bytes);
    return "";
  }
  const auto* kernel = std::get_if<runtime::KernelWork>(&step.work);
  if (kernel == nullptr) return step.name + ": neither a kernel, a memset nor a copy";
  std::string error;
  const std::vector<std::byte> arguments = parameters_of(program, kernel->parameters, call, error);
  if (!error.empty()) return step.name + ": " + error;
  const Kernels::Built& built = kernels.find(kernel->spec);
  if (!built.error.empty()) return built.error;
  const auto& shape = kernel->shape;
  error = launch({built.run,
                  arguments.data(),
                  {shape.grid_x, shape.grid_y, shape.grid_z},
                  shape.threads,
                  built.shared,
                  shape.shared_bytes,
                  shape.cluster_x});
  return error.empty() ? "" : step.name + ": " + error;
}

}  // namespace emulated
