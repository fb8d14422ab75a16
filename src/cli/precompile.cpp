// `precompile`: a folder of compiled kernels for machines that must not compile.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/execution.h"
#include "cli/failure.h"
#include "cli/outputs.h"
#include "cli/terminal.h"
#include "lab/lab.h"

namespace flashlab::cli {
namespace {

/// An architecture's name as keys have it ("sm_90a"), and its kernels.
using Architecture = std::pair<std::string, std::vector<lab::KernelVariant>>;

lab::VariantSelection selection_of(const Arguments& arguments) {
  const std::string name = arguments.value("--selection").value_or("common");
  if (name == "smoke") return lab::VariantSelection::kSmoke;
  if (name == "shipped") return lab::VariantSelection::kShipped;
  if (name == "representative") return lab::VariantSelection::kRepresentative;
  return name == "all" ? lab::VariantSelection::kAll : lab::VariantSelection::kCommon;
}

std::vector<Architecture> architectures_of(const Arguments& arguments) {
  std::vector<std::string> names = arguments.list("--arch");
  if (names.empty()) names = lab::gpu_architectures();
  if (names.empty()) {
    fail_usage("precompile needs --arch where there is no GPU, for example --arch sm_90a");
  }
  std::vector<cases::Case> problems;
  if (const auto file = arguments.value("--for")) {
    if (arguments.has("--selection")) fail_usage("--for and --selection both choose; use one");
    auto read = lab::read_problem_file(*file);
    if (!read.ok()) throw Failure{kExitUsage, "--for " + read.status().message()};
    problems = std::move(*read);
  }
  std::vector<Architecture> out;
  for (const std::string& name : names) {
    const auto exact = lab::exact_architecture(name);
    if (!exact.ok()) fail(exact.status());
    const bool twice =
        std::ranges::any_of(out, [&](const Architecture& a) { return a.first == *exact; });
    if (twice) fail_usage(fmt::format("--arch names {} twice; name it once", name));
    auto list = problems.empty() ? lab::kernel_variants(*exact, selection_of(arguments))
                                 : lab::kernels_for(*exact, problems);
    if (!list.ok()) fail(list.status());
    out.emplace_back(*exact, std::move(*list));
  }
  return out;
}

nlohmann::ordered_json json_of(const lab::CompiledVariant& compiled) {
  const lab::KernelVariant& variant = compiled.variant;
  nlohmann::ordered_json out;
  out["architecture"] = compiled.architecture;
  out["implementation"] = variant.implementation;
  out["production"] = variant.production;
  out["pass"] = to_string(variant.pass);
  out["kernel"] = variant.spec.entry;
  out["source"] = variant.spec.source;
  out["element"] = variant.element;
  out["head_dim"] = variant.head_dim;
  out["configuration"] = variant.configuration;
  out["problem"] = variant.problem;
  out["threads"] = variant.threads;
  out["shared_bytes"] = variant.shared_bytes;
  out["error"] = nullptr;
  if (!compiled.status.ok()) {
    out["error"] = compiled.status.message();
    return out;
  }
  const auto used = [&](const char* name, int cuda::ResourceUse::*value) {
    out[name] = compiled.use ? nlohmann::ordered_json((*compiled.use).*value) : nullptr;
  };
  used("registers", &cuda::ResourceUse::registers);
  used("spill_store_bytes", &cuda::ResourceUse::spill_store_bytes);
  used("spill_load_bytes", &cuda::ResourceUse::spill_load_bytes);
  used("stack_bytes", &cuda::ResourceUse::stack_bytes);
  used("static_shared_bytes", &cuda::ResourceUse::static_shared_bytes);
  out["image_bytes"] = compiled.image_bytes;
  out["compile_seconds"] = compiled.seconds;
  return out;
}

void write_kernels(const std::string& path, const std::vector<lab::CompiledVariant>& kernels) {
  nlohmann::ordered_json out;
  out["schema"] = "flashlab.kernels/1";
  out["command"] = typed_command();
  out["kernels"] = nlohmann::ordered_json::array();
  for (const lab::CompiledVariant& kernel : kernels) out["kernels"].push_back(json_of(kernel));
  write_json(path, out);
}

}  // namespace

int run_precompile(const Arguments& arguments) {
  const std::string folder = arguments.value("--output").value_or("");
  if (folder.empty()) fail_usage("precompile needs --output DIR, the folder to fill");
  const std::vector<Architecture> architectures = architectures_of(arguments);
  const std::string json = arguments.value("--json").value_or("");
  const bool text = json != "-";
  std::size_t total = 0;
  for (const auto& [name, list] : architectures) total += list.size();
  ProgressLine progress;
  lab::PrecompileOptions options;
  options.folder = folder;
  options.threads = make_context(arguments).threads();
  if (text && total > 50) {
    // 0.5 to 1.5 s a kernel and thread; what the folder holds already costs nothing.
    const double seconds = static_cast<double>(total) / options.threads;
    print_line(fmt::format("{} kernels on {} threads: about {} where none is there yet", total,
                           options.threads, duration(seconds)));
  }
  options.cancel = &interrupted();
  std::vector<lab::CompiledVariant> kernels;
  std::size_t failed = 0;
  for (const auto& [architecture, list] : architectures) {
    const std::size_t before = kernels.size();
    options.progress = [&, &of = architecture](std::size_t done, const std::string& name) {
      progress.show(static_cast<double>(before + done), static_cast<double>(total),
                    of + " " + name);
    };
    auto compiled = lab::precompile(list, architecture, options);
    progress.clear();
    if (!compiled.ok()) fail(compiled.status());
    std::size_t fresh = 0, bad = 0;
    std::int64_t bytes = 0;
    for (lab::CompiledVariant& kernel : *compiled) {
      fresh += kernel.seconds > 0;
      bytes += kernel.image_bytes;
      if (!kernel.status.ok()) {
        ++bad;
        note(fmt::format("{} does not compile for {}: {}", kernel.variant.spec.entry, architecture,
                         kernel.status.message()));
      }
      kernels.push_back(std::move(kernel));
    }
    if (text) {
      print_line(fmt::format("{}: {} kernels, {} ({} compiled now{}) in {}", architecture,
                             compiled->size() - bad, lab::format_bytes(bytes), fresh,
                             bad > 0 ? fmt::format(", {} failed", bad) : "", folder));
    }
    failed += bad;
  }
  if (arguments.has("--prune") && !interrupted()) {
    const auto removed = lab::remove_others(folder, architectures);
    if (!removed.ok()) fail(removed.status());
    if (text && *removed > 0) print_line(fmt::format("{} other kernels removed", *removed));
  }
  if (!json.empty()) write_kernels(json, kernels);
  if (interrupted()) return kExitInterrupted;
  return failed > 0 ? kExitFailure : kExitOk;
}

}  // namespace flashlab::cli
