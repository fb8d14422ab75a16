#pragma once

// Models and steps that the tests of training on GPUs share.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "train/step/step.h"

namespace flashlab::train {

// Sizes at which every kernel has an edge: rows that fill no block, packs that fill no warp.
inline ModelConfig gpu_model(Family family, std::int64_t vocabulary, std::int64_t width) {
  return {.name = "test",
          .family = family,
          .vocabulary = vocabulary,
          .context = 40,
          .width = width,
          .hidden = width * 3,
          .layers = 2,
          .heads = 2};
}

struct CudaCase {
  std::string name;
  ModelConfig model;
  StepOptions options;
  friend void PrintTo(const CudaCase& each, std::ostream* out) { *out << each.name; }
};

inline std::vector<CudaCase> cuda_cases() {
  const StepOptions base = {.batch = 3};
  const ModelConfig course = gpu_model(Family::kCourse, 104, 64);
  const ModelConfig gpt2 = gpu_model(Family::kGpt2, 104, 64);
  std::vector<CudaCase> out = {{"course", course, base}, {"gpt2", gpt2, base}};
  out.push_back({"course_odd_vocabulary", gpu_model(Family::kCourse, 65, 48), base});
  out.push_back({"gpt2_odd_width", gpu_model(Family::kGpt2, 65, 44), base});
  ModelConfig wide = gpu_model(Family::kCourse, 104, 1056);
  wide.heads = 11;
  wide.hidden = 264;
  out.push_back({"course_wide", wide, base});
  StepOptions options = base;
  options.logits_bytes = std::int64_t{104} * 4 * 50;
  options.accumulate = 2;
  out.push_back({"course_chunks_and_micro_batches", course, options});
  out.push_back({"gpt2_chunks_and_micro_batches", gpt2, options});
  options = base;
  options.checkpoint = {{2, {{1, {}}, {1, {}}}}};
  options.optimizer.convention = AdamWConvention::kCs336;
  ModelConfig dropping = course;
  dropping.dropout = 0.3;
  out.push_back({"course_checkpoint_dropout_cs336", dropping, options});
  options = base;
  options.accumulate = 2;
  dropping = gpt2;
  dropping.dropout = 0.3;
  out.push_back({"gpt2_dropout_micro_batches", dropping, options});
  options = base;
  options.checkpoint = {{1, {}}, {1, {}}};
  out.push_back({"gpt2_checkpoint", gpt2, options});
  // 16-bit rows that go from block to block through shared memory, more of them than blocks.
  out.push_back({"gpt2_long_rows", gpu_model(Family::kGpt2, 16392, 64), {.batch = 8}});
  options = base;
  options.fused = false;
  out.push_back({"course_unfused", course, options});
  out.push_back({"gpt2_unfused", gpt2, options});
  options.attention = "naive";
  out.push_back({"course_unfused_naive", course, options});
  dropping.dropout = 0.2;
  options.fused = true;
  out.push_back({"gpt2_naive_dropout", dropping, options});
  options = base;
  options.context = 33;
  options.optimizer.max_norm = 0;
  out.push_back({"gpt2_shorter_unclipped", gpt2, options});
  return out;
}

}  // namespace flashlab::train
