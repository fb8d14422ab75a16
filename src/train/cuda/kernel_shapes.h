#pragma once

// How the training kernels cut their work: threads, accesses and blocks by sizes.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "runtime/cuda/driver.h"
#include "train/plan/operation.h"

namespace flashlab::train {

inline constexpr int kAccessBytes = 16;
inline constexpr int kRowThreads = 256;  // of kernels that work on packs
inline constexpr int kColumnThreads = 256;
inline constexpr int kNormThreads = 512;    // of the gradients' norm
inline constexpr int kFinishThreads = 256;  // that end it
inline constexpr int kMostNormBlocks = 1024;
inline constexpr int kUpdatedByBlock = 64 * 32;  // elements: a bit of decay for each 64
inline constexpr std::int64_t kFactorsOffset = 8 * kMostNormBlocks;  // after the sums of the norm
inline constexpr std::int64_t kWidestNorm = 12288;
/// Shared memory of a block without asking for more, less what sums of a row take.
inline constexpr std::int64_t kPartialsBytes = 48 * 1024 - 512;

inline bool is_layer_norm(const Operation& operation) {
  return operation.kind == OperationKind::kLayerNorm ||
         operation.kind == OperationKind::kLayerNormBackward;
}
inline bool is_backward_norm(const Operation& operation) {
  return operation.kind == OperationKind::kRmsNormBackward ||
         operation.kind == OperationKind::kLayerNormBackward;
}

/// Elements per access of rows of `width`.
inline int vector_of(std::int64_t width, std::int64_t element_bytes) {
  const auto vector = static_cast<int>(kAccessBytes / element_bytes);
  return width % vector == 0 ? vector : 1;
}

struct NormShape {
  int vector, row_threads, packs, block;
  int ahead = 1;   ///< forward: rows on their way
  int blocks = 1;  ///< forward: of a multiprocessor
};

/// Warps of a quarter of a multiprocessor that may have `registers` each thread.
inline int warps_with(int registers) {
  int warps = 8;
  while (warps > 1 && 512 / warps / 8 * 8 < registers) --warps;
  return warps;
}

/// Forward: the fewest threads that keep a row in at most 32 numbers each. Where that is little,
/// two rows are under way. Weights stay in registers as floats.
inline NormShape norm_forward_shape(std::int64_t width, std::int64_t element_bytes, bool layer,
                                    const cuda::DeviceInfo& device) {
  NormShape out{vector_of(width, element_bytes), 32, 0, kRowThreads};
  const std::int64_t most = std::min(32 / out.vector, 8);
  const std::int64_t columns = width / out.vector;
  while (out.row_threads < 1024 && columns > most * out.row_threads) out.row_threads *= 2;
  out.packs = static_cast<int>((columns + out.row_threads - 1) / out.row_threads);
  out.block = std::max(out.block, out.row_threads);
  const auto words = static_cast<int>(std::max<std::int64_t>(out.vector * element_bytes / 4, 1));
  if (out.packs * words <= 12) out.ahead = 2;
  const int base = device.major >= 12 ? 36 : 28;  // as in backward, by NVRTC 13.0
  const int registers = base + out.packs * (words * (1 + out.ahead) + out.vector * (layer ? 2 : 1));
  out.blocks = std::max(4 * 32 * warps_with(registers) / out.block, 1);
  return out;
}

/// As many blocks as are there at once, each with row after row; fewer where that gives every block
/// as many rows.
inline std::int64_t norm_forward_blocks(const NormShape& shape, std::int64_t rows,
                                        const cuda::DeviceInfo& device) {
  const std::int64_t groups = shape.block / shape.row_threads;
  const std::int64_t turns_of_rows = (rows + groups - 1) / groups;
  const std::int64_t most = static_cast<std::int64_t>(shape.blocks) * device.multiprocessors;
  const std::int64_t turns = (turns_of_rows + most - 1) / most;
  return (turns_of_rows + turns - 1) / turns;
}

/// Backward keeps `sums` sums over rows beside the row: up to three accesses a thread, in the
/// number of warps that leaves fewest lanes idle. One block a multiprocessor.
inline NormShape norm_backward_shape(std::int64_t width, std::int64_t element_bytes, int sums,
                                     const cuda::DeviceInfo& device) {
  const int vector = vector_of(width, element_bytes);
  const auto columns = static_cast<int>(width / vector);
  const auto threads = [&](int packs) { return (columns + 32 * packs - 1) / (32 * packs) * 32; };
  int packs = 1;
  for (const int more : {2, 3}) {
    if (more * threads(more) <= packs * threads(packs)) packs = more;
  }
  while (threads(packs) > 1024) ++packs;
  const int row_threads = threads(packs);
  const auto words = static_cast<int>(std::max<std::int64_t>(vector * element_bytes / 4, 1));
  // What addresses and one pack on its way through fp32 take, by NVRTC 13.0.
  const int base = device.major >= 12 ? 64 : 46;
  const int registers = base + packs * (vector * sums + words * (packs == 1 ? 7 : 4));
  std::int64_t groups = std::min(4 * 32 * warps_with(registers) / row_threads, 15);
  // A warp that has a row alone needs no barrier and no shared memory for its sums.
  if (row_threads == 32) groups = 4 * warps_with(registers);
  const std::int64_t bytes = kPartialsBytes + (row_threads == 32 ? 512 : 0);
  groups = std::clamp<std::int64_t>(std::min(groups, bytes / (4 * width)), 1, 1024 / row_threads);
  return {vector, row_threads, packs, static_cast<int>(groups) * row_threads};
}

/// Backward: a block a multiprocessor, each with a row of partial sums.
inline int norm_blocks(const NormShape& shape, std::int64_t rows, const cuda::DeviceInfo& device) {
  const std::int64_t groups = shape.block / shape.row_threads;
  return static_cast<int>(
      std::min<std::int64_t>((rows + groups - 1) / groups, device.multiprocessors));
}

/// Blocks along the rows, so that four blocks are there for each multiprocessor.
inline int column_blocks(const RowsAttributes& a, std::int64_t element_bytes,
                         const cuda::DeviceInfo& device) {
  const std::int64_t columns = 32 * vector_of(a.width, element_bytes);
  const std::int64_t across = (a.width + columns - 1) / columns;
  const std::int64_t wanted = std::max<std::int64_t>(4 * device.multiprocessors / across, 1);
  return static_cast<int>(std::clamp<std::int64_t>((a.rows + 31) / 32, 1, wanted));
}

struct EmbeddingShape {
  int slices, columns;
};
inline EmbeddingShape embedding_shape(std::int64_t width, std::int64_t element_bytes) {
  const std::int64_t packs = width / vector_of(width, element_bytes);
  const auto columns = static_cast<int>(std::min<std::int64_t>((packs + 31) / 32 * 32, 256));
  return {std::clamp(512 / columns, 1, 8), columns};
}

struct LogitsShape {
  int vector, block, blocks, packs, registers, shared;
  int ahead;  ///< not 0: blocks stay, with so many rows of `shared` packs each
  std::int64_t shared_bytes;
  int split = 1;  ///< blocks of a cluster that shares a row (cross_entropy_cluster.cu)
};

/// Rows of which a Hopper's block would exponentiate most logits twice are shared by clusters of
/// the most blocks that it has room for everywhere: two of 256 threads a multiprocessor, or one of
/// 512 for the longest. Nothing where those are longer than their registers, too.
inline std::optional<LogitsShape> cluster_logits_shape(std::int64_t vocabulary,
                                                       std::int64_t element_bytes,
                                                       const cuda::DeviceInfo& device) {
  constexpr std::int64_t kSplit = 8, kLine = 128;
  const int vector = vector_of(vocabulary, element_bytes), most = 104 / vector;
  const std::int64_t row_bytes = vocabulary * element_bytes;
  if (device.major != 9 || row_bytes % kAccessBytes != 0) return {};
  const std::int64_t part_bytes = (row_bytes + kLine * kSplit - 1) / (kLine * kSplit) * kLine;
  const std::int64_t columns = part_bytes / kAccessBytes;
  const int block = columns <= 256 * most ? 256 : 512, blocks = 512 / block;
  const auto packs = static_cast<int>((columns + block - 1) / block);
  // Barriers and what warps have found, of two rows; the driver has 1 KiB of each block.
  const std::int64_t own_bytes = 2 * kSplit * (block / 32) * 8 + 64;
  const std::int64_t budget = (device.shared_bytes_per_block + 1024) / blocks - 1024 - own_bytes;
  const std::int64_t ahead = std::min<std::int64_t>(budget / part_bytes, blocks == 1 ? 3 : 2);
  if (packs > most || ahead == 0) return {};
  return LogitsShape{vector,
                     block,
                     blocks,
                     packs,
                     packs,
                     packs,
                     static_cast<int>(ahead),
                     ahead * part_bytes + own_bytes,
                     kSplit};
}

/// A row goes to registers where that is possible: to those of a block of four a multiprocessor, or
/// by way of shared memory to those of its only one, which then stays and reads one or two rows
/// ahead. Else what is left waits in shared memory, of which one block of a multiprocessor gets all
/// where two would have to read some of their rows twice. The only block of 512 threads leaves each
/// 128 registers, the others 64.
inline LogitsShape logits_shape(std::int64_t vocabulary, std::int64_t element_bytes,
                                const cuda::DeviceInfo& device) {
  LogitsShape out{vector_of(vocabulary, element_bytes), 256, 4, 0, 0, 0, 0, 0};
  const std::int64_t packs = vocabulary / out.vector;
  const std::int64_t pack_bytes = std::max<std::int64_t>(out.vector * element_bytes, 4);
  const auto packs_of = [&](int block) { return static_cast<int>((packs + block - 1) / block); };
  const std::int64_t row_bytes = pack_bytes * packs_of(512) * 512;
  const std::int64_t rows_ahead = (device.shared_bytes_per_block - 1024) / row_bytes;
  int most = 40 / out.vector;
  if (packs_of(256) > most) {
    most = 104 / out.vector;
    if (pack_bytes == kAccessBytes && packs_of(512) <= most && rows_ahead > 0) {
      out.block = 512, out.blocks = 1;
      out.ahead = static_cast<int>(std::min<std::int64_t>(rows_ahead, 2));
    } else {
      most = out.vector == 1 ? 24 : 32 / out.vector;  // single elements need more for their places
      const std::int64_t half = 512 * most + device.shared_bytes_per_block / 2 / pack_bytes;
      if (packs > half) {
        if (auto shared = cluster_logits_shape(vocabulary, element_bytes, device)) return *shared;
      }
      out.blocks = packs > half ? 1 : 2;
      out.block = 1024 / out.blocks;
    }
  }
  out.packs = packs_of(out.block);
  out.registers = std::min(out.packs, most);
  const std::int64_t budget =
      std::max<std::int64_t>(device.shared_bytes_per_block / (out.blocks == 1 ? 1 : 2) - 2048, 0);
  out.shared = out.ahead != 0 ? out.packs
                              : static_cast<int>(std::min<std::int64_t>(
                                    out.packs - out.registers, budget / (pack_bytes * out.block)));
  out.shared_bytes = std::max(out.ahead, 1) * out.shared * pack_bytes * out.block;
  return out;
}

inline std::int64_t optimizer_norm_blocks(const cuda::DeviceInfo& device) {
  return std::min(4 * device.multiprocessors, kMostNormBlocks);
}

}  // namespace flashlab::train
