#include "lab/kernels/variants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "api/backend.h"
#include "api/context_state.h"
#include "api/implementation.h"
#include "cuda/implementations.h"
#include "cuda/launch/gpu_plan.h"
#include "lab/data/case_data.h"
#include "lab/kernels/standalone.h"
#include "lab/kernels/training.h"
#include "peers/cublas/cublas.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/kernel_store/kernel.h"

namespace flashlab::lab {
namespace {

using cases::Case;

struct HeadDims {
  std::int64_t qk, v;
};
constexpr std::array<HeadDims, 6> kUsualDims = {
    {{32, 32}, {64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}}};
constexpr std::array<HeadDims, 9> kOtherDims = {
    {{8, 8}, {16, 16}, {24, 24}, {40, 40}, {72, 72}, {80, 80}, {160, 160}, {192, 192}, {64, 128}}};

struct ElementType {
  DType dtype;
  Precision precision;
};
constexpr std::array<ElementType, 4> kTypes = {{{DType::kBf16, Precision::kIeee},
                                                {DType::kFp16, Precision::kIeee},
                                                {DType::kFp32, Precision::kIeee},
                                                {DType::kFp32, Precision::kTf32}}};

// Lengths enter no Config, but they move the choice between variants: a machine full of tiles, one
// long row of keys (split along the keys), few tiles, and a single tile.
struct Sizes {
  std::int64_t batch, heads_q, heads_k, seqlen_q, seqlen_k;
};
constexpr std::array<Sizes, 4> kSizes = {
    {{8, 16, 16, 2048, 2048}, {1, 32, 8, 1, 16384}, {1, 1, 1, 4096, 4096}, {1, 4, 2, 64, 64}}};

// Of usual calls also short ones and few queries of groups, with whole and with shared-out tiles.
constexpr std::array<Sizes, 13> kUsualSizes = {{kSizes[0],
                                                kSizes[1],
                                                kSizes[2],
                                                kSizes[3],
                                                {32, 16, 16, 512, 512},
                                                {3, 1, 1, 152, 981},
                                                {4, 32, 4, 90, 500},
                                                {1, 32, 4, 7, 1470},
                                                {4, 32, 8, 11, 8180},
                                                {64, 32, 8, 40, 4096},
                                                {1, 8, 8, 448, 448},
                                                {1, 8, 8, 768, 768},
                                                {1, 1, 1, 1024, 1024}}};

// Aligned at the end, the first queries see no key.
constexpr Sizes kRowsWithoutKeys{1, 4, 2, 128, 64};

Case make_case(const Sizes& sizes, HeadDims dims, ElementType type) {
  Case out;
  out.batch = sizes.batch;
  out.heads_q = sizes.heads_q;
  out.heads_k = sizes.heads_k;
  out.seqlen_q = sizes.seqlen_q;
  out.seqlen_k = sizes.seqlen_k;
  out.head_dim = dims.qk;
  out.head_dim_v = dims.v;
  out.dtype = type.dtype;
  out.precision = type.precision;
  return out;
}

void add_usual(std::vector<Case>& list) {
  for (const HeadDims dims : kUsualDims) {
    for (const ElementType type : kTypes) {
      for (const Sizes& sizes : kUsualSizes) {
        for (const Causal causal : {Causal::kBottomRight, Causal::kNone}) {
          Case c = make_case(sizes, dims, type);
          c.causal = causal;
          list.push_back(c);
        }
      }
    }
  }
}

// Few queries before many keys: how far the keys are split, and how many rows a tile has, depend on
// how much of the machine the call would fill.
void add_few_queries(std::vector<Case>& list, const std::vector<std::int64_t>& queries) {
  for (const HeadDims dims : kUsualDims) {
    for (const ElementType type : kTypes) {
      for (const std::int64_t seqlen_q : queries) {
        for (std::int64_t batch = 1; batch <= 64; batch *= 2) {
          for (const std::int64_t heads_q : {8, 32}) {
            Case c = make_case({batch, heads_q, 8, seqlen_q, 16384}, dims, type);
            c.causal = Causal::kBottomRight;
            list.push_back(c);
            if (queries.size() == 1) continue;
            c.causal = Causal::kNone;
            list.push_back(c);
          }
        }
      }
    }
  }
}

Case case_without_keys(HeadDims dims, ElementType type) {
  Case out = make_case(kRowsWithoutKeys, dims, type);
  out.causal = Causal::kBottomRight;
  return out;
}

// A ragged batch of a causal model. How many sequences, and how long ones, enters no kernel.
Case ragged_case(HeadDims dims, ElementType type) {
  Case out = make_case(kSizes[0], dims, type);
  out.set_sequences({{.q = 2000, .k = 2000}, {.q = 500, .k = 500}});
  out.causal = Causal::kBottomRight;
  return out;
}

// Chunks of prefill before a cache in pages.
Case prefill_case(HeadDims dims, ElementType type) {
  Case out = make_case(kSizes[0], dims, type);
  out.set_sequences({{.q = 2000, .k = 5000}, {.q = 500, .k = 500}});
  out.cache = cases::Cache{.capacity = 8192, .page_size = 16};
  out.causal = Causal::kBottomRight;
  return out;
}

// The same with a feature that the portable kernels have, two of each kind: many queries and few.
void add_features_of_caches(std::vector<Case>& list, HeadDims dims, ElementType type) {
  for (const std::int64_t queries : {2000, 3}) {
    Case c = prefill_case(dims, type);
    c.set_sequences({{.q = queries, .k = 5000}, {.q = 3, .k = 800}});
    c.cache->page_size = 3;
    list.push_back(c);
    c.chunk = 100;
    list.push_back(c);
    c.chunk.reset();
    c.mask = cases::MaskKind::kBool;
    list.push_back(c);
    c.mask = cases::MaskKind::kNone;
    c.dropout = 0.1f;
    list.push_back(c);
  }
}

// Few queries of each sequence before a cache in pages. Of where keys lie a kernel knows how many
// rows the copy engine takes at once: 1 row is copied by threads.
Case cache_case(HeadDims dims, ElementType type, std::int64_t page_size = 16) {
  Case out = make_case(kSizes[1], dims, type);
  out.set_sequences({{.q = 1, .k = 5000}, {.q = 3, .k = 800}});
  out.cache = cases::Cache{.capacity = 8192, .page_size = page_size};
  out.causal = Causal::kBottomRight;
  return out;
}

// One query of each sequence, which fp32 has a kernel for.
Case decode_case(HeadDims dims, ElementType type) {
  Case out = make_case(kSizes[1], dims, type);
  out.set_cache(16);
  return out;
}

// Softcap, ALiBi and dropout: each, and all at once.
void add_score_features(std::vector<Case>& list, const Case& base) {
  for (int features = 0; features < 4; ++features) {
    Case c = base;
    if (features == 0 || features == 3) c.softcap = 30.0f;
    if (features == 1 || features == 3) c.alibi = true;
    if (features == 2 || features == 3) c.dropout = 0.1f;
    list.push_back(c);
  }
}

// Every feature that enters a Config, one or two at a time: the product would only repeat pairs
// that no kernel treats together.
void add_features(std::vector<Case>& list, HeadDims dims, ElementType type) {
  list.push_back(case_without_keys(dims, type));
  for (const Sizes& sizes : kSizes) {
    const Case base = make_case(sizes, dims, type);
    for (const Causal causal : {Causal::kBottomRight, Causal::kNone}) {
      for (const auto mask :
           {cases::MaskKind::kNone, cases::MaskKind::kBool, cases::MaskKind::kAdditive}) {
        for (const auto layout : {cases::Layout::kContiguous, cases::Layout::kPaddedRows}) {
          Case c = base;
          c.causal = causal;
          c.mask = mask;
          c.layout = layout;
          list.push_back(c);
          c.seed = 7;  // the additive mask in q's dtype instead of fp32
          if (mask == cases::MaskKind::kAdditive) list.push_back(c);
        }
      }
      Case c = base;
      c.causal = causal;
      c.window = Window{.left = 100};
      list.push_back(c);
      add_score_features(list, c);
      c.window.reset();
      add_score_features(list, c);
      c.sinks = true;
      list.push_back(c);
      c.sinks = false;
      c.deterministic = true;
      list.push_back(c);
      c.deterministic = false;
      c.lse_gradient = true;
      list.push_back(c);
      c.gradient_mode = GradientMode::kAccumulate;
      list.push_back(c);
      Case chunks = base;
      chunks.causal = causal;
      chunks.chunk = 100;
      list.push_back(chunks);
      chunks.deterministic = true;
      list.push_back(chunks);
      if (type.dtype == DType::kFp32) continue;
      c.fp32_outputs = true;
      list.push_back(c);
      c.gradient_mode = GradientMode::kOverwrite;
      c.lse_gradient = false;
      list.push_back(c);
    }
  }
}

void add_named(std::vector<Case>& list) {
  const std::vector<Case> conformance = cases::conformance_cases();
  list.insert(list.end(), conformance.begin(), conformance.end());
  for (const cases::Preset& preset : cases::presets()) {
    for (const ElementType type : kTypes) {
      list.push_back(preset.problem);
      list.back().dtype = type.dtype;
      list.back().precision = type.precision;
    }
  }
  for (const cases::Sweep& sweep : cases::sweeps()) {
    list.insert(list.end(), sweep.cases.begin(), sweep.cases.end());
  }
}

// Head dims and types of most calls: kernels of six architectures have at most 40 MB together.
bool ships(const Case& c) {
  const bool usual = c.head_dim == c.head_dim_v && (c.head_dim == 64 || c.head_dim == 128);
  return usual && c.precision == Precision::kIeee;
}

// Kernels by their key's content, in the order they were first met.
class List {
 public:
  // A variant that is new, as few are, is described by the problem that needs it.
  void add(KernelVariant variant, const Case& problem) {
    std::string key = variant.implementation + "\n" + variant.spec.source + "\n" +
                      variant.spec.entry + "\n" + variant.spec.config;
    for (const std::string& option : variant.spec.options) key += option + "\n";
    const auto [at, fresh] = index_.emplace(std::move(key), variants_.size());
    if (fresh) {
      variant.problem = problem.describe();
      variants_.push_back(std::move(variant));
      return;
    }
    KernelVariant& known = variants_[at->second];
    known.shared_bytes = std::max(known.shared_bytes, variant.shared_bytes);
    known.threads = std::max(known.threads, variant.threads);
  }
  std::vector<KernelVariant> take() { return std::move(variants_); }

 private:
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<KernelVariant> variants_;
};

// Of features, these change a kernel's tiles and loops.
const char* burden_of(const Case& c) {
  if (c.cache) return "cache";
  if (c.ragged()) return "ragged";
  if (c.sinks) return "sinks";
  if (c.mask != cases::MaskKind::kNone) return "mask";
  if (c.dropout > 0) return c.softcap ? "all features" : "dropout";
  if (c.softcap) return "softcap";
  if (c.alibi) return "alibi";
  if (c.window) return "window";
  if (c.chunk) return "chunk";
  return c.layout == cases::Layout::kPaddedRows ? "rows" : "";
}

// Of the kernels of one feature, the class of head dims whose kernels had least room for registers:
// in the other classes those of plain calls and of calls with all features stand for them.
bool stands_for_others(std::string_view burden, int head_dim_class) {
  constexpr std::array<std::pair<std::string_view, int>, 10> kTightest = {{{"window", 64},
                                                                           {"chunk", 256},
                                                                           {"softcap", 64},
                                                                           {"alibi", 64},
                                                                           {"dropout", 128},
                                                                           {"rows", 128},
                                                                           {"cache", 128},
                                                                           {"sinks", 128},
                                                                           {"mask", 256},
                                                                           {"ragged", 256}}};
  const auto* at = std::ranges::find(kTightest, burden, &std::pair<std::string_view, int>::first);
  return at == kTightest.end() || at->second == head_dim_class;
}

// What is planned for, and by whom: the first of `candidates` that serves a problem.
struct Planner {
  const internal::ContextState& context;
  std::vector<const internal::Implementation*> candidates;
  bool production;  ///< the first one runs where none is named
  bool named;       ///< problems name it: it then serves what it else leaves to others
};

void add_plan(List& list, const Planner& planner, const Problem& problem, const Case& c) {
  Problem normalised;
  const auto geometry = internal::validate(problem, &normalised);
  if (!geometry.ok()) return;
  const auto made =
      internal::plan_with_first(planner.context, planner.candidates, normalised, *geometry);
  if (!made.ok()) return;
  const internal::PlanState& plan = **made;
  const char* element = c.precision == Precision::kTf32 ? "tf32" : to_string(c.dtype);
  const auto add = [&](const std::string& step, const cuda::KernelSpec& spec,
                       const std::string& configuration, const cuda::LaunchShape& shape) {
    list.add({plan.implementation, planner.production, problem.pass, element, c.head_dim, step,
              spec, configuration, shape.threads, shape.shared_bytes, "", burden_of(c)},
             c);
  };
  if (const runtime::Program* program = plan.program()) {
    for (const auto& [step, kernel] : program->kernels()) {
      add(step->name, kernel->spec, step->configuration, kernel->shape);
    }
  }
}

void add_plans(List& list, const Planner& planner, const std::vector<Case>& problems) {
  for (const Case& c : problems) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const std::string name(planner.named ? planner.candidates.front()->name : "");
      Problem problem = problem_of(c, pass, name, planner.context.device);
      add_plan(list, planner, problem, c);
      if (pass == Pass::kBackward) continue;
      problem.lse.reset();
      add_plan(list, planner, problem, c);
    }
  }
}

int head_dim_class(std::int64_t head_dim) {
  for (const int limit : {64, 128}) {
    if (head_dim <= limit) return limit;
  }
  return 256;
}

// Of kernels that differ in features only, the first stands for the others: problems are listed
// with the richest features first.
std::vector<Case> representative_problems() {
  std::vector<Case> list;
  for (const HeadDims dims : {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{256, 256}}) {
    for (const ElementType type : kTypes) {
      for (const Sizes& sizes : kSizes) {
        Case c = make_case(sizes, dims, type);
        c.causal = Causal::kBottomRight;
        list.push_back(c);
        c.deterministic = true;
        list.push_back(c);
      }
      list.push_back(case_without_keys(dims, type));
    }
    Case c = make_case(kSizes[0], dims, kTypes[0]);
    c.causal = Causal::kBottomRight;
    c.layout = cases::Layout::kPaddedRows;
    list.push_back(c);
    c.layout = cases::Layout::kContiguous;
    c.mask = cases::MaskKind::kAdditive;
    list.push_back(c);
    c.mask = cases::MaskKind::kNone;
    c.window = Window{.left = 100};
    list.push_back(c);
    c.softcap = 30.0f;
    list.push_back(c);
    c.alibi = true;
    c.dropout = 0.1f;
    list.push_back(c);
    c.window.reset();
    c.softcap.reset();
    c.dropout = 0;
    list.push_back(c);
    c.alibi = false;
    c.dropout = 0.1f;
    list.push_back(c);
    list.push_back(ragged_case(dims, kTypes[0]));
    list.push_back(ragged_case(dims, kTypes[1]));
    list.push_back(cache_case(dims, kTypes[0]));
    list.push_back(prefill_case(dims, kTypes[0]));
    list.push_back(decode_case(dims, kTypes[2]));
    list.push_back(cache_case(dims, kTypes[0], 1));
    list.push_back(prefill_case(dims, kTypes[2]));
    c = prefill_case(dims, kTypes[0]);
    c.chunk = 100;
    list.push_back(c);
    for (const Sizes& sizes : {kSizes[0], kSizes[1]}) {  // one with split keys
      c = make_case(sizes, dims, kTypes[0]);
      c.sinks = true;
      list.push_back(c);
    }
  }
  return list;
}

// Of the production kernels alone.
bool is_production(VariantSelection selection) {
  return selection == VariantSelection::kCommon || selection == VariantSelection::kShipped;
}

}  // namespace

std::vector<Case> variant_problems(VariantSelection selection) {
  std::vector<Case> list;
  if (selection == VariantSelection::kSmoke || selection == VariantSelection::kRepresentative) {
    return representative_problems();
  }
  add_usual(list);
  if (is_production(selection)) {
    add_few_queries(list, {1});
    if (selection == VariantSelection::kShipped) {
      std::erase_if(list, [](const Case& c) { return !ships(c); });
    }
    return list;
  }
  add_few_queries(list, {1, 17, 33, 65, 130, 260, 520});
  for (const ElementType type : kTypes) {
    for (const HeadDims dims : kUsualDims) add_features(list, dims, type);
    for (const HeadDims dims : kOtherDims) add_features(list, dims, type);
    for (const HeadDims dims : kUsualDims) {
      list.push_back(ragged_case(dims, type));
      list.push_back(prefill_case(dims, type));
      list.push_back(decode_case(dims, type));
      add_features_of_caches(list, dims, type);
      for (const std::int64_t page_size : {1, 8, 16, 64}) {
        list.push_back(cache_case(dims, type, page_size));
      }
    }
  }
  add_named(list);
  return list;
}

std::vector<KernelVariant> variants_of(const cuda::DeviceInfo& device,
                                       const std::vector<Case>& problems, bool production_only) {
  const auto gpu = cuda::GpuDevice::described(device);
  ContextOptions options;
  options.device = {DeviceKind::kCuda, device.ordinal};
  options.threads = 1;
  const internal::ContextState context(options, gpu.get());
  List list;
  const auto defaults = internal::backend_of(DeviceKind::kCuda).candidates(&device);
  add_plans(list, {context, defaults, /*production=*/true, /*named=*/false}, problems);
  if (production_only) return list.take();
  std::vector<const internal::Implementation*> others = cuda::implementations();
  others.push_back(&peers::cublas_implementation());  // cuDNN's kernels are all NVIDIA's own
  // Of the default ones the first that is whole; before it those of special calls.
  const auto whole = std::ranges::find_if(defaults, [](const internal::Implementation* each) {
    return each->supported.has(internal::Feature::kBackward);
  });
  for (const internal::Implementation* implementation : others) {
    const bool is_whole = whole != defaults.end() && implementation == *whole;
    const bool production =
        is_whole || (std::ranges::count(defaults, implementation) > 0 &&
                     !implementation->supported.has(internal::Feature::kBackward));
    if (defaults.size() == 1 && production) continue;
    add_plans(list, {context, {implementation}, production, /*named=*/true}, problems);
  }
  return list.take();
}

Result<std::string> exact_architecture(std::string_view name) {
  if (const auto device = cuda::known_gpu(name)) return device->architecture();
  std::string known;
  for (const std::string& one : cuda::known_architectures()) {
    known += (known.empty() ? "" : ", ") + one;
  }
  return Status::invalid({"architecture", fmt::format("\"{}\"", name), known,
                          "flashlab info names the architecture of this machine's GPU"});
}

std::vector<std::string> gpu_architectures() {
  std::vector<std::string> names;
  const auto driver = cuda::Driver::get();
  if (!driver.ok()) return names;
  for (const cuda::DeviceInfo& device : (*driver)->devices()) {
    const std::string name = device.architecture();
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

Result<std::vector<KernelVariant>> kernel_variants(std::string_view architecture,
                                                   VariantSelection selection) {
  const auto exact = exact_architecture(architecture);
  if (!exact.ok()) return exact.status();
  const auto device = cuda::known_gpu(*exact);
  const bool common = is_production(selection);
  std::vector<KernelVariant> list =
      variants_of(*device, variant_problems(selection), /*production_only=*/common);
  std::ranges::move(merge_variants(), std::back_inserter(list));
  std::ranges::move(append_variants(), std::back_inserter(list));
  if (common) return list;
  std::ranges::move(training_variants(*device), std::back_inserter(list));
  std::ranges::move(instrument_variants(*device), std::back_inserter(list));
  if (selection == VariantSelection::kAll) return list;
  std::unordered_set<std::string> seen;
  std::erase_if(list, [&](const KernelVariant& variant) {
    std::string key = variant.implementation + " " + variant.spec.source + " " + variant.spec.entry;
    if (selection == VariantSelection::kRepresentative) {
      // Only production kernels change their tiles with the head dims.
      const int size = variant.production ? head_dim_class(variant.head_dim) : 0;
      const std::string burden = variant.production ? variant.burden : "";
      key += fmt::format(" {} {}", variant.element, size);
      if (seen.contains(key) && !stands_for_others(burden, size)) return true;
      seen.insert(key);
      key += " " + burden;
    }
    return !seen.insert(std::move(key)).second;
  });
  return list;
}

Result<std::vector<KernelVariant>> kernels_for(std::string_view architecture,
                                               const std::vector<Case>& problems) {
  const auto exact = exact_architecture(architecture);
  if (!exact.ok()) return exact.status();
  const auto device = cuda::known_gpu(*exact);
  for (const Case& one : problems) {
    if (!variants_of(*device, {one}, /*production_only=*/true).empty()) continue;
    return Status::unsupported({one.describe() + one.features(), "no production kernel serves it",
                                "a problem that " + *exact + " computes",
                                "flashlab explain --device cuda says why"});
  }
  std::vector<KernelVariant> list = variants_of(*device, problems, /*production_only=*/true);
  std::ranges::move(merge_variants(), std::back_inserter(list));
  std::ranges::move(append_variants(), std::back_inserter(list));
  return list;
}

}  // namespace flashlab::lab
