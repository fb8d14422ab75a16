#include "cuda/kernels/ladder/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "api/context_state.h"
#include "cuda/kernels/ladder/steps_plan.h"

namespace flashlab::cuda {
namespace {

constexpr int kMaxHeadDim = 128;
constexpr int kSide = 16;  // ladder/product.h: a square of 16 x 16 threads
constexpr unsigned kSquareThreads = kSide * kSide;
constexpr std::int64_t kRowsPerBlock = 8;  // ladder/fa2_backward_rows.cu
constexpr int kMaxMmaKeys = 512;           // 16 per warp, 1024 threads

struct Tiles {
  int q, k;
};

// kVectorStride of ladder/strides.h: an odd number of 16-byte units.
constexpr std::int64_t vector_stride(std::int64_t columns) {
  return ((columns + 3) / 4 | 1) * 4;
}

// sizeof(Storage) of ladder/backward_tiles.h, which asserts that it agrees.
std::int64_t scalar_bytes(Tiles tiles, const internal::Geometry& g) {
  const std::int64_t d = vector_stride(divide_up(g.head_dim, 16) * 16);
  const std::int64_t dv = vector_stride(divide_up(g.head_dim_v, 16) * 16);
  const std::int64_t rows = (tiles.q + tiles.k) * (d + dv);
  const std::int64_t scores = 2 * tiles.q * vector_stride(tiles.k);
  return 4 * (rows + scores + 2 * tiles.q);
}

// HalfTile of tile/swizzle.h.
constexpr std::int64_t half_tile_bytes(std::int64_t rows, std::int64_t dim) {
  return rows * (divide_up(dim, 16) * 2 | 1) * 16;
}

// sizeof(Storage) of ladder/fa2_backward_mma.cu, which asserts that it agrees.
std::int64_t mma_bytes(Tiles tiles, const internal::Geometry& g) {
  return half_tile_bytes(tiles.q, g.head_dim) + half_tile_bytes(tiles.q, g.head_dim_v) +
         half_tile_bytes(tiles.k, g.head_dim) + half_tile_bytes(tiles.k, g.head_dim_v) +
         half_tile_bytes(tiles.k, tiles.q) + 8 * tiles.q;
}

// What differs between the scalar rungs and the one on tensor cores. Defaults in order of
// preference; the last fits every GPU that runs it.
struct Family {
  std::array<Tiles, 5> defaults, defaults_beyond_64;  // by the larger head dim
  std::int64_t (*shared_bytes)(Tiles, const internal::Geometry&);
  bool tensor_cores;

  unsigned threads(Tiles tiles) const {
    return tensor_cores ? static_cast<unsigned>(2 * tiles.k) : kSquareThreads;
  }
};
constexpr std::array<Tiles, 5> kScalarTiles{{{64, 64}, {64, 32}, {32, 32}, {16, 32}, {16, 16}}};
// Measured on an H200, 2026-11-21, causal: ladder/README.backward.md.
constexpr std::array<Tiles, 5> kMmaTiles{{{48, 64}, {32, 32}, {16, 32}, {16, 16}, {16, 16}}};
constexpr std::array<Tiles, 5> kWideMmaTiles{{{32, 128}, {32, 64}, {32, 32}, {16, 32}, {16, 16}}};
constexpr Family kScalar{kScalarTiles, kScalarTiles, scalar_bytes, false};
constexpr Family kMma{kMmaTiles, kWideMmaTiles, mma_bytes, true};

Status check_problem(const Family& family, const DeviceInfo& device, const internal::Geometry& g) {
  if (g.head_dim > kMaxHeadDim || g.head_dim_v > kMaxHeadDim) {
    return Status::unsupported({"head_dim", fmt::format("{} / {}", g.head_dim, g.head_dim_v),
                                fmt::format("at most {} in the ladder", kMaxHeadDim),
                                "use the production implementation, or naive"});
  }
  if (!family.tensor_cores) return {};
  if (g.dtype != DType::kFp16 && g.dtype != DType::kBf16) {
    return Status::unsupported({"dtype of q, k and v", to_string(g.dtype),
                                "fp16 or bf16 on tensor cores", "use fa2, or 16-bit tensors"});
  }
  if (device.major >= 8) return {};
  return Status::unsupported({"device",
                              fmt::format("{}, sm_{}{}", device.name, device.major, device.minor),
                              "sm_80 or newer", "use fa2"});
}

Result<Tiles> tiles_of(const Family& family, const DeviceInfo& device, const Problem& problem,
                       const internal::Geometry& g) {
  const TileOptions& asked = problem.options.tiles;
  if (asked.tile_q == 0 && asked.tile_k == 0) {
    const bool wide = g.head_dim > 64 || g.head_dim_v > 64;
    for (Tiles tiles : wide ? family.defaults_beyond_64 : family.defaults) {
      if (family.shared_bytes(tiles, g) <= device.shared_bytes_per_block) return tiles;
    }
  }
  const Tiles tiles{asked.tile_q ? asked.tile_q : 32, asked.tile_k ? asked.tile_k : 32};
  const std::string got = fmt::format("{} queries x {} keys", tiles.q, tiles.k);
  if (tiles.q % kSide != 0 || tiles.k % kSide != 0) {
    return Status::unsupported(
        {"tile sizes", got, fmt::format("multiples of {}", kSide), "use --tile-q 32 --tile-k 32"});
  }
  if (family.tensor_cores && tiles.k > kMaxMmaKeys) {
    return Status::unsupported({"tile sizes",
                                fmt::format("{}, which need {} threads", got, 2 * tiles.k),
                                "at most 1024 threads per block", "use a smaller --tile-k"});
  }
  const std::int64_t required = family.shared_bytes(tiles, g);
  if (required > device.shared_bytes_per_block) {
    return Status::unsupported(
        {"tile sizes",
         fmt::format("{}, which need {} bytes of shared memory at head dims {} and {}", got,
                     required, g.head_dim, g.head_dim_v),
         fmt::format("at most {} bytes on {}", device.shared_bytes_per_block, device.name),
         "use smaller tiles"});
  }
  return tiles;
}

// The kernels of a backward plan, all printed from the same Config.
class BackwardPlanner : public RungPlan {
 public:
  BackwardPlanner(const GpuDevice& device, const Problem& problem, const internal::Geometry& g,
                  const Family& family, Tiles tiles, const char* implementation)
      : RungPlan(device, problem, g, implementation),
        tiles_(tiles),
        threads_(family.threads(tiles)),
        shared_bytes_(family.shared_bytes(tiles, g)) {
    plan().tile_q = tiles.q;
    plan().tile_k = tiles.k;
    config.integer("kTileQ", tiles.q)
        .integer("kTileK", tiles.k)
        .integer("kSharedBytes", shared_bytes_);
    plan().reasons.push_back(
        fmt::format("tiles of {} queries x {} keys: {} of {} bytes of shared memory", tiles.q,
                    tiles.k, shared_bytes_, device.info().shared_bytes_per_block));
  }

  std::int64_t query_rows() const {
    return geometry().batch * geometry().heads_q * geometry().seqlen_q;
  }

  int add_delta() {
    region("delta", query_rows());
    return add_rows("flash_bwd_delta", "delta = rowsum(dO * O) - dLSE");
  }
  void add_rounding() { add_rows("flash_bwd_round_dq", "dQ = scale dQ_fp32 in dq's type"); }

  // One block per tile of keys or of queries, after some of the steps so far.
  void add_walk(const char* source, const char* entry, bool by_keys, const char* what,
                std::vector<int> after) {
    const internal::Geometry& g = geometry();
    const std::int64_t blocks = by_keys ? divide_up(g.seqlen_k, tiles_.k) * g.heads_k * g.batch
                                        : divide_up(g.seqlen_q, tiles_.q) * g.heads_q * g.batch;
    add(source, entry, blocks, threads_, shared_bytes_, what, std::move(after));
  }

  int region(const char* name, std::int64_t floats) {
    return plan().add_gpu_region(name, static_cast<std::size_t>(floats) * sizeof(float));
  }

 private:
  int add_rows(const char* entry, const char* what) {
    const internal::Geometry& g = geometry();
    return add("ladder/fa2_backward_rows.cu", entry,
               divide_up(g.seqlen_q, kRowsPerBlock) * g.heads_q * g.batch, 32 * kRowsPerBlock, 0,
               what);
  }

  Tiles tiles_;
  unsigned threads_;
  std::int64_t shared_bytes_;
};

Result<BackwardPlanner> planner(const internal::ContextState& context, const Problem& problem,
                                const internal::Geometry& g, const Family& family,
                                const char* implementation) {
  GpuDevice& device = *context.gpu();
  if (Status status = check_problem(family, device.info(), g); !status.ok()) return status;
  const Result<Tiles> tiles = tiles_of(family, device.info(), problem, g);
  if (!tiles.ok()) return tiles.status();
  return BackwardPlanner(device, problem, g, family, *tiles, implementation);
}

// delta, a walk over key tiles that adds dQ atomically, dQ to its type.
Result<std::shared_ptr<internal::PlanState>> plan_atomic(Result<BackwardPlanner> made,
                                                         const char* source, const char* entry) {
  if (!made.ok()) return made.status();
  const internal::Geometry& g = made->plan().geometry;
  const int delta = made->add_delta();
  const int dq = made->region("dq in fp32", made->query_rows() * g.head_dim);
  const int zero = made->plan().add_zero("zero dq in fp32", dq);
  made->add_walk(source, entry, true, "dK, dV by key tiles, dQ by atomic additions", {delta, zero});
  made->add_rounding();
  made->plan().reasons.push_back("dQ is added atomically: its last bits vary from run to run");
  return made->take();
}

}  // namespace

Result<std::shared_ptr<internal::PlanState>> plan_fa2_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry) {
  return plan_atomic(planner(context, problem, geometry, kScalar, "fa2"), "ladder/fa2_backward.cu",
                     "flash_bwd_fa2");
}

Result<std::shared_ptr<internal::PlanState>> plan_fa2_mma_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry) {
  return plan_atomic(planner(context, problem, geometry, kMma, "fa2-mma"),
                     "ladder/fa2_backward_mma.cu", "flash_bwd_fa2_mma");
}

Result<std::shared_ptr<internal::PlanState>> plan_fa2_deterministic_backward(
    const internal::ContextState& context, const Problem& problem,
    const internal::Geometry& geometry) {
  Result<BackwardPlanner> made = planner(context, problem, geometry, kScalar, "fa2-deterministic");
  if (!made.ok()) return made.status();
  const int delta = made->add_delta();
  const char* source = "ladder/fa2_backward_deterministic.cu";
  made->add_walk(source, "flash_bwd_fa2_keys", true, "dK, dV by key tiles", {delta});
  made->add_walk(source, "flash_bwd_fa2_queries", false, "dQ by query tiles", {delta});
  made->plan().reasons.push_back("two passes, 7 products instead of 5, no atomics: repeatable");
  return made->take();
}

}  // namespace flashlab::cuda
