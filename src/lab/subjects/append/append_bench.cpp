#include "lab/subjects/append/append_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flashlab/attention.h"
#include "flashlab/cache.h"
#include "lab/data/case_data.h"
#include "lab/data/case_data_fill.h"
#include "lab/machine/device_memory.h"
#include "lab/measure/gpu_clock.h"
#include "lab/subjects/turns/time_in_turns.h"

namespace flashlab::lab {
namespace {

constexpr std::int64_t kPageSize = 64;
constexpr std::array kForms = {"append", "attention", "append+attention"};

/// Sequence b has `before` rows in its cache, and `added` new ones each time.
struct Sizes {
  std::int64_t batch, before, added, heads_q, heads_k, head_dim;
  DType dtype = DType::kBf16;
  std::uint64_t seed = 1;

  std::int64_t pages_each() const { return (before + added + kPageSize - 1) / kPageSize; }
  double element() const { return static_cast<double>(size_of(dtype)); }
  double rows_new() const { return static_cast<double>(2 * batch * added * heads_k * head_dim); }
  double queries() const { return static_cast<double>(batch * added * heads_q * head_dim); }
  double rows_read() const {
    return static_cast<double>(2 * batch * heads_k * head_dim) *
           static_cast<double>(before + added);
  }
};

Sizes sizes_of(const Labels& labels) {
  const auto whole = [&](std::string_view name) {
    return static_cast<std::int64_t>(labels.whole(name));
  };
  Sizes out{whole("batch"),   whole("cache_length"), whole("queries"),
            whole("heads_q"), whole("heads_k"),      whole("head_dim")};
  out.seed = labels.whole("seed");
  for (const DType dtype : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    if (labels.text("dtype") == to_string(dtype)) out.dtype = dtype;
  }
  return out;
}

/// The tensors of a step in the device's memory, freed at the end.
class Step {
 public:
  Step(std::shared_ptr<DeviceMemory> memory, const Sizes& sizes)
      : memory_(std::move(memory)), sizes_(sizes) {}
  ~Step() {
    for (void* block : blocks_) memory_->release(block);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  Status create(const Context& context) {
    const Sizes& s = sizes_;
    const std::int64_t pages = s.batch * s.pages_each(), width = s.head_dim / 2;
    append_.k = random({pages, kPageSize, s.heads_k, s.head_dim});
    append_.v = random({pages, kPageSize, s.heads_k, s.head_dim});
    append_.k_new = random({s.batch, s.added, s.heads_k, s.head_dim});
    append_.v_new = random({s.batch, s.added, s.heads_k, s.head_dim});
    append_.q = random({s.batch, s.added, s.heads_q, s.head_dim});
    append_.q_rotated = random({s.batch, s.added, s.heads_q, s.head_dim});
    append_.rotary_cos = random({s.pages_each() * kPageSize, width});
    append_.rotary_sin = random({s.pages_each() * kPageSize, width});
    append_.seqused_k = integers({s.batch}, [&](std::int64_t) { return s.before; });
    append_.seqused_after = integers({s.batch}, [&](std::int64_t) { return s.before + s.added; });
    // Pages of a sequence lie apart.
    append_.block_table = integers({s.batch, s.pages_each()}, [&](std::int64_t i) {
      return i % s.pages_each() * s.batch + i / s.pages_each();
    });
    forward_.q = *append_.q_rotated;
    forward_.k = append_.k;
    forward_.v = append_.v;
    forward_.o = random({s.batch, s.added, s.heads_q, s.head_dim});
    forward_.block_table = append_.block_table;
    forward_.seqused_k = ConstTensor(*append_.seqused_after);
    if (!status_.ok()) return status_;
    Options options;
    options.causal = Causal::kBottomRight;
    Result<Plan> made = plan(context, describe(forward_, options));
    if (!made.ok()) return made.status();
    plan_.emplace(std::move(*made));
    workspace_.bytes = plan_->workspace_bytes();
    if (workspace_.bytes > 0) workspace_.data = take(workspace_.bytes);
    return status_.ok() ? prepare(context, *plan_) : status_;
  }

  Status run(const Context& context, std::size_t form) const {
    const Stream stream = memory_->stream();
    if (form != 1) {
      if (Status s = append(context, stream, append_); !s.ok()) return s;
    }
    return form == 0 ? Status() : forward(context, stream, *plan_, forward_, workspace_);
  }

 private:
  void* take(std::size_t bytes) {
    if (!status_.ok()) return nullptr;
    const Result<void*> block = memory_->allocate(bytes);
    status_ = block.status();
    if (!block.ok()) return nullptr;
    blocks_.push_back(*block);
    return *block;
  }
  template <class T>
  Tensor upload(const std::vector<T>& values, const TensorSpec& spec) {
    void* data = take(values.size() * sizeof(T));
    if (data != nullptr) status_ = memory_->upload(data, values.data(), values.size() * sizeof(T));
    return {data, spec};
  }
  Tensor random(std::initializer_list<std::int64_t> shape) {
    const TensorSpec spec = contiguous_spec(sizes_.dtype, shape, memory_->device());
    const auto count = static_cast<std::size_t>(spec.elements());
    const std::uint64_t stream = 64 * sizes_.seed + blocks_.size();
    const auto value = [&](std::size_t i) { return static_cast<float>(normal_at(stream, i)); };
    if (sizes_.dtype == DType::kFp32) {
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = value(i);
      return upload(values, spec);
    }
    const bool bf16 = sizes_.dtype == DType::kBf16;
    std::vector<std::uint16_t> bits(count);
    for (std::size_t i = 0; i < count; ++i) {
      bits[i] = bf16 ? bf16_from_float(value(i)) : fp16_from_float(value(i));
    }
    return upload(bits, spec);
  }
  template <class Value>
  Tensor integers(std::initializer_list<std::int64_t> shape, const Value& value) {
    const TensorSpec spec = contiguous_spec(DType::kInt32, shape, memory_->device());
    std::vector<std::int32_t> values(static_cast<std::size_t>(spec.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::int32_t>(value(static_cast<std::int64_t>(i)));
    }
    return upload(values, spec);
  }

  std::shared_ptr<DeviceMemory> memory_;
  Sizes sizes_;
  Status status_;
  std::vector<void*> blocks_;
  AppendTensors append_;
  ForwardTensors forward_;
  std::optional<Plan> plan_;
  Workspace workspace_;
};

Status measure_step(const Context& context, const Sizes& sizes, MeasureOptions measure,
                    std::vector<Measurement>& results) {
  Result<std::shared_ptr<DeviceMemory>> memory = device_memory(context);
  if (!memory.ok()) return memory.status();
  std::unique_ptr<SampleClock> clock;
  if (context.device().kind == DeviceKind::kCuda) {
    Result<std::unique_ptr<SampleClock>> made = gpu_clock(*memory);
    if (!made.ok()) return made.status();
    clock = std::move(*made);
    measure.clock = clock.get();
  }
  Step step(*memory, sizes);
  if (Status s = step.create(context); !s.ok()) return s;
  // Rows are read and written once, and so are queries; turning is six operations for two numbers.
  const double append_bytes = 2 * sizes.element() * (sizes.rows_new() + sizes.queries());
  const double append_flops = 3 * (sizes.rows_new() / 2 + sizes.queries());
  const double attention_bytes = sizes.element() * (sizes.rows_read() + 2 * sizes.queries());
  const double attention_flops =
      4 * sizes.queries() * static_cast<double>(sizes.before + sizes.added);
  std::vector<Contestant> contestants;
  for (std::size_t form = 0; form < kForms.size(); ++form) {
    contestants.push_back({&results[form], [&, form] { return step.run(context, form); },
                           (form != 1 ? append_flops : 0) + (form != 0 ? attention_flops : 0),
                           (form != 1 ? append_bytes : 0) + (form != 0 ? attention_bytes : 0)});
  }
  time_in_turns(measure, contestants);
  return (*memory)->synchronize();
}

std::vector<Measurement> bench_append(const Context& context, const Labels& problem,
                                      const BenchOptions& bench) {
  std::vector<Measurement> results;
  for (const char* form : kForms) {
    Measurement& result = results.emplace_back();
    result.subject = append_subject().name;
    result.implementation = form;
    result.device = to_string(context.device());
    result.pass = "forward";
    result.labels = problem;
  }
  Status status = Status::unsupported(
      {"--check", "given to bench append", "times alone",
       "leave it out: `flashlab check` has attention over caches, the tests have appends"});
  if (!bench.check) status = measure_step(context, sizes_of(problem), bench.measure, results);
  if (!status.ok()) {
    for (Measurement& result : results) result.set_failure(status);
  }
  return results;
}

constexpr ProblemFlag kFlags[] = {
    {"--dtype", "dtype", "TYPE[,TYPE]", "bf16", "element types (default bf16)",
     [] {
       return std::vector<std::string>{"fp32", "fp16", "bf16"};
     }},
    {"--batch", "batch", "N[,N]", "1", "sequences (default 1)"},
    {"--cache-length", "cache_length", "N[,N]", "8k", "keys of each before the step (default 8k)"},
    {"--queries", "queries", "N[,N]", "1", "new rows and queries of each (default 1)"},
    {"--heads", "heads_q", "N[,N]", "32", "query heads (default 32)"},
    {"--kv-heads", "heads_k", "N[,N]", "8", "key and value heads (default 8)"},
    {"--head-dim", "head_dim", "N[,N]", "128", "elements of a head (default 128)"}};

constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"flashlab bench append", "one token after 8192"},
    {"flashlab bench append --batch 1,64 --cache-length 8k,32k --device cuda", "on a GPU"}};

constexpr SubjectBench kBench{
    .command = "bench append",
    .summary = "time new keys and values going into a cache",
    .about =
        "Rows into a cache in pages of 64, keys and queries turned by rotary tables on the "
        "way, beside the attention over the cache and beside both in a row.",
    .examples = kExamples,
    .flags = kFlags,
    .protocol = "the step alone, attention alone and both take turns",
    .results = kForms.size(),
    .run = bench_append};

}  // namespace

const Subject& append_subject() {
  static constexpr LabelSpec kLabels[] = {
      {.name = "dtype", .kind = LabelKind::kText, .heading = "dtype", .width = -5},
      {.name = "batch", .heading = "batch", .width = 6},
      {.name = "cache_length", .heading = "cache", .width = 8},
      {.name = "queries", .heading = "new", .width = 4},
      {.name = "heads_q", .heading = "Hq", .width = 4},
      {.name = "heads_k", .heading = "Hk", .width = 4},
      {.name = "head_dim", .heading = "d", .width = 4},
      {.name = "seed", .identifies = false},
  };
  static constexpr ShownColumn kColumns[] = {
      {kMedianMs, Place::kEachPass, 10},
      {kGbPerS, Place::kEachPass, 8},
      {kTflops},
      {kMinMs},
      {kMeanMs},
      {kMaxMs},
      {kStdMs},
      {kQ1Ms},
      {kQ3Ms},
      {.column = kLowMs, .required = false},
      {.column = kHighMs, .required = false},
      {kTflopsPeak},
  };
  static constexpr Subject kSubject{
      .name = "append",
      .heading = "Appending to a cache",
      .labels = kLabels,
      .columns = kColumns,
      .work = "Append: 3 FLOPs for each number that turns; attention: 4 B new Hq keys d.",
      .names =
          "B sequences, new rows and queries of each, Hq query heads, Hk key heads, head dim d.",
      .title =
          [](const Labels& labels, std::string_view separator) {
            return fmt::format("{}{}batch {}{}cache {}{}new {}{}heads {}/{}{}d {}",
                               labels.text("dtype"), separator, labels.whole("batch"), separator,
                               labels.whole("cache_length"), separator, labels.whole("queries"),
                               separator, labels.whole("heads_q"), labels.whole("heads_k"),
                               separator, labels.whole("head_dim"));
          },
      .family =
          [](const Labels& labels) {
            return fmt::format("{} · batch {} · new {} · heads {}/{} · d {}", labels.text("dtype"),
                               labels.whole("batch"), labels.whole("queries"),
                               labels.whole("heads_q"), labels.whole("heads_k"),
                               labels.whole("head_dim"));
          },
      .family_slug =
          [](const Labels& labels) {
            return fmt::format("append_b{}_n{}_h{}_{}_d{}_{}", labels.whole("batch"),
                               labels.whole("queries"), labels.whole("heads_q"),
                               labels.whole("heads_k"), labels.whole("head_dim"),
                               labels.text("dtype"));
          },
      .axis = "cache_length",
      .axis_words = "keys in the cache",
      .axis_short = "cache ",
      .bench = &kBench,
  };
  return kSubject;
}

}  // namespace flashlab::lab
