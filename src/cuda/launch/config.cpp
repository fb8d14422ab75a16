#include "cuda/launch/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cuda/launch/arguments.h"

namespace flashlab::cuda {
namespace {

const char* element_of(DType dtype) {
  switch (dtype) {
    case DType::kFp16:
      return "kFp16";
    case DType::kBf16:
      return "kBf16";
    default:
      return "kFp32";
  }
}

void print_mask(ConfigPrinter& config, const Problem& problem, CallForm form) {
  const char* kind = !problem.mask                         ? "kNone"
                     : problem.mask->dtype == DType::kBool ? "kBool"
                                                           : "kAdditive";
  config.choice("kMask", "MaskTensor", kind);
  print_element(config, "kMaskElement", problem.mask ? problem.mask->dtype : DType::kFp32);
  const bool masked = problem.mask.has_value();
  config.boolean("kMaskDense", masked && form != CallForm::kGeneral)
      .boolean("kMaskPairs", masked && form == CallForm::kPairs);
}

// An element for every key, side by side: validation asks for an innermost stride of 1. Beside
// ragged keys [total, heads, dim] and pages its extent is that of one sequence's positions.
bool dense(const Problem& problem) {
  const std::int64_t extent = problem.mask->shape[3];
  const bool own = problem.k.rank == 3 || problem.block_table;
  return own ? extent != 1 : extent == problem.k.shape[1];
}

}  // namespace

void print_element(ConfigPrinter& config, std::string_view name, DType dtype) {
  config.choice(name, "Element", element_of(dtype));
}

int row_alignment_bytes(const TensorSpec& spec) {
  std::int64_t bytes = std::clamp(spec.alignment_bytes, 1, 16);
  const auto size = static_cast<std::int64_t>(size_of(spec.dtype));
  for (int i = 0; i + 1 < spec.rank; ++i) {
    if (spec.shape[static_cast<std::size_t>(i)] <= 1) continue;
    const std::int64_t step = spec.strides[static_cast<std::size_t>(i)] * size;
    while (step % bytes != 0) bytes /= 2;
  }
  return static_cast<int>(bytes);
}

CallForm call_form(const Problem& problem) {
  const auto natural = [](const auto& spec) {
    return row_alignment_bytes(spec) >= natural_alignment(spec);
  };
  bool aligned = natural(problem.q) && natural(problem.k) && natural(problem.v) &&
                 natural(problem.o) && (!problem.mask || dense(problem));
  for (const auto* spec : {&problem.d_o, &problem.dq, &problem.dk, &problem.dv}) {
    aligned = aligned && (!spec->has_value() || natural(**spec));
  }
  if (!aligned) return CallForm::kGeneral;
  return !problem.mask || mask_has_pairs(*problem.mask) ? CallForm::kPairs : CallForm::kAligned;
}

bool mask_has_pairs(const TensorSpec& mask) {
  return row_alignment_bytes(mask) >= 2 * static_cast<int>(size_of(mask.dtype));
}

int natural_alignment(const TensorSpec& spec) {
  const std::int64_t row_bytes = spec.shape[static_cast<std::size_t>(spec.rank - 1)] *
                                 static_cast<std::int64_t>(size_of(spec.dtype));
  int bytes = 16;
  while (row_bytes % bytes != 0) bytes /= 2;
  return bytes;
}

int kernel_alignment(const TensorSpec& spec, CallForm form) {
  return form == CallForm::kGeneral ? static_cast<int>(size_of(spec.dtype))
                                    : natural_alignment(spec);
}

bool copied_by_element(const TensorSpec& spec, CallForm form) {
  return kernel_alignment(spec, form) < 4;
}

std::string stage_words(int stages) {
  return fmt::format("{} stage{}", stages, stages == 1 ? "" : "s");
}

void explain_copies(std::vector<std::string>& reasons, const char* name, const TensorSpec& spec,
                    CallForm form) {
  const int bytes = row_alignment_bytes(spec), taken = kernel_alignment(spec, form);
  if (bytes >= 16) return;
  reasons.push_back(fmt::format(
      "{}: rows are aligned to {} bytes, so they are copied {}; 16 would be faster", name, bytes,
      copied_by_element(spec, form) ? "element by element"
                                    : fmt::format("{} bytes at a time", taken)));
}

void print_call(ConfigPrinter& config, const Problem& problem, const internal::Geometry& g,
                CallForm form) {
  print_element(config, "kElement", problem.q.dtype);
  config.integer("kHeadDim", g.head_dim).integer("kHeadDimV", g.head_dim_v);
  const bool chunks = g.bounds.chunk > 0;
  config.boolean("kBoundedRight", g.bounds.right < g.bounds.kUnbounded || chunks)
      .boolean("kBoundedLeft", g.bounds.left < g.bounds.kUnbounded || chunks);
  if (chunks) config.boolean("kChunk", true);
  print_mask(config, problem, form);
  config.boolean("kSoftcap", g.softcap > 0)
      .boolean("kWideCap", softcap_is_wide(g))
      .boolean("kAlibi", problem.alibi_slopes.has_value())
      .boolean("kDropout", g.dropout > 0);
  const auto align = [&](std::string_view name, const TensorSpec& spec) {
    config.integer(name, kernel_alignment(spec, form));
  };
  align("kAlignQ", problem.q);
  align("kAlignK", problem.k);
  align("kAlignV", problem.v);
  align("kAlignO", problem.o);
  if (problem.pass == Pass::kForward) {
    print_element(config, "kOutput", problem.o.dtype);
    return;
  }
  print_element(config, "kO", problem.o.dtype);
  print_element(config, "kGradO", problem.d_o->dtype);
  print_element(config, "kGradQ", problem.dq->dtype);
  print_element(config, "kGradK", problem.dk->dtype);
  print_element(config, "kGradV", problem.dv->dtype);
  align("kAlignGradO", *problem.d_o);
  align("kAlignGradQ", *problem.dq);
  align("kAlignGradK", *problem.dk);
  align("kAlignGradV", *problem.dv);
  config.boolean("kLseGradient", problem.d_lse.has_value())
      .boolean("kAccumulate", problem.options.gradient_mode == GradientMode::kAccumulate);
}

}  // namespace flashlab::cuda
