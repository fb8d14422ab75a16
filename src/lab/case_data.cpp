#include "lab/case_data.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>

#include "lab/case_data_fill.h"
#include "lab/case_data_layout.h"
#include "lab/memory.h"

namespace flashlab::lab {
namespace {

using cases::Case;

constexpr std::int64_t kGuardBytes = 4096;    // before and after every buffer
constexpr std::uint8_t kGuardPattern = 0xA5;  // around outputs; around inputs all bits set: NaN
constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

// A buffer between guards, from the system: large ones fail as a null pointer, not as an exception,
// and untouched pages cost nothing.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(map_, other.map_);
    std::swap(map_bytes_, other.map_bytes_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(tail_, other.tail_);
    return *this;
  }
  ~Buffer() {
    if (map_ != nullptr) munmap(map_, map_bytes_);
  }

  // `stagger` moves the data by cache lines, so that buffers do not all share the same cache sets.
  bool allocate(std::int64_t bytes, std::int64_t stagger, bool trap) {
    const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
    if (bytes > kMaxBytes - 16 * (kGuardBytes + page)) return false;
    const std::int64_t body = kGuardBytes + stagger + bytes + (trap ? 0 : kGuardBytes);
    const std::int64_t accessible = (body + page - 1) / page * page;
    const std::int64_t total = accessible + (trap ? page : 0);
    void* map = mmap(nullptr, static_cast<std::size_t>(total), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return false;
    map_ = map;
    map_bytes_ = static_cast<std::size_t>(total);
    auto* base = static_cast<std::uint8_t*>(map);
    if (trap && mprotect(base + accessible, static_cast<std::size_t>(page), PROT_NONE) != 0) {
      return false;
    }
    data_ = trap ? base + accessible - bytes : base + kGuardBytes + stagger;
    bytes_ = bytes;
    tail_ = trap ? 0 : kGuardBytes;
    return true;
  }

  std::uint8_t* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t tail_bytes() const { return tail_; }

 private:
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  std::uint8_t* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t tail_ = 0;
};

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

// Forward's own inputs and outputs, or everything backward reads and writes.
bool takes_part(Role role, Pass pass) {
  const bool backward_only = role == Role::kDO || role == Role::kDLse || role == Role::kDQ ||
                             role == Role::kDK || role == Role::kDV;
  return pass == Pass::kBackward || !backward_only;
}

bool output_of(Role role, Pass pass) {
  if (pass == Pass::kForward) return role == Role::kO || role == Role::kLse;
  return role == Role::kDQ || role == Role::kDK || role == Role::kDV;
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

// Tensors of either kind of call, whose members share their names.
template <class Tensors, class Get>
void set_inputs(Tensors& t, const CaseLayout& layout, const Get& get) {
  t.q = get(Role::kQ);
  t.k = get(Role::kK);
  t.v = get(Role::kV);
  t.o = get(Role::kO);
  t.lse = get(Role::kLse);
  if (layout.find(Role::kMask) != nullptr) t.mask = get(Role::kMask);
}

template <class Get>
ForwardTensors forward_views(const CaseLayout& layout, const Get& get) {
  ForwardTensors t;
  set_inputs(t, layout, get);
  return t;
}

template <class Get>
BackwardTensors backward_views(const CaseLayout& layout, const Get& get) {
  BackwardTensors t;
  set_inputs(t, layout, get);
  t.d_o = get(Role::kDO);
  if (layout.find(Role::kDLse) != nullptr) t.d_lse = get(Role::kDLse);
  t.dq = get(Role::kDQ);
  t.dk = get(Role::kDK);
  t.dv = get(Role::kDV);
  return t;
}

std::optional<std::int64_t> read_number(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The value of a line "key value" or "key: value kB".
std::optional<std::int64_t> read_field(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, unit;
    std::int64_t value = 0;
    if (!(words >> name >> value) || name != key) continue;
    words >> unit;
    return unit == "kB" ? value * 1024 : value;
  }
  return std::nullopt;
}

Status check_values(const Case& c, const CaseValues& values) {
  struct Expected {
    const char* name;
    const ConstTensor* tensor;
    std::array<std::int64_t, 4> shape;
  };
  std::vector<Expected> list = {{"q", &values.q, {c.batch, c.seqlen_q, c.heads_q, c.head_dim}},
                                {"k", &values.k, {c.batch, c.seqlen_k, c.heads_k, c.head_dim}},
                                {"v", &values.v, {c.batch, c.seqlen_k, c.heads_k, c.head_dim_v}}};
  if (values.d_o) {
    list.push_back({"d_o", &*values.d_o, {c.batch, c.seqlen_q, c.heads_q, c.head_dim_v}});
  }
  for (const Expected& e : list) {
    const TensorSpec& spec = e.tensor->spec;
    if (spec.rank != 4 || spec.shape != e.shape) {
      return Status::invalid({e.name, to_string(spec),
                              fmt::format("the case's shape [{}, {}, {}, {}]", e.shape[0],
                                          e.shape[1], e.shape[2], e.shape[3]),
                              "make the case's sizes those of the tensors"});
    }
    if (spec.dtype == DType::kBool || spec.dtype == DType::kE4m3 || spec.dtype == DType::kE5m2) {
      return Status::invalid({e.name, to_string(spec.dtype), "fp64, fp32, fp16 or bf16", ""});
    }
  }
  return {};
}

}  // namespace

struct CaseData::Impl {
  Case problem;
  CaseLayout layout;
  std::vector<Buffer> buffers;

  Tensor view(Role role) const {
    const Placement* p = layout.find(role);
    if (p == nullptr) return {};
    auto* base = buffers[static_cast<std::size_t>(p->buffer)].data();
    return {base + p->offset_elements * static_cast<std::int64_t>(size_of(p->spec.dtype)), p->spec};
  }

  bool holds_output(std::size_t buffer) const {
    for (const Placement& p : layout.tensors) {
      if (static_cast<std::size_t>(p.buffer) == buffer) return p.output();
    }
    return false;
  }

  void fill_guards(std::size_t n) {
    const Buffer& buffer = buffers[n];
    const int value = holds_output(n) ? kGuardPattern : 0xFF;
    for_each_guard(n, [&](std::int64_t offset, std::int64_t count) {
      std::memset(buffer.data() + offset, value, static_cast<std::size_t>(count));
    });
  }

  // Calls use(offset, bytes) for every stretch of a buffer that no tensor owns.
  template <class Use>
  void for_each_guard(std::size_t n, const Use& use) const {
    const Buffer& buffer = buffers[n];
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
    list.push_back({to_string(p.role), shape_text(p.spec), payload_bytes(p.spec)});
  }
  inputs.insert(inputs.end(), outputs.begin(), outputs.end());
  return inputs;
}

Problem problem_of(const Case& problem, Pass pass, std::string_view implementation) {
  const CaseLayout layout = lay_out(problem, pass == Pass::kBackward);
  const auto get = [&](Role role) { return Tensor{nullptr, layout.find(role)->spec}; };
  Options options = problem.options();
  options.implementation = implementation;
  return pass == Pass::kForward ? describe(forward_views(layout, get), options)
                                : describe(backward_views(layout, get), options);
}

Result<std::vector<TensorBytes>> accounting(const Context& context, const Case& problem, Pass pass,
                                            std::string_view implementation) {
  auto made = plan(context, problem_of(problem, pass, implementation));
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
                        format_bytes(static_cast<double>(tensor.bytes)));
  }
  return text + "together " + format_bytes(static_cast<double>(total_bytes(tensors)));
}

std::int64_t available_memory_bytes() {
  std::int64_t available = read_field("/proc/meminfo", "MemAvailable:").value_or(kMaxBytes);
  struct Group {
    const char *limit, *used, *statistics;
  };
  const Group groups[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat"}};
  for (const Group& group : groups) {
    const auto limit = read_number(group.limit), used = read_number(group.used);
    if (!limit || !used) continue;
    // Cached file pages count as used but give way.
    const std::int64_t cached = read_field(group.statistics, "inactive_file").value_or(0);
    available = std::min(available, std::max<std::int64_t>(0, *limit - (*used - cached)));
  }
  return available;
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
    const std::int64_t limit =
        options.memory_limit_bytes > 0 ? options.memory_limit_bytes : available_memory_bytes();
    const auto refusal = [&] {
      return Status::out_of_memory(
          {problem.name.empty() ? problem.describe() : problem.name, to_string(tensors),
           fmt::format("at most {}", format_bytes(static_cast<double>(limit))),
           "use a smaller batch, fewer heads or a shorter sequence"});
    };
    if (total_bytes(tensors) > limit) return refusal();

    auto impl = std::make_unique<Impl>();
    impl->problem = problem;
    impl->layout = lay_out(problem, options.backward);
    const std::size_t count = impl->layout.buffer_bytes.size();
    impl->buffers.resize(count);
    for (std::size_t n = 0; n < count; ++n) {
      const bool trap = options.trap_reads_past_end && !impl->holds_output(n);
      const std::int64_t stagger = static_cast<std::int64_t>(n) * 7 * 64;
      if (!impl->buffers[n].allocate(impl->layout.buffer_bytes[n], trap ? 0 : stagger, trap)) {
        return refusal();
      }
      impl->fill_guards(n);
    }
    CaseData data(std::move(impl));
    for (const Placement& p : data.impl_->layout.tensors) {
      if (p.output()) continue;
      const Tensor view = data.impl_->view(p.role);
      const ConstTensor* given = nullptr;
      if (options.values) {
        if (p.role == Role::kQ) given = &options.values->q;
        if (p.role == Role::kK) given = &options.values->k;
        if (p.role == Role::kV) given = &options.values->v;
        if (p.role == Role::kDO && options.values->d_o) given = &*options.values->d_o;
      }
      if (given != nullptr) {
        copy_tensor(*given, view);
      } else {
        fill_tensor(problem, p.role, view);
      }
    }
    data.reset_outputs(Pass::kForward);
    if (options.backward) data.reset_outputs(Pass::kBackward);
    return data;
  } catch (const std::bad_alloc&) {
    return Status::out_of_memory({"case data", "std::bad_alloc", "memory for its accounts", ""});
  }
}

const Case& CaseData::problem() const noexcept {
  return impl_->problem;
}

ForwardTensors CaseData::forward_tensors() const {
  return forward_views(impl_->layout, [&](Role role) { return impl_->view(role); });
}

BackwardTensors CaseData::backward_tensors() const {
  return backward_views(impl_->layout, [&](Role role) { return impl_->view(role); });
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

void CaseData::reset_outputs(Pass pass) {
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
    const Buffer& buffer = impl_->buffers[n];
    std::optional<std::int64_t> found;
    impl_->for_each_guard(n, [&](std::int64_t offset, std::int64_t count) {
      for (std::int64_t at = offset; !found && at < offset + count; ++at) {
        if (buffer.data()[at] != kGuardPattern) found = at;
      }
    });
    if (found) return GuardViolation{to_string(p.role), *found};
  }
  return std::nullopt;
}

}  // namespace flashlab::lab
