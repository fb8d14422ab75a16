#include "lab/kernels/training.h"

#include <fmt/format.h>

#include <unordered_set>

#include "train/cuda/lowering.h"
#include "train/parallel/data_parallel.h"
#include "train/step/step.h"

namespace flashlab::lab {
namespace {

constexpr int kOldestMajor = 8;

struct Step {
  const char* model;
  train::Precision precision;
  double dropout = 0;
  bool textbook = false;  ///< unfused operations and naive attention
  train::StepMode mode = train::StepMode::kFull;
  std::int64_t vocabulary = 0;  ///< 0: the model's
  int ranks = 1;                ///< the first one's step, of zero1
};

// Both families in both types, fp16 with its scaled loss, a width of several warps, dropout, a
// vocabulary whose rows are not aligned, the textbook's operations, one token at a time, a
// vocabulary whose rows of logits a multiprocessor does not hold, one rank of two, and families
// with grouped heads: scaled angles, norms of heads, 1 + weight, GEGLU and softcaps.
constexpr Step kSteps[] = {
    {"small", train::Precision::kBf16},
    {"small", train::Precision::kFp32},
    {"gpt2", train::Precision::kBf16},
    {"gpt2", train::Precision::kFp32, 0.1},
    {"gpt2-xl", train::Precision::kBf16, 0.1},
    {"xl-2026", train::Precision::kBf16},
    {"small", train::Precision::kFp16},
    {"small", train::Precision::kBf16, 0, true},
    {"small", train::Precision::kBf16, 0, false, train::StepMode::kDecode},
    {.model = "small", .precision = train::Precision::kBf16, .vocabulary = 151936},
    {.model = "small", .precision = train::Precision::kBf16, .ranks = 2},
    {"llama3.2-1B", train::Precision::kBf16},
    {"qwen3-0.6B", train::Precision::kBf16},
    {"gemma2-2B", train::Precision::kBf16}};

KernelVariant variant_of(const Step& step, const runtime::Step& made,
                         const runtime::KernelWork& work) {
  KernelVariant out;
  out.implementation = "train";
  out.production = true;
  out.pass = work.spec.entry.starts_with("flash_bwd") ? Pass::kBackward : Pass::kForward;
  out.element = to_string(step.precision);
  out.step = made.name;
  out.spec = work.spec;
  out.configuration = out.burden = made.configuration;
  out.threads = work.shape.threads;
  out.shared_bytes = work.shape.shared_bytes;
  out.problem = fmt::format("{} · {}", step.model, made.name);
  return out;
}

}  // namespace

std::vector<KernelVariant> training_variants(const cuda::DeviceInfo& device) {
  std::vector<KernelVariant> out;
  if (device.major < kOldestMajor) return out;
  std::unordered_set<std::string> seen;
  for (const Step& step : kSteps) {
    train::ModelConfig model = *train::find_model(step.model);
    model.dropout = step.dropout;
    model.layers = 1;
    if (step.vocabulary != 0) model.vocabulary = step.vocabulary;
    const bool decodes = step.mode == train::StepMode::kDecode;
    const train::StepOptions options{.batch = decodes ? 1 : 4,
                                     .context = decodes ? 0 : 512,
                                     .shares = step.ranks,
                                     .ranks = step.ranks,
                                     .mode = step.mode,
                                     .precision = step.precision,
                                     .gpu = true,
                                     .attention = step.textbook ? "naive" : "",
                                     .fused = !step.textbook};
    const auto plan = step.ranks == 1 ? train::build_step(model, options)
                                      : train::build_parallel_step(
                                            model, options, {.mode = train::ParallelMode::kZero1});
    if (!plan.ok()) continue;
    runtime::Program program;
    if (!train::lower(*plan, train::plan_memory(*plan), device, nullptr, program, {0, step.ranks})
             .ok()) {
      continue;
    }
    for (const auto& [made, kernel] : program.kernels()) {
      if (!seen.insert(kernel->spec.entry + kernel->spec.config).second) continue;
      out.push_back(variant_of(step, *made, *kernel));
    }
  }
  return out;
}

}  // namespace flashlab::lab
