#include "lab/kernels/precompile.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "runtime/kernel_store/cache.h"
#include "runtime/kernel_store/nvrtc.h"

namespace flashlab::lab {
namespace {

namespace fs = std::filesystem;

// The entry of a variant, from the folder or fresh out of the compiler. A folder that cannot be
// used ends everything, a kernel that does not compile only itself.
Status compile_into(const cuda::KernelCache& cache, CompiledVariant& out) {
  const auto key = cuda::key_of(out.variant.spec, out.architecture);
  if (!key.ok()) return key.status();
  auto found = cache.find(*key);
  if (!found.ok()) return found.status();
  cuda::CachedKernel kernel;
  if (found->has_value()) {
    kernel = std::move(**found);
  } else {
    auto image = cuda::compile_image(out.variant.spec, out.architecture);
    if (!image.ok()) {
      out.status = image.status();
      return {};
    }
    kernel = std::move(image->kernel);
    out.seconds = image->compile_seconds;
    if (Status s = cache.store(*key, kernel); !s.ok()) return s;
  }
  out.image_bytes = static_cast<std::int64_t>(kernel.image.size());
  if (cuda::is_ptx(kernel)) return {};
  const auto use = cuda::resource_use(kernel.log, out.variant.spec.entry);
  if (use.ok()) {
    out.use = *use;
  } else {
    out.status = use.status();
  }
  return {};
}

// A folder of precompiled kernels is read by other users than the one who fills it.
void let_others_read(const fs::path& folder) {
  using enum fs::perms;
  std::error_code ignored;  // a foreign file system without permissions is as good
  fs::permissions(folder, group_read | others_read | group_exec | others_exec,
                  fs::perm_options::add, ignored);
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    if (it->path().extension() != ".kernel") continue;
    std::error_code one;
    fs::permissions(it->path(), group_read | others_read, fs::perm_options::add, one);
  }
}

}  // namespace

Result<std::vector<CompiledVariant>> precompile(const std::vector<KernelVariant>& list,
                                                const std::string& architecture,
                                                const PrecompileOptions& options) {
  const cuda::KernelCache cache(options.folder);
  if (Status s = cache.prepare(); !s.ok()) return s;
  if (auto nvrtc = cuda::Nvrtc::get(); !nvrtc.ok()) return nvrtc.status();
  std::vector<std::optional<CompiledVariant>> done(list.size());
  std::mutex mutex;
  std::size_t next = 0;
  Status failure;
  const auto work = [&] {
    for (;;) {
      std::size_t mine = 0;
      {
        std::lock_guard lock(mutex);
        const bool cancelled = options.cancel != nullptr && options.cancel->load();
        if (cancelled || !failure.ok() || next == list.size()) return;
        mine = next++;
        if (options.progress) options.progress(mine, list[mine].spec.entry);
      }
      CompiledVariant out;
      out.variant = list[mine];
      out.architecture = architecture;
      Status status = compile_into(cache, out);
      std::lock_guard lock(mutex);
      if (status.ok()) {
        done[mine] = std::move(out);
      } else if (failure.ok()) {
        failure = std::move(status);
      }
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < options.threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  if (!failure.ok()) return failure;
  let_others_read(options.folder);
  std::vector<CompiledVariant> out;
  for (auto& variant : done) {
    if (variant) out.push_back(std::move(*variant));
  }
  return out;
}

Result<std::size_t> remove_others(
    const std::string& folder,
    const std::vector<std::pair<std::string, std::vector<KernelVariant>>>& lists) {
  std::set<std::string> wanted;
  for (const auto& [architecture, list] : lists) {
    for (const KernelVariant& variant : list) {
      const auto key = cuda::key_of(variant.spec, architecture);
      if (!key.ok()) return key.status();
      wanted.insert(key->file_stem());
    }
  }
  const auto files = cuda::KernelCache(folder).list();
  if (!files.ok()) return files.status();
  std::size_t removed = 0;
  for (const cuda::CacheFile& file : *files) {
    if (wanted.contains(fs::path(file.name).stem().string())) continue;
    std::error_code ignored;
    removed += fs::remove(fs::path(folder) / file.name, ignored) ? 1 : 0;
  }
  return removed;
}

Result<KernelCacheReport> kernel_cache() {
  KernelCacheReport report;
  if (const cuda::KernelCache* shipped = cuda::KernelCache::shipped()) {
    report.shipped_folder = shipped->folder();
    if (const auto files = shipped->list(); files.ok()) report.shipped = files->size();
  }
  report.folder = cuda::KernelCache::default_folder();
  if (report.folder.empty()) return report;
  const cuda::KernelCache cache(report.folder);
  if (Status s = cache.check(); !s.ok()) report.refused = s.message();
  auto files = cache.list();
  if (!files.ok()) return files.status();
  for (const cuda::CacheFile& file : *files) {
    report.entries.push_back({file.name, file.bytes});
    report.bytes += file.bytes;
  }
  return report;
}

Result<std::int64_t> clear_kernel_cache() {
  return cuda::KernelCache(cuda::KernelCache::default_folder()).clear();
}

}  // namespace flashlab::lab
