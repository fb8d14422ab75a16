// Everything about a call that can be judged without an implementation, in one place and before
// anything is allocated, launched or written.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/overlap.h"
#include "api/problem.h"

namespace flashlab::internal {
namespace {

using Shape = std::array<std::int64_t, TensorSpec::kMaxRank>;

std::string shape_text(const std::int64_t* shape, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return text + "]";
}

// Collects the first error; later checks are skipped once there is one.
class Checker {
 public:
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  void fail(std::string argument, std::string got, std::string expected, std::string remedy) {
    if (ok()) {
      status_ = Status::invalid(
          {std::move(argument), std::move(got), std::move(expected), std::move(remedy)});
    }
  }

  // Rank, extents, strides and sizes that fit 64 bits. Normalises strides that are never used.
  void structure(std::string_view name, TensorSpec& spec, int rank, const char* dims) {
    if (!ok()) return;
    if (spec.rank != rank) {
      return fail(fmt::format("{}.rank", name), fmt::format("{}", spec.rank),
                  fmt::format("{}: {}", rank, dims), "pass a view with these dimensions");
    }
    std::int64_t elements = 1;
    std::int64_t last_byte = static_cast<std::int64_t>(size_of(spec.dtype));
    for (int i = 0; i < rank; ++i) {
      const std::string where = fmt::format("{}.shape[{}]", name, i);
      if (spec.shape[i] < 0) {
        return fail(where, fmt::format("{}", spec.shape[i]), "an extent >= 0", "");
      }
      if (__builtin_mul_overflow(elements, std::max<std::int64_t>(spec.shape[i], 1), &elements) ||
          elements > INT64_MAX / 16) {
        return fail(where, shape_text(spec.shape.data(), rank), "a tensor whose bytes fit 63 bits",
                    "use smaller extents");
      }
      if (spec.shape[i] <= 1) {
        spec.strides[i] = 0;
        continue;
      }
      const std::string stride = fmt::format("{}.strides[{}]", name, i);
      if (spec.strides[i] < 0) {
        return fail(stride, fmt::format("{}", spec.strides[i]), "a stride >= 0 in elements",
                    "copy the tensor or flip it on the caller's side");
      }
      if (i == rank - 1 && spec.strides[i] != 1) {
        return fail(stride, fmt::format("{}", spec.strides[i]),
                    "1: the innermost dimension is dense",
                    "make the innermost dimension contiguous");
      }
      std::int64_t reach = 0;
      if (__builtin_mul_overflow(spec.strides[i], spec.shape[i] - 1, &reach) ||
          __builtin_mul_overflow(reach, static_cast<std::int64_t>(size_of(spec.dtype)), &reach) ||
          __builtin_add_overflow(last_byte, reach, &last_byte)) {
        return fail(stride, fmt::format("{}", spec.strides[i]), "offsets that fit 63 bits in bytes",
                    "check the stride's unit: elements");
      }
    }
    if (spec.elements() == 0) spec.strides = {};
  }

  void shape(std::string_view name, const TensorSpec& spec, const Shape& expected, int rank,
             const char* dims) {
    for (int i = 0; ok() && i < rank; ++i) {
      if (spec.shape[i] != expected[i]) {
        fail(fmt::format("{}.shape[{}]", name, i), fmt::format("{}", spec.shape[i]),
             fmt::format("{}: {} must be {} = {}", expected[i], name, dims,
                         shape_text(expected.data(), rank)),
             "check the order of the dimensions");
      }
    }
  }

  void dtype(std::string_view name, const TensorSpec& spec, std::initializer_list<DType> allowed,
             const char* remedy) {
    if (!ok() || std::find(allowed.begin(), allowed.end(), spec.dtype) != allowed.end()) return;
    std::string expected;
    std::vector<DType> seen;
    for (DType type : allowed) {
      if (std::find(seen.begin(), seen.end(), type) != seen.end()) continue;
      seen.push_back(type);
      expected += std::string(expected.empty() ? "" : " or ") + to_string(type);
    }
    fail(fmt::format("{}.dtype", name), to_string(spec.dtype), expected, remedy);
  }

  void device(std::string_view name, const TensorSpec& spec, Device expected) {
    if (!ok() || spec.device == expected) return;
    fail(fmt::format("{}.device", name), to_string(spec.device),
         fmt::format("{}, where q is", to_string(expected)), "move the tensors to one device");
  }

  void output(std::string_view name, const TensorSpec& spec) {
    if (!ok() || !overlaps_itself(spec)) return;
    fail(fmt::format("{}.strides", name), to_string(spec),
         "an output whose elements are all distinct", "pass a view without broadcast strides");
  }

 private:
  Status status_;
};

constexpr const char* kQShape = "[batch, seqlen_q, heads_q, head_dim]";
constexpr const char* kKShape = "[batch, seqlen_k, heads_k, head_dim]";
constexpr const char* kVShape = "[batch, seqlen_k, heads_k, head_dim_v]";
constexpr const char* kOShape = "[batch, seqlen_q, heads_q, head_dim_v]";
constexpr const char* kLseShape = "[batch, heads_q, seqlen_q]";
constexpr const char* kMaskShape = "[batch or 1, heads_q or 1, seqlen_q or 1, seqlen_k or 1]";

std::string divisors_remedy(std::int64_t heads_q) {
  std::string text = "use ";
  int listed = 0;
  for (std::int64_t d = 1; d <= heads_q && listed < 12; ++d) {
    if (heads_q % d == 0) text += fmt::format("{}{}", listed++ ? ", " : "", d);
  }
  return text + " key heads";
}

void check_sizes(Checker& check, const TensorSpec& q, const TensorSpec& k, const TensorSpec& v) {
  if (!check.ok()) return;
  const std::int64_t heads_q = q.shape[2], heads_k = k.shape[2];
  if (q.shape[3] < 1) {
    return check.fail("q.shape[3]", fmt::format("{}", q.shape[3]), "a head dimension >= 1",
                      "attention without features has no scores");
  }
  if (v.shape[3] < 1) {
    return check.fail("v.shape[3]", fmt::format("{}", v.shape[3]), "a head dimension >= 1", "");
  }
  if (heads_q > 0 && (heads_k == 0 || heads_q % heads_k != 0)) {
    return check.fail("k.shape[2]", fmt::format("{} key heads", heads_k),
                      fmt::format("a divisor of the {} query heads", heads_q),
                      divisors_remedy(heads_q));
  }
  check.shape("k", k, {q.shape[0], k.shape[1], heads_k, q.shape[3]}, 4, kKShape);
  check.shape("v", v, {q.shape[0], k.shape[1], heads_k, v.shape[3]}, 4, kVShape);
}

void check_mask(Checker& check, TensorSpec& mask, const Shape& full, DType dtype) {
  check.structure("mask", mask, 4, kMaskShape);
  for (int i = 0; check.ok() && i < 4; ++i) {
    if (mask.shape[i] != 1 && mask.shape[i] != full[i]) {
      check.fail(fmt::format("mask.shape[{}]", i), fmt::format("{}", mask.shape[i]),
                 fmt::format("1 or {}: mask must be {}", full[i], kMaskShape),
                 "broadcast by an extent of 1 or a stride of 0");
    }
  }
  check.dtype("mask", mask, {DType::kBool, DType::kFp32, dtype},
              "bool: true is visible; floating: added to the scaled score");
}

Result<Causal> resolve_causal(Causal causal, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  if (causal != Causal::kCausal) return causal;
  if (seqlen_q == seqlen_k) return Causal::kTopLeft;
  return Status::invalid(
      {"options.causal", fmt::format("causal with seqlen_q {} and seqlen_k {}", seqlen_q, seqlen_k),
       "an alignment, because the lengths differ",
       "use Causal::kTopLeft (query i sees keys 0..i) or Causal::kBottomRight (the last query sees "
       "every key)"});
}

void check_options(Checker& check, const Options& options) {
  if (!check.ok()) return;
  if (options.scale && !std::isfinite(*options.scale)) {
    return check.fail("options.scale", fmt::format("{}", *options.scale), "a finite number",
                      "leave it empty for 1/sqrt(head_dim)");
  }
  const TileOptions& t = options.tiles;
  if (t.tile_q < 0) {
    return check.fail("options.tiles.tile_q", fmt::format("{}", t.tile_q),
                      "a tile of >= 1 queries, or 0 for the default", "");
  }
  if (t.tile_k < 0) {
    check.fail("options.tiles.tile_k", fmt::format("{}", t.tile_k),
               "a tile of >= 1 keys, or 0 for the default", "");
  }
}

// The tensors that only backward has.
void check_backward(Checker& check, Problem& p, const Shape& lse_shape) {
  const DType dtype = p.q.dtype;
  auto required = [&](const char* name, const std::optional<TensorSpec>& spec) {
    if (!spec) check.fail(name, "nothing", "a tensor", "backward needs it");
    return check.ok();
  };
  if (!required("lse", p.lse) || !required("d_o", p.d_o) || !required("dq", p.dq) ||
      !required("dk", p.dk) || !required("dv", p.dv)) {
    return;
  }
  auto like = [&](const char* name, TensorSpec& spec, const TensorSpec& model, const char* dims) {
    check.structure(name, spec, 4, dims);
    check.shape(name, spec, model.shape, 4, dims);
    check.dtype(name, spec, {dtype, DType::kFp32}, "gradients have the inputs' dtype or fp32");
    check.device(name, spec, p.q.device);
  };
  like("d_o", *p.d_o, p.o, kOShape);
  like("dq", *p.dq, p.q, kQShape);
  like("dk", *p.dk, p.k, kKShape);
  like("dv", *p.dv, p.v, kVShape);
  check.output("dq", *p.dq);
  check.output("dk", *p.dk);
  check.output("dv", *p.dv);
  if (p.d_lse) {
    check.structure("d_lse", *p.d_lse, 3, kLseShape);
    check.shape("d_lse", *p.d_lse, lse_shape, 3, kLseShape);
    check.dtype("d_lse", *p.d_lse, {p.lse->dtype}, "d_lse has the dtype of lse");
    check.device("d_lse", *p.d_lse, p.q.device);
  }
}

void normalise_alignment(Problem& p) {
  // A CPU reads any address an element may have: a coarser class would only make plans differ. On
  // a GPU a layout may promise less than its base: rows of odd length are aligned to an element.
  auto fix = [](TensorSpec& spec) {
    spec.alignment_bytes = spec.device.kind == DeviceKind::kCpu
                               ? static_cast<int>(size_of(spec.dtype))
                               : std::min(spec.alignment_bytes, alignment_of(nullptr, spec));
  };
  for (TensorSpec* spec : {&p.q, &p.k, &p.v, &p.o}) fix(*spec);
  for (auto* spec : {&p.lse, &p.mask, &p.d_o, &p.d_lse, &p.dq, &p.dk, &p.dv}) {
    if (*spec) fix(**spec);
  }
}

}  // namespace

double Geometry::visible_pairs() const noexcept {
  if (!bounds.bounded()) return static_cast<double>(seqlen_q) * static_cast<double>(seqlen_k);
  double pairs = 0;
  for (std::int64_t i = 0; i < seqlen_q; ++i) {
    pairs += static_cast<double>(
        std::max<std::int64_t>(0, bounds.end_key(i, seqlen_k) - bounds.first_key(i, seqlen_k)));
  }
  return pairs;
}

Result<Geometry> validate(const Problem& problem, Problem* normalised) {
  Problem p = problem;
  Checker check;
  check.structure("q", p.q, 4, kQShape);
  check.structure("k", p.k, 4, kKShape);
  check.structure("v", p.v, 4, kVShape);
  check.structure("o", p.o, 4, kOShape);
  check_sizes(check, p.q, p.k, p.v);
  const Shape lse_shape{p.q.shape[0], p.q.shape[2], p.q.shape[1], 0};
  check.shape("o", p.o, {p.q.shape[0], p.q.shape[1], p.q.shape[2], p.v.shape[3]}, 4, kOShape);

  check.dtype("q", p.q,
              {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2},
              "convert the inputs");
  check.dtype("k", p.k, {p.q.dtype}, "q, k and v have one dtype");
  check.dtype("v", p.v, {p.q.dtype}, "q, k and v have one dtype");
  check.dtype("o", p.o, {p.q.dtype, DType::kFp32}, "o has the inputs' dtype or fp32");
  check.device("k", p.k, p.q.device);
  check.device("v", p.v, p.q.device);
  check.device("o", p.o, p.q.device);
  if (p.pass == Pass::kForward) check.output("o", p.o);
  if (p.lse) {
    check.structure("lse", *p.lse, 3, kLseShape);
    check.shape("lse", *p.lse, lse_shape, 3, kLseShape);
    const DType wide = p.q.dtype == DType::kFp64 ? DType::kFp64 : DType::kFp32;
    check.dtype("lse", *p.lse, {DType::kFp32, wide}, "lse is fp32 (fp64 allowed for fp64 inputs)");
    check.device("lse", *p.lse, p.q.device);
    if (p.pass == Pass::kForward) check.output("lse", *p.lse);
  }
  if (p.mask) {
    check_mask(check, *p.mask, {p.q.shape[0], p.q.shape[2], p.q.shape[1], p.k.shape[1]}, p.q.dtype);
    check.device("mask", *p.mask, p.q.device);
  }
  if (p.pass == Pass::kBackward && check.ok()) check_backward(check, p, lse_shape);
  check_options(check, p.options);
  if (!check.ok()) return check.status();

  Geometry g;
  g.batch = p.q.shape[0];
  g.seqlen_q = p.q.shape[1];
  g.heads_q = p.q.shape[2];
  g.head_dim = p.q.shape[3];
  g.seqlen_k = p.k.shape[1];
  g.heads_k = p.k.shape[2];
  g.head_dim_v = p.v.shape[3];
  g.dtype = p.q.dtype;
  g.scale = p.options.scale ? *p.options.scale
                            : static_cast<float>(1.0 / std::sqrt(static_cast<double>(g.head_dim)));
  auto causal = resolve_causal(p.options.causal, g.seqlen_q, g.seqlen_k);
  if (!causal.ok()) return causal.status();
  p.options.causal = *causal;
  if (*causal != Causal::kNone) g.bounds.right = 0;
  if (*causal == Causal::kBottomRight) g.bounds.query_offset = g.seqlen_k - g.seqlen_q;

  normalise_alignment(p);
  if (normalised != nullptr) *normalised = std::move(p);
  return g;
}

}  // namespace flashlab::internal
