#include "lab/data/case_data_fill.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "reference/view.h"

#ifdef __clang__
// A fused multiply-add where another machine has none would change the last bit of a value. g++
// with -std=c++20 never fuses.
#pragma STDC FP_CONTRACT OFF
#endif

namespace flashlab::lab {
namespace {

using cases::Case;
using cases::Fill;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::uint64_t hash(std::uint64_t stream, std::uint64_t index) noexcept {
  return mix(stream ^ mix(index));
}

// In (0, 1): never 0, so that its logarithm is finite.
double uniform(std::uint64_t bits) noexcept {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

// Natural logarithm by its own series: libm's last bit differs between machines. With x = 2^e m and
// t = (m - 1)/(m + 1), |t| <= 0.172: log m = 2 (t + t^3/3 + ... + t^15/15), error below 1e-14.
double portable_log(double x) noexcept {
  auto bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1) / (m + 1), t2 = t * t;
  double sum = 0;
  for (int n = 15; n >= 1; n -= 2) sum = sum * t2 + 1.0 / n;
  return exponent * 0.6931471805599453 + 2 * t * sum;
}

// cos(2 pi u) and sin(2 pi u), u in [0, 1): quadrant and Taylor series on [-pi/4, pi/4].
void portable_sincos(double u, double* sine, double* cosine) noexcept {
  const int quadrant = static_cast<int>(4 * u + 0.5);
  const double x = (4 * u - quadrant) * 1.5707963267948966, x2 = x * x;
  double s = 0, c = 0;
  for (int n = 6; n >= 0; --n) {
    s = 1.0 - s * x2 / ((2.0 * n + 2) * (2.0 * n + 3));
    c = 1.0 - c * x2 / ((2.0 * n + 1) * (2.0 * n + 2));
  }
  s *= x;
  const double table_s[4] = {s, c, -s, -c}, table_c[4] = {c, -s, -c, s};
  *sine = table_s[quadrant & 3];
  *cosine = table_c[quadrant & 3];
}

struct NormalPair {
  double even, odd;
};

NormalPair normal_pair(std::uint64_t stream, std::uint64_t pair) noexcept {
  const std::uint64_t bits = hash(stream, pair);
  const double radius = std::sqrt(-2 * portable_log(uniform(bits)));
  double sine, cosine;
  portable_sincos(uniform(mix(bits)), &sine, &cosine);
  return {radius * cosine, radius * sine};
}

std::uint64_t stream_of(const Case& c, TensorRole role) {
  return mix(c.seed * 64 + static_cast<std::uint64_t>(role));
}

double smallest_normal(DType dtype) {
  switch (dtype) {
    case DType::kFp64:
      return 0x1p-1022;
    case DType::kFp16:
      return 0x1p-14;
    default:
      return 0x1p-126;
  }
}

// One row of a tensor [batch, seqlen, heads, width].
struct RowIndex {
  std::int64_t b, s, h;
  std::uint64_t linear;  // (b S + s) H + h
};

double special(std::uint64_t bits) {
  const double values[3] = {kNaN, kInfinity, -kInfinity};
  return values[bits % 3];
}

// NaN and infinities where a few rows, but not all, meet them: in one query of sixteen, and in one
// key of one key head in two (K of every other such head, V of the others).
void add_specials(const Case& c, TensorRole role, const RowIndex& row, std::int64_t seqlen,
                  double* out, std::int64_t width) {
  const std::uint64_t bits = hash(stream_of(c, role) + 1, row.linear);
  const auto column = static_cast<std::int64_t>((bits >> 16) % static_cast<std::uint64_t>(width));
  if (role == TensorRole::kQ && bits % 16 == 0) out[column] = special(bits >> 8);
  if (role == TensorRole::kDO && bits % 32 == 0) out[column] = special(bits >> 8);
  if (role != TensorRole::kK && role != TensorRole::kV) return;
  const std::uint64_t head = static_cast<std::uint64_t>(row.b * c.heads_k + row.h) + c.seed;
  const std::uint64_t kind = role == TensorRole::kK ? 1 : 3;
  const auto position =
      static_cast<std::int64_t>(hash(c.seed, head) % static_cast<std::uint64_t>(seqlen));
  if (head % 4 == kind && row.s == position) out[column] = special(hash(c.seed, head) >> 32);
}

// What the fill makes of a row of normal numbers.
void shape_row(const Case& c, TensorRole role, const RowIndex& row, std::int64_t seqlen,
               double* out, std::int64_t width) {
  const bool score = role == TensorRole::kQ || role == TensorRole::kK;
  switch (c.fill) {
    case Fill::kNormal:
      return;
    case Fill::kLargeScores:  // scores of standard deviation 100 at the default scale
      for (std::int64_t d = 0; score && d < width; ++d) out[d] *= 10;
      return;
    case Fill::kMixedScales: {
      if (!score) return;
      // fp16 ends at 65504: scores of 1e6 would leave the naive formula without a finite answer.
      const double low = c.dtype == DType::kFp16 ? -4 : -6, high = c.dtype == DType::kFp16 ? 2 : 3;
      const double u = uniform(hash(stream_of(c, role) + 2, row.linear));
      // Powers of two: exact, and independent of a library's pow.
      const double factor = std::ldexp(
          1.0, static_cast<int>(std::floor((low + (high - low) * u) * 3.3219280948873626)));
      for (std::int64_t d = 0; d < width; ++d) out[d] *= factor;
      return;
    }
    case Fill::kSubnormal:
      for (std::int64_t d = 0; d < width; ++d) {
        const std::uint64_t bits =
            hash(stream_of(c, role) + 3, row.linear * 4096 + static_cast<std::uint64_t>(d));
        if (bits % 4 == 0) out[d] *= smallest_normal(c.dtype) / 8;
      }
      return;
    case Fill::kSpecial:
      add_specials(c, role, row, seqlen, out, width);
      return;
    case Fill::kEqual:  // every key of a head is the same vector
      for (std::int64_t d = 0; role == TensorRole::kK && d < width; ++d) {
        const auto head = static_cast<std::uint64_t>(row.b * c.heads_k + row.h);
        out[d] = normal_at(stream_of(c, role) + 4, head * 4096 + static_cast<std::uint64_t>(d));
      }
      return;
    case Fill::kShifted:  // by -1024 at head dim 64, -724 at 128
      if (c.mask == cases::MaskKind::kAdditive) return;
      for (std::int64_t d = 0; score && d < std::min<std::int64_t>(width, 8); ++d) {
        out[d] = role == TensorRole::kQ ? -32 : 32;
      }
      return;
    case Fill::kEmptyRows:
      return;
    case Fill::kGrowing:  // the first column brings 2^-3, 2^-2, ... to 2^8 in turn, at head dim 64
      if (role == TensorRole::kQ) out[0] = 8;
      if (role == TensorRole::kK) {
        out[0] = row.s == 0 ? -8192 : std::ldexp(1.0, static_cast<int>(row.s / 64 % 12) - 3);
      }
      return;
  }
}

void write_row(void* data, DType dtype, std::int64_t offset, const double* values,
               std::int64_t count) {
  if (dtype == DType::kFp64) {
    std::memcpy(static_cast<double*>(data) + offset, values,
                static_cast<std::size_t>(count) * sizeof(double));
    return;
  }
  for (std::int64_t d = 0; d < count; ++d) {
    const auto value = static_cast<float>(values[d]);
    if (dtype == DType::kFp32) static_cast<float*>(data)[offset + d] = value;
    if (dtype == DType::kFp16) {
      static_cast<std::uint16_t*>(data)[offset + d] = fp16_from_float(value);
    }
    if (dtype == DType::kBf16) {
      static_cast<std::uint16_t*>(data)[offset + d] = bf16_from_float(value);
    }
  }
}

// Runs body(begin, end) over [0, count), by several threads where that is worth their start.
void parallel_ranges(std::int64_t count, std::int64_t work_per_item,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  constexpr std::int64_t kWorthAThread = 1 << 20;
  const std::int64_t hardware = std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t wanted = std::min<std::int64_t>(
      hardware,
      saturating_multiply(count, std::max<std::int64_t>(work_per_item, 1)) / kWorthAThread);
  std::vector<std::thread> threads;
  std::int64_t done = 0;
  for (std::int64_t n = 1; n < wanted; ++n) {
    const std::int64_t end = count / wanted * n;
    try {
      threads.emplace_back(body, done, end);
    } catch (const std::system_error&) {
      break;  // no thread to be had: the rest is done here
    }
    done = end;
  }
  body(done, count);
  for (std::thread& thread : threads) thread.join();
}

void fill_rows(const Case& c, TensorRole role, const Tensor& tensor) {
  const TensorSpec& spec = tensor.spec;
  const std::int64_t seqlen = spec.shape[1], heads = spec.shape[2], width = spec.shape[3];
  const std::uint64_t stream = stream_of(c, role);
  // Gradients' initial values are plain normal: they are what is added to, not what is attended.
  const bool input = role == TensorRole::kQ || role == TensorRole::kK || role == TensorRole::kV ||
                     role == TensorRole::kDO;
  const std::int64_t rows = spec.elements() / std::max<std::int64_t>(width, 1);
  parallel_ranges(rows, width, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> values(static_cast<std::size_t>(width) + 1);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t h = row % heads, s = row / heads % seqlen, b = row / heads / seqlen;
      // Each row starts a pair of its own, so that a row does not depend on the width's parity.
      for (std::int64_t d = 0; d < width; d += 2) {
        const NormalPair pair = normal_pair(
            stream, static_cast<std::uint64_t>(row) * 4096 + static_cast<std::uint64_t>(d / 2));
        values[static_cast<std::size_t>(d)] = pair.even;
        values[static_cast<std::size_t>(d) + 1] = pair.odd;
      }
      if (input) {
        shape_row(c, role, {b, s, h, static_cast<std::uint64_t>(row)}, seqlen, values.data(),
                  width);
      }
      std::int64_t offset = 0;
      if (spec.shape[0] > 1) offset += b * spec.strides[0];
      if (spec.shape[1] > 1) offset += s * spec.strides[1];
      if (spec.shape[2] > 1) offset += h * spec.strides[2];
      write_row(tensor.data, spec.dtype, offset, values.data(), width);
    }
  });
}

// What hides a key in an additive mask: -inf, the lowest finite number, and half of it.
double hiding_value(DType dtype, std::uint64_t choice) {
  const double lowest = dtype == DType::kFp16   ? -65504.0
                        : dtype == DType::kBf16 ? -0x1.fep127
                        : dtype == DType::kFp64 ? std::numeric_limits<double>::lowest()
                                                : std::numeric_limits<float>::lowest();
  return choice % 3 == 0 ? -kInfinity : choice % 3 == 1 ? lowest : lowest / 2;
}

// Visible: three pairs of four, but no row of sixteen at all and no block of 64 keys of eight; in
// another of eight, all. A block is of 64 rows. Rows are hidden, and keys shifted, by the fill,
// too.
void fill_mask(const Case& c, const Tensor& tensor) {
  const TensorSpec& spec = tensor.spec;
  const std::uint64_t stream = stream_of(c, TensorRole::kMask);
  const std::int64_t heads = spec.strides[1] == 0 ? 1 : spec.shape[1];
  const std::int64_t tile = spec.shape[2] >= 255 ? 128 : 64;  // two tiles and more are there
  std::uint64_t row = 0;
  for (std::int64_t b = 0; b < spec.shape[0]; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < spec.shape[2]; ++i, ++row) {
        const bool row_hidden = c.fill == Fill::kEmptyRows
                                    ? i / tile == 1 || hash(stream + 1, row) % 4 == 0
                                    : hash(stream + 1, row) % 16 == 0;
        const std::int64_t base = b * spec.strides[0] + h * spec.strides[1] + i * spec.strides[2];
        for (std::int64_t j = 0; j < spec.shape[3]; ++j) {
          const std::uint64_t index = row * 0x100000000u + static_cast<std::uint64_t>(j);
          const std::uint64_t block =
              hash(stream + 2, (row / 64) * 4096 + static_cast<std::uint64_t>(j / 64)) % 8;
          const bool blocks = spec.shape[3] > 64, pair_hidden = hash(stream + 3, index) % 4 == 0;
          const bool hidden =
              row_hidden || (blocks && block == 0) || (!(blocks && block == 1) && pair_hidden);
          if (spec.dtype == DType::kBool) {
            static_cast<std::uint8_t*>(tensor.data)[base + j] = hidden ? 0 : 1;
            continue;
          }
          const double value = c.fill == Fill::kShifted ? -1000
                               : hidden ? hiding_value(spec.dtype, hash(stream + 4, index))
                                        : normal_at(stream, index);
          write_row(tensor.data, spec.dtype, base + j, &value, 1);
        }
      }
    }
  }
}

// Calls use(offset, count) for every run of consecutive elements, in logical order: a row where its
// elements lie side by side, else each element alone.
void for_each_run(const TensorSpec& spec, auto&& use) {
  if (spec.elements() == 0) return;
  const auto inner = static_cast<std::size_t>(spec.rank - 1);
  const std::int64_t width = spec.shape[inner];
  const std::int64_t step = width > 1 ? spec.strides[inner] : 1;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1}, strides{};
  for (std::size_t n = 0; n < inner; ++n) {
    shape[n] = spec.shape[n];
    strides[n] = spec.shape[n] > 1 ? spec.strides[n] : 0;
  }
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        const std::int64_t row = a * strides[0] + b * strides[1] + c * strides[2];
        if (step == 1) {
          use(row, width);
        } else {
          for (std::int64_t d = 0; d < width; ++d) use(row + d * step, std::int64_t{1});
        }
      }
    }
  }
}

// Scalars of rows, of heads: one after the other in logical order.
// The slopes of the paper, 2^(-8 (h + 1) / heads), and other ones for every batch entry.
void fill_slopes(const Case& c, const Tensor& tensor) {
  const TensorSpec& spec = tensor.spec;
  for (std::int64_t b = 0; b < spec.shape[0]; ++b) {
    for (std::int64_t h = 0; h < spec.shape[1]; ++h) {
      const double of_head =
          std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(c.heads_q));
      const double value = of_head / static_cast<double>(b + 1);
      write_row(tensor.data, spec.dtype, b * spec.strides[0] + h, &value, 1);
    }
  }
}

// Near the rows' LSE, but of the heads from the third on one in four hides all keys, one nothing.
void fill_sinks(const Case& c, const Tensor& tensor) {
  const double shift = c.fill != Fill::kShifted ? 0
                       : c.mask == cases::MaskKind::kAdditive
                           ? -1000
                           : -8192 / std::sqrt(static_cast<double>(c.head_dim));
  const double spread = c.fill == Fill::kLargeScores ? 100 : 2;
  for (std::int64_t h = 0; h < tensor.spec.shape[0]; ++h) {
    const double near = normal_at(stream_of(c, TensorRole::kSinks), static_cast<std::uint64_t>(h));
    double value = shift + 3 + spread * near;
    if (h % 4 == 2) value = h % 8 == 2 ? -kInfinity : -1e9;
    if (h % 4 == 3) value = 1e9;
    write_row(tensor.data, tensor.spec.dtype, h, &value, 1);
  }
}

// Pages that no key lies in are none: whoever reads them sees it.
void fill_block_table(const Case& c, const Tensor& tensor) {
  constexpr std::int32_t kHostile[] = {-1, INT32_MAX, INT32_MIN};
  auto* pages = static_cast<std::int32_t*>(tensor.data);
  for (std::size_t b = 0; b < c.sequences.size(); ++b) {
    for (std::int64_t n = 0; n < tensor.spec.shape[1]; ++n) {
      const auto page = c.cache_page(b, n);
      *pages++ = page ? static_cast<std::int32_t>(*page) : kHostile[(b + 5) % 3];
    }
  }
}

// Offsets, or lengths.
void fill_lengths(const Case& c, TensorRole role, const Tensor& tensor) {
  const bool of_queries = role == TensorRole::kCuSeqlensQ || role == TensorRole::kSeqUsedQ;
  const bool offsets = role == TensorRole::kCuSeqlensQ || role == TensorRole::kCuSeqlensK;
  std::int64_t n = 0, end = 0;
  const auto write = [&](std::int64_t value) {
    if (tensor.spec.dtype == DType::kInt64) static_cast<std::int64_t*>(tensor.data)[n] = value;
    if (tensor.spec.dtype == DType::kInt32) {
      static_cast<std::int32_t*>(tensor.data)[n] = static_cast<std::int32_t>(value);
    }
    ++n;
  };
  if (offsets) write(0);
  for (std::size_t b = 0; role == TensorRole::kCacheBatchIdx && b < c.sequences.size(); ++b) {
    write(c.cache_entry(b));
  }
  if (role == TensorRole::kCacheBatchIdx) return;
  for (const cases::SequenceLengths& s : c.sequences) {
    if (role == TensorRole::kLeftPadK) {
      write(s.leftpad);
      continue;
    }
    const std::int64_t used = of_queries ? s.q : s.leftpad + s.k;
    end += used + (of_queries ? s.unused_q : s.unused_k);
    write(offsets ? end : used);
  }
}

// Rows of a cache that no sequence has.
void fill_cache_gaps(const Case& c, const Tensor& tensor) {
  const std::int64_t rows = tensor.spec.shape[1];
  std::vector<bool> used(static_cast<std::size_t>(tensor.spec.shape[0] * rows));
  for (std::size_t b = 0; b < c.sequences.size(); ++b) {
    for (std::int64_t key = 0; key < c.sequences[b].k; ++key) {
      used[static_cast<std::size_t>(c.cache_row(b, key))] = true;
    }
  }
  for (std::size_t n = 0; n < used.size(); ++n) {
    if (used[n]) continue;
    const auto row = static_cast<std::int64_t>(n);
    Tensor unused = tensor;
    unused.spec.shape[0] = unused.spec.shape[1] = 1;
    unused.data = static_cast<char*>(tensor.data) +
                  (row / rows * tensor.spec.strides[0] + row % rows * tensor.spec.strides[1]) *
                      static_cast<std::int64_t>(size_of(tensor.spec.dtype));
    fill_nan(unused);
  }
}

// NaN in the rows of an input that no sequence has.
void fill_unused(const Case& c, TensorRole role, const Tensor& tensor) {
  const bool of_queries = role == TensorRole::kQ || role == TensorRole::kDO;
  if (c.cache && !of_queries) return fill_cache_gaps(c, tensor);
  std::int64_t row = 0;
  for (const cases::SequenceLengths& s : c.sequences) {
    row += of_queries ? s.q : s.k;
    Tensor unused = tensor;  // [1, rows, heads, dim]
    unused.spec.shape[1] = of_queries ? s.unused_q : s.unused_k;
    unused.data =
        static_cast<char*>(tensor.data) +
        row * tensor.spec.strides[1] * static_cast<std::int64_t>(size_of(tensor.spec.dtype));
    fill_nan(unused);
    row += unused.spec.shape[1];
  }
}

void fill_dropout_state(const Case& c, const Tensor& tensor) {
  const DropoutSeed seed = c.dropout_seed();
  const std::uint64_t words[2] = {seed.seed, seed.offset};
  std::memcpy(tensor.data, words, sizeof(words));
}

void fill_scalars(const Case& c, TensorRole role, const Tensor& tensor) {
  std::uint64_t linear = 0;
  for_each_run(tensor.spec, [&](std::int64_t offset, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n, ++linear) {
      const double value = normal_at(stream_of(c, role), linear);
      write_row(tensor.data, tensor.spec.dtype, offset + n, &value, 1);
    }
  });
}

}  // namespace

double normal_at(std::uint64_t stream, std::uint64_t index) noexcept {
  const NormalPair pair = normal_pair(stream, index / 2);
  return index % 2 == 0 ? pair.even : pair.odd;
}

void fill_tensor(const Case& problem, TensorRole role, const Tensor& tensor) {
  if (tensor.spec.elements() == 0) return;
  if (role == TensorRole::kMask) return fill_mask(problem, tensor);
  if (role == TensorRole::kAlibiSlopes) return fill_slopes(problem, tensor);
  if (role == TensorRole::kSinks) return fill_sinks(problem, tensor);
  if (role == TensorRole::kDropoutState) return fill_dropout_state(problem, tensor);
  if (role == TensorRole::kBlockTable) return fill_block_table(problem, tensor);
  if (row_of(role).dtype == DTypeRule::kIndex) return fill_lengths(problem, role, tensor);
  if (tensor.spec.rank == 4) {
    fill_rows(problem, role, tensor);
    const bool input = role == TensorRole::kQ || role == TensorRole::kK || role == TensorRole::kV ||
                       role == TensorRole::kDO;
    return input ? fill_unused(problem, role, tensor) : void();
  }
  fill_scalars(problem, role, tensor);
}

void fill_nan(const Tensor& tensor) {
  const std::size_t size = size_of(tensor.spec.dtype);
  for_each_run(tensor.spec, [&](std::int64_t offset, std::int64_t count) {
    std::memset(static_cast<char*>(tensor.data) + offset * static_cast<std::int64_t>(size), 0xFF,
                static_cast<std::size_t>(count) * size);
  });
}

void append_elements(const ConstTensor& tensor, std::vector<std::uint8_t>& out) {
  const auto size = static_cast<std::int64_t>(size_of(tensor.spec.dtype));
  const auto* base = static_cast<const std::uint8_t*>(tensor.data);
  for_each_run(tensor.spec, [&](std::int64_t offset, std::int64_t count) {
    out.insert(out.end(), base + offset * size, base + (offset + count) * size);
  });
}

void copy_tensor(const ConstTensor& from, const Tensor& to) {
  std::vector<std::int64_t> sources;  // of each element, in logical order
  sources.reserve(static_cast<std::size_t>(from.spec.elements()));
  for_each_run(from.spec, [&](std::int64_t offset, std::int64_t count) {
    for (std::int64_t d = 0; d < count; ++d) sources.push_back(offset + d);
  });
  auto source = sources.begin();
  for_each_run(to.spec, [&](std::int64_t offset, std::int64_t count) {
    for (std::int64_t d = 0; d < count; ++d) {
      reference::store(to.data, to.spec.dtype, offset + d,
                       reference::load(from.data, from.spec.dtype, *source++));
    }
  });
}

}  // namespace flashlab::lab
