#include "cli/execution.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/failure.h"
#include "cli/values.h"
#include "lab/environment.h"

namespace flashlab::cli {
namespace {

constexpr std::int64_t kMaxThreads = 4096;
constexpr std::int64_t kMaxTile = 65536;

void require_cpu(const std::string& device) {
  if (device == "cpu") return;
  const bool cuda = device == "cuda" || device.starts_with("cuda:");
  if (!cuda) {
    fail_usage(fmt::format("--device \"{}\" is unknown; use cpu, cuda or cuda:N", device));
  }
  if (device != "cuda") parse_whole("--device cuda:", device.substr(5), 0, 1023);
  fail_usage(lab::describe_cuda() + "\n          The CPU backend works: --device cpu");
}

}  // namespace

Context make_context(const Arguments& arguments, Allocator* allocator) {
  require_cpu(arguments.value("--device").value_or("cpu"));
  ContextOptions options;
  options.allocator = allocator;
  options.threads = static_cast<int>(whole(arguments, "--threads", 0, 1, kMaxThreads));
  const std::string isa = arguments.value("--cpu-isa").value_or("automatic");
  std::vector<std::string> here;
  for (CpuIsa candidate : {CpuIsa::kAutomatic, CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2,
                           CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa == to_string(candidate)) options.cpu_isa = candidate;
    if (candidate == CpuIsa::kAutomatic || supported(candidate)) {
      here.emplace_back(to_string(candidate));
    }
  }
  if (std::find(here.begin(), here.end(), isa) == here.end()) {
    fail_usage(
        fmt::format("--cpu-isa {} does not run on this processor; use {}", isa, join_or(here)));
  }
  Result<Context> context = Context::create(options);
  if (!context.ok()) fail(context.status());
  return std::move(context).value();
}

TileOptions tile_options(const Arguments& arguments) {
  TileOptions out;
  out.tile_q = static_cast<int>(whole(arguments, "--tile-q", 0, 1, kMaxTile));
  out.tile_k = static_cast<int>(whole(arguments, "--tile-k", 0, 1, kMaxTile));
  return out;
}

std::vector<std::string> implementation_names(const Arguments& arguments,
                                              std::vector<std::string> fallback) {
  std::vector<std::string> out = arguments.list("--implementation");
  if (out.empty()) return fallback;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::find(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(i), out[i]) !=
        out.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail_usage(fmt::format("--implementation names {} twice; name it once", out[i]));
    }
  }
  return out;
}

std::vector<std::string> production(const Context& context) {
  std::vector<std::string> names = implementations(context.device());
  if (names.empty()) fail("this build has no implementation for " + to_string(context.device()));
  names.resize(1);
  return names;
}

std::vector<std::string> all_but_reference(const Context& context) {
  std::vector<std::string> names = implementations(context.device());
  std::erase(names, "reference");
  return names;
}

}  // namespace flashlab::cli
