// The host's half of fp32.cu.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "cuda/kernels/decode/launch_arguments.h"
#include "cuda/kernels/decode/plan.h"
#include "cuda/launch/arguments.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {
namespace {

using device::DecodeFp32Arguments;
using internal::Geometry;

constexpr std::int64_t kMostColumns = 256, kBlockThreads = 256;
constexpr std::int64_t kPackColumns = 4;  // of fp32 in 16 bytes
constexpr std::int64_t kLeastPartKeys = 64;
constexpr std::int64_t kBlocksPerMultiprocessor = 2;

Status refused(const char* what, std::string got, std::string expected) {
  return Status::unsupported({fmt::format("{} of implementation 'decode' in fp32", what),
                              std::move(got), std::move(expected), "name none, or 'sm80'"});
}

Status check_call(const Problem& problem, const Geometry& g) {
  if (g.ragged_q || problem.seqused_q || g.seqlen_q != 1) {
    return refused("queries", fmt::format("{}{}", g.seqlen_q, g.ragged_q ? " in all" : ""),
                   "one of each sequence");
  }
  const std::pair<const char*, bool> lacking[] = {
      {"window", problem.options.window.has_value()},
      {"attention_chunk", g.bounds.chunk > 0},
      {"softcap", problem.options.softcap.has_value()},
      {"alibi_slopes", problem.alibi_slopes.has_value()},
      {"sinks", problem.sinks.has_value()},
      {"mask", problem.mask.has_value()},
      {"deterministic", problem.options.deterministic},
      {"causal top-left", problem.options.causal == Causal::kTopLeft}};
  for (const auto& [what, given] : lacking) {
    if (given) return refused(what, "given", "a call without it");
  }
  for (const std::int64_t dim : {g.head_dim, g.head_dim_v}) {
    if (dim % kPackColumns == 0 && dim <= kMostColumns) continue;
    return refused("head_dim", fmt::format("{}", dim),
                   fmt::format("a multiple of {} up to {}", kPackColumns, kMostColumns));
  }
  for (const auto& [name, spec] :
       {std::pair{"q", &problem.q}, std::pair{"k", &problem.k}, std::pair{"v", &problem.v}}) {
    if (row_alignment_bytes(*spec) >= 16) continue;
    return refused("rows", fmt::format("{} aligned to {} bytes", name, row_alignment_bytes(*spec)),
                   "strides and addresses that are multiples of 16 bytes");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<internal::PlanState>> plan_decode_fp32(const GpuDevice& device,
                                                              const Problem& problem,
                                                              const Geometry& g) {
  if (Status s = check_call(problem, g); !s.ok()) return s;
  const std::int64_t tiles = g.batch * g.heads_q;
  const std::int64_t wanted = kBlocksPerMultiprocessor * device.info().multiprocessors;
  const std::int64_t parts =
      std::clamp(divide_up(wanted, std::max<std::int64_t>(tiles, 1)), std::int64_t{1},
                 std::max<std::int64_t>(divide_up(g.seqlen_k, kLeastPartKeys), 1));
  if (tiles > INT32_MAX / parts) {
    return too_large("blocks of implementation 'decode'", tiles * parts, INT32_MAX,
                     "split the batch into smaller calls");
  }
  auto plan = std::make_shared<GpuPlan>(device, problem, g);
  plan->tile_q = 1;
  DecodeFp32Arguments arguments{};
  arguments.call = forward_arguments(problem, g);
  arguments.sequences = sequences_of(problem, g, 1, 1);
  arguments.cache = cache_of(problem, g);
  arguments.page = device::Divisor::of(static_cast<int>(std::max<std::int64_t>(g.page_size, 1)));
  arguments.tag = fresh_tag();
  arguments.parts = static_cast<int>(parts);
  runtime::ParameterBlock block(arguments);
  patch_addresses(block, problem, 0, offsetof(DecodeFp32Arguments, call));
  patch_sequences(block, problem, offsetof(DecodeFp32Arguments, sequences));
  patch_cache(block, problem, offsetof(DecodeFp32Arguments, cache));
  if (parts > 1) {
    const auto region = [&](std::size_t offset, const char* name, std::int64_t bytes) {
      const int index = plan->add_gpu_region(name, static_cast<std::size_t>(bytes));
      block.pointer(offset, {buffer_of_region(index)});
    };
    region(offsetof(DecodeFp32Arguments, o), "parts_o", tiles * parts * g.head_dim_v * 4);
    region(offsetof(DecodeFp32Arguments, statistics), "parts_sums", tiles * parts * 8);
    region(offsetof(DecodeFp32Arguments, counts), "parts_there", tiles * 8);
  }
  const auto packs =
      static_cast<unsigned>(divide_up(std::max(g.head_dim, g.head_dim_v), kPackColumns));
  const unsigned lanes = std::min(std::bit_ceil(packs), 32u);
  ConfigPrinter config;
  config.integer("kHeadDim", g.head_dim)
      .integer("kHeadDimV", g.head_dim_v)
      .integer("kLanes", lanes)
      .integer("kPacks", divide_up(packs, lanes))
      .integer("kThreads", kBlockThreads);
  GpuStep step = kernel_step(
      "decode/fp32.cu", "flash_fwd_decode_fp32", config, tiles * parts, kBlockThreads, 0,
      fmt::format("{} queries of one head, each over {} parts of its keys", tiles, parts));
  step.parameters = std::move(block);
  plan->add_kernel(std::move(step));
  plan->reasons.push_back(
      "fp32: every query head reads its keys by itself, in plain products; the last block of a "
      "query joins its parts");
  return std::shared_ptr<internal::PlanState>(std::move(plan));
}

}  // namespace flashlab::cuda
