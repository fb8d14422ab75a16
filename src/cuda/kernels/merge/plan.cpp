#include "cuda/kernels/merge/plan.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/kernels/merge/launch_arguments.h"
#include "cuda/launch/config.h"
#include "runtime/kernel_store/config.h"
#include "runtime/program/executor.h"

namespace flashlab::cuda {
namespace {

constexpr std::int64_t kRowsPerBlock = kMergeThreads / 32;
constexpr std::int64_t kMaxBlocks = 1 << 20;  // a block loops over the rows beyond
constexpr int kVector = 4;
constexpr std::size_t kAlignment = 256;

device::Rows rows_of(const ConstTensor& tensor) {
  const auto& s = tensor.spec.strides;
  return {const_cast<void*>(tensor.data), s[0], s[1], s[2]};
}

device::RowScalars scalars_of(const ConstTensor& tensor) {
  const auto& s = tensor.spec.strides;
  return {const_cast<void*>(tensor.data), s[0], s[1], s[2]};
}

device::MergePart part_of(const ConstTensor& o, const std::optional<ConstTensor>& lse) {
  return {rows_of(o), lse ? scalars_of(*lse) : device::RowScalars{nullptr, 0, 0, 0}};
}

const char* element_name(DType dtype) {
  if (dtype == DType::kFp16) return "kFp16";
  return dtype == DType::kBf16 ? "kBf16" : "kFp32";
}

// The rows' addresses as they are: a merge has no plan that could have looked before.
bool vectors_fit(const ConstTensor& o) {
  const auto size = static_cast<std::uintptr_t>(size_of(o.spec.dtype));
  const std::uintptr_t bytes = kVector * size;
  if (reinterpret_cast<std::uintptr_t>(o.data) % bytes != 0 || o.spec.shape[3] % kVector != 0) {
    return false;
  }
  for (int i = 0; i < 3; ++i) {
    if (o.spec.strides[i] % kVector != 0) return false;
  }
  return true;
}

struct Turn {
  std::vector<Partial> parts;
  Tensor o;
  std::optional<Tensor> lse;
};

// One launch, with the addresses of this call but for those of `running`, a buffer that holds the
// result so far: it is the first part (`reads`), the output (`writes`), or not there yet.
runtime::Step step_of(const Turn& turn, int running, bool reads, bool writes) {
  bool vectors = vectors_fit(turn.o);
  using Arguments = device::MergeArguments;
  Arguments arguments{};
  for (std::size_t i = 0; i < turn.parts.size(); ++i) {
    vectors = vectors && vectors_fit(turn.parts[i].o);
    arguments.parts[i] = part_of(turn.parts[i].o, turn.parts[i].lse);
  }
  std::optional<ConstTensor> output_lse;
  if (turn.lse) output_lse = *turn.lse;
  arguments.output = part_of(turn.o, output_lse);
  arguments.count = static_cast<int>(turn.parts.size());
  const auto& shape = turn.o.spec.shape;
  arguments.batch = static_cast<int>(shape[0]);
  arguments.seqlen = static_cast<int>(shape[1]);
  arguments.heads = static_cast<int>(shape[2]);
  arguments.columns = static_cast<int>(shape[3]);
  runtime::ParameterBlock block(arguments);
  const auto patch = [&](std::size_t part) {
    block.pointer(part + offsetof(device::MergePart, o), {running})
        .pointer(part + offsetof(device::MergePart, lse),
                 {running, turn.o.spec.elements() * static_cast<std::int64_t>(sizeof(float))});
  };
  if (reads) patch(offsetof(Arguments, parts));
  if (writes) patch(offsetof(Arguments, output));
  const std::int64_t rows = shape[0] * shape[1] * shape[2];
  const auto blocks =
      std::min<std::int64_t>((rows + kRowsPerBlock - 1) / kRowsPerBlock, kMaxBlocks);
  return {.name = "flash_fwd_merge",
          .work = runtime::KernelWork{
              merge_kernel(turn.o.spec.dtype, vectors ? kVector : 1),
              {.grid_x = static_cast<unsigned>(blocks), .threads = kMergeThreads},
              std::move(block)}};
}

// The layout of an fp32 partial in one buffer: o [B, S, H, D], then lse [B, H, S].
Partial running_partial(const TensorSpec& model) {
  const auto& s = model.shape;
  Partial out;
  out.o.spec = contiguous_spec(DType::kFp32, {s[0], s[1], s[2], s[3]}, model.device);
  out.lse.spec = contiguous_spec(DType::kFp32, {s[0], s[2], s[1]}, model.device);
  return out;
}

}  // namespace

KernelSpec merge_kernel(DType output, int vector) {
  ConfigPrinter config;
  config.choice("kOutput", "Element", element_name(output)).integer("kVector", vector);
  return {"merge/kernel.cu", "flash_fwd_merge", config.text(), {}};
}

Status merge_on_gpu(const GpuDevice& device, Allocator& allocator, Stream stream,
                    std::span<const Partial> parts, const Tensor& o,
                    const std::optional<Tensor>& lse) {
  runtime::Executor executor({&device});
  runtime::Program& program = executor.program();
  const Partial running = running_partial(o.spec);
  int buffer = -1;
  if (parts.size() > device::kMaxMergeParts) {
    const auto floats = running.o.spec.elements() + running.lse.spec.elements();
    buffer = program.add_region("running", static_cast<std::size_t>(floats) * sizeof(float));
  }
  // Turns: the first takes a full table, the later ones the running result and what fits beside it.
  std::span<const Partial> rest = parts;
  Turn turn;
  while (!rest.empty()) {
    const bool reads = !turn.parts.empty();
    const std::size_t taken =
        std::min<std::size_t>(rest.size(), device::kMaxMergeParts - turn.parts.size());
    turn.parts.insert(turn.parts.end(), rest.begin(),
                      rest.begin() + static_cast<std::ptrdiff_t>(taken));
    rest = rest.subspan(taken);
    const bool writes = !rest.empty();
    turn.o = writes ? Tensor{nullptr, running.o.spec} : o;
    turn.lse = writes ? Tensor{nullptr, running.lse.spec} : lse;
    program.add(step_of(turn, buffer, reads, writes));
    turn.parts = {running};
  }
  const std::size_t bytes = program.workspace_bytes();
  void* memory = nullptr;
  if (bytes > 0) {
    auto allocated = allocator.allocate(bytes, kAlignment, stream, Tag{"workspace", "merge"});
    if (!allocated.ok()) return allocated.status();
    memory = *allocated;
  }
  const Status status = executor.enqueue({.workspaces = {&memory, 1}, .streams = {&stream, 1}});
  if (memory != nullptr) allocator.deallocate(memory, bytes, stream);
  return status;
}

}  // namespace flashlab::cuda
