#include "train/cuda/lowering.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "api/context_state.h"
#include "api/implementation.h"
#include "flashlab/attention.h"
#include "flashlab/tensor_table.h"
#include "runtime/products/cublas_lt.h"
#include "train/cpu/random.h"
#include "train/cuda/attention_steps.h"
#include "train/cuda/kernel_steps.h"
#include "train/cuda/product_steps.h"
#include "train/parallel/collective_work.h"
#include "train/plan/attention_problem.h"
#include "train/plan/order.h"

namespace flashlab::train {
namespace {

constexpr std::int64_t kRegionAlignment = 256;

std::int64_t rounded(std::int64_t bytes) {
  return (bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment;
}

// Sums of losses and of squares, in fp64, that become a result later.
std::vector<bool> sums_on_the_way(const StepPlan& plan) {
  std::vector<bool> out(plan.tensors.size());
  for (const Operation& operation : plan.operations) {
    const TensorId sum = operation.out(Slot::kSum);
    const bool later = operation.kind == OperationKind::kMeanLoss ||
                       operation.kind == OperationKind::kGradientNorm;
    if (later && sum != kNoTensor) out[static_cast<std::size_t>(sum)] = true;
  }
  return out;
}

Status check_types(const StepPlan& plan) {
  const std::vector<bool> on_the_way = sums_on_the_way(plan);
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlanTensor& tensor = plan.tensors[i];
    if (tensor.element == Element::kFp64 && tensor.role != Role::kBatch && !on_the_way[i]) {
      return Status::unsupported({"precision", "fp64", "fp32, tf32, bf16 or fp16 on a GPU",
                                  "train in fp64 with --device cpu"});
    }
  }
  return {};
}

// Sums over rows, the optimizer and attention use memory that is not in the plan, one after the
// other on the first stream.
Status check_streams(const StepPlan& plan) {
  for (const Operation& operation : plan.operations) {
    const bool shares_memory = is_attention(operation) || !sums_over_rows(operation).empty() ||
                               operation.kind == OperationKind::kEmbeddingBackward ||
                               operation.operation_class == OperationClass::kOptimizer;
    const bool aside = operation.stream > 0 && shares_memory && !is_collective(operation);
    if (operation.stream < 0 || aside) {
      return Status::unsupported({"step",
                                  fmt::format("{} ({}) on stream {}", operation.name,
                                              to_string(operation.kind), operation.stream),
                                  "stream 0 for attention, sums over rows and the optimizer", ""});
    }
  }
  return {};
}

// What each operation waits for: what it depends on, and those of other streams whose bytes it
// touches. The memory planner knows one order alone.
Result<std::vector<Operation>> ordered(const StepPlan& plan, const MemoryPlan& memory) {
  StepPlan copy = plan;
  order_streams(copy, memory);
  if (Status s = check_order(copy, memory); !s.ok()) return s;
  return std::move(copy.operations);
}

/// Gives every tensor its place and the program its buffers.
class Placement {
 public:
  Placement(const StepPlan& plan, const MemoryPlan& memory, runtime::Program& program)
      : plan_(plan), memory_(memory), program_(program), places_(plan.tensors.size()) {}

  std::vector<runtime::Place> run(LoweredStep& out) {
    for (const char* name : {"values", "copies", "first moments", "second moments", "no arena"}) {
      program_.add_tensor(name);
    }
    parameters();
    caches();
    out.offsets.assign(plan_.tensors.size(), -1);
    batch(out);
    results(out);
    const int arena = program_.add_region("activations and gradients",
                                          static_cast<std::size_t>(memory_.arena_bytes));
    out.gradients = {arena, memory_.gradients_offset};
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (memory_.offsets[i] >= 0) places_[i] = {arena, memory_.offsets[i]};
    }
    return std::move(places_);
  }

 private:
  void put(TensorId id, ArenaSlot slot, std::int64_t offset) {
    if (id == kNoTensor) return;
    places_[static_cast<std::size_t>(id)] = {slot, offset * size_of(plan_.tensor(id).element)};
  }
  void parameters() {
    for (const OwnedRange& range : plan_.owned) put(range.value, kValues, range.local);
    for (const Parameter& parameter : plan_.parameters) {
      if (plan_.owned_values) break;  // what reads them reads what was gathered
      put(parameter.master, kValues, parameter.offset);
      if (parameter.value != parameter.master) put(parameter.value, kCopies, parameter.offset);
      put(parameter.first_moment, kFirstMoments, parameter.offset);
      put(parameter.second_moment, kSecondMoments, parameter.offset);
    }
  }
  // Keys and values of earlier tokens stay on the GPU from step to step.
  void caches() {
    is_cache_.assign(plan_.tensors.size(), false);
    std::vector<std::pair<std::size_t, std::int64_t>> found;
    std::int64_t bytes = 0;
    for (const Operation& operation : plan_.operations) {
      if (operation.kind != OperationKind::kAppend) continue;
      const auto id = static_cast<std::size_t>(operation.out(Slot::kCache));
      is_cache_[id] = true;
      found.emplace_back(id, bytes);
      bytes += rounded(plan_.tensors[id].bytes());
    }
    if (found.empty()) return;
    const int region =
        program_.add_region("cached keys and values", static_cast<std::size_t>(bytes));
    for (const auto& [id, offset] : found) places_[id] = {region, offset};
  }
  bool in_batch(std::size_t tensor) const {
    return plan_.tensors[tensor].role == Role::kBatch && !is_cache_[tensor];
  }
  void batch(LoweredStep& out) {
    BatchLayout& b = out.batch;
    const auto add = [&](std::int64_t bytes) {
      const std::int64_t at = b.bytes;
      b.bytes += rounded(bytes);
      return at;
    };
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      if (in_batch(i)) out.offsets[i] = add(plan_.tensors[i].bytes());
    }
    const auto offset_of = [&](TensorId id) {
      return id == kNoTensor ? 0 : out.offsets[static_cast<std::size_t>(id)];
    };
    b.tokens = offset_of(plan_.tokens);
    b.targets = offset_of(plan_.targets);
    b.scalars = offset_of(plan_.scalars);
    b.documents = offset_of(plan_.documents);
    for (const Operation& operation : plan_.operations) {
      if (operation.kind != OperationKind::kEmbeddingBackward) continue;
      const auto& a = std::get<EmbeddingAttributes>(operation.attributes);
      b.rows = a.rows;
      b.groups = std::min(a.rows, a.vocabulary);
      ++b.micro_batches;
    }
    b.order = add(4 * b.micro_batches * b.rows);
    b.starts = add(4 * b.micro_batches * (b.groups + 1));
    for (const Operation& operation : plan_.operations) {
      if (operation.kind != OperationKind::kAttention || operation.generation > 0) continue;
      const auto& a = std::get<AttentionAttributes>(operation.attributes);
      if (a.dropout > 0) b.dropouts.push_back(a.site);
    }
    b.dropout_states = add(kDropoutStateBytes * static_cast<std::int64_t>(b.dropouts.size()));
    out.batch_buffer = program_.add_region("batch", static_cast<std::size_t>(b.bytes));
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      if (in_batch(i)) places_[i] = {out.batch_buffer, out.offsets[i]};
    }
  }
  // What the host reads lies in front, in one range: not sums on their way to a result, and of a
  // step that learns not the loss of every token.
  void results(LoweredStep& out) {
    const bool learns =
        !plan_.parameters.empty() && (plan_.parameters.front().gradient != kNoTensor ||
                                      plan_.owned.front().gradient != kNoTensor);
    const std::vector<bool> on_the_way = sums_on_the_way(plan_);
    std::int64_t bytes = 0;
    for (const bool read : {true, false}) {
      for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
        const bool unread = on_the_way[i] || (learns && static_cast<TensorId>(i) == plan_.losses);
        if (plan_.tensors[i].role != Role::kResult || unread == read) continue;
        out.offsets[i] = bytes;
        bytes += rounded(plan_.tensors[i].bytes());
      }
      if (read) out.read_bytes = bytes;
    }
    out.results_buffer = program_.add_region("results", static_cast<std::size_t>(bytes));
    for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
      if (plan_.tensors[i].role != Role::kResult) continue;
      places_[i] = {out.results_buffer, out.offsets[i]};
    }
  }

  const StepPlan& plan_;
  const MemoryPlan& memory_;
  runtime::Program& program_;
  std::vector<runtime::Place> places_;
  std::vector<bool> is_cache_;
};

// Of a library that has no epilogue for a product's GELU: the product alone, and the GELU.
void without_gelu(runtime::ProductWork& work) {
  work.product.epilogue = runtime::Epilogue::kBias;
  work.c = std::exchange(work.aux, {});
}
Operation gelu_of(const Operation& both) {
  const auto& p = std::get<ProductAttributes>(both.attributes);
  Operation out;
  out.name = both.name;
  out.kind = OperationKind::kGelu;
  out.inputs = {{Slot::kX, both.out(Slot::kC)}};
  out.outputs = {{Slot::kY, both.out(Slot::kY)}};
  out.attributes = RowsAttributes{.rows = p.m, .width = p.n};
  return out;
}

}  // namespace

Result<LoweredStep> lower(const StepPlan& plan, const MemoryPlan& memory,
                          const cuda::DeviceInfo& device, const Context* context,
                          runtime::Program& program, RankOf rank) {
  if (Status s = check_types(plan); !s.ok()) return s;
  if (Status s = check_streams(plan); !s.ok()) return s;
  LoweredStep out;
  const std::vector<runtime::Place> places = Placement(plan, memory, program).run(out);
  const cuda::CublasLt* library = nullptr;
  if (context != nullptr) {
    auto opened = cuda::CublasLt::of(*context->state().gpu());
    if (!opened.ok()) return opened.status();
    library = *opened;
  }
  const int streams = streams_of(plan);
  std::vector<bool> multiplies(static_cast<std::size_t>(streams));
  for (const Operation& operation : plan.operations) {
    if (!std::holds_alternative<ProductAttributes>(operation.attributes)) continue;
    multiplies[static_cast<std::size_t>(operation.stream)] = true;
  }
  std::vector<int> scratch;
  for (int stream = 0; stream < streams; ++stream) {
    if (stream > 0) program.add_stream(0);
    const bool has = stream == 0 || multiplies[static_cast<std::size_t>(stream)];
    scratch.push_back(has ? program.add_region("products", cuda::CublasLt::kWorkspaceBytes) : -1);
  }
  out.constants = decay_bits(plan);
  out.constants_buffer = program.add_region("constants", 4 * out.constants.size());
  KernelSteps kernels(plan, places, device, out, program);
  AttentionSteps attention(plan, places, context, out, program);
  if (context != nullptr) {
    if (Status s = attention.plan(); !s.ok()) return s;
  }
  std::vector<Operation> waits;
  if (streams > 1) {
    auto list = ordered(plan, memory);
    if (!list.ok()) return list.status();
    waits = std::move(*list);
  }
  const ArenaPlaces arenas = {out.gradients, {kValues}, {kCopies}};
  std::vector<int> last_step(plan.operations.size(), -1);
  for (std::size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    if (streams > 1) {
      std::set<int> steps;
      for (const int earlier : waits[i].depends_on) {
        const auto at = static_cast<std::size_t>(earlier);
        const bool other = plan.operations[at].stream != operation.stream;
        if (other && last_step[at] >= 0) steps.insert(last_step[at]);
      }
      program.set_stream(operation.stream, {steps.begin(), steps.end()});
    }
    program.set_scope(fmt::format("{} / {}", to_string(operation.phase), operation.name));
    if (std::holds_alternative<ProductAttributes>(operation.attributes)) {
      std::vector<runtime::ProductWork> works =
          products_of(plan, places, scratch[static_cast<std::size_t>(operation.stream)], operation);
      const bool refused = library != nullptr && operation.kind == OperationKind::kProductGelu &&
                           !library->prepare(works.front().product).ok();
      if (refused) without_gelu(works.front());
      for (runtime::ProductWork& work : works) {
        program.add({.name = operation.name, .work = std::move(work)});
      }
      if (refused) {
        if (Status s = kernels.append(gelu_of(operation)); !s.ok()) return s;
      }
    } else if (is_collective(operation)) {
      const auto place = [&](TensorId id) { return places[static_cast<std::size_t>(id)]; };
      program.add(
          {.name = operation.name,
           .work = collective_work(plan, operation, arenas, place(operation.inputs.front()),
                                   place(operation.outputs.front()), rank.rank, rank.ranks)});
    } else if (is_attention(operation)) {
      if (context != nullptr) attention.append(i);
    } else if (operation.kind == OperationKind::kAppend) {
      if (context != nullptr) {
        if (Status s = attention.append_rows(operation); !s.ok()) return s;
      }
    } else if (Status s = kernels.append(operation); !s.ok()) {
      return s;
    }
    out.operation_of.resize(program.steps().size(), i);
    last_step[i] = static_cast<int>(program.steps().size()) - 1;
  }
  program.set_scope("");
  program.set_stream(0, {});
  return out;
}

void sort_tokens(const BatchLayout& layout, std::int64_t vocabulary, std::byte* batch) {
  std::vector<std::int32_t> next(static_cast<std::size_t>(vocabulary) + 1);
  for (std::int64_t micro = 0; micro < layout.micro_batches; ++micro) {
    const auto* tokens =
        reinterpret_cast<const std::int32_t*>(batch + layout.tokens) + micro * layout.rows;
    auto* order = reinterpret_cast<std::int32_t*>(batch + layout.order) + micro * layout.rows;
    auto* starts =
        reinterpret_cast<std::int32_t*>(batch + layout.starts) + micro * (layout.groups + 1);
    std::fill(next.begin(), next.end(), 0);
    for (std::int64_t row = 0; row < layout.rows; ++row) {
      ++next[static_cast<std::size_t>(tokens[row]) + 1];
    }
    std::int64_t group = 0;
    for (std::size_t token = 0; token < static_cast<std::size_t>(vocabulary); ++token) {
      const std::int32_t count = next[token + 1];
      next[token + 1] = next[token] + count;
      if (count > 0) starts[group++] = next[token];
    }
    std::fill(starts + group, starts + layout.groups + 1, static_cast<std::int32_t>(layout.rows));
    for (std::int64_t row = 0; row < layout.rows; ++row) {
      order[next[static_cast<std::size_t>(tokens[row])]++] = static_cast<std::int32_t>(row);
    }
  }
}

void write_dropout_states(const BatchLayout& layout, std::byte* batch) {
  auto* out = reinterpret_cast<std::uint64_t*>(batch + layout.dropout_states);
  for (const DropoutSite& site : layout.dropouts) {
    const DropoutSeed seed = seed_of(site, reinterpret_cast<double*>(batch + layout.scalars));
    *out++ = seed.seed;
    *out++ = seed.offset;
  }
}

}  // namespace flashlab::train
