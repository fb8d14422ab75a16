#include "lab/data/case_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>

#include "lab/data/case_data_fill.h"
#include "lab/data/case_data_layout.h"
#include "lab/data/case_data_memory.h"
#include "lab/machine/memory.h"

namespace flashlab::lab {
namespace {

using cases::Case;

constexpr std::uint8_t kGuardPattern = 0xA5;  // around outputs; around inputs all bits set: NaN
constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

std::int64_t payload_bytes(const TensorSpec& spec) {
  auto bytes = static_cast<std::int64_t>(size_of(spec.dtype));
  for (int i = 0; i < spec.rank; ++i) {
    const auto n = static_cast<std::size_t>(i);
    if (spec.strides[n] == 0 && spec.shape[n] > 1) continue;  // the same memory again
    bytes = saturating_multiply(bytes, spec.shape[n]);
  }
  return bytes;
}

std::string shape_text(const TensorSpec& spec) {
  std::string text = fmt::format("{} [", to_string(spec.dtype));
  for (int i = 0; i < spec.rank; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", spec.shape[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

bool takes_part(TensorRole role, Pass pass) {
  return row_of(role).access(pass) != Access::kNone;
}

bool output_of(TensorRole role, Pass pass) {
  return row_of(role).access(pass) == Access::kWrite;
}

Status check_sizes(const Case& c) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"batch", c.batch},          {"heads_q", c.heads_q},   {"heads_k", c.heads_k},
      {"seqlen_q", c.seqlen_q},    {"seqlen_k", c.seqlen_k}, {"head_dim", c.head_dim},
      {"head_dim_v", c.head_dim_v}};
  for (const auto& [name, value] : sizes) {
    if (value < 0) return Status::invalid({name, fmt::format("{}", value), "a size >= 0", ""});
  }
  const bool known = c.dtype == DType::kFp64 || c.dtype == DType::kFp32 ||
                     c.dtype == DType::kFp16 || c.dtype == DType::kBf16;
  if (!known) {
    return Status::invalid({"dtype", to_string(c.dtype), "fp64, fp32, fp16 or bf16", ""});
  }
  return {};
}

// [1, total, ...], as ragged rows lie, without the batch: as calls take them.
Tensor ragged_rows(const Tensor& flat) {
  Tensor out = flat;
  --out.spec.rank;
  for (std::size_t n = 0; n + 1 < TensorSpec::kMaxRank; ++n) {
    out.spec.shape[n] = flat.spec.shape[n + 1];
    out.spec.strides[n] = flat.spec.strides[n + 1];
  }
  out.spec.shape.back() = out.spec.strides.back() = 0;
  return out;
}

// The same of queries that calls take dense: [1, batch * rows, ...] as [batch, rows, ...], and
// their scalars [1, heads, batch * rows].
Tensor dense_rows(const Tensor& flat, std::int64_t batch) {
  Tensor out = flat;
  const std::size_t rows = flat.spec.rank == 4 ? 1 : 2;
  out.spec.shape[0] = batch;
  out.spec.shape[rows] = flat.spec.shape[rows] / std::max<std::int64_t>(batch, 1);
  out.spec.strides[0] = out.spec.shape[rows] * flat.spec.strides[rows];
  return out;
}

// The tensors of a call, as `get` has them. `flat`: ragged ones as the oracle wants them, rows of
// one batch entry, and without lengths; keys of a cache as they lie in it.
template <class Tensors, class Get>
Tensors views(const Case& problem, const CaseLayout& layout, bool flat, const Get& get) {
  Tensors tensors;
  const SequenceSource source = problem.source();
  if (!problem.dropout_state) tensors.dropout_seed = problem.dropout_seed();
  for (const Placement& p : layout.tensors) {
    const TensorRow& row = row_of(p.role);
    const TensorMember<Tensors>& member = row.template member<Tensors>();
    if (member.access() == Access::kNone) continue;
    const bool listed = row.dtype == DTypeRule::kIndex || row.role == TensorRole::kBlockTable;
    if (flat && listed) continue;
    const bool rows = rule_for(row.shape, source).rank < row.shape.rank;
    // Of each query; a mask has positions of its own.
    const bool queries = !row.shape.broadcasts && (row.shape.extents[1] == Extent::kSeqlenQ ||
                                                   row.shape.extents[2] == Extent::kSeqlenQ);
    const bool dense = queries && problem.cache && problem.cache->dense_queries;
    member.set(tensors, flat    ? get(p.role)
                        : rows  ? ragged_rows(get(p.role))
                        : dense ? dense_rows(get(p.role), problem.batch)
                                : get(p.role));
  }
  return tensors;
}

Status check_values(const Case& c, const CaseValues& values) {
  const Extents sizes = c.extents();
  for (const TensorRow& row : kTensors) {
    const ConstTensor* given = values.find(row.role);
    if (given == nullptr) continue;
    const auto shape = row.shape.of(sizes);
    const TensorSpec& spec = given->spec;
    if (spec.rank != 4 || spec.shape != shape) {
      return Status::invalid(
          {row.name, to_string(spec),
           fmt::format("the case's shape [{}, {}, {}, {}]", shape[0], shape[1], shape[2], shape[3]),
           "make the case's sizes those of the tensors"});
    }
    if (spec.dtype == DType::kBool || spec.dtype == DType::kE4m3 || spec.dtype == DType::kE5m2) {
      return Status::invalid({row.name, to_string(spec.dtype), "fp64, fp32, fp16 or bf16", ""});
    }
  }
  return {};
}

}  // namespace

struct CaseData::Impl {
  Case problem;
  CaseLayout layout;
  std::vector<HostBuffer> buffers;
  std::shared_ptr<DeviceMemory> memory;
  std::vector<BufferMirror> mirrors;  // of every buffer; none where kernels read the buffers

  Tensor view(TensorRole role) const {
    const Placement* p = layout.find(role);
    if (p == nullptr) return {};
    return {buffers[static_cast<std::size_t>(p->buffer)].data() + offset_bytes(*p), p->spec};
  }

  Tensor device_view(TensorRole role) const {
    const Placement* p = layout.find(role);
    if (p == nullptr || mirrors.empty()) return view(role);
    Tensor out{mirrors[static_cast<std::size_t>(p->buffer)].data() + offset_bytes(*p), p->spec};
    out.spec.device = memory->device();
    return out;
  }

  static std::int64_t offset_bytes(const Placement& p) {
    return p.offset_elements * static_cast<std::int64_t>(size_of(p.spec.dtype));
  }

  // Buffers of a pass's outputs, each once.
  std::vector<std::size_t> output_buffers(Pass pass) const {
    std::vector<std::size_t> out;
    for (const Placement& p : layout.tensors) {
      const auto n = static_cast<std::size_t>(p.buffer);
      if (output_of(p.role, pass) && (out.empty() || out.back() != n)) out.push_back(n);
    }
    return out;
  }

  Status mirror() {
    if (memory->device().kind == DeviceKind::kCpu) return {};
    mirrors.resize(buffers.size());
    for (std::size_t n = 0; n < buffers.size(); ++n) {
      if (Status s = mirrors[n].allocate(memory, buffers[n]); !s.ok()) return s;
      if (!holds_output(n)) {
        if (Status s = mirrors[n].upload(buffers[n]); !s.ok()) return s;
      }
    }
    return {};
  }

  bool holds_output(std::size_t buffer) const {
    for (const Placement& p : layout.tensors) {
      if (static_cast<std::size_t>(p.buffer) == buffer) return p.output();
    }
    return false;
  }

  void fill_guards(std::size_t n) {
    const HostBuffer& buffer = buffers[n];
    const int value = holds_output(n) ? kGuardPattern : 0xFF;
    for_each_guard(n, [&](std::int64_t offset, std::int64_t count) {
      std::memset(buffer.data() + offset, value, static_cast<std::size_t>(count));
    });
  }

  // Calls use(offset, bytes) for every stretch of a buffer that no tensor owns.
  template <class Use>
  void for_each_guard(std::size_t n, const Use& use) const {
    const HostBuffer& buffer = buffers[n];
    const CaseLayout::Gaps& gaps = layout.gaps[n];
    use(-kGuardBytes, kGuardBytes + gaps.first_bytes);
    if (gaps.gap_bytes > 0) {
      const std::int64_t step = gaps.row_bytes + gaps.gap_bytes;
      for (std::int64_t at = gaps.first_bytes + gaps.row_bytes; at < buffer.bytes(); at += step) {
        use(at, gaps.gap_bytes);
      }
    }
    if (buffer.tail_bytes() > 0) use(buffer.bytes(), buffer.tail_bytes());
  }
};

std::vector<TensorBytes> accounting(const Case& problem, Pass pass) {
  std::vector<TensorBytes> inputs, outputs;
  const CaseLayout layout = lay_out(problem, pass == Pass::kBackward);
  for (const Placement& p : layout.tensors) {
    if (!takes_part(p.role, pass)) continue;
    auto& list = output_of(p.role, pass) ? outputs : inputs;
    list.push_back({row_of(p.role).name, shape_text(p.spec), payload_bytes(p.spec)});
  }
  inputs.insert(inputs.end(), outputs.begin(), outputs.end());
  return inputs;
}

Problem problem_of(const Case& problem, Pass pass, std::string_view implementation, Device device) {
  const CaseLayout layout = lay_out(problem, pass == Pass::kBackward);
  const auto get = [&](TensorRole role) {
    Tensor out{nullptr, layout.find(role)->spec};
    out.spec.device = device;
    return out;
  };
  Options options = problem.options();
  options.implementation = implementation;
  return pass == Pass::kForward
             ? describe(views<ForwardTensors>(problem, layout, false, get), options)
             : describe(views<BackwardTensors>(problem, layout, false, get), options);
}

Result<std::vector<TensorBytes>> accounting(const Context& context, const Case& problem, Pass pass,
                                            std::string_view implementation) {
  auto made = plan(context, problem_of(problem, pass, implementation, context.device()));
  if (!made.ok()) return made.status();
  std::vector<TensorBytes> list = accounting(problem, pass);
  for (const WorkspaceRegion& region : made->regions()) {
    const auto bytes = static_cast<std::int64_t>(
        std::min<std::size_t>(region.bytes, static_cast<std::size_t>(kMaxBytes)));
    list.push_back({"workspace: " + region.name, "", bytes});
  }
  return list;
}

std::int64_t total_bytes(std::span<const TensorBytes> tensors) {
  std::int64_t sum = 0;
  for (const TensorBytes& tensor : tensors) sum = saturating_add(sum, tensor.bytes);
  return sum;
}

std::string to_string(std::span<const TensorBytes> tensors) {
  std::string text;
  for (const TensorBytes& tensor : tensors) {
    text += fmt::format("{}{}{} = {}; ", tensor.name, tensor.shape.empty() ? "" : " ", tensor.shape,
                        format_bytes(tensor.bytes));
  }
  return text + "together " + format_bytes(total_bytes(tensors));
}

CaseData::CaseData(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CaseData::CaseData(CaseData&&) noexcept = default;
CaseData& CaseData::operator=(CaseData&&) noexcept = default;
CaseData::~CaseData() = default;

Result<CaseData> CaseData::create(const Case& problem, const CaseDataOptions& options) {
  if (Status s = check_sizes(problem); !s.ok()) return s;
  if (options.values) {
    if (Status s = check_values(problem, *options.values); !s.ok()) return s;
  }
  try {
    const auto tensors = accounting(problem, options.backward ? Pass::kBackward : Pass::kForward);
    const auto memory = options.memory != nullptr ? options.memory : host_memory();
    const auto refusal = [&](std::int64_t limit, Device device) {
      return Status::out_of_memory(
          {problem.name.empty() ? problem.describe() : problem.name, to_string(tensors),
           fmt::format("at most {}{}", format_bytes(limit),
                       device == memory->device() && device.kind == DeviceKind::kCpu
                           ? std::string()
                           : " on " + to_string(device)),
           "use a smaller batch, fewer heads or a shorter sequence"});
    };
    // The device's memory first: it is the smaller one, and the one that people ask about.
    std::int64_t limit = 0;
    for (const Device device : {memory->device(), Device{}}) {
      limit = options.memory_limit_bytes > 0 ? options.memory_limit_bytes
              : device == memory->device()   ? memory->available_bytes()
                                             : available_memory_bytes();
      if (total_bytes(tensors) > limit) return refusal(limit, device);
    }

    auto impl = std::make_unique<Impl>();
    impl->problem = problem;
    impl->memory = memory;
    impl->layout = lay_out(problem, options.backward);
    const std::size_t count = impl->layout.buffer_bytes.size();
    impl->buffers.resize(count);
    for (std::size_t n = 0; n < count; ++n) {
      const bool trap = options.trap_reads_past_end && !impl->holds_output(n);
      const std::int64_t stagger = static_cast<std::int64_t>(n) * 7 * 64;
      if (!impl->buffers[n].allocate(impl->layout.buffer_bytes[n], trap ? 0 : stagger, trap)) {
        return refusal(limit, {});
      }
      impl->fill_guards(n);
    }
    CaseData data(std::move(impl));
    for (const Placement& p : data.impl_->layout.tensors) {
      if (p.output()) continue;
      const Tensor view = data.impl_->view(p.role);
      const ConstTensor* given = options.values ? options.values->find(p.role) : nullptr;
      if (given != nullptr) {
        copy_tensor(*given, view);
      } else {
        fill_tensor(problem, p.role, view);
      }
    }
    if (Status s = data.impl_->mirror(); !s.ok()) {
      if (s.code() != StatusCode::kOutOfMemory) return s;
      // What was taken for this case is given back with it: the figure is what there was before.
      data.impl_->mirrors.clear();
      return refusal(memory->available_bytes(), memory->device());
    }
    if (Status s = data.reset_outputs(Pass::kForward); !s.ok()) return s;
    if (options.backward && problem.has_backward()) {
      if (Status s = data.reset_outputs(Pass::kBackward); !s.ok()) return s;
    }
    return data;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory({"case data", "std::bad_alloc", "memory for its accounts", ""});
  }
}

const Case& CaseData::problem() const noexcept {
  return impl_->problem;
}

DeviceMemory& CaseData::memory() const noexcept {
  return *impl_->memory;
}

ForwardTensors CaseData::forward_tensors() const {
  return views<ForwardTensors>(impl_->problem, impl_->layout, false,
                               [&](TensorRole role) { return impl_->device_view(role); });
}

BackwardTensors CaseData::backward_tensors() const {
  return views<BackwardTensors>(impl_->problem, impl_->layout, false,
                                [&](TensorRole role) { return impl_->device_view(role); });
}

ForwardTensors CaseData::host_forward_tensors() const {
  return views<ForwardTensors>(impl_->problem, impl_->layout, true,
                               [&](TensorRole role) { return impl_->view(role); });
}

BackwardTensors CaseData::host_backward_tensors() const {
  return views<BackwardTensors>(impl_->problem, impl_->layout, true,
                                [&](TensorRole role) { return impl_->view(role); });
}

std::int64_t CaseData::input_bytes(Pass pass) const {
  std::int64_t sum = 0;
  for (const Placement& p : impl_->layout.tensors) {
    if (takes_part(p.role, pass) && !output_of(p.role, pass)) sum += payload_bytes(p.spec);
  }
  return sum;
}

std::int64_t CaseData::output_bytes(Pass pass) const {
  std::int64_t sum = 0;
  for (const Placement& p : impl_->layout.tensors) {
    if (output_of(p.role, pass)) sum += payload_bytes(p.spec);
  }
  return sum;
}

Status CaseData::reset_outputs(Pass pass) {
  const bool accumulate =
      pass == Pass::kBackward && impl_->problem.gradient_mode == GradientMode::kAccumulate;
  for (const Placement& p : impl_->layout.tensors) {
    if (!output_of(p.role, pass)) continue;
    impl_->fill_guards(static_cast<std::size_t>(p.buffer));
    if (accumulate) {
      fill_tensor(impl_->problem, p.role, impl_->view(p.role));
    } else {
      fill_nan(impl_->view(p.role));
    }
  }
  if (impl_->mirrors.empty()) return {};
  for (const std::size_t n : impl_->output_buffers(pass)) {
    if (Status s = impl_->mirrors[n].upload(impl_->buffers[n]); !s.ok()) return s;
  }
  return {};
}

Status CaseData::fetch_outputs(Pass pass) {
  if (impl_->mirrors.empty()) return impl_->memory->synchronize();
  for (const std::size_t n : impl_->output_buffers(pass)) {
    if (Status s = impl_->mirrors[n].download(impl_->buffers[n]); !s.ok()) return s;
  }
  return {};
}

std::vector<std::uint8_t> CaseData::output_bits(Pass pass) const {
  std::vector<std::uint8_t> out;
  for (const Placement& p : impl_->layout.tensors) {
    if (output_of(p.role, pass)) append_elements(impl_->view(p.role), out);
  }
  return out;
}

std::optional<GuardViolation> CaseData::find_violation() const {
  for (const Placement& p : impl_->layout.tensors) {
    if (!p.output()) continue;
    const auto n = static_cast<std::size_t>(p.buffer);
    const HostBuffer& buffer = impl_->buffers[n];
    std::optional<std::int64_t> found;
    impl_->for_each_guard(n, [&](std::int64_t offset, std::int64_t count) {
      for (std::int64_t at = offset; !found && at < offset + count; ++at) {
        if (buffer.data()[at] != kGuardPattern) found = at;
      }
    });
    if (found) return GuardViolation{row_of(p.role).name, *found};
  }
  return std::nullopt;
}

}  // namespace flashlab::lab
