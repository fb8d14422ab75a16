#include "runtime/kernel_store/compile.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "runtime/kernel_store/nvrtc.h"
#include "runtime/kernel_store/sources.h"

namespace flashlab::cuda {
namespace {

constexpr char kFallbackNote[] = "Made from a fallback: the first choice spills more.\n";

// The translation unit of a spec: its Config first, because the kernel's file reads it.
CompileRequest request_of(const KernelSpec& spec, const std::string& config,
                          const DeviceSources& sources, const std::string& architecture) {
  CompileRequest request;
  request.main = {spec.entry + ".cu", "#include \"config_types.h\"\n" + config + "\n#include \"" +
                                          spec.source + "\"\n"};
  request.headers = sources.files;
  request.architecture = architecture;
  request.options = spec.options;
  return request;
}

// What the compiler is asked for. A GPU newer than the compiler gets the newest portable PTX it can
// write, which the driver finishes.
std::string target_of(const std::string& architecture, const std::vector<int>& known) {
  const int wanted =
      std::atoi(architecture.c_str() + std::min<std::size_t>(3, architecture.size()));
  const int newest = known.empty() ? wanted : *std::max_element(known.begin(), known.end());
  if (architecture.rfind("sm_", 0) != 0 || wanted <= newest) return architecture;
  return "compute_" + std::to_string(newest);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + "\n";
  return text;
}

Result<KernelImage> compile_config(const KernelSpec& spec, const std::string& config,
                                   const std::string& architecture) {
  auto sources = DeviceSources::get();
  if (!sources.ok()) return sources.status();
  auto nvrtc = Nvrtc::get();
  if (!nvrtc.ok()) return nvrtc.status();
  auto compiled = (*nvrtc)->compile(
      request_of(spec, config, **sources, target_of(architecture, (*nvrtc)->architectures())));
  if (!compiled.ok()) return compiled.status();
  KernelImage image;
  image.kernel = {std::move(compiled->image), std::move(compiled->log), compiled->compiler};
  image.compile_seconds = compiled->seconds;
  return image;
}

// Nothing where that is unknown: PTX has no report, and a cubin's may be in words of a compiler
// that resource_use does not know.
std::optional<int> spilled_bytes(const KernelImage& image, const std::string& entry) {
  const auto use = resource_use(image.kernel.log, entry);
  if (!use.ok()) return std::nullopt;
  return use->spill_store_bytes + use->spill_load_bytes;
}

// The reasons for which folders were not used, each once: a look-up and a store may give the same.
class Warnings {
 public:
  void add(const Status& status) {
    const std::string text = status.message();
    if (text_.find(text) == std::string::npos) text_ += (text_.empty() ? "" : "; ") + text;
  }
  const std::string& text() const { return text_; }

  Status added_to(const Status& failure) const {
    if (text_.empty()) return failure;
    ErrorDetail detail = failure.detail();
    detail.remedy += (detail.remedy.empty() ? "not used: " : "; not used: ") + text_;
    return Status(failure.code(), std::move(detail));
  }

 private:
  std::string text_;
};

}  // namespace

Result<KernelKey> key_of(const KernelSpec& spec, const std::string& architecture) {
  auto sources = DeviceSources::get();
  if (!sources.ok()) return sources.status();
  return KernelKey{(*sources)->digest, spec.entry,
                   spec.source + "\n" + spec.config + joined(spec.fallbacks), joined(spec.options),
                   architecture};
}

Result<KernelImage> compile_image(const KernelSpec& spec, const std::string& architecture) {
  auto best = compile_config(spec, spec.config, architecture);
  if (!best.ok()) return best;
  std::optional<int> spilled = spilled_bytes(*best, spec.entry);
  double seconds = best->compile_seconds;
  for (const std::string& config : spec.fallbacks) {
    if (spilled.value_or(0) == 0) break;  // unknown: the first choice stays
    auto other = compile_config(spec, config, architecture);
    if (!other.ok()) continue;  // what compiled serves
    seconds += other->compile_seconds;
    const std::optional<int> other_spilled = spilled_bytes(*other, spec.entry);
    if (!other_spilled || *other_spilled >= *spilled) continue;
    spilled = other_spilled;
    best = std::move(other);
    best->kernel.log.insert(0, kFallbackNote);
  }
  best->compile_seconds = seconds;
  return best;
}

bool is_fallback(const std::string& log) {
  return log.compare(0, sizeof(kFallbackNote) - 1, kFallbackNote) == 0;
}

Result<KernelImage> image_of(const KernelSpec& spec, const std::string& architecture) {
  auto key = key_of(spec, architecture);
  if (!key.ok()) return key.status();
  KernelImage image;
  Warnings warnings;
  const auto look_in = [&](const KernelCache& cache, ImageOrigin origin) {
    auto found = cache.find(*key);
    if (!found.ok()) warnings.add(found.status());
    if (!found.ok() || !found->has_value()) return false;
    image.kernel = std::move(**found);
    image.origin = origin;
    image.cache_warning = warnings.text();
    return true;
  };
  if (const char* folder = std::getenv("FLASHLAB_PRECOMPILED");
      folder != nullptr && *folder != '\0') {
    const KernelCache precompiled(folder, KernelCache::Access::kReadOnly);
    if (look_in(precompiled, ImageOrigin::kPrecompiled)) return image;
  }
  const KernelCache cache(KernelCache::default_folder());
  if (look_in(cache, ImageOrigin::kCache)) return image;
  auto compiled = compile_image(spec, architecture);
  if (!compiled.ok()) return warnings.added_to(compiled.status());
  if (Status s = cache.store(*key, compiled->kernel); !s.ok()) warnings.add(s);
  compiled->cache_warning = warnings.text();
  return compiled;
}

Result<ResourceUse> resource_use(const std::string& log, const std::string& entry) {
  const std::size_t start = log.find("Compiling entry function '" + entry + "'");
  if (start == std::string::npos) {
    return Status(StatusCode::kInternal,
                  {"compiler log", "no report of '" + entry + "'", "ptxas -v's report", ""});
  }
  ResourceUse use;
  const std::size_t next = log.find("Compiling entry function", start + 1);
  const std::string text = log.substr(start, next - start);
  const auto scan = [&](const char* after, const char* format, auto*... values) {
    const std::size_t at = text.find(after);
    if (at == std::string::npos) return false;
    const std::size_t line = text.rfind('\n', at) + 1;
    return std::sscanf(text.c_str() + line, format, values...) == sizeof...(values);
  };
  scan("bytes stack frame", "%*[^0-9]%d bytes stack frame, %d bytes spill stores, %d bytes spill",
       &use.stack_bytes, &use.spill_store_bytes, &use.spill_load_bytes);
  if (!scan("Used ", "%*[^U]Used %d registers", &use.registers)) {
    return Status(StatusCode::kInternal, {"compiler log", text, "a line 'Used N registers'", ""});
  }
  if (const std::size_t smem = text.find(" bytes smem"); smem != std::string::npos) {
    const std::size_t number = text.rfind(' ', smem - 1) + 1;
    use.static_shared_bytes = std::atoi(text.c_str() + number);
  }
  return use;
}

}  // namespace flashlab::cuda
