#include "cuda/launch/merge.h"

#include <algorithm>
#include <vector>

#include "cuda/kernels/merge_arguments.h"
#include "cuda/launch/config.h"
#include "runtime/kernel_store/config.h"
#include "runtime/kernel_store/kernel.h"

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

Status launch(GpuDevice& device, Stream stream, std::span<const Partial> parts, const Tensor& o,
              const std::optional<Tensor>& lse) {
  bool vectors = vectors_fit(o);
  device::MergeArguments arguments{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    vectors = vectors && vectors_fit(parts[i].o);
    arguments.parts[i] = part_of(parts[i].o, parts[i].lse);
  }
  std::optional<ConstTensor> output_lse;
  if (lse) output_lse = *lse;
  arguments.output = part_of(o, output_lse);
  arguments.count = static_cast<int>(parts.size());
  const auto& shape = o.spec.shape;
  arguments.batch = static_cast<int>(shape[0]);
  arguments.seqlen = static_cast<int>(shape[1]);
  arguments.heads = static_cast<int>(shape[2]);
  arguments.columns = static_cast<int>(shape[3]);
  const auto kernel = load_kernel(device, merge_kernel(o.spec.dtype, vectors ? kVector : 1));
  if (!kernel.ok()) return kernel.status();
  const std::int64_t rows = shape[0] * shape[1] * shape[2];
  LaunchShape grid;
  grid.threads = kMergeThreads;
  grid.grid_x = static_cast<unsigned>(
      std::min<std::int64_t>((rows + kRowsPerBlock - 1) / kRowsPerBlock, kMaxBlocks));
  void* pointers[] = {&arguments};
  return launch(device, **kernel, grid, static_cast<CUstream>(stream.handle), pointers);
}

// An fp32 partial in one buffer: o [B, S, H, D], then lse [B, H, S].
Partial partial_in(void* memory, const TensorSpec& model) {
  const auto& s = model.shape;
  Partial out;
  out.o = {memory, contiguous_spec(DType::kFp32, {s[0], s[1], s[2], s[3]}, model.device)};
  out.lse = {static_cast<float*>(memory) + out.o.spec.elements(),
             contiguous_spec(DType::kFp32, {s[0], s[2], s[1]}, model.device)};
  return out;
}

}  // namespace

KernelSpec merge_kernel(DType output, int vector) {
  ConfigPrinter config;
  config.choice("kOutput", "Element", element_name(output)).integer("kVector", vector);
  return {"merge.cu", "flash_fwd_merge", config.text(), {}};
}

Status merge_on_gpu(GpuDevice& device, Allocator& allocator, Stream stream,
                    std::span<const Partial> parts, const Tensor& o,
                    const std::optional<Tensor>& lse) {
  const ContextGuard current = device.current();
  if (parts.size() <= device::kMaxMergeParts) return launch(device, stream, parts, o, lse);
  const std::size_t bytes =
      static_cast<std::size_t>(o.spec.elements() +
                               o.spec.shape[0] * o.spec.shape[1] * o.spec.shape[2]) *
      sizeof(float);
  auto memory = allocator.allocate(bytes, kAlignment, stream, Tag{"workspace", "merge"});
  if (!memory.ok()) return memory.status();
  const Partial running = partial_in(*memory, o.spec);
  // Turns: the first takes a full table, the later ones the running result and what fits beside it.
  std::span<const Partial> rest = parts;
  std::vector<Partial> turn;
  Status status;
  while (status.ok() && !rest.empty()) {
    const std::size_t taken =
        std::min<std::size_t>(rest.size(), device::kMaxMergeParts - turn.size());
    turn.insert(turn.end(), rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(taken));
    rest = rest.subspan(taken);
    if (rest.empty()) {
      status = launch(device, stream, turn, o, lse);
    } else {
      const Tensor running_o{const_cast<void*>(running.o.data), running.o.spec};
      const Tensor running_lse{const_cast<void*>(running.lse.data), running.lse.spec};
      status = launch(device, stream, turn, running_o, running_lse);
    }
    turn = {running};
  }
  allocator.deallocate(*memory, bytes, stream);
  return status;
}

}  // namespace flashlab::cuda
