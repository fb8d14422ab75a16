// How many kernels random shapes need: for one type, head dims, pass, causal and mask kind,
// lengths, heads, strides and scale vary as users' do. Plans for a described GPU; nothing is
// compiled.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api/backend.h"
#include "cuda/kernels/sm80/plan.h"
#include "cuda/kernels/sm90/plan.h"
#include "cuda/launch/gpu_plan.h"
#include "cuda_described_plan.h"
#include "lab/kernels/variants.h"

namespace flashlab::cuda {
namespace {

enum class Mask { kNone, kBool, kAdditive };

struct Kind {
  DType dtype;
  Pass pass;
  std::int64_t head_dim;
  bool causal;
  Mask mask;
};

class RandomShapes {
 public:
  /// Packed tensors at the default scale: what most programs call.
  static RandomShapes common() {
    RandomShapes out;
    out.common_ = true;
    return out;
  }

  Problem next(const Kind& kind) {
    const std::int64_t group = 1 << whole(0, 3), heads_k = whole(1, 8), batch = whole(1, 4);
    const std::int64_t seqlen_k = length(), seqlen_q = chance(3) ? seqlen_k : length();
    Problem p;
    p.pass = kind.pass;
    p.q = rows(kind, {batch, seqlen_q, heads_k * group, kind.head_dim});
    p.k = rows(kind, {batch, seqlen_k, heads_k, kind.head_dim});
    p.v = rows(kind, {batch, seqlen_k, heads_k, kind.head_dim});
    p.o = rows(kind, {batch, seqlen_q, heads_k * group, kind.head_dim});
    if (kind.pass == Pass::kBackward || chance(2)) {
      p.lse = contiguous_spec(DType::kFp32, {batch, heads_k * group, seqlen_q}, kGpu);
    }
    if (kind.causal) p.options.causal = Causal::kBottomRight;
    if (!common_ && chance(8)) p.options.scale = chance(2) ? -0.3f : 0.7f;
    if (kind.mask != Mask::kNone) {
      const DType element = kind.mask == Mask::kBool ? DType::kBool : kind.dtype;
      p.mask = contiguous_spec(
          element, {chance(2) ? batch : 1, 1, chance(4) ? 1 : seqlen_q, chance(16) ? 1 : seqlen_k},
          kGpu);
    }
    if (kind.pass == Pass::kBackward) {
      p.d_o = rows(kind, {batch, seqlen_q, heads_k * group, kind.head_dim});
      p.dq = p.q, p.dk = p.k, p.dv = p.v;
    }
    return p;
  }

 private:
  static constexpr Device kGpu{DeviceKind::kCuda, 0};

  std::int64_t whole(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  bool chance(int in) { return whole(1, in) == 1; }
  /// 1 to 16384, as many short ones as long ones.
  std::int64_t length() {
    const std::int64_t most = std::int64_t{1} << whole(0, 14);
    return whole(most / 2 + 1, most);
  }
  /// Packed, [batch, heads, seqlen, dim] seen as ours, rows with some padding, or any base address.
  TensorSpec rows(const Kind& kind, std::array<std::int64_t, 4> shape) {
    TensorSpec spec = contiguous_spec(kind.dtype, {shape[0], shape[1], shape[2], shape[3]}, kGpu);
    const std::int64_t padding = !common_ && chance(6) ? whole(1, 16) : 0,
                       pitch = shape[3] + padding;
    spec.strides = {pitch * shape[1] * shape[2], pitch * shape[2], pitch, 1};
    if (chance(3)) spec.strides = {pitch * shape[1] * shape[2], pitch, pitch * shape[1], 1};
    if (!common_ && chance(10))
      spec.alignment_bytes = static_cast<int>(size_of(kind.dtype)) << whole(0, 3);
    spec.alignment_bytes = std::min(spec.alignment_bytes, 16);
    return spec;
  }

  std::mt19937 random_{20261122};
  bool common_ = false;
};

using Kernels = std::map<std::string, std::set<std::string>>;  ///< Configs by entry

Kernels kernels_of(const Kind& kind, const internal::Implementation& implementation,
                   const char* architecture, int shapes, int& planned) {
  RandomShapes random;
  Kernels out;
  for (int i = 0; i < shapes; ++i) {
    const auto plan = testing::plan_on(implementation.make_plan, architecture, random.next(kind));
    if (plan == nullptr) continue;
    ++planned;
    const auto* gpu_plan = dynamic_cast<const GpuPlan*>(plan.get());
    if (gpu_plan == nullptr) continue;
    for (const auto& each : gpu_plan->program()->kernels()) {
      out[each.kernel->spec.entry].insert(each.kernel->spec.config);
    }
  }
  return out;
}

// What a kernel may be compiled to at most, whatever the shapes.
constexpr int kMostVariants = 3;
// Of Hopper's backward a form has tiles with one head, with a group's heads abreast, and parts.
constexpr int kMostOfHopperBackward = 6;

void expect_few_kernels(const char* architecture, const internal::Implementation& implementation,
                        const std::vector<DType>& dtypes, const std::vector<Pass>& passes,
                        int least_planned, int most = kMostVariants) {
  std::map<std::string, std::size_t> largest;
  for (const DType dtype : dtypes) {
    for (const Pass pass : passes) {
      for (const std::int64_t head_dim : {40, 63, 64, 128, 256}) {
        for (const bool causal : {false, true}) {
          for (const Mask mask : {Mask::kNone, Mask::kBool, Mask::kAdditive}) {
            const Kind kind{dtype, pass, head_dim, causal, mask};
            int planned = 0;
            for (const auto& [entry, configs] :
                 kernels_of(kind, implementation, architecture, 150, planned)) {
              largest[entry] = std::max(largest[entry], configs.size());
            }
            EXPECT_GE(planned, head_dim % 8 == 0 ? least_planned : 0) << head_dim;
          }
        }
      }
    }
  }
  for (const auto& [entry, count] : largest) {
    ::testing::Test::RecordProperty(entry, static_cast<int>(count));
    EXPECT_LE(static_cast<int>(count), most) << architecture << " " << entry;
  }
  EXPECT_FALSE(largest.empty());
}

TEST(VariantCount, RandomShapesNeedFewKernels) {
  // The last two hold little shared memory: other tilings fit.
  for (const char* architecture : {"sm_80", "sm_90a", "sm_89", "sm_120a"}) {
    expect_few_kernels(architecture, sm80_implementation(), {DType::kBf16, DType::kFp32},
                       {Pass::kForward, Pass::kBackward}, 76);
  }
}

// It plans where tensors can be described to its copies; the others are sm80's.
TEST(VariantCount, RandomShapesNeedFewKernelsOnHopper) {
  expect_few_kernels("sm_90a", sm90_implementation(), {DType::kBf16}, {Pass::kForward}, 1);
  expect_few_kernels("sm_90a", sm90_implementation(), {DType::kBf16}, {Pass::kBackward}, 0,
                     kMostOfHopperBackward);
}

// What a first call of a common shape needs stands in what a wheel and `make install` carry.
TEST(VariantCount, CommonShapesNeedNoKernelThatIsNotShipped) {
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    const auto list = lab::kernel_variants(architecture, lab::VariantSelection::kShipped);
    ASSERT_TRUE(list.ok());
    std::set<std::string> shipped, missing;
    for (const lab::KernelVariant& each : *list) {
      shipped.insert(each.spec.entry + each.spec.config);
    }
    const auto gpu = GpuDevice::described(*known_gpu(architecture));
    const internal::ContextState context(ContextOptions{.device = {DeviceKind::kCuda, 0}},
                                         gpu.get());
    const auto candidates = internal::backend_of(DeviceKind::kCuda).candidates(&gpu->info());
    RandomShapes random = RandomShapes::common();
    for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32}) {
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        for (int i = 0; i < 200; ++i) {
          const Kind kind{dtype, pass, i % 2 == 0 ? 64 : 128, i % 4 < 2, Mask::kNone};
          Problem problem;
          const auto geometry = internal::validate(random.next(kind), &problem);
          ASSERT_TRUE(geometry.ok()) << geometry.status().message();
          const auto made = internal::plan_with_first(context, candidates, problem, *geometry);
          ASSERT_TRUE(made.ok()) << made.status().message();
          for (const auto& each : (*made)->program()->kernels()) {
            const KernelSpec& spec = each.kernel->spec;
            if (shipped.contains(spec.entry + spec.config)) continue;
            if (missing.insert(spec.entry + spec.config).second) {
              ADD_FAILURE() << architecture << " " << spec.entry << " " << spec.config << "\nof q "
                            << to_string(problem.q) << ", k " << to_string(problem.k);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashlab::cuda
