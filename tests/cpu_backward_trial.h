#pragma once

// One backward problem with its memory, run through the public API and judged by the fp64 oracle.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "flashlab/flashlab.h"
#include "reference/comparator.h"
#include "reference/naive_rounded.h"
#include "reference/oracle.h"

namespace flashlab::testing {

enum class MaskKind : std::uint8_t { kNone, kBool, kAdditive };

enum class Layout : std::uint8_t {
  kContiguous,
  kHeadsFirst,   ///< memory order [B, H, S, D]
  kPaddedRows,   ///< 3 elements of padding after each row: misaligned rows
  kSharedHeads,  ///< inputs repeat one head (stride 0); outputs are contiguous
};

/// What a trial asks for. The defaults are one small fp32 head.
struct Ask {
  std::int64_t batch = 1, heads_q = 1, heads_k = 1, seqlen_q = 16, seqlen_k = 16;
  std::int64_t head_dim = 16, head_dim_v = 16;
  DType dtype = DType::kFp32;
  Causal causal = Causal::kNone;
  MaskKind mask = MaskKind::kNone;
  std::array<bool, 4> mask_broadcast{};  ///< extents of the mask that are 1
  DType mask_dtype = DType::kFp32;       ///< of an additive mask
  std::optional<float> scale = std::nullopt;
  bool lse_gradient = false;
  bool fp32_gradients = false;  ///< dq, dk, dv in fp32
  bool fp32_outputs = false;    ///< o and d_o in fp32
  GradientMode mode = GradientMode::kOverwrite;
  bool deterministic = false;
  Layout layout = Layout::kContiguous;
  float input_scale = 1;
  std::uint32_t seed = 1;
};

/// Memory of one tensor, surrounded and interleaved by a pattern that must survive the call.
struct Buffer {
  static constexpr std::uint8_t kPattern = 0xff;  // NaN in every floating type
  static constexpr std::size_t kMargin = 64;
  std::vector<std::uint8_t> bytes;
  TensorSpec spec;

  void* data() { return bytes.data() + kMargin; }
  Tensor view() { return {data(), spec}; }
  std::int64_t index(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d = 0) const {
    const std::int64_t at[4] = {a, b, c, d};
    std::int64_t sum = 0;
    for (int i = 0; i < spec.rank; ++i) sum += spec.shape[i] > 1 ? at[i] * spec.strides[i] : 0;
    return sum;
  }
  void set(std::int64_t index, double x) { reference::store(data(), spec.dtype, index, x); }
  double get(std::int64_t index) { return reference::load(data(), spec.dtype, index); }

  using Visit = std::function<void(std::int64_t)>;  // element index
  void for_each(const Visit& visit) const {
    const std::int64_t last = spec.rank == 4 ? spec.shape[3] : 1;
    for (std::int64_t a = 0; a < spec.shape[0]; ++a)
      for (std::int64_t b = 0; b < spec.shape[1]; ++b)
        for (std::int64_t c = 0; c < spec.shape[2]; ++c)
          for (std::int64_t d = 0; d < last; ++d) visit(index(a, b, c, d));
  }

  /// Whether every byte outside the view still holds the pattern.
  bool surroundings_intact() const {
    std::vector<std::uint8_t> owned(bytes.size(), 0);
    const std::size_t size = size_of(spec.dtype);
    for_each([&](std::int64_t at) {
      std::memset(owned.data() + kMargin + static_cast<std::size_t>(at) * size, 1, size);
    });
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (owned[i] == 0 && bytes[i] != kPattern) return false;
    }
    return true;
  }
};

inline Buffer make_buffer(DType dtype, std::vector<std::int64_t> shape,
                          std::vector<std::int64_t> strides) {
  Buffer buffer;
  buffer.spec.dtype = dtype;
  buffer.spec.rank = static_cast<int>(shape.size());
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    buffer.spec.shape[i] = shape[i];
    buffer.spec.strides[i] = strides[i];
    reach += shape[i] > 0 ? (shape[i] - 1) * strides[i] : 0;
  }
  buffer.spec.alignment_bytes = static_cast<int>(size_of(dtype));
  buffer.bytes.assign(2 * Buffer::kMargin + static_cast<std::size_t>(reach) * size_of(dtype),
                      Buffer::kPattern);
  return buffer;
}

inline Buffer make_rows(const Ask& ask, std::int64_t seqlen, std::int64_t heads, std::int64_t dim,
                        DType dtype, bool output) {
  const std::vector<std::int64_t> shape = {ask.batch, seqlen, heads, dim};
  const std::int64_t row = dim + (ask.layout == Layout::kPaddedRows ? 3 : 0);
  if (ask.layout == Layout::kHeadsFirst) {
    return make_buffer(dtype, shape, {heads * seqlen * row, row, seqlen * row, 1});
  }
  if (ask.layout == Layout::kSharedHeads && !output) {
    return make_buffer(dtype, shape, {0, row, 0, 1});
  }
  return make_buffer(dtype, shape, {seqlen * heads * row, heads * row, row, 1});
}

inline Buffer make_statistics(const Ask& ask) {
  return make_buffer(DType::kFp32, {ask.batch, ask.heads_q, ask.seqlen_q},
                     {ask.heads_q * ask.seqlen_q, ask.seqlen_q, 1});
}

/// A problem and its tensors: random inputs, o and lse by the fp64 oracle rounded to their types.
class Trial {
 public:
  using Edit = std::function<void(Trial&)>;

  /// `edit` may change inputs before o and lse are computed, `edit_after` anything before the call.
  explicit Trial(const Ask& ask, const Edit& edit = {}, const Edit& edit_after = {}) : ask(ask) {
    std::mt19937 random(ask.seed);
    std::normal_distribution<double> normal;
    const auto fill = [&](Buffer& buffer, double factor) {
      buffer.for_each([&](std::int64_t at) { buffer.set(at, factor * normal(random)); });
    };
    const DType wide = ask.fp32_outputs ? DType::kFp32 : ask.dtype;
    const DType gradient = ask.fp32_gradients ? DType::kFp32 : ask.dtype;
    q = make_rows(ask, ask.seqlen_q, ask.heads_q, ask.head_dim, ask.dtype, false);
    k = make_rows(ask, ask.seqlen_k, ask.heads_k, ask.head_dim, ask.dtype, false);
    v = make_rows(ask, ask.seqlen_k, ask.heads_k, ask.head_dim_v, ask.dtype, false);
    d_o = make_rows(ask, ask.seqlen_q, ask.heads_q, ask.head_dim_v, wide, false);
    o = make_rows(ask, ask.seqlen_q, ask.heads_q, ask.head_dim_v, wide, true);
    dq = make_rows(ask, ask.seqlen_q, ask.heads_q, ask.head_dim, gradient, true);
    dk = make_rows(ask, ask.seqlen_k, ask.heads_k, ask.head_dim, gradient, true);
    dv = make_rows(ask, ask.seqlen_k, ask.heads_k, ask.head_dim_v, gradient, true);
    lse = make_statistics(ask);
    d_lse = make_statistics(ask);
    fill(q, ask.input_scale);
    fill(k, ask.input_scale);
    fill(v, 1);
    fill(d_o, 1);
    fill(d_lse, 1);
    if (ask.mode == GradientMode::kAccumulate) {
      for (Buffer* buffer : {&dq, &dk, &dv}) fill(*buffer, 1);
    }
    if (ask.mask != MaskKind::kNone) make_mask(random);
    if (edit) edit(*this);
    run_forward_in_fp64();
    if (edit_after) edit_after(*this);
    before = {dq, dk, dv};
  }

  Options options() const {
    Options options;
    options.scale = ask.scale;
    options.causal = ask.causal;
    options.gradient_mode = ask.mode;
    options.deterministic = ask.deterministic;
    options.implementation = "cpu";
    return options;
  }

  BackwardTensors tensors() {
    BackwardTensors t;
    t.q = q.view();
    t.k = k.view();
    t.v = v.view();
    t.o = o.view();
    t.lse = lse.view();
    t.d_o = d_o.view();
    if (ask.lse_gradient) t.d_lse = d_lse.view();
    if (ask.mask != MaskKind::kNone) t.mask = mask.view();
    t.dq = dq.view();
    t.dk = dk.view();
    t.dv = dv.view();
    return t;
  }

  /// Runs the call with a workspace full of NaN, of exactly the size the plan asks for.
  Status run(const Context& context) {
    auto made = plan(context, describe(tensors(), options()));
    if (!made.ok()) return made.status();
    const std::size_t bytes = made->workspace_bytes();
    constexpr std::size_t kAlignment = 256, kGuard = 256;
    std::vector<std::uint8_t> memory(bytes + kAlignment + kGuard, Buffer::kPattern);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    auto* aligned = memory.data() + (kAlignment - address % kAlignment) % kAlignment;
    Status status = backward(context, Stream{}, *made, tensors(), Workspace{aligned, bytes});
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (aligned[bytes + i] != Buffer::kPattern) {
        ADD_FAILURE() << "the call wrote beyond its workspace";
        break;
      }
    }
    return status;
  }

  /// The verdicts of dq, dk and dv as text; empty when all pass. `expected` defaults to the oracle.
  std::string judge() {
    const auto sample =
        reference::Sample::everything(reference::sizes_of(q.view(), k.view(), v.view()));
    auto expected =
        reference::backward(tensors(), options(), sample, reference::Statistics::kRecomputed);
    auto naive =
        reference::naive_backward(tensors(), options(), sample, reference::Statistics::kGiven);
    if (!expected.ok() || !naive.ok()) return "the oracle failed";
    const auto add_before = [&](Buffer& old, std::vector<double>& gradient) {
      if (ask.mode != GradientMode::kAccumulate) return;
      // The oracle's rows are ordered (batch, head, position).
      std::size_t n = 0;
      for (std::int64_t b = 0; b < old.spec.shape[0]; ++b)
        for (std::int64_t h = 0; h < old.spec.shape[2]; ++h)
          for (std::int64_t s = 0; s < old.spec.shape[1]; ++s)
            for (std::int64_t d = 0; d < old.spec.shape[3]; ++d)
              gradient[n++] += old.get(old.index(b, s, h, d));
    };
    std::string text;
    const auto check = [&](const char* name, Buffer& got, Buffer& old,
                           const std::vector<reference::Row>& rows, std::vector<double>& want,
                           std::vector<double>& plain) {
      add_before(old, want);
      add_before(old, plain);
      const reference::Verdict verdict =
          reference::compare({name, got.view(), rows, want, plain, nullptr, ask.dtype});
      if (!verdict.passed) text += verdict.message() + "\n";
      if (!got.surroundings_intact()) text += std::string(name) + ": wrote outside the view\n";
    };
    check("dq", dq, before[0], expected->queries, expected->dq, naive->dq);
    check("dk", dk, before[1], expected->keys, expected->dk, naive->dk);
    check("dv", dv, before[2], expected->keys, expected->dv, naive->dv);
    return text;
  }

  Ask ask;
  Buffer q, k, v, o, d_o, lse, d_lse, mask, dq, dk, dv;
  std::array<Buffer, 3> before;  ///< dq, dk, dv as they were before the call

 private:
  void make_mask(std::mt19937& random) {
    std::vector<std::int64_t> shape = {ask.batch, ask.heads_q, ask.seqlen_q, ask.seqlen_k};
    for (std::size_t i = 0; i < 4; ++i) {
      if (ask.mask_broadcast[i]) shape[i] = 1;
    }
    mask = make_buffer(ask.mask == MaskKind::kBool ? DType::kBool : ask.mask_dtype, shape,
                       {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1});
    std::uniform_real_distribution<double> uniform(0, 1);
    mask.for_each([&](std::int64_t at) {
      const bool hidden = uniform(random) < 0.3;
      if (ask.mask == MaskKind::kBool) {
        static_cast<std::uint8_t*>(mask.data())[at] = hidden ? 0 : 1;
      } else {
        mask.set(at, hidden ? -HUGE_VAL : uniform(random));
      }
    });
  }

  void run_forward_in_fp64() {
    ForwardTensors t;
    t.q = q.view();
    t.k = k.view();
    t.v = v.view();
    t.o = o.view();
    if (ask.mask != MaskKind::kNone) t.mask = mask.view();
    const auto sample = reference::Sample::everything(reference::sizes_of(t.q, t.k, t.v));
    auto forward = reference::forward(t, options(), sample);
    ASSERT_TRUE(forward.ok()) << forward.status().message();
    for (std::size_t n = 0; n < forward->rows.size(); ++n) {
      const reference::Row& row = forward->rows[n];
      lse.set(lse.index(row.batch, row.head, row.position), forward->lse[n]);
      for (std::int64_t d = 0; d < ask.head_dim_v; ++d) {
        o.set(
            o.index(row.batch, row.position, row.head, d),
            forward->o[n * static_cast<std::size_t>(ask.head_dim_v) + static_cast<std::size_t>(d)]);
      }
    }
  }
};

/// A context, or a test failure.
inline Context make_context(CpuIsa isa, int threads = 1) {
  ContextOptions options;
  options.cpu_isa = isa;
  options.threads = threads;
  auto context = Context::create(options);
  EXPECT_TRUE(context.ok()) << context.status().message();
  return std::move(context).value();
}

/// The instruction sets of this machine that have kernels of their own.
inline std::vector<CpuIsa> testable_isas() {
  std::vector<CpuIsa> found;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kNeon, CpuIsa::kAvx2, CpuIsa::kAvx512,
                     CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (supported(isa)) found.push_back(isa);
  }
  return found;
}

}  // namespace flashlab::testing
