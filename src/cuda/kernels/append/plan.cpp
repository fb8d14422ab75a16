#include "cuda/kernels/append/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "cuda/kernels/append/launch_arguments.h"
#include "runtime/kernel_store/config.h"
#include "runtime/program/executor.h"

namespace flashlab::cuda {
namespace {

constexpr std::int64_t kHeadsPerBlock = kAppendThreads / 32;
constexpr std::int64_t kMaxBlocks = 1 << 16;  // a block loops over the rows beyond

const char* element_name(DType dtype) {
  if (dtype == DType::kFp16) return "kFp16";
  return dtype == DType::kBf16 ? "kBf16" : "kFp32";
}

// Of [batch, rows, heads, dim], or of ragged [rows, heads, dim].
template <class View>
device::Rows rows_of(const View& tensor) {
  const auto& s = tensor.spec.strides;
  void* data = const_cast<void*>(static_cast<const void*>(tensor.data));
  return tensor.spec.rank == 4 ? device::Rows{data, s[0], s[1], s[2]}
                               : device::Rows{data, 0, s[0], s[1]};
}

template <class View>
device::Indices indices_of(const std::optional<View>& tensor) {
  if (!tensor) return {nullptr, 0};
  return {tensor->data, tensor->spec.dtype == DType::kInt64 ? 1 : 0};
}

// Whether each row of a head may be moved 16 bytes at a time.
template <class View>
bool vectors_fit(const View& tensor) {
  const TensorSpec& s = tensor.spec;
  const auto size = static_cast<std::int64_t>(size_of(s.dtype)), elements = 16 / size;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) return false;
  if (s.shape[s.rank - 1] % elements != 0) return false;
  for (int i = 0; i + 1 < s.rank; ++i) {
    if (s.strides[i] % elements != 0) return false;
  }
  return true;
}

// Rows of all sequences, and of each where they are not ragged.
template <class View>
std::pair<std::int64_t, std::int64_t> rows_in(const View& tensor) {
  const auto& shape = tensor.spec.shape;
  if (tensor.spec.rank == 3) return {shape[0], 0};
  return {shape[0] * shape[1], shape[1]};
}

device::AppendArguments arguments_of(const AppendTensors& t, const AppendOptions& options,
                                     std::int64_t page_size) {
  device::AppendArguments out{};
  out.k = rows_of(t.k);
  out.v = rows_of(t.v);
  out.k_new = rows_of(t.k_new);
  out.v_new = rows_of(t.v_new);
  out.used = {t.seqused_k.data, t.seqused_k.spec.dtype == DType::kInt64 ? 1 : 0};
  out.entries = indices_of(t.cache_batch_idx);
  out.offsets_new = indices_of(t.cu_seqlens_new);
  out.offsets_q = indices_of(t.cu_seqlens_q);
  out.positions = indices_of(t.rotary_positions);
  out.used_after = indices_of(t.seqused_after);
  out.batch = static_cast<int>(t.seqused_k.spec.shape[0]);
  out.heads_k = static_cast<int>(t.k.spec.shape[2]);
  out.columns = static_cast<int>(t.k.spec.shape[3]);
  out.columns_v = static_cast<int>(t.v.spec.shape[3]);
  out.vectors = vectors_fit(t.k) && vectors_fit(t.k_new) ? 1 : 0;
  out.vectors_v = vectors_fit(t.v) && vectors_fit(t.v_new) ? 1 : 0;
  std::tie(out.rows_new, out.each_new) = rows_in(t.k_new);
  out.places = t.k.spec.shape[0];
  out.page_size = page_size;
  out.capacity = t.k.spec.shape[1];
  if (t.block_table) {
    out.block_table = static_cast<const int*>(t.block_table->data);
    out.table_stride = t.block_table->spec.strides[0];
    out.capacity = t.block_table->spec.shape[1] * page_size;
  }
  if (t.rotary_cos) {
    out.cos = t.rotary_cos->data;
    out.sin = t.rotary_sin->data;
    out.cos_stride = t.rotary_cos->spec.strides[0];
    out.sin_stride = t.rotary_sin->spec.strides[0];
    out.table_rows = t.rotary_cos->spec.shape[0];
    out.pairs = static_cast<int>(t.rotary_cos->spec.shape[1]);
    out.interleaved = options.rotary_pairs == RotaryPairs::kInterleaved ? 1 : 0;
    out.consecutive = options.rotary_queries == RotaryQueries::kConsecutive ? 1 : 0;
  }
  if (t.q) {
    out.q = rows_of(*t.q);
    out.q_turned = rows_of(*t.q_rotated);
    out.heads_q = static_cast<int>(t.q->spec.shape[t.q->spec.rank - 2]);
    std::tie(out.rows_q, out.each_q) = rows_in(*t.q);
  }
  return out;
}

Status check_sizes(const AppendTensors& t) {
  if (t.k.spec.dtype == DType::kFp64) {
    return Status::unsupported({"k.dtype", "fp64", "fp32, fp16 or bf16 on a GPU", "convert it"});
  }
  const std::pair<const char*, const TensorSpec*> tensors[] = {
      {"k", &t.k.spec}, {"v", &t.v.spec}, {"seqused_k", &t.seqused_k.spec}};
  for (const auto& [name, spec] : tensors) {
    for (int i = 0; i < spec->rank; ++i) {
      if (spec->shape[i] <= INT32_MAX) continue;
      return Status::unsupported({fmt::format("{}.shape[{}]", name, i),
                                  fmt::format("{}", spec->shape[i]),
                                  fmt::format("at most {} on a GPU", INT32_MAX), "split the call"});
    }
  }
  return {};
}

}  // namespace

KernelSpec append_kernel(DType element, DType table) {
  ConfigPrinter config;
  config.choice("kElement", "Element", element_name(element))
      .choice("kTable", "Element", element_name(table));
  return {"append/kernel.cu", "flash_append", config.text(), {}};
}

runtime::Step append_step(const AppendTensors& tensors, const AppendOptions& options,
                          std::int64_t page_size) {
  const device::AppendArguments arguments = arguments_of(tensors, options, page_size);
  const std::int64_t heads =
      2 * arguments.rows_new * arguments.heads_k + arguments.rows_q * arguments.heads_q;
  const std::int64_t blocks =
      std::clamp<std::int64_t>((heads + kHeadsPerBlock - 1) / kHeadsPerBlock, 1, kMaxBlocks) +
      (arguments.used_after.data != nullptr ? 1 : 0);  // it writes the lengths
  const DType element = tensors.k.spec.dtype;
  const DType table = tensors.rotary_cos ? tensors.rotary_cos->spec.dtype : element;
  return {.name = "flash_append",
          .work = runtime::KernelWork{
              append_kernel(element, table),
              {.grid_x = static_cast<unsigned>(blocks), .threads = kAppendThreads},
              runtime::ParameterBlock(arguments)}};
}

Result<runtime::Program> append_program(const AppendTensors& tensors,
                                        const AppendOptions& options) {
  if (Status s = check_sizes(tensors); !s.ok()) return s;
  runtime::Program program;
  runtime::Step step = append_step(tensors, options, 0);
  const std::pair<const char*, std::size_t> addresses[] = {
      {"k", offsetof(device::AppendArguments, k.data)},
      {"v", offsetof(device::AppendArguments, v.data)},
      {"k_new", offsetof(device::AppendArguments, k_new.data)},
      {"v_new", offsetof(device::AppendArguments, v_new.data)},
      {"seqused_k", offsetof(device::AppendArguments, used.data)}};
  for (const auto& [name, offset] : addresses) {
    std::get<runtime::KernelWork>(step.work).parameters.pointer(offset, {program.add_tensor(name)});
  }
  program.add(std::move(step));
  return program;
}

Status append_on_gpu(const GpuDevice& device, Stream stream, const AppendTensors& tensors,
                     const AppendOptions& options, std::int64_t page_size) {
  if (Status s = check_sizes(tensors); !s.ok()) return s;
  if (tensors.seqused_k.spec.shape[0] == 0) return {};
  runtime::Executor executor({&device});
  executor.program().add(append_step(tensors, options, page_size));
  return executor.enqueue({.workspaces = {}, .streams = {&stream, 1}});
}

}  // namespace flashlab::cuda
