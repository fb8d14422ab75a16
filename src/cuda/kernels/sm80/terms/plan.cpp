#include "cuda/kernels/sm80/terms/plan.h"

#include <cstddef>
#include <utility>

#include "cuda/kernels/sm80/terms/tiles.h"
#include "cuda/launch/config.h"
#include "cuda/launch/planning.h"

namespace flashlab::cuda {
namespace {

using internal::Geometry;

constexpr unsigned kSplitThreads = 256;  // kernels/sm80/terms/split.h

// Tiles of all heads.
struct SplitTiles {
  std::int64_t queries, keys;
};
SplitTiles tiles_of(const Problem& problem, const Geometry& g) {
  if (g.has_lengths) {
    const auto list = sequences_of(problem, g, device::kSplitRows, device::kSplitRows);
    return {g.heads_q * list.slots_q, g.heads_k * list.slots_k};
  }
  return {g.batch * g.heads_q * device::split_tile_count(g.seqlen_q),
          g.batch * g.heads_k * device::split_tile_count(g.seqlen_k)};
}

std::size_t region_bytes(std::int64_t tiles, std::int64_t dim, int terms) {
  return static_cast<std::size_t>(device::split_region_bytes(tiles, static_cast<int>(dim), terms));
}

}  // namespace

std::size_t split_bytes(const Problem& problem, const Geometry& g, SplitChoice choice, int terms) {
  const SplitTiles tiles = tiles_of(problem, g);
  std::size_t bytes = 0;
  if (choice.q) bytes += region_bytes(tiles.queries, g.head_dim, terms);
  if (choice.k) bytes += region_bytes(tiles.keys, g.head_dim, terms);
  if (choice.v) bytes += region_bytes(tiles.keys, g.head_dim_v, terms);
  if (choice.grad_o) bytes += region_bytes(tiles.queries, g.head_dim_v, terms);
  return bytes;
}

SplitRegions add_split_regions(GpuPlan& plan, const Geometry& g, SplitChoice choice, int terms) {
  const SplitTiles all = tiles_of(plan.problem, g);
  SplitRegions regions;
  const auto add = [&](bool wanted, const char* name, std::int64_t tiles, std::int64_t dim) {
    return wanted ? plan.add_gpu_region(name, region_bytes(tiles, dim, terms)) : -1;
  };
  regions.q = add(choice.q, "split_q", all.queries, g.head_dim);
  regions.k = add(choice.k, "split_k", all.keys, g.head_dim);
  regions.v = add(choice.v, "split_v", all.keys, g.head_dim_v);
  regions.grad_o = add(choice.grad_o, "split_grad_o", all.queries, g.head_dim_v);
  return regions;
}

void print_split(ConfigPrinter& config, const SplitRegions& regions, int terms) {
  config.integer("kTerms", terms)
      .integer("kSplitRegionQ", regions.q)
      .integer("kSplitRegionK", regions.k)
      .integer("kSplitRegionV", regions.v)
      .integer("kSplitRegionGradO", regions.grad_o);
}

int add_split_step(GpuPlan& plan, const Problem& problem, const Geometry& g,
                   const SplitRegions& regions, int terms) {
  const bool forward = problem.pass == Pass::kForward;
  const SplitTiles tiles = tiles_of(problem, g);
  std::int64_t blocks = 0;
  if (regions.q >= 0) blocks += tiles.queries;
  if (regions.k >= 0) blocks += tiles.keys;
  if (regions.v >= 0) blocks += tiles.keys;
  if (regions.grad_o >= 0) blocks += tiles.queries;

  ConfigPrinter config;
  print_call(config, problem, g, std::max(call_form(problem), CallForm::kAligned));
  print_split(config, regions, terms);
  config.boolean("kRagged", g.has_lengths).boolean("kCached", has_cache(problem));
  GpuStep step;
  step.name = forward ? "flash_fwd_split" : "flash_bwd_split";
  step.spec = {forward ? "sm80/terms/split_forward.cu" : "sm80/terms/split_backward.cu",
               step.name,
               config.text(),
               {}};
  step.shape.grid_x = static_cast<unsigned>(blocks);
  step.shape.threads = kSplitThreads;
  step.configuration = config.summary();
  step.words = terms == 1 ? "one fp16 term of every number" : "two fp16 terms of every number";
  step.after.emplace();  // it reads the call's tensors
  if (g.has_lengths) {
    const auto list = sequences_of(problem, g, device::kSplitRows, device::kSplitRows);
    if (forward) {
      give_sequences(step, plan,
                     device::RaggedForwardArguments{
                         forward_arguments(problem, g), list, {}, cache_of(problem, g)},
                     1);
      patch_cache(step.parameters, problem, offsetof(device::RaggedForwardArguments, cache));
    } else {
      give_sequences(step, plan,
                     device::RaggedBackwardArguments{backward_arguments(problem, g), list}, 1);
    }
  }
  return plan.add_kernel(std::move(step));
}

}  // namespace flashlab::cuda
