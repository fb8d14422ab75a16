// The cuBLASLt composition: our declarations against NVIDIA's header where it is, and plans for a
// GPU that is only described. Its results are checked by `flashlab check` where there is a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "api/context_state.h"
#include "peers/cublas/cublas.h"
#include "peers/cudnn/cudnn.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/known_gpus.h"
#include "runtime/products/cublas_lt.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#endif

namespace flashlab::peers {
namespace {

using namespace cuda;

using ::testing::HasSubstr;

#if __has_include(<cublasLt.h>)
// NVIDIA's handles are pointers to structs and its enums ints: kind and size must agree.
template <class Ours, class Theirs>
constexpr bool same_kind() {
  return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
         std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
}
template <class Ours, class Theirs>
struct SameFunction : std::false_type {};
template <class R, class... A, class S, class... B>
struct SameFunction<R(A...), S(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return same_kind<R, S>() && (same_kind<A, B>() && ...);
    } else {
      return false;
    }
  }();
};
#define COMPARE(name, ...)                                             \
  TEST(CublasLtDeclarations, name) {                                   \
    EXPECT_TRUE((SameFunction<__VA_ARGS__, decltype(::name)>::value)); \
  }
FLASHLAB_CUBLASLT_FUNCTIONS(COMPARE)
#undef COMPARE

TEST(CublasLtDeclarations, Constants) {
  EXPECT_EQ(kCublasTransA, CUBLASLT_MATMUL_DESC_TRANSA);
  EXPECT_EQ(kCublasTransB, CUBLASLT_MATMUL_DESC_TRANSB);
  EXPECT_EQ(kCublasEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
  EXPECT_EQ(kCublasBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  EXPECT_EQ(kCublasAuxPointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  EXPECT_EQ(kCublasAuxRowStride, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
  EXPECT_EQ(kCublasEpilogueBias, CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(kCublasEpilogueBiasGelu, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  EXPECT_EQ(kCublasBatchCount, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  EXPECT_EQ(kCublasBatchOffset, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  EXPECT_EQ(kCublasMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  EXPECT_EQ(kCublasReductionMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  EXPECT_EQ(kCublasReduceInPlace, CUBLASLT_REDUCTION_SCHEME_INPLACE);
  EXPECT_EQ(kCublasReduceInFp32, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  EXPECT_EQ(kCublasMinAlignmentA + 0, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
  EXPECT_EQ(kCublasMinAlignmentA + 1, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
  EXPECT_EQ(kCublasMinAlignmentA + 2, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
  EXPECT_EQ(kCublasMinAlignmentA + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
  EXPECT_EQ(kCublasComputeFp32, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(kCublasComputeTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
  EXPECT_EQ(kCudaFp32, CUDA_R_32F);
  EXPECT_EQ(kCudaFp16, CUDA_R_16F);
  EXPECT_EQ(kCudaBf16, CUDA_R_16BF);
  EXPECT_EQ(CUBLAS_OP_N, 0);
  EXPECT_EQ(CUBLAS_OP_T, 1);
  EXPECT_EQ(sizeof(CublasLtHeuristic), sizeof(cublasLtMatmulHeuristicResult_t));
  EXPECT_EQ(sizeof(CublasLtAlgorithm), sizeof(cublasLtMatmulAlgo_t));
  EXPECT_EQ(offsetof(CublasLtHeuristic, workspace_bytes),
            offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
  EXPECT_EQ(offsetof(CublasLtHeuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
}
#else
TEST(CublasLtDeclarations, Toolkit) {
  GTEST_SKIP() << "no CUDA toolkit headers to compare with";
}
#endif

class CublasPlans : public ::testing::Test {
 protected:
  static constexpr Device kGpu{DeviceKind::kCuda, 0};

  static Problem problem(Pass pass, DType dtype, std::int64_t heads_k) {
    const auto spec = [&](std::int64_t heads, std::int64_t dim) {
      return contiguous_spec(dtype, {3, 128, heads, dim}, kGpu);
    };
    Problem p;
    p.pass = pass;
    p.q = spec(8, 64);
    p.k = spec(heads_k, 64);
    p.v = spec(heads_k, 96);
    p.o = spec(8, 96);
    p.lse = contiguous_spec(DType::kFp32, {3, 8, 128}, kGpu);
    p.options.implementation = "cublas";
    if (pass == Pass::kForward) return p;
    p.d_o = p.o;
    p.dq = p.q;
    p.dk = p.k;
    p.dv = p.v;
    return p;
  }

  Result<std::shared_ptr<internal::PlanState>> plan(const Problem& given) {
    Problem normalised;
    const auto geometry = internal::validate(given, &normalised);
    EXPECT_TRUE(geometry.ok()) << geometry.status().message();
    return cublas_implementation().make_plan(context_, normalised, *geometry);
  }

  std::unique_ptr<cuda::GpuDevice> gpu_ = cuda::GpuDevice::described(*cuda::known_gpu("sm_80"));
  internal::ContextState context_{ContextOptions{.device = kGpu, .threads = 1}, gpu_.get()};
};

TEST_F(CublasPlans, HoldTheScoresOfOneBatchElement) {
  const auto forward = plan(problem(Pass::kForward, DType::kBf16, 8));
  ASSERT_TRUE(forward.ok()) << forward.status().message();
  constexpr std::size_t kElements = 8 * 128 * 128;
  EXPECT_EQ((*forward)->workspace_bytes, kElements * (4 + 2) + CublasLt::kWorkspaceBytes);
  EXPECT_EQ((*forward)->steps.size(), 3u);
  const auto backward = plan(problem(Pass::kBackward, DType::kFp32, 8));
  ASSERT_TRUE(backward.ok()) << backward.status().message();
  // fp32 probabilities lie where the scores lay.
  EXPECT_EQ((*backward)->workspace_bytes, kElements * (4 + 4) + CublasLt::kWorkspaceBytes);
  EXPECT_EQ((*backward)->steps.size(), 6u);
}

TEST_F(CublasPlans, ClearRowsThatCanBeEmpty) {
  Problem causal = problem(Pass::kForward, DType::kBf16, 8);
  causal.options.causal = Causal::kTopLeft;
  EXPECT_EQ((*plan(causal))->steps.size(), 3u);  // every row sees its own key
  causal.options.causal = Causal::kBottomRight;
  causal.k.shape[1] = causal.v.shape[1] = 100;  // the first 28 rows see none
  ASSERT_EQ((*plan(causal))->steps.size(), 4u);
  EXPECT_EQ((*plan(causal))->steps.back().name, "flash_cublas_empty_rows");
  Problem masked = problem(Pass::kForward, DType::kBf16, 8);
  masked.mask = contiguous_spec(DType::kBool, {1, 1, 128, 128}, kGpu);
  EXPECT_EQ((*plan(masked))->steps.size(), 4u);
  Problem backward = problem(Pass::kBackward, DType::kBf16, 8);
  backward.mask = masked.mask;
  EXPECT_EQ((*plan(backward))->steps.back().name, "flash_cublas_empty_rows");
  backward.options.gradient_mode = GradientMode::kAccumulate;  // dq has what must not be cleared
  EXPECT_EQ((*plan(backward))->steps.size(), 6u);
}

TEST_F(CublasPlans, RefuseWhatAMatrixProductCannotRead) {
  Problem broadcast = problem(Pass::kForward, DType::kBf16, 8);
  broadcast.k.strides[1] = 0;
  auto refused = plan(broadcast);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.status().message(), HasSubstr("k.strides[1]"));
  EXPECT_TRUE(plan(problem(Pass::kForward, DType::kBf16, 2)).ok());
  EXPECT_TRUE(plan(problem(Pass::kBackward, DType::kFp32, 2)).ok());
  refused = plan(problem(Pass::kBackward, DType::kBf16, 2));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("their sum would be rounded each time"));
}

// Without its headers, its library or a GPU it says so; it never has half a plan.
TEST_F(CublasPlans, CudnnSaysWhatIsMissing) {
  Problem normalised;
  const auto geometry = internal::validate(problem(Pass::kForward, DType::kBf16, 8), &normalised);
  ASSERT_TRUE(geometry.ok());
  const auto refused = cudnn_implementation().make_plan(context_, normalised, *geometry);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.status().message(), HasSubstr("cudnn"));
}

}  // namespace
}  // namespace flashlab::peers
